"""Optimal placement is valid and the best there is, found by trying everything; and more nodes never hurt it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import serried.place.optimal
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME
from serried.model.capacity import UNLIMITED
from serried.model.nodes import Nodes
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree, build
from serried.model.world import World
from serried.place.counts import count_up
from serried.place.measures import Measures, measure
from serried.place.optimal import LimitReached, place_optimal
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement
from serried.place.search import Leaves, Search, Unfit, descend, find
from serried.place.topology_request import TopologyMode, TopologyRequest
from tests.property.strategies import topology_requests, worlds
from tests.unit.model.clusters import BLOCK, GPU, RACK, node

LEVELS = ("block", "rack", HOSTNAME)
MODES: tuple[TopologyMode, ...] = ("required", "preferred", "unconstrained")

Path = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """What fits on each leaf, and what is asked for."""

    room: dict[Path, int]
    mode: TopologyMode
    level: int
    #: (level, size) of each layer of slices
    layers: tuple[tuple[int, int], ...]
    count: int

    @property
    def depth(self) -> int:
        return len(next(iter(self.room)))


@st.composite
def rooms(draw: st.DrawFn, *, depth: int, leaves: int) -> dict[Path, int]:
    paths = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, leaves).map(str))
    chosen = draw(st.sets(paths, min_size=1, max_size=leaves))
    # Few numbers, for many ties; and numbers too large for costs of 64 bits.
    number = st.integers(0, draw(st.sampled_from([1, 2, 3, 5]))) | st.just(draw(st.sampled_from([4, UNLIMITED])))
    # Hosts have names of their own, wherever they are.
    return {(b, b + r, b + r + h)[3 - depth :]: draw(number) for b, r, h in sorted(chosen)}


@st.composite
def cases(draw: st.DrawFn, *, leaves: int, pods: int) -> Case:
    depth = draw(st.integers(1, 3))
    room = draw(rooms(depth=depth, leaves=leaves))
    level = draw(st.integers(0, depth - 1))
    layers: list[tuple[int, int]] = []
    for size in draw(st.sampled_from([(), (), (1,), (2,), (3,), (4, 2), (4, 1), (4, 2, 1)])):
        above = layers[-1][0] + 1 if layers else level
        if above < depth:
            layers.append((draw(st.integers(above, depth - 1)), size))
    size = layers[0][1] if layers else 1
    return Case(room, draw(st.sampled_from(MODES)), level, tuple(layers), size * draw(st.integers(1, pods // size)))


def tree_of(paths: Sequence[Path]) -> Tree:
    nodes = Nodes(64)
    keys = LEVELS[3 - len(paths[0]) :]
    for path in paths:
        nodes.put(nodes.claim(path[-1]), node(path[-1], labels=dict(zip(keys, path, strict=True))))
    return build(nodes, keys, {})


def search_for(case: Case) -> tuple[list[Path], Search]:
    paths = sorted(case.room)
    tree = tree_of(paths)
    inner = [0] * case.depth
    for (above, _), (here, size) in zip(case.layers, case.layers[1:], strict=False):
        inner[above + 1 : here + 1] = [size] * (here - above)
    slice_level, size = case.layers[0] if case.layers else (case.depth - 1, 1)
    request = TopologyRequest(case.mode, case.level, size, slice_level, case.layers, tuple(inner))
    counts = count_up(tree, request, np.array([case.room[path] for path in paths]), None, None, None)
    return paths, Search(tree, counts, request, case.count // size, False, True, np.ones(len(paths), dtype=np.bool_))


def optimal(case: Case, limit: int = 10**8) -> dict[Path, int] | None:
    paths, search = search_for(case)
    return taken(paths, place_optimal(search, limit))


def default(case: Case) -> dict[Path, int] | None:
    paths, search = search_for(case)
    found = find(search)
    return None if isinstance(found, Unfit) else taken(paths, descend(search, found))


def taken(paths: Sequence[Path], leaves: Leaves | None) -> dict[Path, int] | None:
    if leaves is None:
        return None
    return {paths[i]: n for i, n in zip(leaves.leaves.tolist(), leaves.pods.tolist(), strict=True) if n}


def by_domain(pods: dict[Path, int], level: int) -> Counter[Path]:
    found: Counter[Path] = Counter()
    for path, number in pods.items():
        found[path[: level + 1]] += number
    return found


def is_valid(case: Case, pods: dict[Path, int]) -> bool:
    return (
        sum(pods.values()) == case.count
        and all(0 < number <= case.room[path] for path, number in pods.items())
        and all(n % size == 0 for level, size in case.layers for n in by_domain(pods, level).values())
        and (case.mode != "required" or len(by_domain(pods, case.level)) == 1)
    )


def quality(case: Case, pods: dict[Path, int]) -> tuple[int, list[int], list[int]]:
    """The three measures, worked out from the paths alone."""
    used = [by_domain(pods, level) for level in range(case.depth)]
    together = [level for level, domains in enumerate(used) if len(domains) == 1]
    spread = case.depth - 1 - max(together, default=-1)
    stranded = []
    for level in range(case.depth - 1, -1, -1):
        room = by_domain(case.room, level)
        stranded.append(sum(room[domain] - number for domain, number in used[level].items()))
    return spread, [len(domains) for domains in used], stranded


def everything(case: Case) -> Iterator[dict[Path, int]]:
    """Every valid placement."""

    def further(paths: Sequence[Path], left: int) -> Iterator[dict[Path, int]]:
        if not left:
            yield {}
        elif paths:
            for number in range(min(left, case.room[paths[0]]) + 1):
                for rest in further(paths[1:], left - number):
                    yield {paths[0]: number, **rest} if number else rest

    for pods in further(sorted(case.room), case.count):
        if is_valid(case, pods):
            yield pods


@settings(max_examples=400, deadline=None)
@given(cases(leaves=6, pods=8))
def test_nothing_is_better(case: Case) -> None:
    found = optimal(case)
    best = min((quality(case, pods) for pods in everything(case)), default=None)
    if found is None:
        assert best is None
    else:
        assert is_valid(case, found)
        assert quality(case, found) == best
    assert optimal(case) == found


@st.composite
def fabrics(draw: st.DrawFn) -> Case:
    """Up to ten hosts in racks in blocks, and more pods than a rack holds: much to choose from, and little to gain."""
    sizes = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=2, max_size=3))
    paths = [
        (f"b{b}", f"b{b}r{r}", f"b{b}r{r}h{h}")
        for b, racks in enumerate(sizes)
        for r, hosts in enumerate(racks)
        for h in range(hosts)
    ]
    most = draw(st.integers(2, 5))
    room: dict[Path, int] = {path: draw(st.integers(1, most)) for path in paths[:10]}
    unit, layers = draw(
        st.sampled_from([(1, ()), (1, ()), (2, ((1, 2),)), (2, ((2, 2),)), (4, ((1, 4), (2, 2))), (3, ((1, 3),))])
    )
    largest, total = max(by_domain(room, 1).values()), sum(room.values())
    count = draw(st.integers(min(largest + 1, total), total)) // unit * unit
    return Case(room, "unconstrained", 0, layers, max(unit, count))


def best_by_subsets(case: Case) -> tuple[int, list[int], list[int]] | None:
    """The best measures, by trying every set of leaves: they depend on which are used only.

    A set with a leaf too many is no trouble, since the same without it is tried as well, and better.
    """
    found = []
    paths = sorted(case.room)
    for chosen in range(1, 1 << len(paths)):
        open_ = {path: case.room[path] for i, path in enumerate(paths) if chosen >> i & 1}
        if holds(case, open_) >= case.count:
            spread, domains, _ = quality(case, open_)
            stranded = [
                sum(by_domain(case.room, level)[domain] for domain in by_domain(open_, level)) - case.count
                for level in range(case.depth - 1, -1, -1)
            ]
            found.append((spread, domains, stranded))
    return min(found, default=None)


def holds(case: Case, room: dict[Path, int]) -> int:
    """How many pods in whole slices fit into these leaves."""
    inside: Counter[Path] = Counter(room)
    for level in range(case.depth - 1, -1, -1):
        inside = by_domain(dict(inside), level)
        for at, size in case.layers:
            if at == level:
                inside = Counter({domain: n // size * size for domain, n in inside.items()})
    return sum(inside.values())


@settings(max_examples=300, deadline=None)
@given(fabrics(), st.sampled_from([1, 6, 60]))
def test_nothing_is_better_where_there_is_much_to_choose_from(case: Case, bits: int) -> None:
    """Also when the digits of a cost are spread over several words."""
    with patch.object(serried.place.optimal, "_WORD_BITS", bits):
        found = optimal(case)
    best = best_by_subsets(case)
    if found is None:
        assert best is None
    else:
        assert is_valid(case, found)
        assert quality(case, found) == best


@settings(max_examples=300, deadline=None)
@given(cases(leaves=24, pods=40))
def test_it_fits_where_the_default_fits_and_is_no_worse(case: Case) -> None:
    found, other = optimal(case), default(case)
    assert (found is None) == (other is None)
    if found is not None and other is not None:
        assert is_valid(case, found)
        assert is_valid(case, other)
        assert quality(case, found) <= quality(case, other)


@settings(max_examples=300, deadline=None)
@given(cases(leaves=12, pods=24), st.data())
def test_more_nodes_never_hurt(case: Case, data: st.DataObject) -> None:
    if optimal(case) is None:
        return
    room = dict(case.room)
    for path, number in data.draw(rooms(depth=case.depth, leaves=12)).items():
        room[path] = min(UNLIMITED, room.get(path, 0) + number)
    grown = Case(room, case.mode, case.level, case.layers, case.count)
    found = optimal(grown)
    assert found is not None
    before = optimal(case)
    assert before is not None
    assert quality(grown, found) <= quality(grown, before)


@settings(max_examples=200, deadline=None)
@given(worlds(), topology_requests(), st.integers(1, 12), st.integers(0, 4), st.integers(0, 10**5), st.data())
def test_more_nodes_never_hurt_a_pod_set(
    world: World, request: PodSetTopologyRequest | None, count: int, gpus: int, limit: int, data: st.DataObject
) -> None:
    """The same from the outside: with filters, existing pods and a limit that may be reached."""
    pod_sets = [PodSetRequest("main", count, {GPU: gpus}, request)]
    options = PlaceOptions(optimal=True, optimal_limit=limit)
    if isinstance(place(world, "gpu", pod_sets, options=options), NoPlacement):
        return
    for i in range(data.draw(st.integers(1, 4))):
        labels = {BLOCK: data.draw(st.sampled_from("abc")), RACK: data.draw(st.sampled_from("123"))}
        world.set_node(node(f"new-{i}", labels=labels, allocatable={GPU: data.draw(st.integers(0, 8)), "pods": "20"}))
        assert not isinstance(place(world, "gpu", pod_sets, options=options), NoPlacement)


@settings(max_examples=100, deadline=None)
@given(cases(leaves=24, pods=40), st.integers(0, 50_000))
def test_with_a_limit_it_is_the_best_or_nothing(case: Case, limit: int) -> None:
    try:
        found = optimal(case, limit)
    except LimitReached:
        return
    assert found == optimal(case)


@settings(max_examples=200, deadline=None)
@given(cases(leaves=12, pods=24))
def test_the_measures_are_what_they_say(case: Case) -> None:
    found = default(case)
    if found is None:
        return
    paths, search = search_for(case)
    at = np.array([paths.index(path) for path in sorted(found)])
    pods = np.array([found[path] for path in sorted(found)])
    spread, domains, stranded = quality(case, found)
    room = np.array([case.room[path] for path in paths])
    assert measure(search.tree, room, at, pods) == Measures(spread, tuple(domains), tuple(stranded))
