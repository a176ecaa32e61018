"""A stand-in for kube-scheduler on the embedded cluster, which has none: ungated pods go where their selector says."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from serried.api import names
from serried.api.core import Node, Pod
from serried.api.meta import Key
from serried.api.resources import NODES, PODS
from serried.cluster.informer import Informer
from serried.cluster.protocol import Cluster, Conflict, NotFound


class StandInScheduler:
    """Binds pods of the default scheduler to the first node (by name) that has all labels of their node selector and
    as many devices as they ask for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: Informer[Node] = Informer(cluster, NODES, on_change=lambda old, new: None)
        self._pods: Informer[Pod] = Informer(cluster, PODS, on_change=self._changed)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        #: pods that are being bound → their node
        self._chosen: dict[Key, str] = {}

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
        used = self._used()
        for node in sorted(self._nodes.store.values(), key=lambda n: n.metadata.name):
            name, has = node.metadata.name, node.status.allocatable
            fits = all(used[name, r] + amount <= int(has.get(r, 0)) for r, amount in _devices(pod).items())
            if wanted <= node.metadata.labels.items() and fits:
                self._chosen[pod.key] = name
                with suppress(Conflict, NotFound):
                    await self._cluster.bind(pod.metadata.namespace, pod.metadata.name, name, uid=pod.metadata.uid)
                return

    def _used(self) -> Counter[tuple[str, str]]:
        """(node, device) → how many of them are taken."""
        used: Counter[tuple[str, str]] = Counter()
        for key, pod in self._pods.store.items():
            node = pod.spec.node_name or self._chosen.get(key, "")
            if node and pod.status.phase not in ("Succeeded", "Failed"):
                used.update({(node, resource): amount for resource, amount in _devices(pod).items()})
        return used


def _devices(pod: Pod) -> Counter[str]:
    """What it asks for of extended resources, which are whole numbers."""
    found: Counter[str] = Counter()
    for container in pod.spec.containers:
        requests = container.resources.requests.items()
        found.update({resource: int(amount) for resource, amount in requests if "/" in resource})
    return found
