"""In which order the candidates of one round are served: by borrowing and priority, or by a tournament of shares."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from serried.quota.quotas import FlavorResource
from serried.quota.tree import DominantShare, QuotaNode
from serried.schedule.cycle.nominate import Nomination
from serried.schedule.state.records import ClusterQueueState, Record
from serried.schedule.state.state import State


@dataclass(eq=False)
class Entry:
    """One candidate, and what it would get."""

    record: Record
    queue: ClusterQueueState
    nomination: Nomination
    #: how often places had been given or taken when it was nominated
    seen: int = 0
    #: another one took what it would have got
    skipped: bool = False
    #: what it keeps from those behind it, until the round is over
    blocks: Mapping[FlavorResource, int] = field(default_factory=dict)


def in_order(state: State, entries: Sequence[Entry], following: Callable[[Entry], Entry | None]) -> Iterator[Entry]:
    """Entries one after the other; under fair sharing each is chosen for the shares of the moment it is asked for.

    `following`: the next candidate of the same ClusterQueue, asked for when an entry has been served.
    """
    if state.fair_sharing is None:
        heap = [(e.nomination.assignment.borrowing, e.record.info.order, e) for e in entries]
        heapq.heapify(heap)
        while heap:
            _, _, entry = heapq.heappop(heap)
            yield entry
            follower = following(entry)
            if follower is not None:
                found = follower.nomination.assignment
                heapq.heappush(heap, (found.borrowing, follower.record.info.order, follower))
        return
    trees: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.record.info.order):
        trees.setdefault(state.ledger.tree_of(entry.queue.name), []).append(entry)
    for members in trees.values():
        # Keys by the identity of entries that are alive.
        known: dict[int, tuple[tuple[int, ...], _Keys]] = {}
        left = {entry.queue.name: entry for entry in members}
        root = state.ledger.queue(members[0].queue.name).root
        while left:
            winner = next(iter(left.values())) if root.is_queue else _tournament(state, root, left, known)
            del left[winner.queue.name]
            known.pop(id(winner), None)
            yield winner
            follower = following(winner)
            if follower is not None:
                left[winner.queue.name] = follower


#: For each cohort above a candidate's queue, by id: what it is compared by there.
_Keys = Mapping[int, tuple[bool, DominantShare]]


def _tournament(
    state: State, root: QuotaNode, entries: Mapping[str, Entry], known: dict[int, tuple[tuple[int, ...], _Keys]]
) -> Entry:
    """The winner at the root: at each node, the best of what its children send up.

    `known`: keys worked out before, which hold as long as nothing has changed in the nodes they come from.
    """
    keys: dict[int, _Keys] = {}
    for entry in entries.values():
        nodes = state.ledger.queue(entry.queue.name).path()
        changes = tuple(node.changes for node in nodes if node.parent is not None)
        found = known.get(id(entry))
        if found is None or found[0] != changes:
            found = known[id(entry)] = (changes, _shares(state, entry))
        keys[id(entry)] = found[1]
    winners: dict[int, Entry] = {}
    for node in _bottom_up(root):
        if node.is_queue:
            if node.name in entries:
                winners[id(node)] = entries[node.name]
            continue
        sent = [winners[id(child)] for child in node.children if id(child) in winners]
        if sent:
            winners[id(node)] = min(sent, key=_better(keys, node))
    return winners[id(root)]


def _better(keys: Mapping[int, _Keys], node: QuotaNode) -> Callable[[Entry], tuple[object, ...]]:
    def key(entry: Entry) -> tuple[object, ...]:
        borrows, share = keys[id(entry)][id(node)]
        return (borrows, share, entry.record.info.order)

    return key


def _shares(state: State, entry: Entry) -> _Keys:
    """For each cohort above the candidate's queue: whether the child on the way to it borrows what is asked for, and
    the share of that child, with the candidate counted in."""
    usage: Mapping[FlavorResource, int] = {c: a for c, a in entry.nomination.assignment.usage.items() if a}
    mark = state.journal.checkpoint()
    state.ledger.charge(entry.queue.name, usage)
    result = {}
    for node in state.ledger.queue(entry.queue.name).path():
        if node.parent is not None:
            result[id(node.parent)] = (any(node.exceeds(fr) for fr in usage), node.share())
    state.journal.rollback(mark)
    return result


def _bottom_up(root: QuotaNode) -> list[QuotaNode]:
    order = [root]
    for node in order:
        order += node.children
    return order[::-1]
