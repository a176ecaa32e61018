"""A stand-in for kube-scheduler on the embedded cluster, which has none: ungated pods go where their selector says."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from serried.api import names
from serried.api.core import Node, Pod
from serried.api.meta import Key
from serried.api.resources import NODES, PODS
from serried.cluster.informer import Informer
from serried.cluster.protocol import Cluster, Conflict, NotFound


class StandInScheduler:
    """Binds pods of the default scheduler to the first node (by name) that has all labels of their node selector."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: Informer[Node] = Informer(cluster, NODES, on_change=lambda old, new: None)
        self._pods: Informer[Pod] = Informer(cluster, PODS, on_change=self._changed)
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._nodes.start()
        await self._nodes.synced()
        self._pods.start()
        await self._pods.synced()

    async def stop(self) -> None:
        await self._pods.stop()
        await self._nodes.stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.spec.scheduler_name == names.SCHEDULER_NAME:
            return
        if new.spec.scheduler_name == "default-scheduler" and not new.spec.node_name and not new.spec.scheduling_gates:
            self._tasks.setdefault(new.key, asyncio.create_task(self._bind(new)))

    async def _bind(self, pod: Pod) -> None:
        wanted = pod.spec.node_selector.items()
        fitting = sorted(n.metadata.name for n in self._nodes.store.values() if wanted <= n.metadata.labels.items())
        with suppress(Conflict, NotFound):
            await self._cluster.bind(pod.metadata.namespace, pod.metadata.name, fitting[0], uid=pod.metadata.uid)
