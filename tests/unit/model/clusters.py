"""Small clusters for tests: nodes, pods, topologies and flavors in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serried.api.core import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Taint,
)
from serried.api.kueue import ResourceFlavor, ResourceFlavorSpec, Topology, TopologyLevel, TopologySpec
from serried.api.meta import ConditionStatus, ObjectMeta
from serried.api.names import HOSTNAME, POD_SET, WORKLOAD
from serried.model.journal import Journal
from serried.model.world import World

BLOCK = "example.com/block"
RACK = "example.com/rack"
GPU = "example.com/gpu"


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, Quantity] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    unschedulable: bool = False,
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels={HOSTNAME: name} | dict(labels or {})),
        spec=NodeSpec(taints=tuple(taints), unschedulable=unschedulable),
        status=NodeStatus(
            allocatable=dict(allocatable if allocatable is not None else {"cpu": "8", "pods": "110", GPU: "8"}),
            conditions=(ConditionStatus(type="Ready", status="True" if ready else "False"),),
        ),
    )


def pod(
    name: str,
    node_name: str,
    requests: Mapping[str, Quantity],
    *,
    phase: str = "Running",
    workload: str = "",
    pod_set: str = "",
    namespace: str = "default",
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            annotations={WORKLOAD: workload} if workload else {},
            labels={POD_SET: pod_set} if pod_set else {},
        ),
        spec=PodSpec(
            node_name=node_name, containers=(Container(resources=ResourceRequirements(requests=dict(requests))),)
        ),
        status=PodStatus(phase=phase),
    )


def topology(*keys: str, name: str = "default") -> Topology:
    return Topology(
        metadata=ObjectMeta(name=name), spec=TopologySpec(levels=tuple(TopologyLevel(node_label=key) for key in keys))
    )


def flavor(name: str = "gpu", *, topology: str = "default", labels: Mapping[str, str] | None = None) -> ResourceFlavor:
    return ResourceFlavor(
        metadata=ObjectMeta(name=name),
        spec=ResourceFlavorSpec(node_labels=dict(labels or {}), topology_name=topology),
    )


def racks(*sizes: int, keys: Sequence[str] = (BLOCK, RACK, HOSTNAME)) -> World:
    """A world with racks of so many nodes, two racks to a block, and the flavor "gpu" over them.

    Nodes are named by block, rack and number: "b0-r1-n2".
    """
    world = World(Journal())
    world.set_topology(topology(*keys))
    world.set_flavor(flavor())
    for r, size in enumerate(sizes):
        for n in range(size):
            labels = {BLOCK: f"b{r // 2}", RACK: f"b{r // 2}-r{r % 2}"}
            world.set_node(node(f"b{r // 2}-r{r % 2}-n{n}", labels=labels))
    return world
