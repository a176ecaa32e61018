"""`Cluster` over HTTP: one pooled session, bounded concurrency, retries, watches.

What is retried, and when. A request is *repeatable* if doing it twice is as good as once: reads, merge patches,
deletions, bindings, evictions, and creations under a fixed name. Not repeatable are creations under a generated
name (there would be two objects) and JSON patches (there would be two entries in a list).

| what happened                               | repeatable | not repeatable       |
|---------------------------------------------|------------|----------------------|
| no connection came about                    | retry      | retry                |
| 429, or 5xx with Retry-After: not processed | retry      | retry                |
| connection lost, no answer in time, 5xx     | retry      | raise `Unavailable`  |

In the last row nobody knows whether the server did it. The answer to a retry is then read in that light: a deletion
or eviction that finds nothing, and a binding that finds the pod bound to the very node, have succeeded. A creation
that finds its name taken raises `AlreadyExists`, since the object may as well be somebody else's; and a merge patch
with a precondition raises `Conflict`. Both mean to the caller what they always do: read it and look.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

import serried
from serried.api.meta import Object
from serried.api.resources import PODS, Resource
from serried.cluster.codec import UNDECODABLE, Codec, Lines, disruption_forbidden, failure, read_status
from serried.cluster.credentials import LEAST_SECONDS, Access, AccessSource, ConfigError, InCluster, Kubeconfig
from serried.cluster.protocol import (
    ApiError,
    Expired,
    Forbidden,
    Invalid,
    JsonPatch,
    Listing,
    MergePatch,
    Propagation,
    Unavailable,
    WatchEvent,
)

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

#: Names us in the managed fields of what we write.
FIELD_MANAGER = "serried"
PAGE = 500
#: Seconds a pooled connection may idle. The API server closes its end after 90.
KEEP_ALIVE = 75.0
#: The server gives up on a request after 60 seconds.
ANSWER_TIMEOUT = 65.0
#: Seconds that connections may take to end.
CLOSE_TIMEOUT = 2.0
CONNECT_TIMEOUT = 10.0
#: Seconds the server is asked to keep a watch open: some minutes, so that watches opened together end apart.
WATCH_SECONDS = (240, 480)
#: Bytes of a watch to read ahead of its reader. The server ends a watch whose reader falls behind.
WATCH_BUFFER = 4 << 20

FIRST_DELAY = 0.1
LONGEST_DELAY = 30.0

_JSON = "application/json"
#: Not reached at all: nothing was sent.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_LOST = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The last answer to a request, of whatever status."""

    what: str
    status: int
    content: bytes
    #: Whether an earlier attempt may have been carried out.
    doubtful: bool

    def ok(self) -> bytes:
        """The body of a good answer. Raises the `ApiError` of any other."""
        if self.status < 300:
            return self.content
        raise failure(self.status, self.content, self.what)


