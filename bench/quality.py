"""How good placements are, against the best there is: proven by OR-tools CP-SAT on small random clusters.

`python -m bench.quality [INSTANCES]` makes that many instances (1,000 if not said), each a cluster of up to 64 nodes in
racks and blocks, partly in use, and one request that fits. CP-SAT solves each to proof, for the three measures of
`serried.place.measures`, one after the other. Printed is, per algorithm, how far its placements are from that.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model
from rich.console import Console
from rich.table import Table

from serried.api.core import Node, NodeSpec, NodeStatus
from serried.api.kueue import (
    PodSetTopologyRequest,
    ResourceFlavor,
    ResourceFlavorSpec,
    SliceConstraint,
    Topology,
    TopologyLevel,
    TopologySpec,
)
from serried.api.meta import ConditionStatus, ObjectMeta
from serried.api.names import HOSTNAME
from serried.model.capacity import Ints, fits
from serried.model.journal import Journal
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree
from serried.model.world import World
from serried.place.measures import Measures, measure
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement, Placement
from serried.place.topology_request import layers_of

BLOCK, RACK, GPU = "example.com/block", "example.com/rack", "example.com/gpu"
KEYS = (BLOCK, RACK, HOSTNAME)
KINDS = ("required", "preferred", "unconstrained", "slices")
ALGORITHMS = {
    "BestFit": PlaceOptions(least_free_when_unconstrained=False),
    "default": PlaceOptions(),
    "balanced": PlaceOptions(balanced=True),
    "optimal": PlaceOptions(optimal=True),
}


@dataclass(frozen=True, eq=False)
class Instance:
    kind: str
    world: World
    pod_set: PodSetRequest

    @property
    def tree(self) -> Tree:
        tree = self.world.tree("gpu")
        assert tree is not None
        return tree

    def room(self) -> Ints:
        """Pods that fit on each leaf."""
        capacity, nodes = self.world.capacity, self.world.nodes
        free = self.tree.leaf_free(capacity.free, nodes.usable)
        return fits(free, capacity.vector(self.pod_set.requests), self.tree.leaves)


def random_instance(rng: random.Random) -> Instance:
    """One that fits."""
    while True:
        world = random_world(rng)
        kind = rng.choice(KINDS)
        pod_set = random_request(rng, kind, world)
        if not isinstance(place(world, "gpu", [pod_set]), NoPlacement):
            return Instance(kind, world, pod_set)


def random_world(rng: random.Random) -> World:
    world = World(Journal())
    levels = tuple(TopologyLevel(node_label=key) for key in KEYS)
    world.set_topology(Topology(metadata=ObjectMeta(name="default"), spec=TopologySpec(levels=levels)))
    world.set_flavor(ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=ResourceFlavorSpec(topology_name="default")))
    in_use = rng.choice([0.0, 0.3, 0.6])  # nodes with pods on them
    blocks, racks, hosts = rng.randint(1, 4), rng.randint(1, 4), rng.randint(2, 8)
    names = [(f"b{b}", f"b{b}r{r}", f"b{b}r{r}h{h}") for b in range(blocks) for r in range(racks) for h in range(hosts)]
    for block, rack, host in names[:64]:
        free = rng.randint(0, 7) if rng.random() < in_use else 8
        world.set_node(
            Node(
                metadata=ObjectMeta(name=host, labels=dict(zip(KEYS, (block, rack, host), strict=True))),
                spec=NodeSpec(),
                status=NodeStatus(
                    allocatable={GPU: str(free), "pods": "110"},
                    conditions=(ConditionStatus(type="Ready", status="True"),),
                ),
            )
        )
    return world


def random_request(rng: random.Random, kind: str, world: World) -> PodSetRequest:
    gpus = rng.choice([1, 1, 2, 4, 8])
    row = world.capacity.lines[GPU]
    most = max(1, int((world.capacity.free[row] // gpus).sum()))
    wish, size = PodSetTopologyRequest(), 1
    if kind == "required":
        wish.required = rng.choice(KEYS[:2])
    elif kind == "preferred":
        wish.preferred = rng.choice(KEYS)
    elif kind == "unconstrained":
        wish.unconstrained = True
    else:
        size = rng.choice([2, 4, 8])
        if rng.random() < 0.5:
            wish.preferred = BLOCK
        layers = [SliceConstraint(topology=rng.choice(KEYS[1:]), size=size)]
        if layers[0].topology == RACK and rng.random() < 0.5:
            layers.append(SliceConstraint(topology=HOSTNAME, size=size // 2))
        wish.podset_slice_required_topology_constraints = tuple(layers)
    count = size * max(1, round(most * rng.choice([0.05, 0.15, 0.4, 0.8]) / size))
    return PodSetRequest("main", count, {GPU: gpus}, topology=wish)


def solve(instance: Instance) -> Measures:
    """The measures of the best placement, proven. Knows nothing of how Serried searches."""
    tree, room, pod_set = instance.tree, instance.room().tolist(), instance.pod_set
    model = cp_model.CpModel()
    pods = [model.new_int_var(0, n, "") for n in room]
    #: per level, per domain: the pods in it, how many fit, and whether it is used
    inside: list[list[list[cp_model.IntVar]]] = []
    fit: list[list[int]] = []
    used: list[list[cp_model.IntVar]] = []
    for level in range(len(KEYS)):
        paths = [tree.path(len(KEYS) - 1, leaf)[: level + 1] for leaf in range(tree.leaves)]
        domains = list(dict.fromkeys(paths))
        inside.append([[x for x, path in zip(pods, paths, strict=True) if path == domain] for domain in domains])
        fit.append([sum(n for n, path in zip(room, paths, strict=True) if path == domain) for domain in domains])
        used.append([model.new_bool_var("") for _ in domains])
        for members, most, flag in zip(inside[-1], fit[-1], used[-1], strict=True):
            model.add(sum(members) <= most * flag)
    model.add(sum(pods) == pod_set.count)
    wish = pod_set.topology
    if wish is not None and wish.required is not None:
        model.add(sum(used[KEYS.index(wish.required)]) == 1)
    for key, size in layers_of(wish):
        for members in inside[KEYS.index(key)]:
            model.add(sum(members) == size * model.new_int_var(0, pod_set.count // size, ""))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    # The level of the spread follows from the numbers of domains: fewer at the upper levels come first.
    domains_used = [minimum(solver, model, sum(flags)) for flags in used]
    opened = [sum(n * flag for n, flag in zip(*level, strict=True)) for level in zip(fit, used, strict=True)]
    stranded = [minimum(solver, model, capacity) - pod_set.count for capacity in reversed(opened)]
    return Measures(sum(n > 1 for n in domains_used), tuple(domains_used), tuple(stranded))


def minimum(solver: cp_model.CpSolver, model: cp_model.CpModel, expression: cp_model.LinearExprT) -> int:
    """The least value of an expression, to which it is then held."""
    model.minimize(expression)
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    value = round(solver.objective_value)
    model.add(expression == value)
    return value


def measured(instance: Instance, placement: Placement) -> Measures:
    """The measures of a placement, after it is checked to be one."""
    tree, room, pod_set = instance.tree, instance.room(), instance.pod_set
    leaves = [tree.leaf(values) for values, _ in placement.domains]
    at = np.array(leaves, dtype=np.int64)
    pods = np.array([count for _, count in placement.domains])
    assert int(pods.sum()) == pod_set.count
    assert (pods <= room[at]).all()
    for key, size in layers_of(pod_set.topology):
        in_domain: dict[tuple[str, ...], int] = {}
        for leaf, count in zip(at.tolist(), pods.tolist(), strict=True):
            path = tree.path(len(KEYS) - 1, leaf)[: KEYS.index(key) + 1]
            in_domain[path] = in_domain.get(path, 0) + count
        assert all(n % size == 0 for n in in_domain.values())
    found = measure(tree, room, at, pods)
    if pod_set.topology is not None and pod_set.topology.required is not None:
        assert found.domains[KEYS.index(pod_set.topology.required)] == 1
    return found


def gaps(found: Measures, best: Measures) -> tuple[float, float, float | None]:
    """How far from the best: the spread, in levels; domains, in percent of the best number, at the first level from the
    top that differs; stranded pods, at the first level from the lowest that differs.

    The last is None where the domains differ already.
    """
    assert found >= best, f"{found} is better than the proven {best}"
    domains = next(((a - b) / b for a, b in zip(found.domains, best.domains, strict=True) if a != b), 0.0)
    if domains:
        return found.spread - best.spread, 100 * domains, None
    stranded = next((a - b for a, b in zip(found.stranded, best.stranded, strict=True) if a != b), 0)
    return 0.0, 0.0, float(stranded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("instances", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    results: dict[tuple[str, str], list[tuple[float, float, float | None]]] = {}
    spent = dict.fromkeys([*ALGORITHMS, "CP-SAT"], 0.0)
    worse: dict[str, int] = {}
    for _ in range(options.instances):
        instance = random_instance(rng)
        start = time.perf_counter()
        best = solve(instance)
        spent["CP-SAT"] += time.perf_counter() - start
        measures = {}
        for name, algorithm in ALGORITHMS.items():
            start = time.perf_counter()
            result = place(instance.world, "gpu", [instance.pod_set], options=algorithm)
            spent[name] += time.perf_counter() - start
            assert not isinstance(result, NoPlacement)
            assert not result[0].fallback
            measures[name] = measured(instance, result[0])
            gap = gaps(measures[name], best)
            for kind in ("all", instance.kind):
                results.setdefault((name, kind), []).append(gap)
        if measures["default"] > measures["BestFit"]:
            worse[instance.kind] = worse.get(instance.kind, 0) + 1
    show(results, spent, options.instances)
    by_kind = ", ".join(f"{kind} {number}" for kind, number in sorted(worse.items()))
    print(f"The default is worse than BestFit in {sum(worse.values())} instances ({by_kind or 'none'}).")


def show(
    results: Mapping[tuple[str, str], Sequence[tuple[float, float, float | None]]],
    spent: Mapping[str, float],
    instances: int,
) -> None:
    table = Table(title=f"gaps to the proven best, {instances:,} instances: mean (worst)", title_justify="left")
    for column in ("algorithm", "requests", "spread, levels", "domains, %", "stranded, pods", "as good as the best"):
        table.add_column(column, justify="left" if column in ("algorithm", "requests") else "right")
    for name in ALGORITHMS:
        for kind in ("all", *KINDS):
            found = results.get((name, kind))
            if found is None:
                continue
            cells = []
            for i in range(3):
                values = [value for value in (gap[i] for gap in found) if value is not None]
                cells.append(f"{statistics.fmean(values):.2f} ({max(values):.0f})" if values else "–")
            best = sum(gap == (0, 0, 0) for gap in found) / len(found)
            table.add_row(name, f"{kind} ({len(found)})", *cells, f"{best:.1%}", end_section=kind == KINDS[-1])
    console = Console(width=120)
    console.print(table)
    times = ", ".join(f"{name} {1e3 * seconds / instances:.2f}" for name, seconds in spent.items())
    console.print(f"milliseconds for one instance: {times}")


if __name__ == "__main__":
    main()
