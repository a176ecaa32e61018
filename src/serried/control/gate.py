"""The way of all writes of one engine's decisions to the API server: it can be shut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from serried.api.meta import Object
from serried.api.resources import Resource
from serried.cluster.protocol import Cluster, MergePatch, Unavailable

T = TypeVar("T", bound=Object)


class Gate:
    """Reads and writes of `cluster`. Once it is shut no write begins any more: it raises `Unavailable`. Those that
    have begun come to their end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shut = False
        self._writes = 0  # begun, and not yet answered
        self._none = asyncio.Event()
        self._none.set()

    @property
    def writes(self) -> int:
        """How many writes are on their way."""
        return self._writes

    def shut(self) -> None:
        self._shut = True

    async def drained(self) -> None:
        """Waits until no write is on its way."""
        await self._none.wait()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        return await self._cluster.get(resource, name, namespace)

    async def create(self, resource: Resource[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        with self._writing():
            return await self._cluster.create(resource, obj, namespace)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch,
        subresource: Literal["", "status"] = "",
    ) -> T:
        with self._writing():
            return await self._cluster.patch(resource, name, namespace, patch=patch, subresource=subresource)

    async def delete(self, resource: Resource[T], name: str, namespace: str, *, uid: str) -> None:
        with self._writing():
            await self._cluster.delete(resource, name, namespace, uid=uid)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str) -> None:
        with self._writing():
            await self._cluster.bind(namespace, pod, node, uid=uid)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._shut:
            raise Unavailable(0, "Stopped", "what decided on this write has failed")
        self._writes += 1
        self._none.clear()
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._none.set()
