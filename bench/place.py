"""How long one placement takes, and how long and how much memory the model takes to follow the cluster.

`python -m bench.place [NODES ...] [--rules]` prints the tables of docs/benchmarks.md. The cluster: racks of 32 nodes of
8 GPUs, 16 racks to a block, all blocks in one zone; every third job-sized stretch of nodes is in use. Pods take a node
each, which is the most work for what follows the search: as many domains as pods.

A decision is `place` and the encoding of its assignment. Before each, some node's capacity changes, which is not part
of the time. Times are CPU times of the process: what else runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from serried.api.assignment import encode
from serried.api.core import Node, NodeSpec, NodeStatus, Quantity, Taint
from serried.api.kueue import (
    PodSetTopologyRequest,
    ResourceFlavor,
    ResourceFlavorSpec,
    Topology,
    TopologyLevel,
    TopologySpec,
)
from serried.api.meta import ConditionStatus, ObjectMeta
from serried.api.names import HOSTNAME, POD_SET
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.pod_constraints import (
    NO_CONSTRAINTS,
    Constraints,
    HostPort,
    PodTerm,
    Requirement,
    Selector,
    SpreadTerm,
)
from serried.model.pod_index import PodKind
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement

ZONE, BLOCK, RACK = "cloud.example.com/zone", "cloud.example.com/block", "cloud.example.com/rack"
#: Which of three power feeds a rack is on: no level of the topology.
POWER = "cloud.example.com/power"
RACK_NODES, BLOCK_RACKS, GPUS = 32, 16, 8
GPU = "example.com/gpu"
PODS = (8, 64, 1000, 10_000)
KINDS = ("required", "preferred", "unconstrained", "slices", "group")
#: nodes to go round when some node has to change
_CHANGING = 64


class Cluster:
    """`nodes` nodes, of which pods request `resources` resources, the pod itself among them."""

    def __init__(self, nodes: int, resources: int) -> None:
        self.size = nodes
        more = {f"example.com/device-{i:02}": 2 for i in range(resources - 4)}
        self.requests = {"cpu": 8000, "memory": 64 << 30, GPU: GPUS} | more
        self.allocatable: dict[str, Quantity] = {
            "cpu": "96",
            "memory": "1024Gi",
            "pods": "110",
            GPU: str(GPUS),
            "ephemeral-storage": "1Ti",
        }
        self.allocatable |= dict.fromkeys(more, "16")
        self.world = World(Journal())
        levels = tuple(TopologyLevel(node_label=key) for key in (ZONE, BLOCK, RACK, HOSTNAME))
        self.world.set_topology(Topology(metadata=ObjectMeta(name="default"), spec=TopologySpec(levels=levels)))
        spec = ResourceFlavorSpec(topology_name="default")
        self.world.set_flavor(ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=spec))
        before = resident()
        objects = [self.node(i) for i in range(nodes)]
        between = resident()
        for item in objects:
            self.world.set_node(item)
        self.world.tree("gpu")
        self.bytes_of_objects, self.bytes_of_model = between - before, resident() - between
        for number, first in enumerate(range(0, nodes - 8, 24)):
            domains = tuple(((f"node-{i:06}",), 1) for i in range(first, first + 8))
            taken = [Placement("main", "gpu", (HOSTNAME,), domains)]
            kind = PodKind("team", {"app": "train", "job": f"job-{number}", POD_SET: "main"})
            self.world.hold(("team", f"job-{number}"), taken, [PodSetRequest("main", 8, self.requests, kind=kind)])
        self.world.journal.commit()
        self.changes = self._changes()
        # As `serried run` does once it has listed all there is.
        gc.collect()
        gc.freeze()

    def node(self, i: int, *, version: str = "1", taints: list[Taint] | None = None, **allocatable: Quantity) -> Node:
        rack, block = i // RACK_NODES, i // (RACK_NODES * BLOCK_RACKS)
        labels = {ZONE: "zone-0", BLOCK: f"block-{block:04}", RACK: f"rack-{rack:05}", HOSTNAME: f"node-{i:06}"}
        labels |= {
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": "gpu-8",
            POWER: f"feed-{rack % 3}",
        }
        return Node(
            metadata=ObjectMeta(name=f"node-{i:06}", labels=labels, resource_version=version),
            spec=NodeSpec(taints=tuple(taints or ())),
            status=NodeStatus(
                allocatable=self.allocatable | allocatable,
                conditions=(ConditionStatus(type="Ready", status="True"),),
            ),
        )

    def _changes(self) -> Iterator[Node]:
        step = max(1, self.size // _CHANGING)
        states = [self.node(i, cpu=cpu) for cpu in ("95", "96") for i in range(0, self.size, step)]
        while True:
            yield from states

    def change(self) -> None:
        """Some node has more or less cpu than before."""
        self.world.set_node(next(self.changes))

    def request(self, kind: str, count: int, rule: Constraints = NO_CONSTRAINTS) -> list[PodSetRequest]:
        """The level required is the lowest one that could hold so many pods, at a node each."""
        level = RACK if count <= RACK_NODES // 2 else BLOCK if count <= RACK_NODES * BLOCK_RACKS // 2 else ZONE
        wish = PodSetTopologyRequest()
        leader: list[PodSetRequest] = []
        if kind in ("required", "group"):
            wish.required = level
        elif kind == "preferred":
            wish.preferred = RACK
        elif kind == "unconstrained":
            wish.unconstrained = True
        else:
            wish.preferred, wish.pod_set_slice_required_topology, wish.pod_set_slice_size = BLOCK, RACK, 8
        if kind == "group":
            wish.pod_set_group_name = "group"
            request = PodSetTopologyRequest(required=level, pod_set_group_name="group")
            leader = [PodSetRequest("leader", 1, {"cpu": 4000, "memory": 8 << 30}, topology=request)]
        pods = PodKind("team", {"app": "train", "job": "new", POD_SET: "main"}, rule)
        return [*leader, PodSetRequest("main", count, self.requests, topology=wish, kind=pods)]


OWN = Selector((Requirement("job", "In", ("new",)),))


def _apart(key: str) -> Constraints:
    return Constraints(anti_affinity=(PodTerm(key, OWN, frozenset(["team"]), None),))


def _spread(key: str, skew: int) -> Constraints:
    return Constraints(spread=(SpreadTerm(key, OWN, skew, 1, True, False),))


#: Rules between the pods of a gang.
RULES = {
    "no rule": NO_CONSTRAINTS,
    "a host port": Constraints(ports=(HostPort("0.0.0.0", "TCP", 29400),)),
    "apart on nodes": _apart(HOSTNAME),
    "apart in racks": _apart(RACK),
    "spread over nodes": _spread(HOSTNAME, 1),
    "spread over racks": _spread(RACK, 8),
    "spread over power feeds": _spread(POWER, 1),
    "together in a block": Constraints(affinity=(PodTerm(BLOCK, OWN, frozenset(["team"]), None),)),
}


def resident() -> int:
    """Memory of this process, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def microseconds(call: Callable[[], object], *, before: Callable[[], object] | None, budget: float) -> list[float]:
    """CPU times of a call, sorted: as many as fit into `budget` seconds of them, at least 100 if that is not long."""
    call()
    times: list[float] = []
    spent = 0.0
    while spent < budget or (len(times) < 100 and spent < 4 * budget):
        if before is not None:
            before()
        start = time.process_time_ns()
        call()
        times.append((time.process_time_ns() - start) / 1000)
        spent += times[-1] / 1e6
    return sorted(times)


