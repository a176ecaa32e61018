"""What holds for every placement, on any cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.kueue import PodSetTopologyRequest, SliceConstraint
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement
from serried.place.topology_request import check_topology_request, layers_of
from tests.property.strategies import KEYS, options, topology_requests, workloads, worlds
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, topology


def paths(world: World) -> dict[str, tuple[str, ...]]:
    """hostname → path."""
    seen = [n for n in world.nodes.seen if n is not None]
    return {n.metadata.labels[HOSTNAME]: tuple(n.metadata.labels[key] for key in KEYS) for n in seen}


def check(world: World, pod_sets: Sequence[PodSetRequest], result: Sequence[Placement]) -> None:
    leaders = {p.name for p in pod_sets if p.topology is not None and p.topology.pod_set_group_name and p.count == 1}
    for pod_set, placement in zip(pod_sets, result, strict=True):
        assert placement.pod_set == pod_set.name
        assert sum(count for _, count in placement.domains) == pod_set.count
        assert all(count > 0 for _, count in placement.domains)
        depth = 3 if placement.levels == (HOSTNAME,) else 2
        where = paths(world)
        full = [where[values[0]] if depth == 3 else values for values, _ in placement.domains]
        assert full == sorted(set(full))
        request = pod_set.topology
        if request is None or pod_set.name in leaders:  # of a leader only the requests matter
            continue
        if request.required is not None:
            level = KEYS.index(request.required) + 1
            assert len({path[:level] for path in full}) <= 1
        for key, size in layers_of(request):
            pods: Counter[tuple[str, ...]] = Counter()
            for path, (_, count) in zip(full, placement.domains, strict=True):
                pods[path[: KEYS.index(key) + 1]] += count
            assert all(number % size == 0 for number in pods.values())


@settings(max_examples=250, deadline=None)
@given(worlds(), st.lists(workloads(), min_size=1, max_size=4), options)
def test_every_placement_is_sound(world: World, arrivals: list[list[PodSetRequest]], chosen: PlaceOptions) -> None:
    """Workload after workload is placed and held, until nothing fits: no node is ever promised twice."""
    for number, pod_sets in enumerate(arrivals):
        capacity = world.capacity
        free, unheld = capacity.free.copy(), capacity.unheld.copy()
        result = place(world, "gpu", pod_sets, options=chosen)
        assert np.array_equal(capacity.free, free)
        assert np.array_equal(capacity.unheld, unheld)
        assert place(world, "gpu", pod_sets, options=chosen) == result
        if isinstance(result, NoPlacement):
            assert result.message
            assert result.field or result.fits_when_empty is not None
            assert 0 <= result.fits <= max(result.needed, result.fits)
            continue
        check(world, pod_sets, result)
        assert world.hold(("default", str(number)), result, pod_sets) == []
        # Domains larger than a host are promised as a whole; in those the estimate for a node may be too high.
        hosts_only = all(p.levels == (HOSTNAME,) for p in result)
        over = (capacity.free < 0) & (free >= 0)
        if hosts_only:
            assert not over.any()
        else:
            tree = world.tree("gpu")
            assert tree is not None
            for line in capacity.lines.values():
                left = np.add.reduceat(capacity.free[line].take(tree.rows), tree.levels[-1].nodes[:-1])
                had = np.add.reduceat(free[line].take(tree.rows), tree.levels[-1].nodes[:-1])
                assert not ((left < 0) & (had >= 0)).any()
        world.journal.commit()


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 8), st.integers(0, 4), topology_requests(), st.data())
def test_after_a_failure_the_survivors_stay(
    world: World, count: int, gpus: int, request: PodSetTopologyRequest | None, data: st.DataObject
) -> None:
    pod_sets = [PodSetRequest("main", count, {GPU: gpus}, request, bound_by_us=True)]
    result = place(world, "gpu", pod_sets)
    if isinstance(result, NoPlacement):
        return
    world.hold(("default", "w"), result, pod_sets)
    world.journal.commit()
    lost, number = data.draw(st.sampled_from(result[0].domains))
    failed = world.node_of(lost[0])
    assert failed is not None
    world.delete_node(failed)
    again = place(world, "gpu", pod_sets, replacement=Replacement(lost[0], {"main": result[0]}))
    if isinstance(again, NoPlacement):
        assert again.message
        return
    before, after = dict(result[0].domains), dict(again[0].domains)
    assert lost not in after
    assert sum(after.values()) == count
    assert all(after[values] >= pods for values, pods in before.items() if values != lost)
    added = {values: after[values] - before.get(values, 0) for values in after}
    assert sum(added.values()) == number
    for (hostname,), pods in added.items():
        name = world.node_of(hostname)
        assert name is not None
        if pods:
            free = world.capacity.free[world.capacity.lines[GPU], world.nodes.row_of[name]]
            assert not gpus or free >= pods * gpus


@settings(max_examples=150, deadline=None)
@given(topology_requests(), st.integers(-1, 12))
def test_a_request_without_problems_is_one_that_can_be_placed(
    request: PodSetTopologyRequest | None, count: int
) -> None:
    """The check at submission and the placement agree: what passes the one is never refused as written by the other."""
    world = World(Journal())
    world.set_topology(topology(*KEYS))
    world.set_flavor(flavor())
    for i in range(4):
        labels = {BLOCK: "a", RACK: str(i // 2)}
        world.set_node(node(f"n{i}", labels=labels, allocatable={"pods": "100"}))
    problems = check_topology_request(request, KEYS, count)
    result = place(world, "gpu", [PodSetRequest("main", count, {}, request)])
    refused = isinstance(result, NoPlacement) and bool(result.field)
    assert bool(problems) == refused


amounts = st.one_of(st.integers(-(2**70), 2**70), st.integers(-3, 3))


@settings(max_examples=150, deadline=None)
@given(amounts, amounts, amounts, amounts, amounts, st.sampled_from([*KEYS, "", "none"]))
def test_nothing_that_is_asked_for_breaks_it(
    count: int, gpus: int, has: int, size: int, inner: int, level: str
) -> None:
    world = World(Journal())
    world.set_topology(topology(*KEYS))
    world.set_flavor(flavor())
    labels = {BLOCK: "a", RACK: "r"}
    for name in ("x", "y"):
        world.set_node(node(name, labels=labels, allocatable={GPU: has, "pods": has}))
    layers = (SliceConstraint(topology=level, size=size), SliceConstraint(topology=HOSTNAME, size=inner))
    request = PodSetTopologyRequest(preferred=BLOCK, podset_slice_required_topology_constraints=layers)
    pod_sets = [PodSetRequest("main", count, {GPU: gpus, "memory": -gpus}, request)]
    check_topology_request(request, KEYS, count)
    result = place(world, "gpu", pod_sets)
    if not isinstance(result, NoPlacement):
        world.hold(("default", "w"), result, pod_sets)
        world.release(("default", "w"))
