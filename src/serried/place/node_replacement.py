"""The places that are kept when a node has failed, and where the lost pods may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from serried.api.names import HOSTNAME
from serried.model.capacity import Bools, Ints
from serried.model.placement import Domain, Placement
from serried.model.topology import Tree
from serried.place.counts import Span
from serried.place.topology_request import TopologyRequest


@dataclass(frozen=True)
class Replacement:
    """An admitted workload has lost a node and needs places for the pods that were there."""

    #: the label kubernetes.io/hostname of the node
    unhealthy: str
    #: pod set → where its pods are
    current: Mapping[str, Placement]
    #: the workload is one Pod by itself, which cannot move
    lone_pod: bool = False

    def kept(self, pod_set: str) -> tuple[Domain, ...]:
        """The places of a pod set that are not lost."""
        current = self.current.get(pod_set)
        return tuple(d for d in current.domains if not self._is_lost(current, d)) if current is not None else ()

    def lost(self, pod_set: str) -> int:
        """How many pods of a pod set have lost their place."""
        current = self.current.get(pod_set)
        return sum(d[1] for d in current.domains if self._is_lost(current, d)) if current is not None else 0

    def _is_lost(self, placement: Placement, domain: Domain) -> bool:
        return placement.levels[-1:] == (HOSTNAME,) and domain[0][-1:] == (self.unhealthy,)


#: (level, size) of layers of slices, outermost first
Layers = Sequence[tuple[int, int]]


def gap(
    tree: Tree, request: TopologyRequest, kept: Sequence[Domain], beside: Sequence[Domain], lost: int
) -> tuple[TopologyRequest, Layers, Bools | None]:
    """How to look for `lost` pods beside the kept ones: by which request, and within which leaves (None: anywhere); and
    the layers whose slices must come out whole, whatever the request says of them.

    A slice that was broken is made whole where it is. Otherwise the pods have only to stay together at the level that
    is required: with the kept ones, or if there are none, with those of their group (`beside`).
    """
    broken = [(level, size) for level, size in request.layers if lost % size] if kept else []
    if broken and lost % request.size:
        level, size = broken[-1]
        pods: dict[int, int] = {}
        for values, count in kept:
            domain = _ancestor(tree, values, level)
            pods[domain] = pods.get(domain, 0) + count
        domain = next((d for d in sorted(pods) if (pods[d] + lost) % size == 0), -1)
        if domain < 0:
            return request, (), None
        whole = [layer for layer in request.layers if lost % layer[1] == 0]
        # As in Kueue, the innermost one goes first: it does for all, nearly always.
        return sliced(tree, request, whole[-1:]), whole, _leaves(tree, level, domain)
    anchor = (*kept, *beside)
    if request.mode == "required" and anchor:
        return request, (), _leaves(tree, request.level, _ancestor(tree, anchor[0][0], request.level))
    return request, (), None


def are_whole(tree: Tree, layers: Layers, leaves: Ints, pods: Ints) -> bool:
    """Whether each domain of each layer's level gets a multiple of the layer's size."""
    for level, size in layers:
        number = np.zeros(tree.leaves, dtype=np.int64)
        number[leaves] = pods
        for above in reversed(tree.levels[level:-1]):
            number = np.add.reduceat(number, above.children[:-1])
        if (number % size).any():
            return False
    return True


def sliced(tree: Tree, request: TopologyRequest, layers: Layers) -> TopologyRequest:
    """The request with these layers of slices."""
    slice_level, size = layers[0] if layers else (len(tree.levels) - 1, 1)
    inner = [0] * len(tree.levels)
    for (above, _), (here, inner_size) in pairwise(layers):
        inner[above + 1 : here + 1] = [inner_size] * (here - above)
    return replace(request, size=size, slice_level=slice_level, layers=tuple(layers), inner=tuple(inner))


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