def shown(times: list[float], unit: float) -> str:
    """Median and 99th percentile."""
    median, high = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))]
    return f"{median / unit:.2f} / {high / unit:.2f}"


def decisions(
    cluster: Cluster,
    kind: str,
    count: int,
    options: PlaceOptions,
    budget: float,
    rule: Constraints = NO_CONSTRAINTS,
) -> str:
    """Milliseconds; in brackets, where there is no room for so many pods: until that is said, with reasons."""
    pod_sets = cluster.request(kind, count, rule)
    found: list[list[Placement] | NoPlacement] = []

    def decide() -> None:
        result = place(cluster.world, "gpu", pod_sets, options=options)
        if not isinstance(result, NoPlacement):
            for placement in result:
                encode(placement.levels, placement.domains)
        found[:] = [result]

    text = shown(microseconds(decide, before=cluster.change, budget=budget), 1000)
    if isinstance(found[0], NoPlacement):
        return f"({text})"
    return text + (" *" if any(p.fallback for p in found[0]) else "")


def following(cluster: Cluster) -> dict[str, tuple[Callable[[], object], Callable[[], object] | None]]:
    """What happens to the model all the time: (what is measured, what is done before)."""
    world = cluster.world
    beats = [cluster.node(1, version="1"), cluster.node(1, version="2")]
    taints = [cluster.node(2), cluster.node(2, taints=[Taint(key="maintenance", effect="NoSchedule")])]
    newcomer = cluster.node(cluster.size)
    pod_sets = cluster.request("required", 64)
    placed = place(world, "gpu", pod_sets)
    assert not isinstance(placed, NoPlacement)

    def turn(states: list[Node]) -> None:
        states.reverse()
        world.set_node(states[0])

    def hold() -> None:
        world.hold(("team", "new"), placed, pod_sets)
        world.release(("team", "new"))
        world.journal.commit()

    def decide_anew(states: list[Node]) -> Callable[[], object]:
        def call() -> None:
            turn(states)
            place(world, "gpu", pod_sets)

        return call

    kinds = itertools.count(1)

    def decide_for_a_new_kind() -> None:
        requests = cluster.requests | {"cpu": next(kinds)}
        place(world, "gpu", [replace(p, requests=requests) for p in pod_sets])

    def come_and_go() -> None:
        world.set_node(newcomer)
        world.tree("gpu")
        world.delete_node(newcomer.metadata.name)

    return {
        "a node's capacity changed": (cluster.change, None),
        "a node's heartbeat": (lambda: turn(beats), None),
        "a node's taints changed": (lambda: turn(taints), None),
        "the same, and a decision for 64 pods": (decide_anew(taints), None),
        "a decision for 64 pods of a kind not asked for before": (decide_for_a_new_kind, None),
        "64 pods held and released": (hold, None),
        "a node added, its tree sorted anew, and deleted": (come_and_go, None),
    }


