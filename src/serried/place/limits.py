"""The search under rules between the pods themselves: pods apart, evenly spread, or all in one domain.

Each rule is about the domains of a node label, which are made a level of the tree (see `domains`). There it limits how
many pods each domain may get, and a spread that cannot be kept so also how many each must get:

A spread constraint lets no domain have more than `max_skew` above the emptiest one. What that has now is a bound that
holds wherever pods go, so it is tried first. If that leaves too little room, the emptiest domain has to end with more.
The least that leaves enough is found, every domain gets what it lacks of that, and the rest goes where there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from serried.model.capacity import UNLIMITED, Bools, Ints
from serried.model.nodes import Nodes
from serried.model.pod_filters import Spread, Verdict
from serried.model.topology import Tree
from serried.place.counts import count_up
from serried.place.domains import Layered, layered
from serried.place.explain import LeafFit
from serried.place.search import Found, Leaves, Search, Unfit, children_of, descend_within, find
from serried.place.topology_request import TopologyRequest

#: Domains that are tried for pods that have to be together and evenly spread there.
_TRIED: Final = 8
#: Times that spread constraints may raise each other.
_ROUNDS: Final = 16


@dataclass(frozen=True, eq=False)
class Rules:
    """Rules between the pods of a pod set, beyond those that one node by itself decides."""

    apart: tuple[str, ...]
    together: tuple[str, ...]
    spread: tuple[Spread, ...]

    @staticmethod
    def of(verdict: Verdict, tree: Tree) -> Rules | None:
        """The rules of a verdict; None if there are none. That pods are apart on the hosts is up to `LeafFit`."""
        apart = tuple(key for key in verdict.apart if key != tree.keys[-1])
        if not (apart or verdict.together or verdict.spread):
            return None
        return Rules(apart, verdict.together, verdict.spread)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels that they are about."""
        return tuple(dict.fromkeys((*(s.key for s in self.spread), *self.together, *self.apart)))

    def __str__(self) -> str:
        parts = [f"one in each {key} (podAntiAffinity)" for key in self.apart]
        parts += [f"all in one {key} (podAffinity)" for key in self.together]
        parts += [f"spread over {s.key} (maxSkew {s.max_skew})" for s in self.spread]
        return f"The pods have to be {' and '.join(parts)}"

    @property
    def only_labelled(self) -> bool:
        """Whether pods go only to nodes that have the labels of all rules."""
        return set(self.apart) <= {*self.together, *(s.key for s in self.spread)}


@dataclass(frozen=True, eq=False)
class Failure:
    """A search that found nothing: what it was, on which numbers, and where it ended."""

    search: Search
    fits: LeafFit
    unfit: Unfit


def place_within_rules(
    nodes: Nodes, tree: Tree, request: TopologyRequest, rules: Rules, fits: LeafFit, count: int, best_fit: bool
) -> Leaves | Failure | str:
    """Leaves for `count` pods (and the leader, if `fits` has one) that keep the rules.

    Returns what failed, if there are none; or the label of a rule that cannot be kept together with the slices that
    the request is for.
    """
    found = layered(nodes, tree, request, rules.keys, only_labelled=rules.only_labelled)
    if isinstance(found, str):
        return found
    trial = _Trial(found, rules, fits.at(found.leaves), count, best_fit)
    leaves = trial.place()
    if isinstance(leaves, Leaves):
        leader = int(found.leaves[leaves.leader]) if leaves.leader >= 0 else -1
        return Leaves(found.leaves[leaves.leaves], leaves.pods, leader)
    return Failure(trial.first, trial.all_fits, leaves)


