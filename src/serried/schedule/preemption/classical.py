"""Classical preemption: in which order candidates are taken, by the policies of the preemptor's ClusterQueue.

The order and the rules of reclaiming from hierarchical cohorts are Kueue's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from serried.api.kueue import ClusterQueuePreemption
from serried.api.names import PreemptedReason
from serried.quota.tree import QuotaNode
from serried.schedule.preemption.candidates import PreemptionRequest, Rank, Target, Trial, candidates_in
from serried.schedule.state.records import Record
from serried.schedule.state.state import State


@dataclass(frozen=True)
class _Candidate:
    rank: Rank
    record: Record
    reason: str
    #: usable only if the preemptor does not borrow
    without_borrowing: bool = False
    #: the ancestor of the preemptor's queue at which it was found; None: in the queue itself
    found_at: QuotaNode | None = None


def classical_attempts(
    state: State, trial: Trial, policy: ClusterQueuePreemption
) -> Iterator[tuple[bool, Iterator[Target]]]:
    """The attempts at preemption, the preferred one first: whether the preemptor may borrow in it, and its targets in
    order. Which targets follow depends on the quota that those before them have left in the trial."""
    request = trial.request
    own = candidates_in(state, request.queue, request, policy.within_cluster_queue, trial.moment)
    hierarchical, by_priority = _others(state, trial, policy)
    for borrowing in _borrowing_allowed(trial, policy, hierarchical, by_priority):
        yield borrowing, _targets(state, trial, hierarchical, by_priority, own, borrowing=borrowing)


def _others(state: State, trial: Trial, policy: ClusterQueuePreemption) -> tuple[list[_Candidate], list[_Candidate]]:
    """Candidates in other queues: those a level of the hierarchy has a right to reclaim from, and the rest.

    Going up from the queue, as soon as the need is within the quota of a subtree, whoever outside of it uses more
    than its own quota has to give way.
    """
    hierarchical: list[_Candidate] = []
    by_priority: list[_Candidate] = []
    if policy.reclaim_within_cohort == "Never":
        return hierarchical, by_priority
    request, node = trial.request, trial.node
    rest = dict(request.needed)
    advantage = False
    below = node
    for ancestor in node.path():
        if ancestor is not node:
            for queue in _borrowers(trial, ancestor, below):
                rule = policy.reclaim_within_cohort
                for rank, record in candidates_in(state, queue.name, request, rule, trial.moment):
                    if advantage:
                        reason = PreemptedReason.RECLAMATION
                        hierarchical.append(_Candidate(rank, record, reason, found_at=ancestor))
                    else:
                        by_priority.append(_by_priority(policy, request, rank, record, ancestor))
        advantage = advantage or all(not ancestor.exceeds(fr, amount) for fr, amount in rest.items())
        rest = {fr: max(0, amount - ancestor.local_available(fr)) for fr, amount in rest.items()}
        below = ancestor
    for part in (hierarchical, by_priority):
        part.sort(key=lambda c: c.rank)
    return hierarchical, by_priority


def _borrowers(trial: Trial, ancestor: QuotaNode, below: QuotaNode) -> list[QuotaNode]:
    """The ClusterQueues under an ancestor, but not under `below`, that use more than is theirs, like all above them."""
    found: list[QuotaNode] = []
    nodes = [child for child in trial.borrowers(ancestor) if child is not below]
    for node in nodes:
        if node.is_queue:
            found.append(node)
        nodes += trial.borrowers(node)
    return found


def _by_priority(
    policy: ClusterQueuePreemption, request: PreemptionRequest, rank: Rank, record: Record, ancestor: QuotaNode
) -> _Candidate:
    borrow = policy.borrow_within_cohort
    below_threshold = borrow.max_priority_threshold is None or record.info.priority <= borrow.max_priority_threshold
    if borrow.policy == "LowerPriority" and record.info.priority < request.info.priority and below_threshold:
        return _Candidate(rank, record, PreemptedReason.RECLAIM_WHILE_BORROWING, found_at=ancestor)
    return _Candidate(rank, record, PreemptedReason.RECLAMATION, without_borrowing=True, found_at=ancestor)


def _borrowing_allowed(
    trial: Trial,
    policy: ClusterQueuePreemption,
    hierarchical: Sequence[_Candidate],
    by_priority: Sequence[_Candidate],
) -> tuple[bool, ...]:
    """Whether the preemptor may borrow, attempt by attempt."""
    node = trial.node
    borrows = policy.borrow_within_cohort.policy != "Never"
    under = all(node.usage.get(c, 0) < node.quotas.nominal.get(c, 0) for c in trial.contested)
    if not (hierarchical or by_priority) or (not borrows and not under):
        return (True,)
    if not borrows and not hierarchical:
        return (False, True)
    return (True, False)


def _targets(
    state: State,
    trial: Trial,
    hierarchical: Sequence[_Candidate],
    by_priority: Sequence[_Candidate],
    own: Sequence[tuple[Rank, Record]],
    *,
    borrowing: bool,
) -> Iterator[Target]:
    """First those who are on their way out anyway: they come first in each of the three parts."""
    parts = [iter(hierarchical), iter(by_priority), (_Candidate(*c, PreemptedReason.IN_CLUSTER_QUEUE) for c in own)]
    held_over: list[Iterator[_Candidate]] = []

    def leaving() -> Iterator[_Candidate]:
        for part in parts:
            for candidate in part:
                if not candidate.record.is_leaving:
                    held_over.append(chain([candidate], part))
                    break
                yield candidate

    for candidate in chain(leaving(), chain.from_iterable(held_over)):
        if candidate.found_at is not None:
            if candidate.without_borrowing and borrowing:
                continue
            if not _still_over(state, trial, candidate):
                continue
        yield Target(candidate.record, candidate.reason)


def _still_over(state: State, trial: Trial, candidate: _Candidate) -> bool:
    """Whether everything between the candidate and where it was found still uses more than is its own."""
    assert candidate.record.reservation is not None
    for node in state.ledger.queue(candidate.record.reservation.cluster_queue).path():
        if node is candidate.found_at:
            return True
        if not trial.over(node):
            return False
    return True
