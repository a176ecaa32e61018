"""A cluster in front of a cluster, on which things happen at chosen moments: others act, requests fail, answers get
lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from serried.api.resources import PODS, Resource
from serried.cluster.protocol import Cluster, Expired, Unavailable

T = TypeVar("T")

#: What is about to be written: (verb, kind, name, body).
Before = Callable[[str, str, str, Any], Awaitable[None]]

WRITES = ("create", "patch", "delete", "bind")


class Faults:
    """Passes everything on to `cluster`; see the attributes for what it does besides."""

    def __init__(self, cluster: Cluster, *, seed: int = 0) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        #: called before each write
        self.before: Before | None = None
        #: share of writes that fail before they are carried out, and of those whose answer is lost afterwards
        self.fail = self.lose = 0.0
        #: share of watch events after which the watch ends, half of the times with 410
        self.cut = 0.0
        #: kind → seconds by which its watch is late
        self.late: dict[str, float] = {}
        #: nothing answers
        self.down = False
        #: requests that were refused because nothing answers
        self.refused = 0
        #: (verb, kind, name) of every write that was carried out
        self.written: list[tuple[str, str, str]] = []

    async def _write(self, verb: str, kind: str, name: str, body: Any, write: Callable[[], Awaitable[T]]) -> T:
        if self.before is not None:
            await self.before(verb, kind, name, body)
        self._check()
        if self._random.random() < self.fail:
            raise Unavailable(self._random.choice([0, 429, 500]), "Injected", f"{verb} {kind} {name} failed")
        result = await write()
        self.written.append((verb, kind, name))
        if self._random.random() < self.lose:
            raise Unavailable(0, "Injected", f"the answer to {verb} {kind} {name} was lost")
        return result

    async def create(self, resource: Resource[Any], obj: Any, namespace: str = "") -> Any:
        name = obj["metadata"].get("name", "") if isinstance(obj, dict) else obj.metadata.name
        return await self._write(
            "create", resource.kind, name, obj, lambda: self._cluster.create(resource, obj, namespace)
        )

    async def patch(self, resource: Resource[Any], name: str, namespace: str = "", **more: Any) -> Any:
        return await self._write(
            "patch", resource.kind, name, more["patch"], lambda: self._cluster.patch(resource, name, namespace, **more)
        )

    async def delete(self, resource: Resource[Any], name: str, namespace: str = "", **more: Any) -> None:
        await self._write(
            "delete", resource.kind, name, more, lambda: self._cluster.delete(resource, name, namespace, **more)
        )

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        await self._write("bind", PODS.kind, pod, node, lambda: self._cluster.bind(namespace, pod, node, uid=uid))

    async def get(self, *args: Any, **more: Any) -> Any:
        self._check()
        return await self._cluster.get(*args, **more)

    async def list(self, *args: Any, **more: Any) -> Any:
        self._check()
        return await self._cluster.list(*args, **more)

    async def watch(self, resource: Resource[Any], *args: Any, **more: Any) -> AsyncIterator[Any]:
        self._check()
        async for event in self._cluster.watch(resource, *args, **more):
            if self.down:
                return
            if resource.kind in self.late:
                await asyncio.sleep(self.late[resource.kind])
            yield event
            if self._random.random() < self.cut:
                if self._random.random() < 0.5:
                    raise Expired(410, "Expired", "injected")
                return

    async def served(self, group: str, version: str) -> frozenset[str]:
        self._check()
        return await self._cluster.served(group, version)

    async def version(self) -> str:
        return await self._cluster.version()

    async def close(self) -> None:
        """The cluster behind it is somebody else's to close."""

    def _check(self) -> None:
        if self.down:
            self.refused += 1
            raise Unavailable(0, "Injected", "nothing answers")