class _Trial:
    def __init__(self, found: Layered, rules: Rules, fits: LeafFit, count: int, best_fit: bool) -> None:
        self.tree = found.tree
        self.request = found.request
        self.rules = rules
        self.fits = self.all_fits = fits
        self.count = count
        self.best_fit = best_fit
        self.levels = found.levels
        self.codes = found.codes
        #: the first search, which limits alone decide
        self.first: Search
        self._go_together()
        #: the highest level with limits: several domains are chosen there, and each keeps to what it got further down
        self.limited = min((self.levels[k] for k in (*(s.key for s in rules.spread), *rules.apart)), default=None)
        if self.request.mode == "unconstrained" and self.limited is not None:
            self.request = replace(self.request, level=min(self.request.level, self.limited))

    def _go_together(self) -> None:
        """Confines the request to one domain of each label that has to hold all pods."""
        if not self.rules.together:
            return
        request, level = self.request, max(self.levels[key] for key in self.rules.together)
        together = replace(request, mode="required", level=level)
        if request.mode == "preferred" and level < request.level:
            # Within the domain that holds all, they are still together if they can be.
            found = find(self._search([s.least for s in self.rules.spread], self.fits, together))
            if isinstance(found, Found):
                self.fits = self.fits.with_room_at(self._below(level, int(found.domains[0])))
            else:
                self.request = together
        elif request.mode != "required" or level > request.level:
            self.request = together

    def place(self) -> Leaves | Unfit:
        leasts = [spread.least for spread in self.rules.spread]
        self.first = self._search(leasts, self.fits)
        found = find(self.first)
        if isinstance(found, Found):
            leaves = descend_within(self.first, found)
            if leaves is not None:
                return leaves
            found = Unfit(found.level, 0)
        if self.rules.spread and self.limited is not None and self.request.size == 1 and self.fits.leader is None:
            for scope in self._scopes():
                filled = self._fill_up(scope, self.limited)
                if filled is not None:
                    return filled
        return found

    def _search(self, leasts: Sequence[int | None], fits: LeafFit, request: TopologyRequest | None = None) -> Search:
        """A search under the limits that follow if the emptiest domain of each spread ends with so many pods; None:
        that spread is left out."""
        request = request or self.request
        most = self._most(leasts)
        counts = count_up(self.tree, request, fits.pods, fits.with_leader, fits.leader, fits.score, most=most)
        need = self.count // request.size
        return Search(self.tree, counts, request, need, fits.leader is not None, self.best_fit, fits.present)

    def _most(self, leasts: Sequence[int | None]) -> list[Ints | None]:
        """Per level, how many pods each domain may get: what its own rules say, and what is above it."""
        own: dict[int, Ints] = {}
        for spread, least in zip(self.rules.spread, leasts, strict=True):
            if least is not None:
                room = np.append(spread.room(least), 0)[self.codes[spread.key]]
                self._limit(own, self.levels[spread.key], room)
        for key in self.rules.apart:
            self._limit(own, self.levels[key], np.where(self.codes[key] < 0, UNLIMITED, 1))
        most: list[Ints | None] = []
        for i, level in enumerate(self.tree.levels):
            limit = own.get(i)
            above = most[-1] if most else None
            if above is not None:
                limit = above[level.parent] if limit is None else np.minimum(limit, above[level.parent])
            most.append(limit)
        return most

    @staticmethod
    def _limit(limits: dict[int, Ints], level: int, limit: Ints) -> None:
        limits[level] = np.minimum(limits[level], limit) if level in limits else limit

    def _below(self, level: int, domain: int) -> Bools:
        """The leaves below a domain."""
        leaves = np.zeros(self.tree.leaves, dtype=np.bool_)
        bounds = self.tree.levels[level].nodes
        leaves[bounds[domain] : bounds[domain + 1]] = True
        return leaves

    # --- a spread whose emptiest domain has to get more

    def _scopes(self) -> list[Bools]:
        """Where all pods may go: anywhere, or the domains that could hold them together, the roomiest first."""
        if self.request.mode != "required":
            return [np.ones(self.tree.leaves, dtype=np.bool_)]
        level = self.tree.levels[self.request.level]
        pods = np.add.reduceat(self.fits.pods, level.nodes[:-1])
        # The emptiest domains of some spread have to be there, all of them.
        useful = np.zeros(level.size, dtype=np.bool_)
        for spread in self.rules.spread:
            emptiest = spread.compared & (spread.counts == spread.least)
            own, number = self.tree.levels[self.levels[spread.key]], np.count_nonzero(emptiest)
            here = np.append(emptiest, False)[self.codes[spread.key]]
            if self.levels[spread.key] < self.request.level:
                around = np.searchsorted(own.nodes, level.nodes[:-1], side="right") - 1
                useful |= here[around] & (number == 1)
            else:
                around = np.searchsorted(level.nodes, own.nodes[:-1][here], side="right") - 1
                useful |= np.bincount(around, minlength=level.size) == number
        candidates = np.flatnonzero(useful & (pods >= self.count))
        roomiest = candidates[np.argsort(-pods[candidates], kind="stable")[:_TRIED]]
        return [self._below(self.request.level, domain) for domain in roomiest.tolist()]

    def _fill_up(self, scope: Bools, top: int) -> Leaves | None:
        """Leaves within a scope, so that every domain gets what it lacks."""
        fits = self.fits.with_room_at(scope)
        leasts = self._leasts(fits, scope)
        if leasts is None:
            return None
        room = [counts.pods for counts in self._search(leasts, fits).counts]
        lacks = self._lacks(scope, leasts)
        if any((own < least).any() for own, least in zip(room, lacks, strict=True)):
            return None
        rest = self.count - int(lacks[top].sum())
        spare = room[top] - lacks[top]
        if not 0 <= rest <= int(spare.sum()):
            return None
        domains = np.flatnonzero(room[top])
        pods = lacks[top][domains] + _handed_out(
            np.array([rest]), np.zeros_like(domains), -spare[domains], spare[domains]
        )
        for level in range(top, len(self.tree.levels) - 1):
            domains, pods = self._divide(level, domains[pods > 0], pods[pods > 0], room[level + 1], lacks[level + 1])
        return Leaves(domains[pods > 0], pods[pods > 0], -1)

    def _divide(self, level: int, domains: Ints, pods: Ints, room: Ints, lacks: Ints) -> tuple[Ints, Ints]:
        """Divides the pods of each domain among its children: what they lack, and the rest where it fits best."""
        children = children_of(self.tree, level, domains)
        parent = np.searchsorted(domains, self.tree.levels[level + 1].parent[children])
        least = lacks[children]
        rest = pods - np.bincount(parent, least, minlength=len(domains)).astype(np.int64)
        spare = room[children] - least
        score = self.fits.score
        first = spare if score is None or level + 1 < len(self.tree.levels) - 1 else -score[children]
        return children, least + _handed_out(rest, parent, first, spare)

    def _lacks(self, scope: Bools, leasts: Sequence[int]) -> list[Ints]:
        """Per level, how many pods each domain has to get."""
        lacks: list[Ints] = []
        for i in reversed(range(len(self.tree.levels))):
            level = self.tree.levels[i]
            own = np.add.reduceat(lacks[-1], level.children[:-1]) if lacks else np.zeros(level.size, dtype=np.int64)
            for spread, least in zip(self.rules.spread, leasts, strict=True):
                if self.levels[spread.key] == i:
                    codes = self.codes[spread.key]
                    here = np.logical_or.reduceat(scope, level.nodes[:-1]) & np.append(spread.compared, False)[codes]
                    own = np.maximum(own, np.where(here, least - np.append(spread.counts, 0)[codes], 0))
            lacks.append(own)
        return lacks[::-1]

    def _leasts(self, fits: LeafFit, scope: Bools) -> list[int] | None:
        """With what the emptiest domain of each spread has to end at least, so that there is room for all pods under
        the other rules; None if that is impossible."""
        leasts = [spread.least for spread in self.rules.spread]
        # Each by itself at first; what one then leaves less room for raises the others.
        others: list[int | None] = [None] * len(leasts)
        for _ in range(_ROUNDS):
            for i, spread in enumerate(self.rules.spread):
                own = [*others[:i], None, *others[i + 1 :]]
                counts = self._search(own, fits).counts[self.levels[spread.key]]
                least = self._least(spread, counts.pods, scope, leasts[i])
                if least is None:
                    return None
                leasts[i] = least
            if leasts == others or len(leasts) == 1:
                return leasts
            others = list(leasts)
        return None

    def _least(self, spread: Spread, pods: Ints, scope: Bools, low: int) -> int | None:
        """The least that is at least `low`. `pods`: how many fit into each domain of its level."""
        codes = self.codes[spread.key]
        here = np.logical_or.reduceat(scope, self.tree.levels[self.levels[spread.key]].nodes[:-1]) & (codes >= 0)
        at, fitting = codes[here], pods[here]
        # What is not here stays as it is, and so does what counts as nothing as long as there are too few domains.
        outside = spread.compared.copy()
        outside[at] = False
        highest = int(spread.counts[outside].min()) if outside.any() else self.count + int(spread.counts.max(initial=0))
        if int(spread.compared.sum()) < max(1, spread.min_domains):
            highest = 0

        def fits_all(least: int) -> bool:
            return int(np.minimum(fitting, spread.room(least)[at]).sum()) >= self.count

        high = highest
        if high < low or not fits_all(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits_all(middle) else (middle + 1, high)
        return low


def _handed_out(needs: Ints, parent: Ints, first: Ints, spare: Ints) -> Ints:
    """What each item gets of what its parent has to hand out (`needs`, by parent), in the order of `first`, as far as
    it has room (`spare`)."""
    order = np.lexsort([np.arange(len(parent)), first, parent])
    own, of = spare[order], parent[order]
    before = np.cumsum(own) - own
    starts = np.searchsorted(of, np.arange(len(needs)))
    before -= before[np.minimum(starts, max(0, len(of) - 1))][of] if len(of) else 0
    given = np.zeros_like(spare)
    given[order] = np.clip(needs[of] - before, 0, own)
    return given
