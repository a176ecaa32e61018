"""Places that are kept: when a node has failed, and when a pod set was scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from serried.model.capacity import Bools
from serried.model.placement import Domain, Placement
from serried.model.topology import Tree
from serried.place.counts import Span
from serried.place.wish import Wish


@dataclass(frozen=True)
class Replacement:
    """An admitted workload has lost a node and needs places for the pods that were there."""

    #: the label kubernetes.io/hostname of the node
    unhealthy: str
    #: pod set → where its pods are
    current: Mapping[str, Placement]
    #: the workload is one Pod by itself, which cannot move
    lone_pod: bool = False


def gap(tree: Tree, wish: Wish, kept: Sequence[Domain], lost: int) -> tuple[Wish, Bools | None]:
    """How to look for `lost` pods beside the kept ones: by which wish, and within which leaves (None: anywhere).

    A slice that was broken is made whole where it is. Otherwise the pods have only to stay together at the level that
    is required.
    """
    if not kept:
        return wish, None
    broken = [(level, size) for level, size in wish.layers if lost % size]
    if broken and lost % wish.size:
        level, size = broken[-1]
        pods: dict[int, int] = {}
        for values, count in kept:
            domain = _ancestor(tree, values, level)
            pods[domain] = pods.get(domain, 0) + count
        domain = next((d for d in sorted(pods) if (pods[d] + lost) % size == 0), -1)
        if domain < 0:
            return wish, None
        whole = [layer for layer in wish.layers if lost % layer[1] == 0]
        return _with_layers(tree, wish, whole[-1:]), _leaves(tree, level, domain)
    if wish.mode == "required":
        return wish, _leaves(tree, wish.level, _ancestor(tree, kept[0][0], wish.level))
    return wish, None


def _with_layers(tree: Tree, wish: Wish, layers: Sequence[tuple[int, int]]) -> Wish:
    slice_level, size = layers[0] if layers else (len(tree.levels) - 1, 1)
    return replace(wish, size=size, slice_level=slice_level, layers=tuple(layers), inner=(0,) * len(tree.levels))


def _ancestor(tree: Tree, values: Sequence[str], level: int) -> int:
    """The domain of a level that a leaf, which exists, is in."""
    domain = tree.leaf(values)
    assert domain is not None
    for below in reversed(tree.levels[level + 1 :]):
        domain = int(below.parent[domain])
    return domain


def _leaves(tree: Tree, level: int, domain: int) -> Bools:
    inside = np.zeros(tree.leaves, dtype=np.bool_)
    inside[slice(*Span(tree, level, domain, domain + 1).ranges[-1])] = True
    return inside


def merge(tree: Tree, kept: Sequence[Domain], added: Sequence[Domain]) -> tuple[Domain, ...]:
    """Kept and added domains together, in path order."""
    pods: dict[int, int] = {}
    for values, count in (*kept, *added):
        leaf = tree.leaf(values)
        assert leaf is not None
        pods[leaf] = pods.get(leaf, 0) + count
    return tuple((tree.answer(leaf), pods[leaf]) for leaf in sorted(pods))


def cut(domains: Sequence[Domain], count: int) -> tuple[Domain, ...]:
    """The first `count` pods of a placement."""
    kept: list[Domain] = []
    for values, number in domains:
        if count <= 0:
            break
        kept.append((values, min(number, count)))
        count -= number
    return tuple(kept)
