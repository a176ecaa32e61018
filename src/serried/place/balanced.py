"""Balanced placement: a preferred pod set spread evenly over as few domains as possible.

The threshold is the least number of slices that each domain used gets. Among the candidate sets of sibling domains the
one with the highest threshold wins; domains that hold less are pruned from it, and of the rest the smallest selection
with the least room to spare is filled evenly. Whatever does not work out gives up, and best fit is used instead.

Source of the rules: Kueue's balanced placement, which this follows step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from serried.model.capacity import Bools, Ints
from serried.place.counts import Counts, Span, count_up
from serried.place.domain_order import Filled, in_leader_order, in_order, sort
from serried.place.search import Leaves, Search, below_slices, children_of, divide_each

#: States that a selection may have (about 80 MB), and how many it may look at (about a quarter of a second). Beyond
#: that there are hundreds of domains to choose hundreds from, or room for millions of pods, and best fit does as well.
_MOST_STATES: Final = 2**23
_MOST_STEPS: Final = 10**9


@dataclass(eq=False)
class _DomainSet:
    """Sibling domains: a span of the tree with counts of its own, top level first, that can be pruned."""

    span: Span
    counts: list[Counts]


@dataclass(frozen=True)
class _Greedy:
    """What taking domains greedily needs: how many, and the last one that is taken with and without the leader."""

    taken: int
    last_with_leader: int | None
    last: int | None


def place_balanced(search: Search) -> Leaves | None:
    """An even placement, or None if there is none."""
    best, candidate = _best_candidate(search)
    if candidate is None:
        return None
    level, size = search.request.level, search.request.size
    domains = np.arange(len(candidate.counts[0].pods))
    if level < search.request.slice_level:
        chosen = _select(search, candidate.counts[0], _by_entropy(search, candidate))
        if chosen is None:
            return None
        first = candidate.span.ranges[0][0]
        domains = children_of(search.tree, level, chosen + first) - candidate.span.ranges[1][0]
        level += 1
    counts = candidate.counts[level - search.request.level]
    chosen = _select(search, counts, domains)
    if chosen is None:
        return None
    surplus = search.need - len(chosen) * best
    if surplus < 0:
        return None
    listed = in_leader_order(counts, np.sort(chosen), True)
    capacity = counts.slices[listed] - best
    if search.leader:
        capacity[0] = counts.slices_with_leader[listed[0]] - best
    extra = np.clip(surplus - (np.cumsum(capacity) - capacity), 0, capacity)
    if int(extra.sum()) < surplus:
        return None
    pruned = replace(search, counts=_whole(search, candidate))
    domains = listed + candidate.span.ranges[level - search.request.level][0]
    filled = Filled(domains, extra + best, int(domains[0]) if search.leader else -1, True)
    while level < search.request.slice_level:
        divided = divide_each(pruned, level, filled.domains, filled.amounts * size, filled.leader, size)
        if divided is None:
            return None
        domains, pods, leader = divided
        filled = Filled(domains, pods // size, leader, True)
        level += 1
    return below_slices(pruned, level, filled, size)


def _best_candidate(search: Search) -> tuple[int, _DomainSet | None]:
    """The threshold (0: none) and the pruned set of siblings that wins."""
    level = search.request.level
    if level == 0:
        spans = [(0, search.tree.levels[0].size)]
    else:
        bounds = search.tree.levels[level - 1].children.tolist()
        spans = list(pairwise(bounds))
    best, fewest, winner = 0, 0, None
    for low, high in spans:
        span = Span(search.tree, level, low, high)
        pooled = min(level + 1, search.request.slice_level)
        start, end = span.ranges[pooled - level]
        counts = _part(search.counts[pooled], start, end)
        greedy = _greedy(search, counts, np.arange(end - start))
        if greedy is None or not greedy.taken:
            continue
        threshold = search.need // greedy.taken
        beside = threshold
        if greedy.last_with_leader is not None:
            threshold = min(threshold, int(counts.slices_with_leader[greedy.last_with_leader]))
            beside = threshold
        if greedy.last is not None:
            threshold = min(threshold, int(counts.slices[greedy.last]))
            beside = threshold
            if search.leader:
                beside = min(threshold, int(counts.slices_with_leader[greedy.last]))
        if threshold < best:
            continue
        candidate = _pruned(search, span, threshold)
        after = _greedy(search, candidate.counts[0], np.arange(high - low))
        if after is None and max(1, best) <= beside < threshold:
            threshold = beside
            candidate = _pruned(search, span, threshold)
            after = _greedy(search, candidate.counts[0], np.arange(high - low))
        if after is None:
            continue
        if threshold > best or (threshold == best and after.taken < fewest):
            best, fewest, winner = threshold, after.taken, candidate
    return best, winner if best else None


def _greedy(search: Search, counts: Counts, domains: Ints) -> _Greedy | None:
    """Takes the largest domains, first one for the leader, until all is placed; None if it does not fit."""
    need, taken, host = search.need, 0, None
    if search.leader:
        listed = in_leader_order(counts, np.sort(domains), True)
        if not len(listed) or not counts.leader[listed[0]]:
            return None
        host, taken = int(listed[0]), 1
        need -= int(counts.slices_with_leader[host])
        domains = listed[1:]
    if need <= 0:
        return _Greedy(taken, host, None)
    listed = in_order(counts, np.sort(domains), True)
    empty = np.flatnonzero(counts.slices[listed] <= 0)
    if len(empty):
        listed = listed[: empty[0]]
    total = np.cumsum(counts.slices[listed])
    last = int(np.searchsorted(total, need))
    if last >= len(listed):
        return None
    return _Greedy(taken + last + 1, host, int(listed[last]))


def _part(counts: Counts, low: int, high: int) -> Counts:
    return Counts(
        counts.pods[low:high],
        counts.slices[low:high],
        counts.pods_with_leader[low:high],
        counts.slices_with_leader[low:high],
        counts.leader[low:high],
        None if counts.score is None else counts.score[low:high],
    )


def _pruned(search: Search, span: Span, threshold: int) -> _DomainSet:
    """The span without the domains, on its first two levels, that hold less than the threshold."""
    tree, level, lowest = search.tree, search.request.level, len(search.tree.levels) - 1
    leaves = _own(_part(search.counts[lowest], *span.ranges[-1]), search.leader)
    if level < lowest:
        below = _part(search.counts[level + 1], *span.ranges[1])
        none, no_leader = _below(search, below, threshold)
        for depth in range(level + 1, lowest):
            sizes = np.diff(span.children(tree, depth))
            none, no_leader = np.repeat(none, sizes), np.repeat(no_leader, sizes)
        _clear(leaves, none, no_leader)
    counts = count_up(
        tree,
        replace(search.request, inner=(0,) * len(tree.levels)),
        leaves.pods,
        leaves.pods_with_leader if search.leader else None,
        leaves.leader if search.leader else None,
        leaves.score,
        span=span,
    )
    counts = [_own(c, search.leader) for c in counts]
    none, no_leader = _below(search, counts[0], threshold)
    for depth, here in enumerate(counts, start=level):
        _clear(here, none, no_leader)
        if depth < lowest:
            sizes = np.diff(span.children(tree, depth))
            none, no_leader = np.repeat(none, sizes), np.repeat(no_leader, sizes)
    return _DomainSet(span, counts)


def _below(search: Search, counts: Counts, threshold: int) -> tuple[Bools, Bools]:
    """Which domains hold too little, and which of the others hold too little beside the leader."""
    none = counts.slices < threshold
    return none, ~none & search.leader & (counts.leader > 0) & (counts.slices_with_leader < threshold)


def _own(counts: Counts, leader: bool) -> Counts:
    """Counts with arrays of their own; those with a leader are still the others where there is none."""
    pods, slices = counts.pods.copy(), counts.slices.copy()
    return Counts(
        pods,
        slices,
        counts.pods_with_leader.copy() if leader else pods,
        counts.slices_with_leader.copy() if leader else slices,
        counts.leader.copy(),
        counts.score,
    )


def _clear(counts: Counts, none: Bools, no_leader: Bools) -> None:
    counts.pods[none] = 0
    counts.slices[none] = 0
    without = none | no_leader
    if without.any():
        counts.leader[without] = 0
        if counts.pods_with_leader is not counts.pods:
            counts.pods_with_leader[without] = 0
            counts.slices_with_leader[without] = 0


def _by_entropy(search: Search, candidate: _DomainSet) -> Ints:
    """The span's first domains: leader hosts first, then most slices, then those with the most even children."""
    counts, below = candidate.counts[0], candidate.counts[1].pods
    bounds = candidate.span.children(search.tree, search.request.level)
    total = np.repeat(np.add.reduceat(below, bounds[:-1]), np.diff(bounds))
    share = np.where(below > 0, below / np.maximum(total, 1), 1.0)
    entropy = np.add.reduceat(-share * np.log2(share), bounds[:-1])
    rank = np.unique(-entropy, return_inverse=True)[1].astype(np.int64)
    return sort(np.arange(len(counts.pods)), -counts.leader, -counts.slices_with_leader, rank)


