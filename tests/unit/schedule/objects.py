"""Short forms of the API objects that stories about the engine are told with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from serried.api.core import Node, Pod
from serried.api.kueue import Admission, ClusterQueue, LocalQueue, ResourceFlavor, Topology, Workload
from serried.api.meta import Condition
from serried.schedule.engine import Engine

START = datetime(2026, 1, 1, tzinfo=UTC)
BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"
NS = "team"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def node(name: str, block: str = "b0", rack: str = "r0", gpus: int = 8, **labels: str) -> Node:
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {BLOCK: block, RACK: rack, HOST: name, **labels}},
            "status": {
                "allocatable": {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        Node,
    )


def pod(name: str, on: str, gpus: int = 1, phase: str = "Running") -> Pod:
    containers = [{"name": "c", "resources": {"requests": {GPU: gpus}}}]
    spec = {"nodeName": on, "containers": containers}
    return msgspec.convert(
        {"metadata": {"namespace": "other", "name": name, "uid": name}, "spec": spec, "status": {"phase": phase}}, Pod
    )


def topology(name: str = "fabric", levels: tuple[str, ...] = (BLOCK, RACK, HOST)) -> Topology:
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Topology)


def flavor(name: str, topology: str = "", **spec: Any) -> ResourceFlavor:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"topologyName": topology, **spec}}, ResourceFlavor)


def cluster_queue(
    name: str = "cq",
    flavors: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
    selector: dict[str, Any] | None = {},  # noqa: B006 - never changed
    groups: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> ClusterQueue:
    """`flavors`: flavor → resource → nominal quota, all in one group; `groups` for more than one."""
    if groups is None:
        groups = [group(flavors or {"default": {"cpu": 10}})]
    strategy = "StrictFIFO" if strict else "BestEffortFIFO"
    spec = {"resourceGroups": groups, "queueingStrategy": strategy, "namespaceSelector": selector, **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ClusterQueue)


def group(flavors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "coveredResources": list(next(iter(flavors.values()))),
        "flavors": [
            {"name": name, "resources": [{"name": r, "nominalQuota": q} for r, q in quotas.items()]}
            for name, quotas in flavors.items()
        ],
    }


def local_queue(name: str = "lq", cluster_queue: str = "cq", namespace: str = NS, **spec: Any) -> LocalQueue:
    meta = {"name": name, "namespace": namespace}
    return msgspec.convert({"metadata": meta, "spec": {"clusterQueue": cluster_queue, **spec}}, LocalQueue)


def pod_set(
    count: int = 1,
    name: str = "main",
    *,
    required: str | None = None,
    topology: dict[str, Any] | None = None,
    ours: bool = False,
    pod: dict[str, Any] | None = None,
    **requests: Any,
) -> dict[str, Any]:
    """`requests`: per pod; `gpu` stands for nvidia.com/gpu. `ours`: bound by Serried."""
    quantities = {GPU if r == "gpu" else r: q for r, q in requests.items()}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": quantities}}], **(pod or {})}
    if ours:
        spec["schedulerName"] = "serried"
    result: dict[str, Any] = {"name": name, "count": count, "template": {"spec": spec}}
    if required:
        result["topologyRequest"] = {"required": required}
    if topology:
        result["topologyRequest"] = topology
    return result


def workload(
    name: str,
    *pod_sets: dict[str, Any],
    queue: str = "lq",
    namespace: str = NS,
    created: float = 0,
    version: int = 1,
    uid: str = "",
    priority: int = 0,
    active: bool = True,
    **requests: Any,
) -> Workload:
    """A Workload of one pod with these requests, or of the given pod sets."""
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"uid-{name}",
                "resourceVersion": str(version),
                "creationTimestamp": at(created).isoformat(),
            },
            "spec": {
                "queueName": queue,
                "priority": priority,
                "active": active,
                "podSets": list(pod_sets) or [pod_set(**requests)],
            },
        },
        Workload,
    )


def with_admission(given: Workload, admission: Admission, *, version: int = 2, admitted: bool = True) -> Workload:
    """The Workload as the API server has it after the admission was written."""
    copy = msgspec.convert(msgspec.to_builtins(given), Workload)
    copy.metadata.resource_version = str(version)
    copy.status.admission = msgspec.convert(msgspec.to_builtins(admission), Admission)
    copy.status.conditions = (Condition(type="QuotaReserved", status="True"),)
    if admitted:
        copy.status.conditions += (Condition(type="Admitted", status="True"),)
    return copy


def finished(given: Workload, *, version: int = 3) -> Workload:
    copy = msgspec.convert(msgspec.to_builtins(given), Workload)
    copy.metadata.resource_version = str(version)
    copy.status.conditions = (*copy.status.conditions, Condition(type="Finished", status="True"))
    return copy


def engine(*objects: Any) -> Engine:
    """An engine that has seen these objects, with namespace `team`."""
    result = Engine()
    result.set_namespace(NS, {"kubernetes.io/metadata.name": NS})
    for item in objects:
        feed(result, item)
    return result


def feed(engine: Engine, item: Any) -> None:
    match item:
        case Node():
            engine.set_node(item)
        case Pod():
            engine.set_pod(item)
        case Topology():
            engine.set_topology(item)
        case ResourceFlavor():
            engine.set_flavor(item)
        case ClusterQueue():
            engine.set_cluster_queue(item)
        case LocalQueue():
            engine.set_local_queue(item)
        case Workload():
            engine.set_workload(item)
        case _:
            raise TypeError(item)


def run(engine: Engine, now: float = 0) -> list[str]:
    """Cycles until nothing more is to be decided; the names of those admitted, in order. Checks the laws."""
    admitted: list[str] = []
    for _ in range(1000):
        engine.validate()
        if not engine.dirty:
            return admitted
        admitted += [decision.key[1] for decision in engine.cycle(at(now)).decisions]
    raise AssertionError("the cycles never run dry")
