"""`Cluster` over HTTP: one pooled session, bounded concurrency, retries, watches.

Where a request may have been carried out by an attempt that got no answer (see `serried.cluster.transport`), a deletion
that then finds nothing, and a binding that finds the pod bound to the very node, have succeeded. A creation
that finds its name taken raises `AlreadyExists`, since the object may as well be somebody else's; and a merge patch
with a precondition raises `Conflict`. Both mean to the caller what they always do: read it and look.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import msgspec

from serried.api.meta import Object
from serried.api.resources import PODS, Resource
from serried.cluster.codec import UNDECODABLE, Codec, Lines
from serried.cluster.credentials import Access, AccessSource, InCluster
from serried.cluster.protocol import (
    ApiError,
    Expired,
    Invalid,
    Listing,
    MergePatch,
    WatchEvent,
)
from serried.cluster.transport import Answer, Transport, always, encode

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

PAGE = 500
#: Seconds the server is asked to keep a watch open: some minutes, so that watches opened together end apart.
WATCH_SECONDS = (240, 480)


class HttpCluster:
    """The `Cluster` of a real API server. Use one per process: its pool of connections is what makes it fast.

    Options: `concurrency` (32) requests are in flight at a time, others wait their turn; up to `watches` (64) watches
    come on top; a failed request is tried `retries` (5) more times; lists are read in pages of `page` (500) objects.
    """

    def __init__(self, source: AccessSource, access: Access, *, page: int = PAGE, **options: int) -> None:
        self._transport = Transport(source, access, **options)
        self._page = page
        self._codecs: dict[Resource[Any], Codec[Any]] = {}
        self._may_write: Callable[[], bool] = always

    @classmethod
    async def connect(cls, source: AccessSource, **options: int) -> Self:
        """With the access that `source` gives; options as in the constructor. Raises `ConfigError`."""
        return cls(source, await source.load(), **options)

    @classmethod
    async def from_kubeconfig(cls, path: str | Path | None = None, context: str | None = None, **options: int) -> Self:
        """As the kubeconfig says; by default that of $KUBECONFIG or ~/.kube/config. Raises `ConfigError`.

        Nothing is sent yet: that the server is there shows with the first request.
        """
        from serried.cluster.kubeconfig import Kubeconfig  # with a YAML parser, which is not needed in a pod

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
        await self._transport.close()

    async def warm(self, connections: int) -> None:
        """Opens connections ahead, so that a burst of requests does not begin with as many TLS handshakes.

        At most as many as there may be requests in flight. They stay open for 75 seconds of idleness.
        """
        await asyncio.gather(*(self.version() for _ in range(min(connections, self._transport.concurrency))))

    def apart(self) -> HttpCluster:
        """See `LeaderCluster.apart`."""
        other = copy.copy(self)
        other._transport = self._transport.apart()
        return other

    def fenced(self, may_write: Callable[[], bool]) -> HttpCluster:
        """See `LeaderCluster.fenced`.

        The question is asked in the moment in which a request, or a part of it, is handed to the operating system, also
        when it is repeated or has waited for its turn or for a connection.
        """
        view = copy.copy(self)
        view._may_write = may_write
        return view

    # --- The protocol

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        answer = await self._transport.send("GET", _path(resource, namespace, name))
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
            return await self._list(resource, namespace, {**selectors, "limit": str(self._page)})
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
        path = _path(resource, namespace)
        codec = self._codec(resource)
        lines = Lines()
        async with aclosing(self._transport.stream(path, query, seconds + 30)) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    try:
                        event = codec.event(line)
                    except UNDECODABLE as error:
                        raise ApiError(200, "Malformed", f"watch {path}: not a watch event: {error}") from error
                    yield event

    async def create(self, resource: Resource[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        plain = msgspec.json.decode(encode(obj, f"create {resource!r}"), type=dict[str, Any])
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **plain}
        metadata = body.get("metadata") or {}
        answer = await self._transport.send(
            "POST",
            _path(resource, namespace or metadata.get("namespace", "")),
            body=body,
            repeatable=bool(metadata.get("name")),
            may_send=self._may_write,
        )
        return self._object(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch,
        subresource: Literal["", "status"] = "",
    ) -> T:
        answer = await self._transport.send(
            "PATCH",
            _path(resource, namespace, name, subresource),
            body=patch,
            content_type="application/merge-patch+json",
            may_send=self._may_write,
        )
        return self._object(resource, answer)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        answer = await self._transport.send(
            "DELETE", _path(resource, namespace, name), body=options, may_send=self._may_write
        )
        if answer.status == 404 and answer.doubtful:
            return
        answer.ok()

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        metadata = {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {})
        answer = await self._transport.send(
            "POST",
            _path(PODS, namespace, pod, "binding"),
            body={
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": metadata,
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
            may_send=self._may_write,
        )
        if answer.status == 409 and answer.doubtful:
            found = await self.get(PODS, pod, namespace)
            if found.spec.node_name == node and uid in ("", found.metadata.uid):
                return
        answer.ok()

    async def served(self, group: str, version: str) -> frozenset[str]:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        answer = await self._transport.send("GET", path)
        if answer.status == 404:
            return frozenset()
        content = answer.ok()
        try:
            return frozenset(each.name for each in msgspec.json.decode(content, type=_Discovery).resources)
        except UNDECODABLE as error:
            raise ApiError(answer.status, "Malformed", f"{answer.what}: not a list of kinds: {error}") from error

    async def version(self) -> str:
        content = (await self._transport.send("GET", "/version")).ok()
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
            answer = await self._transport.send(
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

    # --- Decoding

    def _codec(self, resource: Resource[T]) -> Codec[T]:
        codec = self._codecs.get(resource)
        if codec is None:
            codec = self._codecs[resource] = Codec(resource)
        return codec

    def _object(self, resource: Resource[T], answer: Answer) -> T:
        content = answer.ok()
        try:
            return self._codec(resource).object(content)
        except UNDECODABLE as error:
            raise ApiError(
                answer.status, "Malformed", f"{answer.what}: the object is not as a {resource.kind} should be: {error}"
            ) from error


class _Kind(msgspec.Struct):
    name: str


class _Discovery(msgspec.Struct):
    resources: list[_Kind]


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


def _path(resource: Resource[Any], namespace: str, name: str | None = None, subresource: str = "") -> str:
    """As `Resource.path`, with names quoted: a name with a slash must not lead to another object."""
    if name == "":
        raise Invalid(400, "BadRequest", f"{resource!r}: the name is empty")
    return resource.path(quote(namespace, safe=""), quote(name or "", safe=":"), subresource)


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}
