"""Who could be preempted for whom: priorities, policies, and the order in which candidates are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from serried.api.meta import Key
from serried.model.capacity import Ints
from serried.model.departures import Departures
from serried.quota.quotas import FlavorResource
from serried.quota.tree import QuotaNode
from serried.schedule.state.records import Record
from serried.schedule.state.state import State
from serried.schedule.types.moment import Moment
from serried.schedule.types.workload import WorkloadInfo

#: Where a candidate stands, first to go first. The last three decide among candidates that are equal otherwise: what
#: the search prefers, the uid and the name.
Rank = tuple[object, ...]
_ARBITRARY = 3


@dataclass(frozen=True)
class PreemptionRequest:
    """What a workload needs, and may preempt others for."""

    info: WorkloadInfo
    queue: str
    needed: Mapping[FlavorResource, int]
    #: those of which it cannot have as much as it needs: whoever uses one of them may be in its way
    contested: frozenset[FlavorResource]
    #: of `contested`, those whose quota is short; if there are any, the others are contested for nodes alone
    short: frozenset[FlavorResource] = frozenset()
    #: the rows of the nodes where its pods could go as the model is now; None: nowhere. Without this, it needs quota
    #: alone
    nodes: Callable[[], Ints | None] | None = None
    #: whether there is a place, however much more comes free, once there is one. Of pods placed in several steps (a
    #: group with a leader, several pod sets) an early step may turn to what has come free and spoil a later one
    monotone: bool = True
    #: of candidates that are equal otherwise, these go first
    prefers: Callable[[Record], bool] | None = None


@dataclass(frozen=True)
class Target:
    """A workload to be preempted, and why it may be: a reason of the condition Preempted."""

    record: Record
    reason: str


def may_preempt(policy: str, preemptor: WorkloadInfo, candidate: WorkloadInfo) -> bool:
    """Whether a policy (of withinClusterQueue or reclaimWithinCohort) lets one workload preempt another."""
    match policy:
        case "Any":
            return True
        case "LowerPriority":
            return candidate.priority < preemptor.priority
        case "LowerOrNewerEqualPriority":
            lower = candidate.priority < preemptor.priority
            return lower or (candidate.priority == preemptor.priority and candidate.queued_at > preemptor.queued_at)
    return False


def candidate_order(
    state: State, queue: str, moment: Moment, prefers: Callable[[Record], bool] | None = None
) -> Callable[[Record], Rank]:
    """The key by which the candidates for a preemptor in this ClusterQueue are sorted, first to go first."""

    usage_of = cache(state.fair_usage.of) if state.fair_usage.orders(queue) else None

    def rank(record: Record) -> Rank:
        info, reservation = record.info, record.reservation
        own = reservation is not None and reservation.cluster_queue == queue
        reserved = (reservation.reserved_at if reservation is not None else None) or moment.now
        usage = usage_of(info.queue) if own and usage_of is not None else 0.0
        later = prefers is not None and not prefers(record)
        return (not record.is_leaving, own, -usage, info.priority, -reserved.timestamp(), later, info.uid, info.key)

    return rank


def same_but_for_chance(rank: Rank) -> Rank:
    """What tells candidates apart other than by chance."""
    return rank[:-_ARBITRARY]


def candidates_in(
    state: State, queue: str, request: PreemptionRequest, policy: str, moment: Moment
) -> Sequence[tuple[Rank, Record]]:
    """The workloads of a ClusterQueue that use what is contested and that the policy lets be preempted, first to go
    first, each with its rank."""
    if policy == "Never":
        return ()

    def find() -> Sequence[tuple[Rank, Record]]:
        order = candidate_order(state, request.queue, moment, request.prefers)
        info = request.info
        users = _users(state, queue, request, moment)
        return sorted([(order(r), r) for r in users if may_preempt(policy, info, r.info)])

    if request.prefers is not None:
        return find()
    since = request.info.queued_at if policy == "LowerOrNewerEqualPriority" else None
    of = (queue, request.queue, request.contested, request.short, policy, request.info.priority, since)
    return moment.once(("candidates", of), find)


def all_candidates(state: State, request: PreemptionRequest, moment: Moment) -> Departures:
    """What nodes would gain if everyone left who could be preempted for a workload of this priority, if not more."""
    policy = state.cluster_queues[request.queue].spec.preemption
    priority = request.info.priority

    def find() -> Departures:
        found: list[Key] = []
        own = state.ledger.queue(request.queue)
        for node in own.root.queues():
            rule = policy.within_cluster_queue if node is own else policy.reclaim_within_cohort
            if rule != "Never":
                most = {"Any": None, "LowerPriority": priority - 1}.get(rule, priority)
                users = _users(state, node.name, request, moment)
                found += [r.info.key for r in users if most is None or r.info.priority <= most]
        return state.world.departures(found)

    if request.short:
        return moment.once(("all candidates", request.queue, request.contested, request.short, priority), find)
    # Without anything short it does not depend on quota, and holds from cycle to cycle.
    of = (request.queue, policy.within_cluster_queue, policy.reclaim_within_cohort, request.contested, priority)
    known = state.departures.get(of)
    if known is None or known[0] != state.world.hold_changes:
        known = state.departures[of] = (state.world.hold_changes, find())
    return known[1]


def _users(state: State, queue: str, request: PreemptionRequest, moment: Moment) -> Sequence[Record]:
    """The workloads of a ClusterQueue that use what is contested, and can be preempted as far as that goes."""
    contested, short = request.contested, request.short
    everyone = not short or queue == request.queue

    def find() -> Sequence[Record]:
        found = []
        for key in state.index.holders.get(queue, ()):
            record = state.workloads[key]
            if record.preempted_by or record.reservation is None:
                continue
            usage = record.reservation.usage
            if everyone:
                for fr in contested:
                    if usage.get(fr):
                        found.append(record)
                        break
            else:
                uses = {fr for fr in contested if usage.get(fr)}
                if uses and _borrows(state, queue, uses & short or uses):
                    found.append(record)
        return found

    return moment.once(("users", queue, everyone, contested, short), find)


def _borrows(state: State, queue: str, frs: Iterable[FlavorResource]) -> bool:
    """Whether a queue uses more than its quota of any of these: its own quota it would only take back."""
    node = state.ledger.queue(queue)
    return any(node.exceeds(fr) for fr in frs)


class Trial:
    """Quota with some workloads gone; through the journal, and whoever starts one rolls it back."""

    def __init__(self, state: State, request: PreemptionRequest, moment: Moment) -> None:
        self.state = state
        self.request = request
        self.moment = moment
        self.node: QuotaNode = state.ledger.queue(request.queue)
        self.contested = sorted(request.contested)

    def remove(self, record: Record) -> None:
        assert record.reservation is not None
        self.state.ledger.refund(record.reservation.cluster_queue, record.reservation.usage)

    def restore(self, record: Record) -> None:
        assert record.reservation is not None
        self.state.ledger.charge(record.reservation.cluster_queue, record.reservation.usage)

    def quota_fits(self, *, borrowing: bool) -> bool:
        """Whether there is quota now for what is needed; `borrowing`: also beyond the queue's nominal."""
        node = self.node
        for fr, amount in self.request.needed.items():
            if amount <= 0:
                continue
            if amount > node.available(fr):
                return False
            if not borrowing and node.usage.get(fr, 0) + amount > node.quotas.nominal.get(fr, 0):
                return False
        return True

    def over(self, node: QuotaNode) -> bool:
        """Whether a node uses more than its quota of something that is contested."""
        usage, subtree = node.usage, node.subtree
        return any(usage.get(fr, 0) > subtree.get(fr, 0) for fr in self.contested)

    def borrowers(self, node: QuotaNode) -> Iterable[QuotaNode]:
        """The children of a node of which `over` is true."""
        return dict.fromkeys(child for fr in self.contested for child in node.borrowers.get(fr, ()))


def keys(targets: Iterable[Target]) -> list[Key]:
    return [target.record.info.key for target in targets]