def _select(search: Search, counts: Counts, listed: Ints) -> Ints | None:
    """The fewest domains that hold everything, with the least room to spare; None if all together do not, or if there
    are too many to choose from.

    Dynamic programming over the domains in the order of the list. A state is (domains taken, leaders left, pods left);
    the first way to a state is the one that is kept.
    """
    greedy = _greedy(search, counts, listed)
    if greedy is None:
        return None
    n, pods = greedy.taken, search.need * search.request.size
    usable = listed[(counts.slices[listed] > 0) | (counts.leader[listed] > 0)]
    usable = _enough_of_each(counts, usable, n)
    most = int(max(counts.pods[usable].max(initial=0), counts.pods_with_leader[usable].max(initial=0)))
    offset = n * most  # of 0 pods left
    width = offset + pods + 1
    planes = 2 if search.leader else 1
    states = (n + 1) * planes * width
    if states > _MOST_STATES or states * len(usable) > _MOST_STEPS:
        return None
    reached = np.zeros((n + 1, planes, width), dtype=np.bool_)
    by = np.full((n + 1, planes, width), -1, dtype=np.int64)
    hosting = np.zeros((n + 1, planes, width), dtype=np.bool_)
    reached[0, planes - 1, width - 1] = True
    unfinished = np.arange(width) > offset
    for domain in usable.tolist():
        capacity, beside = int(counts.pods[domain]), int(counts.pods_with_leader[domain])
        before = reached[:-1].copy()
        before[:, 0] &= unfinished
        if counts.slices[domain] > 0:
            new = np.zeros_like(before)
            new[..., : width - capacity] = before[..., capacity:]
            new &= ~reached[1:]
            reached[1:] |= new
            by[1:][new] = domain
        if planes == 2 and counts.leader[domain]:
            new = np.zeros_like(before[:, 0])
            new[:, : width - beside] = before[:, 1, beside:]
            new &= ~reached[1:, 0]
            reached[1:, 0] |= new
            by[1:, 0][new] = domain
            hosting[1:, 0][new] = True
    ends = np.flatnonzero(reached[n, 0, : offset + 1])
    if not len(ends):
        return None
    at, plane, chosen = int(ends[-1]), 0, []
    for taken in range(n, 0, -1):
        domain = int(by[taken, plane, at])
        chosen.append(domain)
        if hosting[taken, plane, at]:
            at, plane = at + int(counts.pods_with_leader[domain]), 1
        else:
            at += int(counts.pods[domain])
    return np.array(chosen[::-1], dtype=np.int64)


