"""Who could be preempted for whom: priorities, policies, and the order in which victims are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from serried.api.meta import Key
from serried.quota.quotas import FlavorResource
from serried.quota.tree import QuotaNode
from serried.schedule.state.records import Record
from serried.schedule.state.state import State
from serried.schedule.types.workload import WorkloadInfo


@dataclass(frozen=True)
class PreemptionRequest:
    """What a workload needs, and may preempt others for."""

    info: WorkloadInfo
    queue: str
    needed: Mapping[FlavorResource, int]
    #: of what it cannot have as much as it needs: whoever uses any of that may be in its way
    contested: frozenset[FlavorResource]
    #: whether it has a place on the nodes as the model is now; None: it needs none
    has_place: Callable[[], bool] | None = None
    #: of those that only their uids tell apart, these go first
    first: Callable[[Record], bool] | None = None
    #: of `contested`, that whose quota is short; if there is any, the rest is contested for nodes alone
    short: frozenset[FlavorResource] = frozenset()


@dataclass(frozen=True)
class Victim:
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


def victim_order(
    state: State, queue: str, now: datetime, first: Callable[[Record], bool] | None = None
) -> Callable[[Record], tuple[object, ...]]:
    """The key by which candidates are sorted, first to go first; its last two items are arbitrary.

    `first`: of those that only these tell apart, who goes first.
    """

    def key(record: Record) -> tuple[object, ...]:
        info, reservation = record.info, record.reservation
        own = reservation is not None and reservation.cluster_queue == queue
        reserved = (reservation.reserved_at if reservation is not None else None) or now
        usage = state.usage_of(info.queue) if own and state.usage_ordered(queue) else 0.0
        later = first is not None and not first(record)
        return (not record.is_leaving, own, -usage, info.priority, -reserved.timestamp(), later, info.uid, info.key)

    return key


def candidates_in(state: State, queue: str, want: PreemptionRequest, policy: str) -> Iterable[Record]:
    """The workloads of a ClusterQueue that use what is contested and that the policy lets be preempted."""
    if policy == "Never":
        return
    for key in state.holders.get(queue, ()):
        record = state.workloads[key]
        if record.preempted_by or record.reservation is None or key in (want.info.key, want.info.replaces):
            continue
        if may_preempt(policy, want.info, record.info):
            usage = record.reservation.usage
            uses = {fr for fr in want.contested if usage.get(fr, 0) > 0}
            if uses and (not want.short or queue == want.queue or _borrows(state, queue, uses & want.short or uses)):
                yield record


def _borrows(state: State, queue: str, frs: Iterable[FlavorResource]) -> bool:
    """Whether a queue uses more than its quota of any of these: what is its own it would only take back."""
    node = state.ledger.queue(queue)
    return any(node.exceeds(fr) for fr in frs)


class Trial:
    """Takes workloads away and puts them back, through the journal; whoever starts one rolls it back."""

    def __init__(self, state: State, want: PreemptionRequest) -> None:
        self.state = state
        self.want = want
        self.node: QuotaNode = state.ledger.queue(want.queue)
        self.contested = sorted(want.contested)

    def remove(self, record: Record) -> None:
        assert record.reservation is not None
        self.state.ledger.refund(record.reservation.cluster_queue, record.reservation.usage)
        if self.want.has_place is not None:
            self.state.world.release(record.info.key, with_pods=True)

    def restore(self, record: Record) -> None:
        assert record.reservation is not None
        self.state.ledger.charge(record.reservation.cluster_queue, record.reservation.usage)
        if self.want.has_place is not None:
            self.state.world.hold(record.info.key, record.reservation.placements, record.reservation.pod_sets)

    def fits(self, *, borrowing: bool) -> bool:
        """Whether what is wanted fits now, in quota and on nodes; `borrowing`: also beyond the queue's nominal."""
        node = self.node
        for fr, amount in self.want.needed.items():
            if amount <= 0:
                continue
            if amount > node.available(fr):
                return False
            if not borrowing and node.usage.get(fr, 0) + amount > node.quotas.nominal.get(fr, 0):
                return False
        return self.want.has_place is None or self.want.has_place()

    def over(self, node: QuotaNode) -> bool:
        """Whether a node uses more than its quota of something that is contested."""
        usage, subtree = node.usage, node.subtree
        return any(usage.get(fr, 0) > subtree.get(fr, 0) for fr in self.contested)

    def borrowers(self, node: QuotaNode) -> Iterable[QuotaNode]:
        """The children of a node of which `over` is true."""
        return dict.fromkeys(child for fr in self.contested for child in node.borrowers.get(fr, ()))

    def minimal(self, victims: list[Victim], *, borrowing: bool) -> list[Victim]:
        """Without those that turn out not to be needed, looked at from the last but one back to the first."""
        for i in range(len(victims) - 2, -1, -1):
            self.restore(victims[i].record)
            if self.fits(borrowing=borrowing):
                victims[i] = victims[-1]
                victims.pop()
            else:
                self.remove(victims[i].record)
        return victims


def strategies(names: Iterable[str]) -> tuple[str, ...]:
    """The strategies of fair sharing in effect: both of Kueue's when none are named."""
    return tuple(names) or ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


def keys(victims: Iterable[Victim]) -> list[Key]:
    return [victim.record.info.key for victim in victims]
