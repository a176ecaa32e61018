"""Whom to preempt: the smallest set of admitted workloads whose end makes room, by the policies of the ClusterQueue.

The order of victims and the rules of reclaiming from hierarchical cohorts are Kueue's. A set counts only if with it
gone the workload fits in quota and, where it needs one, has a place on the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from serried.api.kueue import ClusterQueuePreemption
from serried.api.names import PreemptedReason
from serried.quota.tree import QuotaNode
from serried.schedule.preemption.candidates import PreemptionRequest, Trial, Victim, candidates_in, victim_order
from serried.schedule.preemption.fair_sharing import fair_victims
from serried.schedule.state.records import Record
from serried.schedule.state.state import State


def find_victims(state: State, want: PreemptionRequest, now: datetime) -> list[Victim]:
    """The workloads whose preemption makes room; [] when no set of them that may be preempted does."""
    if not state.options.preemption:
        return []
    policy = state.cluster_queues[want.queue].spec.preemption
    mark = state.journal.checkpoint()
    try:
        if state.fair_sharing is not None:
            return fair_victims(state, want, policy, state.fair_sharing.preemption_strategies, now)
        return _classical(state, want, policy, now)
    finally:
        state.journal.rollback(mark)


@dataclass(frozen=True)
class _Candidate:
    record: Record
    reason: str
    #: usable only if the preemptor does not borrow
    without_borrowing: bool = False
    #: the ancestor of the preemptor's queue at which it was found; None: in the queue itself
    found_at: QuotaNode | None = None


def _classical(state: State, want: PreemptionRequest, policy: ClusterQueuePreemption, now: datetime) -> list[Victim]:
    trial = Trial(state, want)
    order = victim_order(state, want.queue, now, want.first)
    own = [
        _Candidate(r, PreemptedReason.IN_CLUSTER_QUEUE)
        for r in candidates_in(state, want.queue, want, policy.within_cluster_queue)
    ]
    hierarchical, by_priority = _others(state, trial, policy)
    parts = [sorted(part, key=lambda c: order(c.record)) for part in (hierarchical, by_priority, own)]
    sequence = [c for going in (True, False) for part in parts for c in part if c.record.is_leaving is going]
    for borrowing in _attempts(trial, policy, hierarchical, by_priority):
        mark = state.journal.checkpoint()
        victims = _attempt(state, trial, sequence, borrowing=borrowing)
        state.journal.rollback(mark)
        if victims:
            return victims
    return []


def _others(state: State, trial: Trial, policy: ClusterQueuePreemption) -> tuple[list[_Candidate], list[_Candidate]]:
    """Candidates in other queues: those a level of the hierarchy has a right to reclaim from, and the rest.

    Going up from the queue, as soon as the need is within the quota of a subtree, whoever outside of it uses more
    than its own quota has to give way.
    """
    hierarchical: list[_Candidate] = []
    by_priority: list[_Candidate] = []
    if policy.reclaim_within_cohort == "Never":
        return hierarchical, by_priority
    want, node = trial.want, trial.node
    rest = dict(want.needed)
    advantage = False
    below = node
    for ancestor in node.path():
        if ancestor is not node:
            for queue in _borrowers(trial, ancestor, below):
                for record in candidates_in(state, queue.name, want, policy.reclaim_within_cohort):
                    if advantage:
                        reason = PreemptedReason.RECLAMATION
                        hierarchical.append(_Candidate(record, reason, found_at=ancestor))
                    else:
                        by_priority.append(_by_priority(policy, want, record, ancestor))
        advantage = advantage or all(not ancestor.exceeds(fr, amount) for fr, amount in rest.items())
        rest = {fr: max(0, amount - ancestor.local_available(fr)) for fr, amount in rest.items()}
        below = ancestor
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
    policy: ClusterQueuePreemption, want: PreemptionRequest, record: Record, ancestor: QuotaNode
) -> _Candidate:
    borrow = policy.borrow_within_cohort
    below_threshold = borrow.max_priority_threshold is None or record.info.priority <= borrow.max_priority_threshold
    if borrow.policy == "LowerPriority" and record.info.priority < want.info.priority and below_threshold:
        return _Candidate(record, PreemptedReason.RECLAIM_WHILE_BORROWING, found_at=ancestor)
    return _Candidate(record, PreemptedReason.RECLAMATION, without_borrowing=True, found_at=ancestor)


def _attempts(
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


def _attempt(state: State, trial: Trial, sequence: Sequence[_Candidate], *, borrowing: bool) -> list[Victim]:
    victims: list[Victim] = []
    for candidate in sequence:
        if candidate.found_at is not None:
            if candidate.without_borrowing and borrowing:
                continue
            if not _still_over(state, trial, candidate):
                continue
        trial.remove(candidate.record)
        victims.append(Victim(candidate.record, candidate.reason))
        if trial.fits(borrowing=borrowing):
            return trial.minimal(victims, borrowing=borrowing)
    return []


def _still_over(state: State, trial: Trial, candidate: _Candidate) -> bool:
    """Whether everything between the candidate and where it was found still uses more than is its own."""
    assert candidate.record.reservation is not None
    for node in state.ledger.queue(candidate.record.reservation.cluster_queue).path():
        if node is candidate.found_at:
            return True
        if not trial.over(node):
            return False
    return True