class HttpCluster:
    """The `Cluster` of a real API server. Use one per process: its pool of connections is what makes it fast.

    `concurrency` requests are in flight at a time, others wait their turn; up to `watches` watches come on top.
    A failed request is tried `retries` more times.
    """

    def __init__(
        self, source: AccessSource, access: Access, *, concurrency: int = 32, watches: int = 64, retries: int = 5
    ) -> None:
        self._source = source
        self._access = access
        self._refreshing = asyncio.Lock()
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._watch_slots = asyncio.Semaphore(watches)
        self._retries = retries
        self._codecs: dict[Resource[Any], Codec[Any]] = {}
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=concurrency + watches, keepalive_timeout=KEEP_ALIVE, socket_factory=self._open_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_TIMEOUT),
            # No compression: the server is near, and its time and ours are dearer than bytes.
            headers={"Accept": _JSON, "Accept-Encoding": "identity", "User-Agent": f"serried/{serried.__version__}"},
        )

    @classmethod
    async def connect(cls, source: AccessSource, **options: int) -> Self:
        """With the access that `source` gives; options as in the constructor. Raises `ConfigError`."""
        return cls(source, await source.load(), **options)

    @classmethod
    async def from_kubeconfig(cls, path: str | Path | None = None, context: str | None = None, **options: int) -> Self:
        """As the kubeconfig says; by default that of $KUBECONFIG or ~/.kube/config. Raises `ConfigError`.

        Nothing is sent yet: that the server is there shows with the first request.
        """
        return await cls.connect(Kubeconfig(path, context), **options)

    @classmethod
    async def in_cluster(cls, **options: int) -> Self:
        """As the service account of the pod we run in. Raises `ConfigError`."""
        return await cls.connect(InCluster(), **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all requests and watches. Nothing is open any more when it returns."""
        await self._session.close()
        # TLS says good-bye in turns of the loop; whoever is in a hurry to end the loop has to wait for it.
        deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT
        while any(s.fileno() != -1 for s in self._sockets) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    def _open_socket(self, address: tuple[Any, ...]) -> socket.socket:
        opened = _socket(address)
        self._sockets.add(opened)
        return opened

    async def warm(self, connections: int) -> None:
        """Opens connections ahead, so that a burst of requests does not begin with as many TLS handshakes.

        At most as many as there may be requests in flight. They stay open for `KEEP_ALIVE` seconds of idleness.
        """
        await asyncio.gather(*(self.version() for _ in range(min(connections, self._concurrency))))

    # --- The protocol

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        answer = await self._send("GET", _path(resource, namespace, name))
        return self._object(resource, answer)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[T]:
        selectors = _selectors(label_selector, field_selector)
        try:
            return await self._list(resource, namespace, {**selectors, "limit": str(PAGE)})
        except Expired:
            # It took so long that the server has forgotten the version of the first page. All at once never expires.
            log.info("listing %r again in one piece: its pages took too long", resource)
            return await self._list(resource, namespace, selectors)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """See `Cluster.watch`. A connection that breaks ends the stream too: what came before it is good."""
        seconds = random.randint(*WATCH_SECONDS)
        query = {
            **_selectors(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": resource_version,
        }
        what = f"watch {_path(resource, namespace)}"
        if self._watch_slots.locked():
            raise Unavailable(0, "TooManyWatches", f"{what}: all watches this client may have are open")
        codec = self._codec(resource)
        async with self._watch_slots:
            response = await self._open_watch(_path(resource, namespace), query, what, seconds)
            try:
                lines = Lines()
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk):
                        try:
                            event = codec.event(line)
                        except UNDECODABLE as error:
                            raise ApiError(200, "Malformed", f"{what}: not a watch event: {error}") from error
                        yield event
            except _LOST as error:
                log.debug("%s: ended by %r", what, error)
            finally:
                response.close()

    async def create(self, resource: Resource[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        plain = msgspec.json.decode(_encode(obj, f"create {resource!r}"), type=dict[str, Any])
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **plain}
        metadata = body.get("metadata") or {}
        answer = await self._send(
            "POST",
            _path(resource, namespace or metadata.get("namespace", "")),
            body=body,
            repeatable=bool(metadata.get("name")),
        )
        return self._object(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch | JsonPatch,
        subresource: Literal["", "status"] = "",
    ) -> T:
        merge = isinstance(patch, Mapping)
        answer = await self._send(
            "PATCH",
            _path(resource, namespace, name, subresource),
            body=patch,
            content_type="application/merge-patch+json" if merge else "application/json-patch+json",
            repeatable=merge,
        )
        return self._object(resource, answer)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        grace_period_seconds: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if uid or resource_version:
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._remove("DELETE", _path(resource, namespace, name), options)

    async def evict(self, namespace: str, pod: str, *, uid: str = "") -> None:
        """See `Cluster.evict`. `Unavailable` at once (429) when a PodDisruptionBudget forbids it."""
        eviction: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        if uid:
            eviction["deleteOptions"] = {"preconditions": {"uid": uid}}
        await self._remove("POST", _path(PODS, namespace, pod, "eviction"), eviction)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        metadata = {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {})
        answer = await self._send(
            "POST",
            _path(PODS, namespace, pod, "binding"),
            body={
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": metadata,
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
        )
        if answer.status == 409 and answer.doubtful:
            found = await self.get(PODS, pod, namespace)
            if found.spec.node_name == node and uid in ("", found.metadata.uid):
                return
        answer.ok()

    async def version(self) -> str:
        content = (await self._send("GET", "/version")).ok()
        try:
            return msgspec.json.decode(content, type=_Version).git_version
        except UNDECODABLE as error:
            raise ApiError(200, "Malformed", f"GET /version: {error}; is this a Kubernetes API server?") from error

    # --- Requests

    async def _list(self, resource: Resource[T], namespace: str, query: dict[str, str]) -> Listing[T]:
        codec = self._codec(resource)
        listing: Listing[T] = Listing([], [], "")
        token = ""
        while True:
            answer = await self._send(
                "GET", _path(resource, namespace), query={**query, "continue": token} if token else query
            )
            content = answer.ok()
            try:
                meta, items, malformed = codec.page(content)
            except UNDECODABLE as error:
                raise ApiError(answer.status, "Malformed", f"{answer.what}: not a list: {error}") from error
            listing.items += items
            listing.malformed += malformed
            listing.resource_version = meta.resource_version
            token = meta.continue_
            if not token:
                return listing

    async def _remove(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        answer = await self._send(method, path, body=body)
        if answer.status == 404 and answer.doubtful:
            return
        answer.ok()

    async def _open_watch(self, path: str, query: Mapping[str, str], what: str, seconds: int) -> aiohttp.ClientResponse:
        """The open response. Not retried here but for new credentials: whoever watches starts again anyway."""
        timeout = aiohttp.ClientTimeout(total=seconds + 30, sock_connect=CONNECT_TIMEOUT)
        for last in (False, True):
            access = await self._current_access()
            try:
                response = await self._session.request(
                    "GET", _url(access, path, query), **_options(access), timeout=timeout, read_bufsize=WATCH_BUFFER
                )
                if response.status == 200:
                    return response
                async with response:
                    content = await response.read()
            except _LOST as error:
                raise _unreachable(what, error) from error
            if response.status != 401 or last:
                raise failure(response.status, content, what)
            await self._refresh(access)
        raise AssertionError("unreachable")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = _JSON,
        repeatable: bool = True,
    ) -> _Answer:
        """One request, retried as the module says. Raises `Unavailable` when that has led to no answer."""
        what = f"{method} {path}"
        data = None if body is None else _encode(body, what)
        if method in ("POST", "PATCH"):
            query = {**(query or {}), "fieldManager": FIELD_MANAGER}
        doubtful = refreshed = False
        attempt = 0
        while True:
            access = await self._current_access()
            wait = 0.0
            try:
                async with (
                    self._slots,
                    self._session.request(
                        method, _url(access, path, query), data=data, **_options(access, content_type)
                    ) as response,
                ):
                    content = await response.read()
            except _LOST as error:
                unavailable: ApiError = _unreachable(what, error)
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    raise unavailable from error
                processed = not isinstance(error, _NOT_SENT)
            else:
                status = response.status
                if status == 401 and not refreshed:
                    refreshed = True
                    await self._refresh(access)
                    continue
                if not _is_passing(status, content):
                    return _Answer(what, status, content, doubtful)
                unavailable = failure(status, content, what)
                wait = _seconds(response.headers.get("Retry-After"))
                processed = status != 429 and not wait
            doubtful |= processed
            if attempt == self._retries or (processed and not repeatable):
                raise unavailable
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY) * random.uniform(0.5, 1.0)
            attempt += 1
            log.debug("%s; trying again", unavailable)
            await asyncio.sleep(max(delay, min(wait, LONGEST_DELAY)))

    async def _current_access(self) -> Access:
        if self._session.closed:
            raise Unavailable(0, "Closed", "this client has been closed")
        now = asyncio.get_running_loop().time()
        access = self._access
        if access.good_until is not None and now > access.good_until:
            try:
                await self._refresh(access)
            except Forbidden as error:
                # What we have may do for a while yet; if not, the server says so.
                log.warning("%s", error.message)
                self._access = replace(access, good_until=now + LEAST_SECONDS)
        return self._access

    async def _refresh(self, stale: Access) -> None:
        """Loads the access anew, unless somebody has done so since `stale`. On failure the old one stays in use."""
        async with self._refreshing:
            if self._access is not stale:
                return
            try:
                self._access = await self._source.load()
            except ConfigError as error:
                raise Forbidden(401, "Unauthorized", f"the credentials could not be renewed: {error}") from error

    # --- Decoding

    def _codec(self, resource: Resource[T]) -> Codec[T]:
        codec = self._codecs.get(resource)
        if codec is None:
            codec = self._codecs[resource] = Codec(resource)
        return codec

    def _object(self, resource: Resource[T], answer: _Answer) -> T:
        content = answer.ok()
        try:
            return self._codec(resource).object(content)
        except UNDECODABLE as error:
            raise ApiError(
                answer.status, "Malformed", f"{answer.what}: the object is not as a {resource.kind} should be: {error}"
            ) from error


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


def _encode(body: Any, what: str) -> bytes:
    """JSON of mappings, sequences, structs and scalars. Raises `Invalid` if anything else is in it."""
    try:
        return msgspec.json.encode(dict(body) if isinstance(body, Mapping) else body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(400, "BadRequest", f"{what}: cannot be written as JSON: {error}") from error


def _path(resource: Resource[Any], namespace: str, name: str | None = None, subresource: str = "") -> str:
    """As `Resource.path`, with names quoted: a name with a slash must not lead to another object."""
    if name == "":
        raise Invalid(400, "BadRequest", f"{resource!r}: the name is empty")
    return resource.path(quote(namespace, safe=""), quote(name or "", safe=":"), subresource)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def _url(access: Access, path: str, query: Mapping[str, str] | None) -> URL:
    return URL(access.server + path + ("?" + urlencode(query) if query else ""), encoded=True)


def _options(access: Access, content_type: str = _JSON) -> dict[str, Any]:
    return {
        "headers": {**access.headers, "Content-Type": content_type},
        "ssl": access.ssl or True,
        "server_hostname": access.server_hostname,
        "proxy": access.proxy,
        "allow_redirects": False,
    }


def _is_passing(status: int, content: bytes) -> bool:
    """Whether the same request may succeed later: the server is busy, or has failed."""
    return status >= 500 or (status == 429 and not disruption_forbidden(read_status(content)))


def _seconds(retry_after: str | None) -> float:
    """Of a Retry-After header; 0 if there is none, or a date instead."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _unreachable(what: str, error: Exception) -> Unavailable:
    return Unavailable(0, "NoAnswer", f"{what}: {str(error) or type(error).__name__}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within two minutes that the other end is gone: a watch may be silent for long."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
