"""Bytes of the API server to objects and errors. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from serried.api.meta import Object, Wire
from serried.api.resources import Resource
from serried.cluster.protocol import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    Unavailable,
    WatchEvent,
    partial,
)

T = TypeVar("T", bound=Object)

#: What msgspec raises on bytes that are not what they should be. Nesting beyond its limit is a RecursionError.
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_Told = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_EVENT_TYPES: tuple[str, ...] = get_args(_Told)


class ListMeta(Wire):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """One page of a list, every item decoded."""

    metadata: ListMeta
    items: list[T] | None = None


class _RawPage(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, Generic[T]):
    type: str
    object: T


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Status(Wire):
    """meta/v1 Status: what a refusal looks like."""

    code: int = 0
    reason: str = ""
    message: str = ""


_raw_page = msgspec.json.Decoder(_RawPage)
_raw_event = msgspec.json.Decoder(_RawEvent)
_status = msgspec.json.Decoder(Status)


class Codec(Generic[T]):
    """The decoders of one resource. They decode whole pages and events at once, and object by object only if they must.

    An object that does not decode as its kind becomes `Malformed`.
    """

    def __init__(self, resource: Resource[T]) -> None:
        page, event = cast(Any, Page), cast(Any, _Event)
        self._object = msgspec.json.Decoder(resource.type)
        self._page: msgspec.json.Decoder[Page[T]] = msgspec.json.Decoder(page[resource.type])
        self._event: msgspec.json.Decoder[_Event[T]] = msgspec.json.Decoder(event[resource.type])

    def object(self, content: bytes) -> T:
        """Raises one of `UNDECODABLE`."""
        return self._object.decode(content)

    def page(self, content: bytes) -> tuple[ListMeta, list[T], list[Malformed]]:
        """Raises one of `UNDECODABLE` when it is no list at all."""
        try:
            page = self._page.decode(content)
        except UNDECODABLE:
            raw = _raw_page.decode(content)
        else:
            return page.metadata, page.items or [], []
        items: list[T] = []
        malformed: list[Malformed] = []
        for item in raw.items or ():
            found = self._either(item)
            if isinstance(found, Malformed):
                malformed.append(found)
            else:
                items.append(found)
        return raw.metadata, items, malformed

    def event(self, line: bytes) -> WatchEvent[T]:
        """One line of a watch. Raises the `ApiError` it carries, or one of `UNDECODABLE` when it is no event at all."""
        try:
            event = self._event.decode(line)
        except UNDECODABLE:
            pass
        else:
            if event.type in _EVENT_TYPES:
                return WatchEvent(cast("_Told", event.type), event.object)
        raw = _raw_event.decode(line)
        if raw.type in _EVENT_TYPES:
            return WatchEvent(cast("_Told", raw.type), self._either(raw.object))
        raise failure(0, bytes(raw.object), "watch")

    def _either(self, raw: msgspec.Raw) -> T | Malformed:
        try:
            return self._object.decode(raw)
        except UNDECODABLE as error:
            return partial(bytes(raw), error)


class Lines:
    """Cuts a stream of chunks into lines, at a cost linear in its length however the chunks fall."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes. Empty lines are left out."""
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        if not others:
            return
        *middle, last = others
        whole = b"".join(self._rest)
        self._rest = [last] if last else []
        if whole:
            yield whole
        yield from filter(None, middle)


def read_status(content: bytes) -> Status:
    """The Status in a body, or one that quotes the beginning of whatever else it is."""
    try:
        return _status.decode(content)
    except UNDECODABLE:
        return Status(message=content[:200].decode(errors="replace"))


def failure(code: int, content: bytes, what: str) -> ApiError:
    """The error for an answer with this HTTP code, or with the code in its Status if that is 0. `what` was asked."""
    status = read_status(content)
    code = code or status.code
    message = f"{what}: {status.message or 'no message'}"
    return _kind(code, status.reason)(code, status.reason or f"HTTP{code}", message)


def _kind(code: int, reason: str) -> type[ApiError]:
    match code:
        case 404:
            return NotFound
        case 409:
            return AlreadyExists if reason == "AlreadyExists" else Conflict
        case 410:
            return Expired
        case 401 | 403:
            return Forbidden
        case 408 | 429:
            return Unavailable
        case _ if 400 <= code < 500:
            return Invalid
        case _ if code >= 500:
            return Unavailable
        case _:
            return ApiError
