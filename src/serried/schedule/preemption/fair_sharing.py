"""Fair sharing: whom to preempt so that dominant resource shares come closer, down the tree of cohorts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from serried.api.kueue import ClusterQueuePreemption
from serried.api.names import PreemptedReason
from serried.quota.tree import DominantShare, QuotaNode
from serried.schedule.preemption.candidates import PreemptionRequest, Trial, Victim, candidates_in, victim_order
from serried.schedule.state.records import Record
from serried.schedule.state.state import State

#: (share of the preemptor's side, the other's before, the other's after) → may one be taken from the other?
_STRATEGIES: Mapping[str, Callable[[DominantShare, DominantShare, DominantShare], bool]] = {
    "LessThanOrEqualToFinalShare": lambda ours, before, after: ours <= after,
    "LessThanInitialShare": lambda ours, before, after: ours < before,
}
_Order = Callable[[Record], tuple[object, ...]]


def fair_victims(
    state: State, want: PreemptionRequest, policy: ClusterQueuePreemption, strategies: Sequence[str], now: datetime
) -> list[Victim]:
    """The workloads to preempt; [] when those that may be do not make room. Leaves its trial in the journal."""
    trial = _FairTrial(state, want)
    order = victim_order(state, want.queue, now, want.first)
    candidates = fair_candidates(state, trial, policy, order)
    if not candidates:
        return []
    # Shares count what is wanted as if it were had already.
    state.ledger.charge(want.queue, want.needed)
    victims: list[Victim] = []
    later: list[Record] = []
    first = _STRATEGIES[strategies[0]]
    fits = _first_pass(trial, candidates, order, first, victims, later)
    if not fits and len(strategies) > 1:
        fits = _second_pass(trial, later, order, _STRATEGIES[strategies[1]], victims)
    return trial.minimal(victims, borrowing=True) if fits else []


class _FairTrial(Trial):
    """A trial in which what is wanted is charged while shares are compared."""

    def fits(self, *, borrowing: bool) -> bool:
        mark = self.state.journal.checkpoint()
        self.state.ledger.refund(self.want.queue, self.want.needed)
        result = super().fits(borrowing=borrowing)
        self.state.journal.rollback(mark)
        return result


def fair_candidates(
    state: State, trial: Trial, policy: ClusterQueuePreemption, order: _Order
) -> dict[str, list[Record]]:
    """ClusterQueue → its candidates, first to go first. Others than the own queue only if they borrow."""
    want = trial.want
    found: dict[str, list[Record]] = {}
    for queue in trial.node.root.queues():
        if queue is trial.node:
            rule = policy.within_cluster_queue
        elif trial.over(queue):
            rule = policy.reclaim_within_cohort
        else:
            continue
        records = sorted(candidates_in(state, queue.name, want, rule), key=order)
        if records:
            found[queue.name] = records
    return found


def _first_pass(
    trial: _FairTrial,
    candidates: dict[str, list[Record]],
    order: _Order,
    strategy: Callable[[DominantShare, DominantShare, DominantShare], bool],
    victims: list[Victim],
    later: list[Record],
) -> bool:
    for queue in Offers(trial.node, candidates, order):
        waiting = candidates[queue.name]
        if queue is trial.node:
            chosen, reason = waiting.pop(0), PreemptedReason.IN_CLUSTER_QUEUE
        elif trial.state.options.reclaim_within_nominal and not trial.over(trial.node):
            chosen, reason = waiting.pop(0), PreemptedReason.RECLAMATION
        else:
            found = _passing(trial, queue, waiting, strategy, later)
            if found is None:
                continue
            chosen, reason = found, PreemptedReason.FAIR_SHARING
        trial.remove(chosen)
        victims.append(Victim(chosen, reason))
        if trial.fits(borrowing=True):
            return True
    return False


def _passing(
    trial: _FairTrial,
    queue: QuotaNode,
    waiting: list[Record],
    strategy: Callable[[DominantShare, DominantShare, DominantShare], bool],
    later: list[Record],
) -> Record | None:
    """The first candidate of a queue whose preemption the strategy allows; those before it are set aside."""
    ours, theirs = below_common_ancestor(trial.node, queue)
    our_share, before = ours.share(), theirs.share()
    while waiting:
        record = waiting.pop(0)
        mark = trial.state.journal.checkpoint()
        trial.state.ledger.refund(queue.name, record.reservation.usage if record.reservation else {})
        after = theirs.share()
        trial.state.journal.rollback(mark)
        if strategy(our_share, before, after):
            return record
        later.append(record)
    return None


def _second_pass(
    trial: _FairTrial,
    later: Sequence[Record],
    order: _Order,
    strategy: Callable[[DominantShare, DominantShare, DominantShare], bool],
    victims: list[Victim],
) -> bool:
    candidates: dict[str, list[Record]] = {}
    for record in later:
        assert record.reservation is not None
        candidates.setdefault(record.reservation.cluster_queue, []).append(record)
    offers = Offers(trial.node, candidates, order)
    for queue in offers:
        ours, theirs = below_common_ancestor(trial.node, queue)
        before = theirs.share()
        if strategy(ours.share(), before, before):
            chosen = candidates[queue.name].pop(0)
            trial.remove(chosen)
            victims.append(Victim(chosen, PreemptedReason.FAIR_SHARING))
            if trial.fits(borrowing=True):
                return True
        offers.drop(queue.name)
    return False


def below_common_ancestor(a: QuotaNode, b: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The two nodes just below the lowest common ancestor of two queues of one tree, each on the way to its queue."""
    above_a, above_b = list(a.path()), list(b.path())
    while len(above_a) > 1 and len(above_b) > 1 and above_a[-2] is above_b[-2]:
        above_a.pop()
        above_b.pop()
    return above_a[-2], above_b[-2]


