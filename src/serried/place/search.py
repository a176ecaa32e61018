"""The search for domains: at which level, which ones, and down from there to the leaves.

Source of the rules: Kueue's topology-aware scheduling, which this follows step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serried.model.capacity import Bools, Ints
from serried.model.topology import Tree
from serried.place.counts import Counts
from serried.place.domain_order import Filled, fill, in_leader_order, in_order, leader_to_front, pick, sort
from serried.place.topology_request import TopologyRequest


@dataclass(eq=False)
class Search:
    """One search: the tree and its counts, top level first, and what is asked for."""

    tree: Tree
    counts: list[Counts]
    request: TopologyRequest
    #: slices to place
    need: int
    #: a leader has to be placed with them
    leader: bool
    best_fit: bool
    #: leaves that have a usable node; the others are as if not there
    present: Bools

    def exists(self, level: int) -> Bools:
        """Which domains of a level have a usable node."""
        here = self.present
        for above in reversed(self.tree.levels[level:-1]):
            here = np.logical_or.reduceat(here, above.children[:-1])
        return here


@dataclass(eq=False)
class Found:
    """Domains of one level that together hold what is needed."""

    level: int
    domains: Ints


@dataclass(eq=False)
class Leaves:
    """The answer: pods per leaf (0 where only the leader goes), and the leader's leaf (-1: none)."""

    leaves: Ints
    pods: Ints
    leader: int
    #: why it is not the best placement, although that was asked for; "" otherwise
    fallback: str = ""


@dataclass(frozen=True)
class Unfit:
    """No domains were found at this level; `fits` of the slices would."""

    level: int
    fits: int


def find(search: Search) -> Found | Unfit:
    """Looks for one domain at the level asked for; then, as the mode allows, higher up or in several domains."""
    level = search.request.level
    while True:
        counts = search.counts[level]
        alone = _one_domain(search, counts)
        if alone is not None:
            return Found(level, alone)
        if search.request.mode == "required":
            first = in_leader_order(counts, np.flatnonzero(search.exists(level)), search.best_fit)[0]
            return Unfit(level, int(counts.slices[first]))
        if search.request.mode == "unconstrained" or level == 0:
            return _several_domains(search, level)
        level -= 1


def _one_domain(search: Search, counts: Counts) -> Ints | None:
    """The domain that takes everything, as a list of one."""
    fitting = counts.slices_with_leader >= search.need
    if search.leader:
        fitting &= counts.leader > 0
    domains = np.flatnonzero(fitting)
    if not len(domains):
        return None
    if counts.score is None:
        # Where it fits, the best fit is the least free.
        return in_leader_order(counts, domains, False)[:1]
    listed = in_leader_order(counts, np.arange(len(fitting)), search.best_fit)
    first = int(np.argmax(fitting[listed]))
    if not search.best_fit:
        return listed[first : first + 1]
    if first and search.request.mode != "required":
        # Only the first is asked: one of a lower score is not preferred to several domains of a higher score.
        return None
    tail = listed[first:]
    allowed = counts.leader[tail] if search.leader else None
    best = pick(counts.slices_with_leader[tail], allowed, counts.score[tail], search.need)
    return tail[best : best + 1]


def _several_domains(search: Search, level: int) -> Found | Unfit:
    """As many domains as it takes, the leader's first."""
    counts, need = search.counts[level], search.need
    # A domain with no room for a slice is of use to a leader only.
    domains = np.arange(len(counts.slices)) if search.leader else np.flatnonzero(counts.slices)
    listed = in_leader_order(counts, domains, search.best_fit)
    chosen = listed[:0]
    if search.leader:
        listed = leader_to_front(
            listed, counts.slices[listed], counts.slices_with_leader[listed], counts.leader[listed], need
        )
        if not counts.leader[listed[0]]:
            return Unfit(level, 0)
        host = 0
        if search.best_fit and counts.slices_with_leader[listed[0]] >= need:
            score = None if counts.score is None else counts.score[listed]
            host = pick(counts.slices_with_leader[listed], counts.leader[listed], score, need)
        chosen = listed[host : host + 1]
        need -= int(counts.slices_with_leader[chosen[0]])
        if need <= 0:
            return Found(level, chosen)
        listed = in_order(counts, np.sort(listed[1:]), search.best_fit)
    total = np.cumsum(counts.slices[listed])
    last = int(np.searchsorted(total, need))
    if last >= len(listed):
        available = int(total[-1]) if len(total) else 0
        return Unfit(level, search.need - need + available)
    end = last
    if search.best_fit:
        tail = listed[last:]
        score = None if counts.score is None else counts.score[tail]
        rest = need - int(total[last] - counts.slices[listed[last]])
        end = last + pick(counts.slices[tail], None, score, rest)
    return Found(level, np.concatenate([chosen, listed[:last], listed[end : end + 1]]))


def descend(search: Search, found: Found) -> Leaves | None:
    """Divides what is needed among the found domains, level by level down to the leaves.

    Returns None if a level does not hold what the level above promised.
    """
    level = found.level
    counts = search.counts[level]
    filled = fill(
        counts,
        found.domains,
        search.need,
        search.leader,
        search.best_fit,
        counts.slices,
        counts.slices_with_leader,
    )
    while filled.complete and level < search.request.slice_level:
        children = children_of(search.tree, level, filled.domains)
        level += 1
        counts = search.counts[level]
        filled = fill(
            counts,
            in_order(counts, children, search.best_fit),
            search.need,
            search.leader,
            search.best_fit,
            counts.slices,
            counts.slices_with_leader,
        )
    if not filled.complete:
        return None
    return below_slices(search, level, filled, search.request.size)


