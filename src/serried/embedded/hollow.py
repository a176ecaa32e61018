"""Hollow nodes: Node objects without machines, and one kubelet for all of them that plays at running pods.

They work on any `Cluster`, so a real control plane can have them too.

How a pod runs. A pod bound to one of the nodes becomes Running and ready at once. Its annotations say how it goes on:

    serried.io/run-seconds: "90"        how long it runs; without it, until it is deleted
    serried.io/run-result: fail         it ends as Failed instead of Succeeded
    serried.io/run-gang-size: "4"       see below

A training job makes no progress until all its ranks are there, so the seconds of a pod begin to count only when its
gang is complete, and if a member fails or is lost the others hang, and all begin anew once the gang is complete again.
The gang of a pod is its Job: complete with as many running pods as the Job can have at this moment, the lesser of its
parallelism and the completions it still needs. Pods without a Job form a gang by their label
scheduling.x-k8s.io/pod-group, complete with the number that the annotation run-gang-size says. Any other pod is a gang
of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from serried.api.batch import Job
from serried.api.core import Node, Pod, Quantity, Taint
from serried.api.meta import ConditionStatus, Key, PlainCondition, condition_is
from serried.api.names import HOSTNAME, POD_GROUP, RUN_GANG_SIZE, RUN_RESULT, RUN_SECONDS
from serried.api.resources import JOBS, NODES, PODS
from serried.cluster.informer import Informer
from serried.cluster.protocol import AlreadyExists, Cluster, Conflict
from serried.cluster.work_queue import WorkQueue

log = logging.getLogger(__name__)

NOT_READY = "node.kubernetes.io/not-ready"

#: A node is written again this many times when others change it at the same moment.
_ATTEMPTS = 5

#: A gang: the uid of its Job, or namespace and name of its pod group, or the uid of its only pod.
GangKey = tuple[Literal["job", "group", "pod"], str, str]


@dataclass(frozen=True)
class HollowNode:
    """What a node is to be like. The label kubernetes.io/hostname is its name unless `labels` say otherwise."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, Quantity] = field(default_factory=lambda: {"cpu": "64", "memory": "512Gi", "pods": "110"})
    taints: tuple[Taint, ...] = ()


class _Gang:
    """The pods of one gang that are Running on nodes that work, and when they end."""

    def __init__(self) -> None:
        self.running: dict[Key, Pod] = {}
        #: the loop's time at which a pod is to end, for those whose seconds count
        self.ends: dict[Key, float] = {}


