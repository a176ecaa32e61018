"""How long one placement takes, and how long the model takes to follow the cluster.

`python -m bench.place` prints one table: medians, by number of nodes. Blocks of 16 racks of 32 nodes of 8 GPUs; a
third of the nodes is in use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from serried.api.core import Node, NodeCondition, NodeSpec, NodeStatus
from serried.api.kueue import (
    PodSetTopologyRequest,
    ResourceFlavor,
    ResourceFlavorSpec,
    Topology,
    TopologyLevel,
    TopologySpec,
)
from serried.api.meta import ObjectMeta
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.place import place
from serried.place.result import NoPlacement

BLOCK, RACK = "cloud.example.com/block", "cloud.example.com/rack"
RACK_NODES, BLOCK_RACKS, GPUS = 32, 16, 8
GPU = "example.com/gpu"
REQUESTS = {"cpu": 8000, "memory": 64 << 30, GPU: GPUS}


def node(i: int, *, cpu: str = "96", heartbeat: str = "") -> Node:
    rack, block = i // RACK_NODES, i // (RACK_NODES * BLOCK_RACKS)
    labels = {BLOCK: f"block-{block:04}", RACK: f"rack-{rack:05}", HOSTNAME: f"node-{i:06}"}
    labels |= {"kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "gpu-8"}
    return Node(
        metadata=ObjectMeta(name=f"node-{i:06}", labels=labels, resource_version=heartbeat),
        spec=NodeSpec(),
        status=NodeStatus(
            allocatable={"cpu": cpu, "memory": "1024Gi", "pods": "110", GPU: str(GPUS), "ephemeral-storage": "1Ti"},
            conditions=[NodeCondition(type="Ready", status="True")],
        ),
    )


def filled_world(nodes: int) -> World:
    world = World(Journal())
    levels = [TopologyLevel(node_label=key) for key in (BLOCK, RACK, HOSTNAME)]
    world.set_topology(Topology(metadata=ObjectMeta(name="default"), spec=TopologySpec(levels=levels)))
    world.set_flavor(ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=ResourceFlavorSpec(topology_name="default")))
    for i in range(nodes):
        world.set_node(node(i))
    # Workloads of eight nodes; one in three places is taken.
    for number, first in enumerate(range(0, nodes - 8, 24)):
        domains = tuple(((f"node-{i:06}",), 1) for i in range(first, first + 8))
        world.hold(
            ("team", f"job-{number}"),
            [Placement("main", "gpu", (HOSTNAME,), domains)],
            [PodSetRequest("main", 8, REQUESTS)],
        )
    world.journal.commit()
    return world


def pod_set(count: int, *, name: str = "main", **topology: object) -> PodSetRequest:
    return PodSetRequest(name, count, REQUESTS, topology=PodSetTopologyRequest(**topology))  # type: ignore[arg-type]


def median_us(call: Callable[[], object], *, budget: float = 0.5) -> float:
    """Median of a call in microseconds, after one call to warm up, over about `budget` seconds."""
    call()
    times: list[float] = []
    end = time.perf_counter() + budget
    while (start := time.perf_counter()) < end or len(times) < 3:
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def cases(world: World, nodes: int) -> dict[str, Callable[[], object]]:
    leader = PodSetRequest(
        "leader", 1, {"cpu": 4000}, topology=PodSetTopologyRequest(required=BLOCK, pod_set_group_name="group")
    )
    requests = {
        "required rack, 16 pods": [pod_set(16, required=RACK)],
        "required block, 64 pods": [pod_set(64, required=BLOCK)],
        "preferred rack, 64 pods": [pod_set(64, preferred=RACK)],
        "unconstrained, 64 pods": [pod_set(64, unconstrained=True)],
        "slices of 16 in racks, 64 pods": [
            pod_set(64, preferred=BLOCK, pod_set_slice_required_topology=RACK, pod_set_slice_size=16)
        ],
        "leader and 64 workers": [leader, pod_set(64, required=BLOCK, pod_set_group_name="group")],
    }
    found: dict[str, Callable[[], object]] = {}
    for name, pod_sets in requests.items():
        result = place(world, "gpu", pod_sets)
        assert not isinstance(result, NoPlacement), f"{name}: {result.message}"
        found[name] = lambda pod_sets=pod_sets: place(world, "gpu", pod_sets)  # type: ignore[misc]
    too_many = [pod_set(2 * RACK_NODES, required=RACK)]
    assert isinstance(place(world, "gpu", too_many), NoPlacement)
    found["does not fit, with reasons"] = lambda: place(world, "gpu", too_many)

    states = [node(nodes // 2), node(nodes // 2, cpu="95")]
    beats = [node(0, heartbeat="1"), node(0, heartbeat="2")]

    def change() -> None:
        states.reverse()
        assert world.set_node(states[0])

    def beat() -> None:
        beats.reverse()
        assert not world.set_node(beats[0])

    placed = place(world, "gpu", requests["required block, 64 pods"])
    assert not isinstance(placed, NoPlacement)

    def hold() -> None:
        world.hold(("team", "new"), placed, requests["required block, 64 pods"])
        world.release(("team", "new"))
        world.journal.commit()

    newcomer = node(nodes)

    def come_and_go() -> None:
        world.set_node(newcomer)
        world.tree("gpu")
        world.delete_node(newcomer.metadata.name)

    found["hold and release, 64 pods"] = hold
    found["node changed"] = change
    found["node heartbeat"] = beat
    found["node added, tree sorted anew"] = come_and_go
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[1000, 5000, 20_000, 100_000])
    sizes = parser.parse_args().sizes
    rows: dict[str, list[str]] = {}
    for size in sizes:
        world = filled_world(size)
        for name, call in cases(world, size).items():
            rows.setdefault(name, []).append(f"{median_us(call):,.0f}")
    table = Table(title="microseconds, median", title_justify="left")
    table.add_column("")
    for size in sizes:
        table.add_column(f"{size:,} nodes", justify="right")
    for name, times in rows.items():
        table.add_row(name, *times)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