def descend_within(search: Search, found: Found) -> Leaves | None:
    """As `descend`, but each domain keeps what it was given: what the limits of domains on the way down need.

    Returns None if a level does not hold what the level above promised.
    """
    counts = search.counts[found.level]
    slices, with_leader = counts.slices, counts.slices_with_leader
    filled = fill(counts, found.domains, search.need, search.leader, search.best_fit, slices, with_leader)
    if not filled.complete:
        return None
    level = found.level
    while level < search.request.slice_level:
        used = (filled.amounts > 0) | (filled.domains == filled.leader)
        divided = _divide(search, level, filled.domains[used], filled.amounts[used], filled.leader, in_slices=True)
        if divided is None:
            return None
        filled = Filled(*divided, True)
        level += 1
    return below_slices(search, level, filled, search.request.size)


def below_slices(search: Search, level: int, filled: Filled, size: int) -> Leaves | None:
    """Divides the pods of each domain among its own children, down to the leaves.

    Args:
        filled: domains of `level` with slices of `size` pods each.
    """
    # From here on each domain keeps to itself, so those that got nothing are done with.
    used = (filled.amounts > 0) | (filled.domains == filled.leader)
    domains, pods, leader = filled.domains[used], filled.amounts[used] * size, filled.leader
    while level < len(search.tree.levels) - 1:
        divided = _divide(search, level, domains, pods, leader)
        if divided is None:
            return None
        domains, pods, leader = divided
        level += 1
    return Leaves(domains, pods, leader)


def _divide(
    search: Search, level: int, domains: Ints, pods: Ints, leader: int, *, in_slices: bool = False
) -> tuple[Ints, Ints, int] | None:
    """Divides pods of domains below the slice level: (children, pods of each, the leader's child).

    `in_slices`: slices of domains above the slice level instead.
    """
    counts = search.counts[level + 1]
    values = counts.slices if in_slices else counts.pods
    size = 1 if in_slices else search.request.inner[level + 1] or 1
    parts, amounts, host = [], [], -1
    if leader >= 0:
        # Only the leader's domain has to mind the leader.
        at = int(np.flatnonzero(domains == leader)[0])
        own, amount = domains[at : at + 1], pods[at : at + 1]
        divided = divide_each(search, level, own, amount, leader, size, in_slices=in_slices)
        if divided is None:
            return None
        parts, amounts, host = [divided[0]], [divided[1]], divided[2]
        domains, pods = np.delete(domains, at), np.delete(pods, at)
    if len(domains):
        # Children come in the order of rising room, so the one that takes the rest is also the one that fits it
        # best, and all domains can be divided at once.
        by_path = np.argsort(domains)
        domains, need = domains[by_path], pods[by_path] // size
        children = children_of(search.tree, level, domains)
        bounds = search.tree.levels[level].children
        sizes = bounds[domains + 1] - bounds[domains]
        parent = np.repeat(np.arange(len(domains)), sizes)
        keys = [parent, values[children]]
        if counts.score is not None:
            keys.insert(1, -counts.score[children])
        children = sort(children, *keys)
        own = values[children] // size
        total = np.cumsum(own)
        before = total - own
        before -= np.repeat(before[np.cumsum(sizes) - sizes], sizes)
        taken = np.clip(need[parent] - before, 0, own)
        if int(taken.sum()) != int(need.sum()):
            return None
        parts.append(children[taken > 0])
        amounts.append(taken[taken > 0] * size)
    return np.concatenate(parts), np.concatenate(amounts), host


def divide_each(
    search: Search, level: int, domains: Ints, pods: Ints, leader: int, size: int, *, in_slices: bool = False
) -> tuple[Ints, Ints, int] | None:
    """Divides the pods of each domain, in slices of `size`, among its children, one domain after the other.

    Returns the children, the pods of each and the leader's child; None if a domain does not hold what it should.
    `in_slices`: slices of domains above the slice level instead.
    """
    counts = search.counts[level + 1]
    if in_slices:
        values, with_leader = counts.slices, counts.slices_with_leader
    else:
        values = counts.pods // size if size > 1 else counts.pods
        with_leader = counts.pods_with_leader // size if size > 1 else counts.pods_with_leader
    parts, amounts, host = [], [], -1
    for domain, number in zip(domains.tolist(), pods.tolist(), strict=True):
        children = in_order(counts, children_of(search.tree, level, np.array([domain])), search.best_fit)
        hosts = domain == leader
        filled = fill(counts, children, number // size, hosts, search.best_fit, values, with_leader)
        if not filled.complete:
            return None
        if hosts:
            host = filled.leader
        parts.append(filled.domains)
        amounts.append(filled.amounts * size)
    return np.concatenate(parts), np.concatenate(amounts), host


def children_of(tree: Tree, level: int, domains: Ints) -> Ints:
    """All children of some domains, ascending."""
    bounds = tree.levels[level].children
    domains = np.sort(domains)
    sizes = bounds[domains + 1] - bounds[domains]
    if len(domains) == 1:
        return np.arange(bounds[domains[0]], bounds[domains[0] + 1])
    ends = np.cumsum(sizes)
    first = np.repeat(bounds[domains] - (ends - sizes), sizes)
    return first + np.arange(len(first))