class HollowNodes:
    """Nodes and their kubelet. `add` makes nodes at any time; pods are run from `start` to `stop`.

    A node that has failed does nothing: its pods neither end nor go away until it is restored. How long pods have run
    is remembered in memory only: after a new `start` all seconds count from the beginning.

    Arguments:
        speed: how many times faster than in reality the seconds of pods go by.
        now: the clock that conditions are stamped with.
    """

    def __init__(
        self, cluster: Cluster, *, speed: float = 1.0, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._cluster = cluster
        self._speed = speed
        self._now = now
        self._nodes: dict[str, HollowNode] = {}
        self._failed: set[str] = set()
        # One watch for the pods of all nodes.
        self._pods = Informer(cluster, PODS, field_selector="spec.nodeName!=", on_change=self._pod_changed)
        self._jobs = Informer(cluster, JOBS, on_change=self._job_changed)
        self._gangs: defaultdict[GangKey, _Gang] = defaultdict(_Gang)
        self._queue: WorkQueue[Key] = WorkQueue(self._work)

    # --- Nodes

    async def add(self, nodes: Iterable[HollowNode]) -> None:
        """Creates Node objects, ready to take pods. Those that exist are taken over as they are described here.

        Raises:
            ApiError: the server refused one of them.
        """
        wanted = list(nodes)
        there = {node.metadata.name: node for node in (await self._cluster.list(NODES)).items}
        await asyncio.gather(*(self._add(n) for n in wanted if not _is_as_described(there.get(n.name), n)))
        self._nodes.update((node.name, node) for node in wanted)
        for key, pod in list(self._pods.store.items()):
            if pod.spec.node_name in self._nodes:
                self._queue.add(key)

    async def _add(self, node: HollowNode) -> None:
        labels = {HOSTNAME: node.name, **node.labels}
        body = {
            "metadata": {"name": node.name, "labels": labels},
            "spec": {"taints": msgspec.to_builtins(node.taints)},
            "status": {
                "capacity": node.allocatable,
                "allocatable": node.allocatable,
                "conditions": [self._ready(True)],
            },
        }
        try:
            await self._cluster.create(NODES, body)
        except AlreadyExists:
            await self._cluster.patch(NODES, node.name, patch={"metadata": {"labels": labels}})
            await self._set_ready(node.name, True)
            await self._cluster.patch(NODES, node.name, patch={"status": body["status"]}, subresource="status")
        # New nodes are given a taint that says they are not ready. Nobody but us will take it off.
        await self._cluster.patch(NODES, node.name, patch={"spec": body["spec"]})

    async def fail_node(self, name: str) -> None:
        """Lets a node fail: it is not ready, taints itself and leaves its pods alone, as if it had lost its network.

        Raises:
            KeyError: it is not one of these nodes.
            ApiError: the server refused it.
        """
        self._failed.add(self._nodes[name].name)
        for key, pod in list(self._pods.store.items()):
            if pod.spec.node_name == name:
                self._leave(key, pod, well=False)
        await self._set_ready(name, False)
        await self._set_taints(name, [Taint(key=NOT_READY, effect=effect) for effect in ("NoSchedule", "NoExecute")])

    async def restore_node(self, name: str) -> None:
        """Makes a node work again that has failed; its pods go on.

        Raises:
            KeyError: it is not one of these nodes.
            ApiError: the server refused it.
        """
        self._failed.discard(self._nodes[name].name)
        await self._set_ready(name, True)
        await self._set_taints(name, [])
        for key, pod in list(self._pods.store.items()):
            if pod.spec.node_name == name:
                self._queue.add(key)

    async def _set_ready(self, name: str, ready: bool) -> None:
        def change(node: Node) -> dict[str, Any]:
            kept = [msgspec.to_builtins(each) for each in node.status.conditions if each.type != "Ready"]
            return {"status": {"conditions": [*kept, self._ready(ready)]}}

        await self._rewrite(name, change, "status")

    async def _set_taints(self, name: str, taints: list[Taint]) -> None:
        """Gives a node these taints of ours, and leaves those of others."""

        def change(node: Node) -> dict[str, Any]:
            kept = [taint for taint in node.spec.taints if taint.key != NOT_READY]
            return {"spec": {"taints": msgspec.to_builtins([*kept, *taints])}}

        await self._rewrite(name, change, "")

    async def _rewrite(
        self, name: str, change: Callable[[Node], dict[str, Any]], subresource: Literal["", "status"]
    ) -> None:
        """Replaces lists of a node, which is only right for the version of it they were made from."""
        for attempt in range(1, _ATTEMPTS + 1):
            node = await self._cluster.get(NODES, name)
            patch = {"metadata": {"resourceVersion": node.metadata.resource_version}, **change(node)}
            try:
                await self._cluster.patch(NODES, name, patch=patch, subresource=subresource)
                return
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise

    def _ready(self, ready: bool) -> dict[str, Any]:
        return {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady" if ready else "KubeletNotReady",
            "message": "the hollow kubelet is ready" if ready else "the hollow node has failed",
            "lastTransitionTime": msgspec.to_builtins(self._stamp()),
        }

    def _stamp(self) -> datetime:
        return self._now().replace(microsecond=0)

    # --- Pods

    async def start(self) -> None:
        """Returns when the pods that are there have been seen."""
        self._jobs.start()
        await self._jobs.synced()
        self._pods.start()
        await self._pods.synced()
        self._queue.start()

    async def stop(self) -> None:
        """Nothing is written after this. Nodes and pods stay as they are."""
        await self._pods.stop()
        await self._jobs.stop()
        await self._queue.stop()
        self._gangs.clear()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._leave(old.key, old, well=old.status.phase == "Succeeded")
        if new is not None and self._is_ours(new):
            if new.status.phase in ("Succeeded", "Failed") or new.metadata.deletion_timestamp is not None:
                self._leave(new.key, new, well=new.status.phase == "Succeeded")
            self._queue.add(new.key)

    def _is_ours(self, pod: Pod) -> bool:
        return pod.spec.node_name in self._nodes and pod.spec.node_name not in self._failed

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        if new is not None:
            self._count(("job", new.metadata.uid, ""))

    async def _work(self, key: Key) -> float | None:
        """Takes the next step of one pod, if there is one to take now. Returns the seconds until its time is over."""
        pod = self._pods.store.get(key)
        if pod is None or not self._is_ours(pod):
            return None
        name, namespace = pod.metadata.name, pod.metadata.namespace
        if pod.metadata.deletion_timestamp is not None:
            await self._cluster.delete(PODS, name, namespace, uid=pod.metadata.uid, grace_period_seconds=0)
        elif pod.status.phase in ("", "Pending"):
            await self._write(pod, "Running")
        elif pod.status.phase == "Running":
            gang = self._gangs[gang_of(pod)]
            gang.running[key] = pod
            self._count(gang_of(pod))
            left = gang.ends[key] - asyncio.get_running_loop().time() if key in gang.ends else None
            # uvloop rounds timers to milliseconds, so this look may have come a little early.
            if left is None or left > 0:
                return left
            await self._write(pod, "Failed" if pod.metadata.annotations.get(RUN_RESULT) == "fail" else "Succeeded")
        return None

    async def _write(self, pod: Pod, phase: str) -> None:
        """Writes a new phase. The conditions are a list, replaced as a whole: only in the version it was made from."""
        now = self._stamp()
        status: dict[str, Any] = {"phase": phase, "conditions": _conditions(pod.status.conditions, phase, now)}
        if phase == "Running":
            status["startTime"] = now
        patch = {"metadata": {"resourceVersion": pod.metadata.resource_version}, "status": msgspec.to_builtins(status)}
        name, namespace = pod.metadata.name, pod.metadata.namespace
        self._pods.observe(await self._cluster.patch(PODS, name, namespace, patch=patch, subresource="status"))

    # --- Gangs

    def _leave(self, key: Key, pod: Pod, *, well: bool) -> None:
        """A pod runs no longer. Unless it ended well, the rest of its gang hangs."""
        gang = self._gangs.get(gang_of(pod))
        if gang is None or gang.running.pop(key, None) is None:
            return
        gang.ends.pop(key, None)
        if not well:
            gang.ends.clear()
        if not gang.running:
            del self._gangs[gang_of(pod)]

    def _count(self, key: GangKey) -> None:
        """If a gang is complete, the seconds of all its pods count from now, unless they do already."""
        gang = self._gangs.get(key)
        if gang is None or not gang.running or len(gang.running) < self._size(key, gang):
            return
        now = asyncio.get_running_loop().time()
        for pod_key, pod in gang.running.items():
            seconds = run_seconds(pod)
            if pod_key not in gang.ends and seconds is not None:
                gang.ends[pod_key] = now + seconds / self._speed
                self._queue.add_after(pod_key, seconds / self._speed)

    def _size(self, key: GangKey, gang: _Gang) -> int:
        """How many pods make the gang complete."""
        sample = next(iter(gang.running.values()))
        match key[0]:
            case "job":
                owner = sample.metadata.controller
                job = self._jobs.store.get((sample.metadata.namespace, owner.name)) if owner else None
                return job_size(job) if job is not None and job.metadata.uid == key[1] else 1
            case "group":
                return _whole(sample, RUN_GANG_SIZE) or 1
            case _:
                return 1


def _is_as_described(node: Node | None, wanted: HollowNode) -> bool:
    return (
        node is not None
        and {HOSTNAME: wanted.name, **wanted.labels}.items() <= node.metadata.labels.items()
        and node.status.allocatable == wanted.allocatable
        and tuple(node.spec.taints) == wanted.taints
        and condition_is(node.status.conditions, "Ready")
    )


def gang_of(pod: Pod) -> GangKey:
    """The gang a pod runs in."""
    owner = pod.metadata.controller
    if owner is not None and owner.kind == "Job":
        return ("job", owner.uid, "")
    group = pod.metadata.labels.get(POD_GROUP)
    if group and RUN_GANG_SIZE in pod.metadata.annotations:
        return ("group", pod.metadata.namespace, group)
    return ("pod", pod.metadata.uid, "")


def job_size(job: Job) -> int:
    """How many pods of a Job run at the same time now."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        return parallelism
    return max(0, min(parallelism, job.spec.completions - job.status.succeeded))


def run_seconds(pod: Pod) -> float | None:
    """How long a pod is to run, in seconds; None for as long as it may, also when its annotation is no number."""
    text = pod.metadata.annotations.get(RUN_SECONDS)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        log.warning(
            "pod %s/%s: %s is %r, not a number of seconds: it runs until it is deleted", *pod.key, RUN_SECONDS, text
        )
        return None
    return seconds


def _whole(pod: Pod, annotation: str) -> int | None:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _conditions(old: Sequence[ConditionStatus], phase: str, now: datetime) -> list[ConditionStatus]:
    """The conditions of a pod in this phase: those a kubelet writes, and of the others that they hold."""
    running = phase == "Running"
    status, reason = ("True", "") if running else ("False", "PodFailed" if phase == "Failed" else "PodCompleted")
    ours = {
        "Initialized": PlainCondition(type="Initialized", status="True", last_transition_time=now),
        "ContainersReady": PlainCondition(
            type="ContainersReady", status=status, reason=reason, last_transition_time=now
        ),
        "Ready": PlainCondition(type="Ready", status=status, reason=reason, last_transition_time=now),
    }
    return [*(each for each in old if each.type not in ours), *ours.values()]
