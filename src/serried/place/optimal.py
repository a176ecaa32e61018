"""Optimal placement: of all placements of a pod set, one that is best by the three `measures`; with a limit.

The order of the measures is what makes this quick. The level of the spread is the lowest one with a domain that holds
everything. Only such domains are candidates, and of those only the ones that need the fewest children. Candidates are
looked at in the order of what they can be at best, until the next one cannot be better than what was found.

Within a candidate it is a dynamic program, from the leaves up: for each domain, the least cost of holding at least so
many pods. Costs are whole numbers with a digit for each measure and level, the more important ones in front, so adding
and comparing them adds and compares all measures at once; where 60 bits are not enough, several such numbers.

Adding nodes never takes a pod set's place away: it has one if one domain at the required level holds it, or else all
domains together, and what a domain holds only grows with its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from serried.model.capacity import Bools, Ints
from serried.place.domain_order import sort
from serried.place.search import Leaves, Search

#: (words, numbers) int64: costs, the most important word first.
Costs = Ints

#: Partial placements compared at once: so many stay in the processor's cache.
_AT_ONCE = 2**15
#: What each further domain counts for the limit, besides the partial placements: about its share of the time.
_STEP = 5000
_WORD_BITS = 60
#: More than any cost; two of them can still be added.
_NEVER = 2**61


class LimitReached(Exception):
    """More partial placements would have to be looked at than the limit allows."""


def place_optimal(search: Search, limit: int) -> Leaves | None:
    """The best placement of a pod set without a leader; None if there is none.

    Args:
        limit: how many partial placements may be looked at: so many pods in some sibling domains, so many more in
            another one.

    Raises:
        LimitReached: that does not suffice to find the best placement, or to know that it is the best.
    """
    request = search.request
    optimum = _Optimum(search, limit)
    together = optimum.spread >= request.level
    if not (together if request.mode == "required" else int(optimum.fitting[0].sum()) >= optimum.count):
        return None
    amounts = optimum.place()
    leaves = np.array(sorted(amounts), dtype=np.int64)
    return Leaves(leaves, np.array([amounts[leaf] for leaf in leaves.tolist()], dtype=np.int64), -1)


@dataclass(frozen=True, eq=False)
class _Addition:
    """Some children of a domain (several: equal leaves) and, after them, the costs with all children so far."""

    children: Ints
    #: the least cost of at least 0, 1, 2 … units in these children, and of at least that in all so far
    part: Costs
    total: Costs
    #: the numbers of units that are worth to put into these children
    worth: Ints


class _Optimum:
    """Lists have one entry per level, top first; the arrays in them one per domain. Level -1 is the tree as a whole."""

    def __init__(self, search: Search, limit: int) -> None:
        request, self.tree = search.request, search.tree
        self.left = limit
        self.count = search.need * request.size
        self.lowest = len(self.tree.levels) - 1
        #: a domain of this level gets a multiple of so many pods; each is a multiple of the one below
        self.unit = [
            request.size if level <= request.slice_level else request.inner[level] or 1
            for level in range(self.lowest + 1)
        ]
        #: pods that a domain can get: any multiple of the unit up to this
        self.fitting: list[Ints] = [
            counts.slices * request.size if level <= request.slice_level else counts.pods // unit * unit
            for level, (counts, unit) in enumerate(zip(search.counts, self.unit, strict=True))
        ]
        #: pods that fit into a domain, whole slices or not
        self.capacity: list[Ints] = [search.counts[-1].pods]
        for level in reversed(self.tree.levels[:-1]):
            self.capacity.insert(0, np.add.reduceat(self.capacity[0], level.children[:-1]))
        #: the lowest level with a domain that holds everything
        self.spread = next((i for i in range(self.lowest, -1, -1) if int(self.fitting[i].max()) >= self.count), -1)
        self.kinds: dict[object, int] = {}
        self.kind_of: dict[tuple[int, int], int] = {}
        self.known: dict[tuple[int, int, int], Costs] = {}

    # --- candidates

    def place(self) -> dict[int, int]:
        """Pods per leaf."""
        spread = self.spread
        candidates = np.flatnonzero(self.fitting[spread] >= self.count) if spread >= 0 else np.zeros(1, dtype=np.int64)
        least: list[Ints] = []
        for level in range(spread + 1, self.lowest + 1):
            numbers = self.fewest(level, candidates)
            if not least:
                # Any choice of children that holds everything will do, so here the least is what it is.
                candidates, numbers = candidates[numbers == numbers.min()], numbers[numbers == numbers.min()]
            least.append(numbers)
        above = self.capacity_above(candidates)
        order = np.lexsort([np.arange(len(candidates)), *above[::-1], *least[::-1]]).tolist()
        if spread == self.lowest:
            return {int(candidates[order[0]]): self.count}
        self.set_costs(candidates)
        best: tuple[list[int], list[int]] | None = None
        winner, seen = -1, set()
        for i in order:
            domain, capacities = int(candidates[i]), [int(capacity[i]) for capacity in above]
            bound = self.count * self.pod_cost.sum(axis=0)
            for level, numbers in enumerate(least, start=spread + 1):
                bound += int(numbers[i]) * self.domain_cost[level]
            if best is not None and (bound.tolist(), capacities) >= best:
                break
            kind = self.kind(spread, domain)
            if kind in seen:
                continue
            seen.add(kind)
            cost = self.steps(spread, domain, self.count)[-1].total[:, -1].tolist()
            if best is None or (cost, capacities) < best:
                best, winner = (cost, capacities), domain
        amounts: dict[int, int] = {}
        self.read_back(spread, winner, self.count, amounts)
        return amounts

    def fewest(self, level: int, candidates: Ints) -> Ints:
        """How many domains of a level it takes at least to hold everything, in each candidate."""
        fitting = self.fitting[level]
        bounds = np.array([0, self.tree.levels[0].size])
        if self.spread >= 0:
            bounds = np.arange(self.tree.levels[self.spread].size + 1)
        for here in self.tree.levels[max(0, self.spread) : level]:
            bounds = here.children[bounds]
        owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        largest = fitting[sort(np.arange(len(fitting)), owner, -fitting)]
        before = np.cumsum(largest) - largest
        needed = (before - before[bounds[:-1]][owner] < self.count) & (largest > 0)
        numbers: Ints = np.add.reduceat(needed.astype(np.int64), bounds[:-1])
        return numbers[candidates]

    def capacity_above(self, candidates: Ints) -> list[Ints]:
        """The capacity of candidates, of the domains they are in, and so on to the top."""
        found = []
        for level in range(self.spread, -1, -1):
            found.append(self.capacity[level][candidates])
            candidates = self.tree.levels[level].parent[candidates]
        return found

    # --- costs

    def set_costs(self, candidates: Ints) -> None:
        """What it costs to use a domain of each level, and more for each pod of its capacity: (levels, words)."""
        inside = int(self.capacity[self.spread][candidates].max() if self.spread >= 0 else self.capacity[0].sum())
        levels = range(self.spread + 1, self.lowest + 1)
        # Before it is known which sum is least, two parts have been added; no part has a domain too many.
        most = {level: min(self.tree.levels[level].size, 2 * -(-self.count // self.unit[level])) for level in levels}
        digits = [(True, level, most[level]) for level in levels]
        digits += [
            (False, level, min(inside, most[level] * int(self.capacity[level].max()))) for level in reversed(levels)
        ]
        words: list[list[tuple[int, bool, int]]] = [[]]
        bits = 0
        for number, level, largest in reversed(digits):
            if bits + largest.bit_length() > _WORD_BITS:
                words.append([])
                bits = 0
            words[-1].append((1 << bits, number, level))
            bits += largest.bit_length()
        size = (self.lowest + 1, len(words))
        self.domain_cost, self.pod_cost = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        for i, word in enumerate(reversed(words)):
            for value, number, level in word:
                (self.domain_cost if number else self.pod_cost)[level, i] = value

    def own_cost(self, level: int, domain: int) -> Ints:
        cost: Ints = self.domain_cost[level] + self.pod_cost[level] * self.capacity[level][domain]
        return cost

    def kind(self, level: int, domain: int) -> int:
        """Domains of one kind are the same but for their names."""
        kind = self.kind_of.get((level, domain))
        if kind is None:
            first, last = self.children(level, domain)
            if level + 1 == self.lowest:
                inside: object = np.sort(self.capacity[-1][first:last]).tobytes()
            else:
                inside = tuple(sorted(self.kind(level + 1, child) for child in range(first, last)))
            kind = self.kind_of[level, domain] = self.kinds.setdefault((level, inside), len(self.kinds))
        return kind

    def children(self, level: int, domain: int) -> tuple[int, int]:
        """From (inclusive), to (exclusive)."""
        if level < 0:
            return 0, self.tree.levels[0].size
        bounds = self.tree.levels[level].children
        return int(bounds[domain]), int(bounds[domain + 1])

    def costs(self, level: int, domain: int, pods: int) -> Costs:
        """The least cost of at least 0, 1, 2 … units in a domain, up to these pods, that fit."""
        key = (level, self.kind(level, domain), pods)
        found = self.known.get(key)
        if found is None:
            total = self.steps(level, domain, pods)[-1].total
            found = total[:, :: self.unit[level] // self.unit[level + 1]].copy()
            found[:, 1:] += self.own_cost(level, domain)[:, None]
            self.known[key] = found
        return found

    def steps(self, level: int, domain: int, pods: int) -> list[_Addition]:
        """Takes the children of a domain into account, one after the other; units are those of the children."""
        below, unit = level + 1, self.unit[level + 1]
        self.spend(pods // unit)
        total: Costs = np.full((self.pod_cost.shape[1], pods // unit + 1), _NEVER, dtype=np.int64)
        total[:, 0] = 0
        found = [_Addition(np.zeros(0, dtype=np.int64), total[:, :1], total, np.zeros(0, dtype=np.int64))]
        children, least, most = self.useful(level, domain, pods)
        if below == self.lowest:
            for equal in self.bundles(children, most, pods):
                units = min(len(equal) * int(self.fitting[below][equal[0]]), pods) // unit
                part: Costs = np.repeat(len(equal) * self.own_cost(below, int(equal[0]))[:, None], units + 1, axis=1)
                part[:, 0] = 0
                found.append(self.step(found[-1].total, equal, part, units))
            return found
        number_of: dict[int, int] = {}
        for child, low in zip(children.tolist(), least.tolist(), strict=True):
            kind = self.kind(below, child)
            number_of[kind] = number_of.get(kind, 0) + 1
            if number_of[kind] <= most:
                part = self.costs(below, child, min(int(self.fitting[below][child]), pods))
                found.append(self.step(found[-1].total, np.array([child]), part, low // unit))
        return found

    def useful(self, level: int, domain: int, pods: int) -> tuple[Ints, Ints, int]:
        """The children that a best placement can use, at least how many pods in each, and at most how many of a kind.

        A candidate uses the fewest children there can be, so each gets at least what the largest others leave over.
        """
        first, last = self.children(level, domain)
        fitting = self.fitting[level + 1][first:last]
        usable = np.flatnonzero(fitting > 0)
        fitting = fitting[usable]
        if level > self.spread:
            return usable + first, np.ones_like(usable), len(usable)
        largest = -np.sort(-fitting)
        number = int(np.searchsorted(np.cumsum(largest), pods)) + 1
        rest = pods - int(largest[: number - 1].sum())
        least = rest + np.maximum(0, fitting - largest[number - 1])
        keep = least <= fitting
        return usable[keep] + first, least[keep], number

    def bundles(self, leaves: Ints, most: int, pods: int) -> Iterator[Ints]:
        """Equal leaves in bundles of 1, 2, 4 …, of which any number of them can be put together."""
        capacity = self.capacity[-1][leaves]
        for value in np.unique(capacity)[::-1].tolist():
            equal = leaves[capacity == value]
            number = min(len(equal), most, -(-pods // int(self.fitting[-1][equal[0]])))
            sizes: list[int] = []
            while sum(sizes) < number:
                sizes.append(min(1 << len(sizes), number - sum(sizes)))
            for end, size in zip(accumulate(sizes), sizes, strict=True):
                yield equal[end - size : end]

    def step(self, total: Costs, children: Ints, part: Costs, low: int) -> _Addition:
        """The least costs when these children may be used as well, for at least `low` units or not at all."""
        # Of equal costs only the one with the most units matters.
        worth = np.flatnonzero(np.append((part[:, 1:] != part[:, :-1]).any(axis=0), True))
        worth = worth[worth >= max(1, low)]
        self.spend(_STEP + total.shape[1] * len(worth))
        combined = total.copy()
        choices = np.append(0, worth)
        rows = max(1, _AT_ONCE // len(choices))
        for first in range(0, total.shape[1], rows):
            units = np.arange(first, min(first + rows, total.shape[1]))
            rest = np.maximum(units[:, None] - choices[None, :], 0)
            open_: Bools | None = None
            for word in range(len(total)):
                costs = total[word].take(rest) + part[word, choices]
                if open_ is not None:
                    costs[~open_] = 2 * _NEVER
                combined[word, units] = least = costs.min(axis=1)
                if word + 1 < len(total):
                    open_ = costs == least[:, None]
        return _Addition(children, part, combined, worth)

    def spend(self, looked_at: int) -> None:
        self.left -= looked_at
        if self.left < 0:
            raise LimitReached

    # --- the way back

    def read_back(self, level: int, domain: int, pods: int, amounts: dict[int, int]) -> None:
        """Sets the pods per leaf of a least-cost placement of these pods in a domain."""
        below, unit = level + 1, self.unit[level + 1]
        self.left = 2**62  # it is found; the limit was for finding it
        steps = self.steps(level, domain, pods)
        most: dict[int, int] = {}
        units = pods // unit
        for before, step in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
            if (step.total[:, units] == before.total[:, units]).all():
                continue
            costs = before.total[:, np.maximum(units - step.worth, 0)] + step.part[:, step.worth]
            taken = int(step.worth[int(np.argmax((costs == step.total[:, units, None]).all(axis=0)))])
            for child in step.children.tolist():
                most[child] = min(int(self.fitting[below][child]), taken * unit)
            units = max(0, units - taken)
        for child in sorted(most):
            # The last one may not be needed in full.
            here = min(most[child], pods)
            pods -= here
            if below == self.lowest:
                amounts[child] = here
            else:
                self.read_back(below, child, here, amounts)