class Offers:
    """The ClusterQueues to take a victim from, one after the other, chosen anew for the shares of each moment."""

    def __init__(self, target: QuotaNode, candidates: Mapping[str, list[Record]], order: _Order) -> None:
        self._target = target
        self._above = set(map(id, target.path()))
        self._candidates = candidates
        self._order = order
        self._dropped: set[int] = set()
        self._dropped_queues: set[str] = set()
        #: shares worked out before, by how often usage had been changed by then: no trial is under way between offers
        self._shares: dict[int, tuple[int, DominantShare]] = {}

    def drop(self, queue: str) -> None:
        """This queue is not offered again."""
        self._dropped_queues.add(queue)

    def __iter__(self) -> Iterator[QuotaNode]:
        root = self._target.root
        while True:
            if root.is_queue:
                if not self._candidates.get(root.name) or root.name in self._dropped_queues:
                    return
                yield root
                continue
            found = self._next(root)
            if found is not None:
                yield found
            elif id(root) in self._dropped:
                return

    def _next(self, cohort: QuotaNode) -> QuotaNode | None:
        """The queue to offer below a cohort; None: some cohort turned out to have none, and is dropped."""
        while True:
            queue: tuple[DominantShare, QuotaNode] | None = None
            below: tuple[DominantShare, QuotaNode] | None = None
            for child in cohort.children:
                if id(child) in self._dropped:
                    continue
                if child.is_queue and (not self._candidates.get(child.name) or child.name in self._dropped_queues):
                    self._dropped.add(id(child))
                    continue
                share = self._share(child)
                if child.is_queue:
                    if not share.borrowing and child is not self._target:
                        self._dropped.add(id(child))
                    elif queue is None or share > queue[0] or (share == queue[0] and self._before(child, queue[1])):
                        queue = (share, child)
                elif not share.borrowing and id(child) not in self._above:
                    self._dropped.add(id(child))
                elif below is None or share > below[0]:
                    below = (share, child)
            if below is not None and (queue is None or below[0] >= queue[0]):
                cohort = below[1]
                continue
            if queue is None:
                self._dropped.add(id(cohort))
                return None
            return queue[1]

    def _share(self, node: QuotaNode) -> DominantShare:
        known = self._shares.get(id(node))
        if known is None or known[0] != node.changes:
            known = self._shares[id(node)] = (node.changes, node.share())
        return known[1]

    def _before(self, a: QuotaNode, b: QuotaNode) -> bool:
        return self._order(self._candidates[a.name][0]) < self._order(self._candidates[b.name][0])
