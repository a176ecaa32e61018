"""In which order candidates are served: by borrowing and priority, or by a tournament of shares.

What a candidate would get is worked out late: only when it may be the next one, and anew if something was given or
taken since. Until then it stands where it would at best, so nobody is served out of order, and what is worked out for
the one that is served holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from serried.quota.quotas import FlavorResource
from serried.quota.tree import QuotaNode
from serried.schedule.cycle.nominate import Nomination
from serried.schedule.state.records import ClusterQueueState, Record
from serried.schedule.state.state import State
from serried.schedule.types.workload import Order


@dataclass(eq=False)
class Entry:
    """One candidate, and what it would get."""

    record: Record
    queue: ClusterQueueState
    #: None: not worked out yet
    nomination: Nomination | None = None
    #: how often quota or places had been given or taken when it was nominated
    moves: int = -1
    #: the level of borrowing and the usage it asks for: as nominated, or as known from an earlier cycle, or at best
    borrowing: int = 0
    usage: Mapping[FlavorResource, int] = field(default_factory=dict)

    @property
    def order(self) -> Order:
        return self.record.info.order

    @property
    def found(self) -> Nomination:
        """What it would get; it has to be nominated."""
        assert self.nomination is not None
        return self.nomination

    def nominated(self, nomination: Nomination, moves: int) -> None:
        self.nomination, self.moves = nomination, moves
        self.borrowing = nomination.assignment.borrowing
        self.usage = {fr: amount for fr, amount in nomination.assignment.usage.items() if amount}


#: Brings a candidate up to date; False: there is no time for that any more.
Nominate = Callable[[Entry], bool]


class Line(Protocol):
    """Candidates, at most one of each ClusterQueue, of which the next one is asked for."""

    def add(self, entry: Entry) -> None: ...

    def next(self, nominate: Nominate) -> Entry | None:
        """The next one, which leaves the line; None: nobody is left, or there is no time to find out who."""


def line(state: State) -> Line:
    return ByBorrowing() if state.fair_sharing is None else ByShares(state)


class ByBorrowing:
    """Who borrows less comes first, then who has the higher priority, then who has waited longer."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Order, Entry]] = []

    def add(self, entry: Entry) -> None:
        heapq.heappush(self._heap, (entry.borrowing, entry.order, entry))

    def next(self, nominate: Nominate) -> Entry | None:
        while self._heap:
            entry = self._heap[0][-1]
            if not nominate(entry):
                return None
            heapq.heappop(self._heap)
            if not self._heap or (entry.borrowing, entry.order) < self._heap[0][:2]:
                return entry
            self.add(entry)
        return None


#: For each cohort above a candidate's queue, by id, what it is compared by there: whether the child on the way to it
#: borrows what is asked for, the share of that child with the candidate counted in, and the order of the candidate.
_Keys = Mapping[int, tuple[bool, tuple[int, Fraction], Order]]


@dataclass
class _Known:
    """The keys of a candidate, and as of when: changes in its tree, in the nodes above its queue, and of itself."""

    in_tree: int
    above: tuple[int, ...]
    moves: int
    keys: _Keys


class ByShares:
    """In each tree of cohorts, from the bottom up, whoever keeps the share of its side the lowest wins.

    One tree after the other: that of the first candidate by priority and time comes first.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        #: tree → ClusterQueue → its candidate
        self._trees: dict[str, dict[str, Entry]] = {}
        #: entry, by id → its keys
        self._known: dict[int, _Known] = {}

    def add(self, entry: Entry) -> None:
        self._trees.setdefault(self._state.ledger.tree_of(entry.queue.name), {})[entry.queue.name] = entry

    def next(self, nominate: Nominate) -> Entry | None:
        for entries in self._trees.values():
            if not entries:
                continue
            root = self._state.ledger.queue(next(iter(entries))).root
            while True:
                winners = [next(iter(entries.values()))] if root.is_queue else list(self._winners(root, entries))
                before = [entry.moves for entry in winners]
                if not all(map(nominate, winners)):
                    return None
                if before == [entry.moves for entry in winners]:
                    break
            del entries[winners[-1].queue.name]
            self._known.pop(id(winners[-1]), None)
            return winners[-1]
        return None

    def _winners(self, root: QuotaNode, entries: Mapping[str, Entry]) -> Iterator[Entry]:
        """The winner at each cohort, that of the root last: the best of what its children send up."""
        keys = {id(entry): self._keys(root, entry) for entry in entries.values()}
        sent: dict[int, Entry] = {}
        for node in _bottom_up(root):
            at = id(node)
            if node.is_queue:
                if node.name in entries:
                    sent[at] = entries[node.name]
                continue
            found = [sent[id(child)] for child in node.children if id(child) in sent]
            if found:
                sent[at] = found[0] if len(found) == 1 else min(found, key=lambda entry: keys[id(entry)][at])
                yield sent[at]

    def _keys(self, root: QuotaNode, entry: Entry) -> _Keys:
        known = self._known.get(id(entry))
        if known is not None and known.moves == entry.moves:
            if known.in_tree == root.changes:
                return known.keys
            if known.above == _changes(self._state, entry):
                known.in_tree = root.changes
                return known.keys
        keys = _shares(self._state, entry)
        self._known[id(entry)] = _Known(root.changes, _changes(self._state, entry), entry.moves, keys)
        return keys


def _changes(state: State, entry: Entry) -> tuple[int, ...]:
    """How often usage was changed in the nodes whose shares count for a candidate."""
    return tuple(node.changes for node in state.ledger.queue(entry.queue.name).path() if node.parent is not None)


def _shares(state: State, entry: Entry) -> _Keys:
    mark = state.journal.checkpoint()
    state.ledger.charge(entry.queue.name, entry.usage)
    result = {}
    for node in state.ledger.queue(entry.queue.name).path():
        if node.parent is not None:
            borrows = any(node.exceeds(fr) for fr in entry.usage)
            result[id(node.parent)] = (borrows, node.share().key, entry.order)
    state.journal.rollback(mark)
    return result


def _bottom_up(root: QuotaNode) -> list[QuotaNode]:
    order = [root]
    for node in order:
        order += node.children
    return order[::-1]