def under_rules(nodes: int, budget: float) -> Table:
    cluster = Cluster(nodes, 4)
    asked = [(kind, count) for kind in ("required", "preferred", "unconstrained", "slices") for count in PODS[:3]]
    table = Table(title=f"{nodes:,} nodes: milliseconds for a decision, median / p99", title_justify="left")
    table.add_column("")
    table.add_column("pods", justify="right")
    for name in RULES:
        table.add_column(name, justify="right")
    for kind, count in asked:
        cells = (decisions(cluster, kind, count, DEFAULT, budget, rule) for rule in RULES.values())
        table.add_row(kind, f"{count:,}", *cells)
    gc.unfreeze()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[1000, 5000, 20_000, 100_000])
    parser.add_argument("--resources", nargs="*", type=int, default=[4, 30])
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each number")
    parser.add_argument("--rules", action="store_true", help="under rules between the pods, instead")
    parser.add_argument("--optimal", action="store_true", help="with `placement: optimal`")
    options = parser.parse_args()
    chosen = PlaceOptions(optimal=True) if options.optimal else DEFAULT
    kinds = [k for k in KINDS if k != "group"] if options.optimal else KINDS
    console = Console(width=140)
    if options.rules:
        for nodes in options.nodes:
            console.print(under_rules(nodes, options.budget))
        return
    for resources in options.resources:
        rows = {(kind, count): [kind, f"{count:,}"] for kind in kinds for count in PODS}
        costs: dict[str, list[str]] = {}
        for nodes in options.nodes:
            cluster = Cluster(nodes, resources)
            for (kind, count), row in rows.items():
                row.append(decisions(cluster, kind, count, chosen, options.budget))
            for name, (call, before) in following(cluster).items():
                times = microseconds(call, before=before, budget=options.budget / 5)
                costs.setdefault(name, []).append(shown(times, 1))
            megabytes = f"{cluster.bytes_of_objects >> 20} + {cluster.bytes_of_model >> 20} MiB"
            costs.setdefault("memory: nodes as decoded + the model", []).append(megabytes)
            del cluster
            gc.unfreeze()
        titles = [f"{nodes:,} nodes" for nodes in options.nodes]
        how = ", optimal (*: not proven within its limit)" if options.optimal else ""
        table = Table(
            title=f"{resources} resources: milliseconds for a decision, median / p99{how}", title_justify="left"
        )
        for title in ("", "pods", *titles):
            table.add_column(title, justify="left" if not title else "right")
        for (_, count), row in rows.items():
            table.add_row(*row, end_section=count == PODS[-1])
        console.print(table)
        table = Table(title=f"{resources} resources: microseconds, median / p99", title_justify="left")
        for title in ("", *titles):
            table.add_column(title, justify="left" if not title else "right")
        for name, cells in costs.items():
            table.add_row(name, *cells)
        console.print(table)


if __name__ == "__main__":
    main()
