"""Topology trees: the nodes of a flavor in path order, so that each domain of each level is one slice of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from serried.api.names import HOSTNAME
from serried.model.capacity import Bools, Free, Ints
from serried.model.nodes import NAME_FIELD, Nodes


class Level:
    """One level of a tree: `size` domains, in path order, each a contiguous slice of the level below and of the nodes.

    Attributes:
        values: the domains' own label values.
        parent: (size,) index of the domain above; all 0 at the top.
        children: (size + 1,) bounds of each domain's children in the level below; of its nodes at the lowest level.
        nodes: (size + 1,) bounds of each domain's nodes in `Tree.rows`.
    """

    __slots__ = ("children", "key", "nodes", "parent", "size", "values")

    def __init__(self, key: str, values: list[str], parent: Ints, children: Ints, nodes: Ints) -> None:
        self.key = key
        self.size = len(values)
        self.values = values
        self.parent = parent
        self.children = children
        self.nodes = nodes


class Tree:
    """The nodes that have all labels of `keys` (and those of the flavor), sorted by their path.

    Paths are compared value by value, bytewise. When the lowest level is the host, each leaf is one node; otherwise
    the nodes of the same path share a leaf. Which nodes are usable changes without the tree: see `Nodes.usable`.
    """

    def __init__(self, keys: tuple[str, ...], rows: Ints, levels: tuple[Level, ...]) -> None:
        self.keys = keys
        #: (nodes,) rows in path order
        self.rows = rows
        self.levels = levels
        self.host = keys[-1] == HOSTNAME
        #: masks per scheduling signature; see `filters`
        self.masks: dict[Any, Any] = {}

    @property
    def leaves(self) -> int:
        return self.levels[-1].size

    def path(self, level: int, domain: int) -> tuple[str, ...]:
        values = []
        for here in reversed(self.levels[: level + 1]):
            values.append(here.values[domain])
            domain = int(here.parent[domain])
        return tuple(reversed(values))

    def answer(self, leaf: int) -> tuple[str, ...]:
        """How a leaf is named in an assignment: by its hostname alone, or by its path."""
        return (self.levels[-1].values[leaf],) if self.host else self.path(len(self.levels) - 1, leaf)

    def answers(self, leaves: Ints) -> Iterator[tuple[str, ...]]:
        """How leaves are named in an assignment."""
        if self.host:
            return zip(map(self.levels[-1].values.__getitem__, leaves.tolist()))
        return map(self.answer, leaves.tolist())

    @property
    def answer_levels(self) -> tuple[str, ...]:
        return (HOSTNAME,) if self.host else self.keys

    def find(self, path: Sequence[str]) -> int | None:
        """The domain of this path at level len(path) - 1."""
        return self._domains[len(path) - 1].get(tuple(path)) if 0 < len(path) <= len(self.levels) else None

    def leaf(self, values: Sequence[str]) -> int | None:
        """The leaf that an assignment names by `values`: a path, or (host trees) anything that ends in the hostname."""
        if self.host:
            return self._hosts.get(values[-1]) if values else None
        return self.find(values) if len(values) == len(self.levels) else None

    def leaf_rows(self, leaf: int) -> Ints:
        """The rows of a leaf's nodes."""
        bounds = self.levels[-1].nodes
        return self.rows[bounds[leaf] : bounds[leaf + 1]]

    @cached_property
    def _domains(self) -> list[dict[tuple[str, ...], int]]:
        found: list[dict[tuple[str, ...], int]] = []
        above: list[tuple[str, ...]] = [()]
        for level in self.levels:
            above = [(*above[p], value) for p, value in zip(level.parent.tolist(), level.values, strict=True)]
            found.append({path: i for i, path in enumerate(above)})
        return found

    @cached_property
    def _hosts(self) -> dict[str, int]:
        return {value: i for i, value in enumerate(self.levels[-1].values)}

    def present(self, usable: Bools) -> Bools:
        """Which leaves exist: have a usable node."""
        here = usable[self.rows]
        if self.host or not len(here):
            return here
        found: Bools = np.logical_or.reduceat(here, self.levels[-1].nodes[:-1])
        return found

    def leaf_free(self, array: Ints, usable: Bools) -> Free:
        """What is free at each leaf, summed over its usable nodes, out of one of the capacity arrays."""
        rows = self.rows
        if self.host:
            return lambda line: array[line].take(rows)
        here = usable[rows]
        bounds = self.levels[-1].nodes[:-1]

        def free(line: int) -> Ints:
            values = np.where(here, array[line].take(rows), 0)
            if not len(values):
                return values
            if float(np.abs(values).max()) * len(values) < 2**62:
                total: Ints = np.add.reduceat(values, bounds)
                return total
            exact = np.add.reduceat(values.astype(object), bounds)
            return np.clip(exact, -(2**62), 2**62).astype(np.int64)

        return free


def build(nodes: Nodes, keys: tuple[str, ...], node_labels: Mapping[str, str]) -> Tree:
    """The tree of all nodes with these labels. `keys` is not empty."""
    columns = [nodes.column(key) for key in keys]
    keep = nodes.column(NAME_FIELD).codes >= 0
    for column in columns:
        keep &= column.codes >= 0
    for key, value in node_labels.items():
        keep &= nodes.column(key).equals(value)
    if keys[-1] == HOSTNAME and nodes.shadowed:
        keep[list(nodes.shadowed)] = False
    rows = np.flatnonzero(keep)
    ranks = [column.ranks()[column.codes[rows]] for column in columns]
    name_column = nodes.column(NAME_FIELD)
    name_rank = name_column.ranks()[name_column.codes[rows]]
    order = np.lexsort([name_rank, *reversed(ranks)])
    rows = rows[order]

    starts: list[Ints] = []
    changed = np.zeros(len(rows), dtype=np.bool_)
    changed[:1] = True
    for rank in ranks:
        sorted_rank = rank[order]
        changed[1:] |= sorted_rank[1:] != sorted_rank[:-1]
        starts.append(np.flatnonzero(changed))
    levels = []
    for i, (key, column) in enumerate(zip(keys, columns, strict=True)):
        own = starts[i]
        below = starts[i + 1] if i + 1 < len(keys) else np.arange(len(rows))
        levels.append(
            Level(
                key,
                values=[column.values[code] for code in column.codes[rows[own]].tolist()],
                parent=np.searchsorted(starts[i - 1], own, side="right") - 1 if i else np.zeros_like(own),
                children=np.append(np.searchsorted(below, own), len(below)),
                nodes=np.append(own, len(rows)),
            )
        )
    return Tree(keys, rows, tuple(levels))
