"""Domains of labels that are no level of a topology, made a level of it: for rules between pods.

A rule about the domains of a label (pods apart, evenly spread) can be kept by a search that goes down a tree of domains
when these are domains of the tree. A label that is none of its levels becomes one, above the widest level of which
each domain has only one value of it. Levels above it stay if each of its domains lies within one of theirs; others are
given up if the request can do without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from serried.model.capacity import Ints
from serried.model.nodes import Column, Nodes
from serried.model.topology import Level, Tree
from serried.place.topology_request import TopologyRequest

_MANY: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class Layered:
    """A tree of hosts with more levels, and the request in terms of its levels.

    Attributes:
        leaves: the index in the original tree of each leaf.
        levels: label → its level.
        codes: label → the code of its value (see `Column`) for each domain of its level; -1: these have no value.
    """

    tree: Tree
    request: TopologyRequest
    leaves: Ints
    levels: dict[str, int]
    codes: dict[str, Ints]


def layered(
    nodes: Nodes, tree: Tree, request: TopologyRequest, keys: tuple[str, ...], *, only_labelled: bool
) -> Layered | str:
    """A tree of hosts with a level for each of some labels; or the label whose domains cut across levels of slices.

    Where all pods have to be in one domain, what lies of a label's domain in others is a domain of its own.

    `only_labelled`: pods go only to nodes that have all these labels.
    """
    remembered = (request, keys, only_labelled)
    made: Layered | str | None = tree.masks.get(remembered)
    if made is None:
        made = tree.masks[remembered] = _layered(nodes, tree, request, keys, only_labelled)
    return made


def _layered(
    nodes: Nodes, tree: Tree, request: TopologyRequest, keys: tuple[str, ...], only_labelled: bool
) -> Layered | str:
    found = Layered(tree, request, np.arange(tree.leaves), {}, {})
    for key in keys:
        if key not in found.tree.keys:
            added = _with_level(found, nodes.column(key), key, keys, only_labelled)
            if added is None:
                return key
            found = added
    for key in keys:
        level = found.tree.keys.index(key)
        codes = nodes.column(key).codes[found.tree.rows].astype(np.int64)
        found.levels[key] = level
        found.codes[key] = _highest(codes, found.tree.levels[level])
    return found


def _with_level(found: Layered, column: Column, key: str, keys: tuple[str, ...], only_labelled: bool) -> Layered | None:
    tree, request = found.tree, found.request
    ids = [np.repeat(np.arange(level.size), np.diff(level.nodes)) for level in tree.levels]
    codes = column.codes[tree.rows]
    # In the order of the values, so that nothing depends on when they were seen first.
    values = np.where(codes < 0, -1, np.append(column.ranks(), -1)[codes])
    if not only_labelled:
        values = _each_its_own(values)
    at = next(i for i, level in enumerate(tree.levels) if _is_one_value(values, level))
    values = _each_its_own(_highest(values, tree.levels[at]))[ids[at]]
    if request.mode == "required":
        at = max(at, request.level)
        values = np.unique(_pairs(ids[request.level], values), return_inverse=True)[1]
    kept = []
    for level in range(at):
        if _is_nested(values, ids[level]):
            kept.append(level)
        elif tree.keys[level] in keys or level in (layer for layer, _ in request.layers):
            return None
    order = np.lexsort([np.arange(len(values)), values, *(ids[level] for level in reversed(kept))])
    used = [*kept, None, *range(at, len(tree.levels))]
    made = _assemble(
        tuple(key if level is None else tree.keys[level] for level in used),
        tree.rows[order],
        [(values if level is None else ids[level])[order] for level in used],
    )
    for new, level in zip(made.levels, used, strict=True):
        first = order[new.nodes[:-1]]
        if level is None:
            new.values = np.array([*column.values, ""], dtype=object)[codes[first]].tolist()
        else:
            new.values = np.array(tree.levels[level].values, dtype=object)[ids[level][first]].tolist()
    return Layered(made, _moved(request, tree, made, at, key), found.leaves[order], {}, {})


def _each_its_own(values: Ints) -> Ints:
    """What has no value (-1) gets one of its own, each."""
    found: Ints = np.where(values < 0, int(values.max(initial=0)) + 1 + np.arange(len(values)), values)
    return found


def _highest(values: Ints, level: Level) -> Ints:
    """The highest value among the nodes of each domain of a level."""
    found: Ints = np.maximum.reduceat(values, level.nodes[:-1]) if len(values) else values
    return found


def _is_one_value(values: Ints, level: Level) -> bool:
    """Whether all nodes of each domain that have a value (not -1) have the same."""
    if not len(values):
        return True
    lowest = np.minimum.reduceat(np.where(values < 0, _MANY, values), level.nodes[:-1])
    return bool(np.all(_highest(values, level) <= lowest))


def _is_nested(values: Ints, domains: Ints) -> bool:
    """Whether all nodes of the same value are in the same domain."""
    return len(np.unique(_pairs(values, domains))) == len(np.unique(values))


def _pairs(a: Ints, b: Ints) -> Ints:
    """A number for each pair, the same for the same pair, in their order."""
    return a * (int(b.max(initial=0)) + 1) + b


def _moved(request: TopologyRequest, old: Tree, new: Tree, at: int, key: str) -> TopologyRequest:
    """The request in terms of the new levels. A level that was given up becomes the next one below."""

    def level_of(level: int) -> int:
        return next(new.keys.index(k) for k in old.keys[level:] if k in new.keys)

    inner = [0] * len(new.keys)
    for i, name in enumerate(new.keys):
        inner[i] = request.inner[at if name == key else old.keys.index(name)]
    return replace(
        request,
        level=level_of(request.level),
        slice_level=level_of(request.slice_level),
        layers=tuple((level_of(level), size) for level, size in request.layers),
        inner=tuple(inner),
    )


def _assemble(keys: tuple[str, ...], rows: Ints, ids: list[Ints]) -> Tree:
    """A tree of hosts from the domain of each row at each level, in path order. The names are left out."""
    starts: list[Ints] = []
    changed = np.zeros(len(rows), dtype=np.bool_)
    changed[:1] = True
    for own in ids:
        changed[1:] |= own[1:] != own[:-1]
        starts.append(np.flatnonzero(changed))
    levels = []
    for i, key in enumerate(keys):
        own = starts[i]
        below = starts[i + 1] if i + 1 < len(keys) else np.arange(len(rows))
        levels.append(
            Level(
                key,
                values=[""] * len(own),
                parent=np.searchsorted(starts[i - 1], own, side="right") - 1 if i else np.zeros_like(own),
                children=np.append(np.searchsorted(below, own), len(below)),
                nodes=np.append(own, len(rows)),
            )
        )
    return Tree(keys, rows, tuple(levels))
