"""Where a scenario plays: a cluster with hollow nodes and a running controller, and words to tell it with."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from serried.api import names
from serried.api.assignment import decode
from serried.api.batch import Job
from serried.api.core import Pod
from serried.api.coscheduling import CoschedulingPodGroup
from serried.api.kueue import Workload
from serried.api.meta import Condition, Key, condition_is, find_condition
from serried.api.resources import (
    CLUSTER_QUEUES,
    COSCHEDULING_POD_GROUPS,
    EVENTS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from serried.cluster.protocol import Cluster, NotFound
from serried.control.config import Configuration
from serried.control.controller import Controller
from serried.embedded.hollow import HollowNodes
from serried.jobs import KINDS
from serried.jobs.kind import JobKind
from tests.patience import PATIENCE, patience, until

BLOCK, RACK, HOST = "topo.example/block", "topo.example/rack", names.HOSTNAME
GPU = "example.com/gpu"
#: What is in the namespace of a scenario and watched by the controller.
_WATCHED: tuple[Resource[Any], ...] = (JOBS, WORKLOADS, COSCHEDULING_POD_GROUPS, PODS, LOCAL_QUEUES)
T = TypeVar("T")


def node_labels(i: int) -> dict[str, str]:
    """2 blocks of 4 racks of 8 nodes: node i of 64, in topology order."""
    block, rack = i // 32, i // 8 % 4
    return {BLOCK: f"block-{block}", RACK: f"rack-{rack}", HOST: f"node-{i:02d}", "pool": "gpu"}


ALLOCATABLE = {"cpu": "96", "memory": "1000Gi", "pods": "110", GPU: "8"}


def job(
    name: str,
    pods: int,
    *,
    gpus: int | str = 8,
    queue: str | None = "main",
    topology: dict[str, str] | None = None,
    seconds: float | None = None,
    result: str | None = None,
    scheduler: str | None = "serried",
    suspend: bool | None = True,
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An indexed training Job. `topology` are annotations of its pods; `seconds` is how long a complete gang runs."""
    annotations = dict(topology or {})
    if seconds is not None:
        annotations[names.RUN_SECONDS] = str(seconds)
    if result is not None:
        annotations[names.RUN_RESULT] = result
    pod_spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "train",
                "image": "train",
                "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}},
            }
        ],
    }
    if scheduler is not None:
        pod_spec["schedulerName"] = scheduler
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**({names.QUEUE_NAME: queue} if queue else {}), **(labels or {})}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            **({"suspend": suspend} if suspend is not None else {}),
            "template": {"metadata": {"annotations": annotations}, "spec": pod_spec},
            **(spec or {}),
        },
    }


def pod_set(name: str, pods: int, gpus: int) -> dict[str, Any]:
    """A pod set of a Workload, in one rack with the other pod sets of its group."""
    return {
        "name": name,
        "count": pods,
        "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {GPU: str(gpus)}}}]}},
        "topologyRequest": {
            "required": RACK,
            "podSetGroupName": "all",
            "podIndexLabel": names.COMPLETION_INDEX,
        },
    }


