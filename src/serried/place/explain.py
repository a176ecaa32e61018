"""Why nothing fits: the text that users of Kueue know, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from serried.model.capacity import Bools, Free, Ints, Vector, limiting
from serried.model.filters import Mask
from serried.place.domain_order import in_leader_order
from serried.place.result import NoPlacement
from serried.place.search import Search, Unfit

T = TypeVar("T", bound=np.generic)


@dataclass(eq=False)
class LeafFit:
    """What fits on each leaf of a tree, and why no more."""

    #: leaves that have a usable node
    present: Bools
    #: leaves the search is confined to; None: everywhere
    within: Bools | None
    #: what the filters say; None where they are not asked (the leaves are not hosts)
    mask: Mask | None
    free: Free
    vector: Vector
    pods: Ints
    #: pods beside the leader, and where the leader fits; None without a leader
    with_leader: Ints | None
    leader: Ints | None
    #: None when nothing ranks the nodes
    score: Ints | None

    def at(self, leaves: Ints) -> LeafFit:
        """The same for the leaves in another order."""

        def of(values: NDArray[T] | None) -> NDArray[T] | None:
            return None if values is None else values[leaves]

        return LeafFit(
            self.present[leaves],
            of(self.within),
            None if self.mask is None else self.mask.at(leaves),
            lambda line: self.free(line)[leaves],
            self.vector,
            self.pods[leaves],
            of(self.with_leader),
            of(self.leader),
            of(self.score),
        )

    def with_room_at(self, leaves: Bools) -> LeafFit:
        """The same, with room at these leaves only."""
        return replace(
            self,
            pods=np.where(leaves, self.pods, 0),
            with_leader=None if self.with_leader is None else np.where(leaves, self.with_leader, 0),
            leader=None if self.leader is None else np.where(leaves, self.leader, 0),
        )


def explain(search: Search, fit: LeafFit, unfit: Unfit, pod_set: str, topology: str, count: int) -> NoPlacement:
    """The answer for a pod set of `count` pods that the search found no place for."""
    tree, request = search.tree, search.request
    excluded, which, names = _exclusions(fit)
    together = request.mode == "required"
    best: tuple[str, ...] = ()
    leaves = slice(None)
    counts = search.counts[unfit.level]
    first = int(in_leader_order(counts, np.flatnonzero(search.exists(unfit.level)), search.best_fit)[0])
    fits = unfit.fits
    if together and search.leader:
        # In the text, as in Kueue, it is what fits without the leader.
        fits = int(counts.slices_with_leader[first]) if counts.leader[first] else 0
    if together and fits:
        best = tree.path(unfit.level, first)
        low, high = first, first + 1
        for level in tree.levels[unfit.level : -1]:
            low, high = int(level.children[low]), int(level.children[high])
        leaves = slice(low, high)
    return NoPlacement(
        pod_set,
        _message(search, fit, unfit, topology, count, excluded),
        level=tree.keys[unfit.level],
        needed=search.need,
        fits=fits,
        slice_size=request.size,
        beside_leader=search.leader,
        best_domain=best,
        total_nodes=int(fit.present.sum()),
        excluded=excluded,
        limited_by=_tally(which[leaves], names),
    )


def _message(search: Search, fit: LeafFit, unfit: Unfit, topology: str, count: int, excluded: dict[str, int]) -> str:
    request = search.request
    unit = "pod" if request.size == 1 else "slice"
    if len(request.layers) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit'
        text += "".join(
            f"; {fits}/{count // size} slice(s) fit on level {search.tree.keys[level]}"
            for (level, size), fits in zip(request.layers, _layer_fits(search, unfit.level), strict=True)
        )
    elif unfit.fits == 0:
        text = f'topology "{topology}" doesn\'t allow to fit any of {search.need} {unit}(s)'
    else:
        text = f'topology "{topology}" allows to fit only {unfit.fits} out of {search.need} {unit}(s)'
    if excluded:
        items = ", ".join(sorted(f"{name}: {number}" for name, number in excluded.items()))
        text += f". Total nodes: {int(fit.present.sum())}; excluded: {items}"
    return text


def _layer_fits(search: Search, level: int) -> list[int]:
    """Per layer, how many of its slices the best domain holds, each layer counted by itself."""
    tree = search.tree
    best = int(np.argmax(np.where(search.exists(level), search.counts[level].slices, -1)))
    found = []
    low, high, at = best, best + 1, level
    for layer, size in search.request.layers:
        for above in tree.levels[at:layer]:
            low, high = int(above.children[low]), int(above.children[high])
        at = layer
        found.append(int((search.counts[layer].pods[low:high] // size).sum()))
    return found


def _exclusions(fit: LeafFit) -> tuple[dict[str, int], Ints, list[str]]:
    """How many leaves each filter or resource excludes, and per leaf which resource runs out first.

    The latter as index into the names returned last, -1 where a filter excludes the leaf.
    """
    excluded: dict[str, int] = {}
    open_ = fit.present.copy()
    if fit.mask is not None:
        numbers = np.bincount(fit.mask.excluded_by[open_], minlength=len(fit.mask.names)).tolist()
        excluded |= {name: n for name, n in zip(fit.mask.names[1:], numbers[1:], strict=True) if n}
        open_ &= fit.mask.allowed
    if fit.within is not None:
        outside = int((open_ & ~fit.within).sum())
        if outside:
            excluded["topologyDomain"] = outside
        open_ &= fit.within
    which, names = limiting(fit.free, fit.vector, len(open_))
    full = _tally(which[open_ & (fit.pods == 0)], names)
    excluded |= {f'resource "{name}"': n for name, n in full.items()}
    return excluded, np.where(open_, which, -1), names


def _tally(which: Ints, names: list[str]) -> dict[str, int]:
    numbers = np.bincount(which[which >= 0], minlength=len(names)).tolist()
    return {name: n for name, n in zip(names, numbers, strict=True) if n}