def _enough_of_each(counts: Counts, listed: Ints, n: int) -> Ints:
    """The list with at most the first n of equal domains: no selection of n uses more, and the first ones are kept."""
    kinds = np.stack([counts.pods, counts.pods_with_leader, counts.leader, counts.slices > 0])[:, listed]
    _, kind = np.unique(kinds, axis=1, return_inverse=True)
    kind = kind.ravel()
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], kind[order])
    among_equals = np.empty(len(listed), dtype=np.int64)
    among_equals[order] = np.arange(len(listed)) - starts
    kept: Ints = listed[among_equals < n]
    return kept


def _whole(search: Search, candidate: _DomainSet) -> list[Counts]:
    """The candidate's counts as counts of the whole tree, with nothing anywhere else."""
    found = list(search.counts[: search.request.level])
    for (low, high), counts, whole in zip(
        candidate.span.ranges, candidate.counts, search.counts[search.request.level :], strict=True
    ):
        domains = slice(low, high)
        found.append(
            Counts(
                _embedded(whole.pods, domains, counts.pods),
                _embedded(whole.pods, domains, counts.slices),
                _embedded(whole.pods, domains, counts.pods_with_leader),
                _embedded(whole.pods, domains, counts.slices_with_leader),
                _embedded(whole.pods, domains, counts.leader),
                whole.score,
            )
        )
    return found


def _embedded(like: Ints, domains: slice, values: Ints) -> Ints:
    array = np.zeros_like(like)
    array[domains] = values
    return array