@dataclass
class Arena:
    """One backend during one scenario. `namespace` and `queue` are its own; the 64 nodes serve one after another."""

    cluster: Cluster
    #: the cluster as Serried itself sees it: with no more rights than deploy/rbac.yaml gives
    serried: Cluster
    namespace: str
    queue: str
    real: bool
    nodes: HollowNodes
    #: of the real control plane
    kubeconfig: Path | None = None
    controller: Controller | None = None
    #: of the controller's clock before ours, so that time passes without waiting
    ahead: timedelta = timedelta()
    _running: asyncio.Task[None] | None = None
    made: list[tuple[Any, str]] = field(default_factory=list)

    # --- the controller

    async def start(self, config: Configuration | None = None, *, kinds: Sequence[JobKind[Any]] = KINDS) -> Controller:
        """Starts a controller and waits until it has read everything."""
        self.controller = Controller(self.serried, config, kinds=kinds, clock=lambda: datetime.now(UTC) + self.ahead)
        self._running = asyncio.create_task(self.controller.run())
        ready = asyncio.create_task(self.controller.ready.wait())
        await asyncio.wait({ready, self._running}, return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            ready.cancel()
            self._running.result()
        return self.controller

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled() and (error := self._running.exception()) is not None:
                raise error
            self._running = self.controller = None

    # --- what platform engineers set up

    async def set_up_queue(self, nominal: int | str = 512, *, strategy: str = "BestEffortFIFO") -> None:
        """A topology, a flavor over the 64 nodes, a ClusterQueue with `nominal` GPUs and the LocalQueue `main`."""
        await self.make(TOPOLOGIES, self.queue, {"levels": [{"nodeLabel": x} for x in (BLOCK, RACK, HOST)]})
        await self.make(RESOURCE_FLAVORS, self.queue, {"nodeLabels": {"pool": "gpu"}, "topologyName": self.queue})
        groups = self._resource_groups(nominal, GPU)
        spec = {"namespaceSelector": {}, "queueingStrategy": strategy, "resourceGroups": groups}
        await self.make(CLUSTER_QUEUES, self.queue, spec)
        await self.make(LOCAL_QUEUES, "main", {"clusterQueue": self.queue}, self.namespace)

    def _resource_groups(self, nominal: int | str, resource: str) -> list[dict[str, Any]]:
        flavor = {"name": self.queue, "resources": [{"name": resource, "nominalQuota": str(nominal)}]}
        return [{"coveredResources": [resource], "flavors": [flavor]}]

    async def set_quota(self, nominal: int | str, resource: str = GPU) -> None:
        """Changes the quota of the ClusterQueue."""
        spec = {"resourceGroups": self._resource_groups(nominal, resource)}
        await self.cluster.patch(CLUSTER_QUEUES, self.queue, patch={"spec": spec})

    async def make(self, resource: Any, name: str, spec: dict[str, Any], namespace: str = "", **more: Any) -> Any:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
            "spec": spec,
            **more,
        }
        made = await self.cluster.create(resource, body, namespace)
        if not namespace:
            self.made.append((resource, name))
        return made

    def scoped(self, name: str) -> str:
        """The name of a cluster-scoped object of this scenario."""
        return f"{self.queue}-{name}"

    async def make_priority_class(self, name: str, value: int) -> None:
        name = self.scoped(name)
        body = {"metadata": {"name": name}, "value": value}
        await self.cluster.create(WORKLOAD_PRIORITY_CLASSES, body)
        self.made.append((WORKLOAD_PRIORITY_CLASSES, name))

    async def make_local_queue(self, name: str) -> None:
        await self.make(LOCAL_QUEUES, name, {"clusterQueue": self.queue}, self.namespace)

    async def run_stranger(self, name: str, node: str, *, gpus: int) -> None:
        """A pod of nobody's queue, bound to a node."""
        resources = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
        spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x", "resources": resources}]}
        pod = await self.cluster.create(PODS, {"metadata": {"name": name}, "spec": spec}, self.namespace)
        await self.cluster.bind(self.namespace, name, node, uid=pod.metadata.uid)

    # --- what researchers do

    async def submit(self, body: dict[str, Any]) -> Job:
        return await self.cluster.create(JOBS, body, self.namespace)

    async def delete_job(self, name: str) -> None:
        await self.cluster.delete(JOBS, name, self.namespace)

    async def end_job(self, name: str) -> None:
        """Lets the pods of a Job end now that run until they are told to."""
        for pod in await self.pods(name):
            annotations = {"metadata": {"annotations": {names.RUN_SECONDS: "0"}}}
            await self.cluster.patch(PODS, pod.metadata.name, self.namespace, patch=annotations)

    async def job(self, name: str) -> Job:
        return await self.cluster.get(JOBS, name, self.namespace)

    # --- what anybody can see

    async def workload(self, job: str) -> Workload | None:
        """The Workload of this Job, if there is one."""
        listing = await self.cluster.list(WORKLOADS, self.namespace)
        owned = [w for w in listing.items if any(o.name == job for o in w.metadata.owner_references)]
        assert len(owned) <= 1, f"{len(owned)} Workloads of Job {job}"
        return owned[0] if owned else None

    async def finished(self) -> set[str]:
        """The Jobs whose Workloads are finished."""
        workloads = (await self.cluster.list(WORKLOADS, self.namespace)).items
        over = [w for w in workloads if condition_is(w.status.conditions, "Finished")]
        return {owner.name for w in over if (owner := w.metadata.controller) is not None}

    async def workload_name(self, job: str) -> str:
        workload = await self.workload(job)
        assert workload is not None
        return workload.metadata.name

    async def finished_order(self, *jobs: str) -> list[str]:
        """These Jobs, once all have completed, by the time of it."""
        for name in jobs:
            await self.until_condition(name, "Finished")

        async def completed() -> bool:
            return all([(await self.job(name)).status.completion_time is not None for name in jobs])

        await self.until(completed)
        ends = {name: (await self.job(name)).status.completion_time for name in jobs}
        return sorted(jobs, key=lambda name: (ends[name], jobs.index(name)))

    async def pods(self, job: str = "") -> list[Pod]:
        """The pods of this Job, or of all Jobs here, by index."""
        selector = f"{names.JOB_NAME}={job}" if job else ""
        listing = await self.cluster.list(PODS, self.namespace, label_selector=selector)
        return sorted(listing.items, key=index)

    async def pod_group(self, job: str) -> CoschedulingPodGroup | None:
        workload = await self.workload(job)
        if workload is None:
            return None
        try:
            return await self.cluster.get(COSCHEDULING_POD_GROUPS, workload.metadata.name, self.namespace)
        except NotFound:
            return None

    async def condition(self, job: str, type: str) -> Condition | None:
        workload = await self.workload(job)
        return find_condition(workload.status.conditions, type) if workload is not None else None

    async def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of all events on objects of this name."""
        listing = await self.cluster.list(EVENTS, self.namespace)
        return [(e.reason, e.message) for e in listing.items if e.involved_object.name == name]

    async def serried_says(self, *arguments: str) -> str:
        """What the command line prints about the real cluster, with the rights of an administrator."""
        assert self.kubeconfig is not None
        command = [sys.executable, "-m", "serried.cli.main", *arguments, "--kubeconfig", str(self.kubeconfig)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    # --- waiting for it

    async def until(self, what: Callable[[], Awaitable[T]], *, seconds: float = PATIENCE, hint: str = "") -> T:
        """Waits until `what` is true; fails with its last value, or with the controller."""

        async def true() -> T:
            value = await what()
            if not value and self._running is not None and self._running.done():
                self._running.result()
            return value

        return await until(true, seconds=seconds, hint=hint or str(what))

    async def until_condition(self, job: str, type: str, status: str = "True", *, text: str = "") -> Condition:
        """Waits until the Workload's condition has this status (and `text`, a regular expression, in its message)."""
        last: Condition | None = None

        async def found() -> Condition | None:
            nonlocal last
            last = await self.condition(job, type)
            fits = last is not None and last.status == status and re.search(text, last.message)
            return last if fits else None

        try:
            condition = await self.until(found, hint=f"{type}={status} of {job}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last}") from None
        assert condition is not None
        return condition

    async def until_told(self, name: str, *reasons: str) -> None:
        """Waits until events on objects of this name give these reasons: they are written behind everything else."""

        async def told() -> bool:
            return set(reasons) <= {reason for reason, _ in await self.events(name)}

        await self.until(told, hint=f"events {', '.join(reasons)} of {name}")

    async def until_running(self, name: str, pods: int) -> list[Pod]:
        """Waits until that many pods of the Job run; they are returned by index."""

        async def running() -> list[Pod]:
            there = [p for p in await self.pods(name) if p.spec.node_name and p.status.phase == "Running"]
            return there if len(there) == pods else []

        return await self.until(running, hint=f"{pods} running pods of {name}")

    async def until_gone(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Waits until there is no such object."""

        async def gone() -> bool:
            try:
                await self.cluster.get(resource, name, namespace)
            except NotFound:
                return True
            return False

        await self.until(gone, hint=f"{resource.kind} {name} gone")

    async def settle(self) -> None:
        """Waits until nothing is to come: the controller has seen all that is here and has nothing left to do."""

        controller = self.controller
        assert controller is not None

        async def settled() -> bool:
            before = await self._versions()
            await controller.idle()
            return await self._versions() == before

        async with patience():
            await self.until(settled, hint="the controller at rest")

    async def _versions(self) -> dict[tuple[str, Key], str]:
        """Every object of this scenario that the controller watches, and its version."""
        listings = [await self.cluster.list(resource, self.namespace) for resource in _WATCHED]
        queue = await self.cluster.list(CLUSTER_QUEUES, field_selector=f"metadata.name={self.queue}")
        objects = chain.from_iterable(each.items for each in (*listings, queue))
        return {(type(o).__name__, o.key): o.metadata.resource_version for o in objects}

    async def until_free(self, *, pending: int = 0) -> None:
        """Waits until the ClusterQueue's status says that nothing is used and so many wait."""

        async def free() -> bool:
            queue = await self.cluster.get(CLUSTER_QUEUES, self.queue)
            status = queue.status
            cells = [r for f in (*status.flavors_reservation, *status.flavors_usage) for r in f.resources]
            return (
                bool(cells)
                and all(str(r.total) == "0" for r in cells)
                and status.pending_workloads == pending
                and not (status.reserving_workloads or status.admitted_workloads)
            )

        await self.until(free, hint="quota usage back to zero")

    async def clean_up(self) -> None:
        """Removes what the scenario made; nothing may be left on the shared nodes."""
        running: tuple[Resource[Any], ...] = (JOBS, PODS)
        for resource in running:
            for item in (await self.cluster.list(resource, self.namespace)).items:
                with suppress(NotFound):
                    await self.cluster.delete(resource, item.metadata.name, self.namespace)

        async def empty() -> bool:
            return not await self.pods()

        await self.until(empty, hint="all pods gone")
        await self.stop()
        for workload in (await self.cluster.list(WORKLOADS, self.namespace)).items:
            # Its namespace takes a while to go, and until then it would hold its places.
            with suppress(NotFound):
                await self.cluster.delete(WORKLOADS, workload.metadata.name, self.namespace)
        await self.cluster.delete(NAMESPACES, self.namespace)
        for resource, name in reversed(self.made):
            await self.cluster.delete(resource, name)


def index(pod: Pod) -> tuple[int, str]:
    return (int(pod.metadata.annotations.get(names.COMPLETION_INDEX, -1)), pod.metadata.name)


def assigned(workload: Workload | None) -> tuple[list[str], list[tuple[tuple[str, ...], int]]]:
    """Levels and domains of the topologyAssignment of the only pod set."""
    assert workload is not None
    assert workload.status.admission is not None
    (pod_set,) = workload.status.admission.pod_set_assignments
    assert pod_set.topology_assignment is not None
    return pod_set.topology_assignment.levels, list(decode(pod_set.topology_assignment))
