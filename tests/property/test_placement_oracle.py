"""The vectorised search answers as the rules do, read one domain at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.names import HOSTNAME
from serried.model.nodes import Nodes
from serried.model.topology import Tree, build
from serried.place.balanced import place_balanced
from serried.place.counts import count_up
from serried.place.search import Search, Unfit, descend, find
from serried.place.topology_request import TopologyMode, TopologyRequest
from tests.property.placement_oracle import Leaf, Oracle, Request, Result
from tests.unit.model.clusters import node

LEVELS = ("block", "rack", HOSTNAME)


@st.composite
def leaves_and_request(draw: st.DrawFn, *, balanced: bool) -> tuple[list[Leaf], Request]:
    """A small tree with what fits on each host, and a request; numbers small enough that ties are common."""
    depth = draw(st.integers(1, 3))
    leader = draw(st.booleans())
    by_score = draw(st.booleans())
    most = draw(st.sampled_from([1, 2, 4, 9]))
    paths = [
        (f"b{b}", f"r{r}", f"h{b}{r}{h}")[3 - depth :]
        for b in range(draw(st.integers(1, 3)))
        for r in range(draw(st.integers(1, 3)))
        for h in range(draw(st.integers(1, 4)))
    ]
    leaves = []
    for path in sorted(set(paths)):
        pods = draw(st.integers(0, most))
        hosts = leader and draw(st.booleans())
        beside = draw(st.integers(0, pods)) if hosts else pods
        leaves.append(Leaf(path, pods, beside, hosts, draw(st.integers(0, 2)) if by_score else 0))
    mode = "preferred" if balanced else draw(st.sampled_from(["required", "preferred", "unconstrained"]))
    level = draw(st.integers(0, depth - 1))
    slice_level = draw(st.integers(level, depth - 1))
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (4, 2), (4, 1), (6, 3), (8, 4, 2)]))
    if len(sizes) == 1 and sizes[0] == 1:
        slice_level = depth - 1
    inner = [0] * depth
    above = slice_level
    for size in sizes[1:]:
        if above + 1 >= depth:
            break
        below = draw(st.integers(above + 1, depth - 1))
        for here in range(above + 1, below + 1):
            inner[here] = size
        above = below
    count = sizes[0] * draw(st.integers(1, 12))
    least_free = mode == "unconstrained" and draw(st.booleans())
    request = Request(mode, level, sizes[0], slice_level, tuple(inner), count, leader, least_free, by_score, balanced)
    return leaves, request


def tree_of(leaves: list[Leaf]) -> Tree:
    nodes = Nodes(64)
    depth = len(leaves[0].path)
    for leaf in leaves:
        labels = dict(zip(LEVELS[3 - depth :], leaf.path, strict=True))
        nodes.put(nodes.claim(leaf.path[-1]), node(leaf.path[-1], labels=labels))
    return build(nodes, LEVELS[3 - depth :], {})


def searched(leaves: list[Leaf], request: Request) -> Result:
    tree = tree_of(leaves)
    mode: Any = request.mode
    layers = ((request.slice_level, request.size),) if request.size > 1 else ()
    parsed = TopologyRequest(_mode(mode), request.level, request.size, request.slice_level, layers, request.inner)
    pods = np.array([leaf.pods for leaf in leaves])
    beside = np.array([leaf.pods_with_leader for leaf in leaves]) if request.leader else None
    hosts = np.array([int(leaf.hosts_leader) for leaf in leaves]) if request.leader else None
    score = np.array([leaf.score for leaf in leaves]) if request.by_score else None
    counts = count_up(tree, parsed, pods, beside, hosts, score)
    present = np.ones(len(leaves), dtype=np.bool_)
    need = request.count // request.size
    search = Search(tree, counts, parsed, need, request.leader, not request.least_free, present)
    answer = place_balanced(search) if request.balanced else None
    if answer is None:
        found = find(search)
        if isinstance(found, Unfit):
            return found.fits
        answer = descend(search, found)
        if answer is None:
            return 0
    host = None if answer.leader < 0 else leaves[answer.leader].path
    taken = {leaves[i].path: n for i, n in sorted(zip(answer.leaves.tolist(), answer.pods.tolist(), strict=True)) if n}
    return taken, host


def _mode(mode: Any) -> TopologyMode:
    return mode  # type: ignore[no-any-return]


@settings(max_examples=400, deadline=None)
@given(leaves_and_request(balanced=False))
def test_search_follows_the_rules(case: tuple[list[Leaf], Request]) -> None:
    leaves, request = case
    assert searched(leaves, request) == Oracle(leaves, request).place()


@settings(max_examples=400, deadline=None)
@given(leaves_and_request(balanced=True))
def test_balanced_follows_the_rules(case: tuple[list[Leaf], Request]) -> None:
    leaves, request = case
    assert searched(leaves, request) == Oracle(leaves, request).place()
