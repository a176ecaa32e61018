"""Jobs, Workloads, pods and the rest of the cluster, as the watches bring them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from serried.api import names
from serried.api.assignment import encode
from serried.api.batch import Job
from serried.api.core import Node, PriorityClass
from serried.api.kueue import ResourceFlavor, Topology, Workload, WorkloadPriorityClass
from serried.api.meta import Key, Object, ObjectMeta
from serried.api.resources import (
    NODES,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
)
from serried.gang.membership import Gang, Member, Stage
from serried.jobs.job import BatchJob
from serried.jobs.podset import workload_name
from serried.lifecycle.actions import (
    Action,
    CreateWorkload,
)
from serried.lifecycle.cluster_state import ClusterState, OwnerKey
from serried.lifecycle.owner import JobOwner
from serried.lifecycle.reconcile import Run, next_steps
from serried.schedule.engine import Engine

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = workload_name("Job", "train", "u1")
KEY: Key = ("team", NAME)
GPU = "example.com/gpu"


def job(*, suspend: bool = True, status: dict[str, Any] | None = None, **metadata: Any) -> Job:
    return msgspec.convert(
        {
            "metadata": {
                "name": "train",
                "namespace": "team",
                "uid": "u1",
                "resourceVersion": "7",
                "generation": 1,
                "labels": {names.QUEUE_NAME: "lq"},
                **metadata,
            },
            "spec": {
                "suspend": suspend,
                "parallelism": 2,
                "completions": 2,
                "completionMode": "Indexed",
                "template": {
                    "spec": {
                        "schedulerName": "serried",
                        "containers": [{"resources": {"requests": {GPU: "8"}}}],
                    }
                },
            },
            "status": status or {},
        },
        type=Job,
        strict=False,
    )


def node(name: str, *, gpus: int = 8, taint: str = "", cordoned: bool = False) -> Node:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {names.HOSTNAME: name, "pool": "gpu"}},
            "spec": {"unschedulable": cordoned, "taints": taints},
            "status": {
                "allocatable": {"cpu": "8", "pods": "10", GPU: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        Node,
    )


class Cluster(ClusterState):
    """The rest of the cluster: a flavor, the nodes n0 and n1, and whatever a test adds."""

    def __init__(self, *objects: tuple[Resource[Any], Object], marked: list[OwnerKey] | None = None) -> None:
        super().__init__(Engine(), mark=(marked if marked is not None else []).append)
        self._handlers = dict(self.feeds())
        self._seen: dict[OwnerKey, Object] = {}
        topology = {"metadata": {"name": "hosts"}, "spec": {"levels": [{"nodeLabel": names.HOSTNAME}]}}
        flavor = {"metadata": {"name": "gpu"}, "spec": {"nodeLabels": {"pool": "gpu"}, "topologyName": "hosts"}}
        self.feed(TOPOLOGIES, msgspec.convert(topology, Topology))
        self.feed(RESOURCE_FLAVORS, msgspec.convert(flavor, ResourceFlavor))
        self.feed(NODES, node("n0"))
        self.feed(NODES, node("n1"))
        for resource, obj in objects:
            self.feed(resource, obj)

    def feed(self, resource: Resource[Any], obj: Object) -> None:
        """As its watch brings it."""
        key = (resource, obj.key)
        self._handlers[resource](self._seen.get(key), obj)
        self._seen[key] = obj

    def drop(self, resource: Resource[Any], key: Key) -> None:
        self._handlers[resource](self._seen.pop((resource, key)), None)


def workload_class(name: str, value: int) -> tuple[Resource[Any], Object]:
    return WORKLOAD_PRIORITY_CLASSES, WorkloadPriorityClass(metadata=ObjectMeta(name=name), value=value)


def pod_class(name: str, value: int) -> tuple[Resource[Any], Object]:
    return PRIORITY_CLASSES, PriorityClass(metadata=ObjectMeta(name=name), value=value)


def steps(
    given: Job | None,
    workload: Workload | None = None,
    gang: Gang | None = None,
    *,
    cluster: ClusterState | None = None,
    unplanned: int = 0,
) -> list[Action]:
    """What is written next for this Job with this Workload and these pods."""
    kind = BatchJob()
    owner = JobOwner(kind, given, kind.is_managed(given), unplanned) if given is not None else None
    run = Run([workload] if workload is not None else [], gang or Gang())
    return list(next_steps(owner, run, cluster or Cluster(), NOW).actions)


def made(given: Job) -> Workload:
    """The Workload that is created for a Job, as the server would hold it."""
    (step,) = (s for s in steps(given) if isinstance(s, CreateWorkload))
    step.workload.metadata.uid = "w1"
    return step.workload


def admitted(given: Job) -> Workload:
    workload = made(given)
    assignment = encode([names.HOSTNAME], [(("n0",), 1), (("n1",), 1)])
    workload.status = msgspec.convert(
        {
            "conditions": [{"type": t, "status": "True"} for t in ("QuotaReserved", "Admitted")],
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {"name": "main", "flavors": {"gpu": "gpu"}, "count": 2, "topologyAssignment": assignment}
                ],
            },
        },
        type=type(workload.status),
        from_attributes=True,
    )
    return workload


def members(*stages: Stage) -> Gang:
    gang = Gang()
    for i, stage in enumerate(stages):
        node = f"n{i}" if stage not in (Stage.WAITING, Stage.HELD) else ""
        gang.set(Member(f"p{i}", f"uid{i}", "main", i, stage, node, (), False))
    return gang
