"""Nodes in the order of a topology."""

from __future__ import annotations

from collections.abc import Mapping

from serried.api.names import HOSTNAME
from serried.model.nodes import Column, Nodes
from serried.model.topology import Tree, build
from tests.unit.model.clusters import BLOCK, RACK, node


def nodes_of(labels: Mapping[str, Mapping[str, str]]) -> Nodes:
    nodes = Nodes(64)
    for name, own in labels.items():
        nodes.put(nodes.claim(name), node(name, labels=own))
    return nodes


def paths(tree: Tree, level: int) -> list[tuple[str, ...]]:
    return [tree.path(level, i) for i in range(tree.levels[level].size)]


def test_nodes_are_sorted_by_path_whatever_their_order_of_arrival() -> None:
    nodes = nodes_of(
        {
            "z": {BLOCK: "a", RACK: "r2"},
            "a": {BLOCK: "b", RACK: "r1"},
            "m": {BLOCK: "a", RACK: "r10"},
            "k": {BLOCK: "a", RACK: "r2"},
        }
    )
    tree = build(nodes, (BLOCK, RACK, HOSTNAME), {})
    assert [nodes.names[row] for row in tree.rows] == ["m", "k", "z", "a"]
    assert paths(tree, 0) == [("a",), ("b",)]
    assert paths(tree, 1) == [("a", "r10"), ("a", "r2"), ("b", "r1")]
    assert [level.nodes.tolist() for level in tree.levels] == [[0, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]]
    assert tree.levels[0].children.tolist() == [0, 2, 3]
    assert tree.levels[1].children.tolist() == [0, 1, 3, 4]
    assert tree.levels[2].parent.tolist() == [0, 1, 1, 2]


def test_equal_values_under_different_parents_are_different_domains() -> None:
    nodes = nodes_of({"x": {BLOCK: "a", RACK: "r1"}, "y": {BLOCK: "b", RACK: "r1"}})
    tree = build(nodes, (BLOCK, RACK), {})
    assert paths(tree, 1) == [("a", "r1"), ("b", "r1")]
    assert tree.leaf(("b", "r1")) == 1
    assert tree.leaf(("r1",)) is None
    assert tree.find(("b",)) == 1
    assert tree.find(("c",)) is None


def test_a_node_without_a_label_of_a_level_or_of_the_flavor_is_not_in_the_tree() -> None:
    nodes = nodes_of(
        {
            "x": {BLOCK: "a", RACK: "r1", "pool": "gpu"},
            "y": {BLOCK: "a", "pool": "gpu"},
            "z": {BLOCK: "a", RACK: "r1", "pool": "cpu"},
        }
    )
    tree = build(nodes, (BLOCK, RACK, HOSTNAME), {"pool": "gpu"})
    assert [nodes.names[row] for row in tree.rows] == ["x"]


def test_without_nodes_there_are_levels_and_no_domains() -> None:
    tree = build(Nodes(4), (BLOCK, HOSTNAME), {})
    assert [level.size for level in tree.levels] == [0, 0]
    assert tree.leaf(("x",)) is None


def test_of_two_nodes_with_one_hostname_only_the_first_by_name_is_in_the_tree() -> None:
    nodes = nodes_of({"y": {BLOCK: "a", HOSTNAME: "h"}, "x": {BLOCK: "b", HOSTNAME: "h"}})
    tree = build(nodes, (BLOCK, HOSTNAME), {})
    assert [nodes.names[row] for row in tree.rows] == ["x"]
    nodes.put(nodes.row_of["x"], None)
    tree = build(nodes, (BLOCK, HOSTNAME), {})
    assert [nodes.names[row] for row in tree.rows] == ["y"]


def test_a_host_tree_answers_with_the_hostname_and_others_with_the_path() -> None:
    nodes = nodes_of({"x": {BLOCK: "a", RACK: "r1", HOSTNAME: "host-x"}})
    hosts = build(nodes, (BLOCK, RACK, HOSTNAME), {})
    assert (hosts.answer_levels, hosts.answer(0)) == ((HOSTNAME,), ("host-x",))
    assert hosts.leaf(("a", "r1", "host-x")) == hosts.leaf(("host-x",)) == 0
    racks = build(nodes, (BLOCK, RACK), {})
    assert (racks.answer_levels, racks.answer(0)) == ((BLOCK, RACK), ("a", "r1"))


def test_values_that_come_later_have_their_place_among_those_before() -> None:
    column = Column(8)
    for row, value in enumerate(["m", "b", "ä", ""]):
        column.set(row, value)
    assert sorted(range(4), key=column.ranks().tolist().__getitem__) == [3, 1, 0, 2]
    for row, value in enumerate(["c", "a", "z", "\U0001f600"], start=4):
        column.set(row, value)
    ranks = column.ranks()[column.codes].tolist()
    assert [column.values[column.codes[row]] for row in sorted(range(8), key=ranks.__getitem__)] == [
        "",
        "a",
        "b",
        "c",
        "m",
        "z",
        "ä",
        "\U0001f600",
    ]
