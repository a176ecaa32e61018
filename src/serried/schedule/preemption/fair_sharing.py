"""Fair sharing: whom to preempt so that dominant resource shares come closer, down the tree of cohorts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from serried.api.kueue import ClusterQueuePreemption
from serried.api.names import PreemptedReason
from serried.quota.tree import DominantShare, QuotaNode
from serried.schedule.preemption.candidates import Rank, Target, Trial, candidates_in
from serried.schedule.state.records import Record
from serried.schedule.state.state import State

#: (share of the preemptor's side, the other's before, the other's after) → may one be taken from the other?
_Strategy = Callable[[DominantShare, DominantShare, DominantShare], bool]
_STRATEGIES: Mapping[str, _Strategy] = {
    "LessThanOrEqualToFinalShare": lambda ours, before, after: ours <= after,
    "LessThanInitialShare": lambda ours, before, after: ours < before,
}
#: ClusterQueue → its candidates, first to go first
Candidates = dict[str, list[tuple[Rank, Record]]]


class FairTrial(Trial):
    """A trial in which what is requested is charged, so that shares are compared as if it were had already."""

    def charge(self) -> None:
        self.state.ledger.charge(self.request.queue, self.request.needed)

    def within_nominal(self) -> bool:
        """Whether the preemptor's queue stays within its quota with the request: then it takes back its own."""
        return not self.over(self.node)

    def quota_fits(self, *, borrowing: bool) -> bool:
        mark = self.state.journal.checkpoint()
        self.state.ledger.refund(self.request.queue, self.request.needed)
        result = super().quota_fits(borrowing=borrowing)
        self.state.journal.rollback(mark)
        return result


def fair_targets(
    state: State, trial: FairTrial, policy: ClusterQueuePreemption, strategies: Sequence[str]
) -> Iterator[Target]:
    """The targets in order. Which ones follow depends on the quota that those before them have left in the trial."""
    candidates = fair_candidates(state, trial, policy)
    if not candidates:
        return
    trial.charge()
    later: Candidates = {}
    yield from _first_pass(trial, candidates, _STRATEGIES[strategies[0]], later)
    if len(strategies) > 1:
        yield from _second_pass(trial, later, _STRATEGIES[strategies[1]])


def fair_candidates(state: State, trial: Trial, policy: ClusterQueuePreemption) -> Candidates:
    """The candidates of each ClusterQueue. Others than the own queue have some only if they borrow."""
    found: Candidates = {}
    for queue in trial.node.root.queues():
        if queue is trial.node:
            rule = policy.within_cluster_queue
        elif trial.over(queue):
            rule = policy.reclaim_within_cohort
        else:
            continue
        candidates = candidates_in(state, queue.name, trial.request, rule, trial.moment)
        if candidates:
            found[queue.name] = list(candidates)
    return found


def _first_pass(trial: FairTrial, candidates: Candidates, strategy: _Strategy, later: Candidates) -> Iterator[Target]:
    for queue in Offers(trial.node, candidates):
        waiting = candidates[queue.name]
        if queue is trial.node:
            yield Target(waiting.pop(0)[1], PreemptedReason.IN_CLUSTER_QUEUE)
        elif trial.within_nominal():
            yield Target(waiting.pop(0)[1], PreemptedReason.RECLAMATION)
        else:
            found = _passing(trial, queue, waiting, strategy, later.setdefault(queue.name, []))
            if found is not None:
                yield Target(found, PreemptedReason.FAIR_SHARING)


def _passing(
    trial: FairTrial,
    queue: QuotaNode,
    waiting: list[tuple[Rank, Record]],
    strategy: _Strategy,
    later: list[tuple[Rank, Record]],
) -> Record | None:
    """The first candidate of a queue whose preemption the strategy allows; those before it are left for later."""
    ours, theirs = below_common_ancestor(trial.node, queue)
    our_share, before = ours.share(), theirs.share()
    while waiting:
        candidate = waiting.pop(0)
        record = candidate[1]
        mark = trial.state.journal.checkpoint()
        trial.remove(record)
        after = theirs.share()
        trial.state.journal.rollback(mark)
        if strategy(our_share, before, after):
            return record
        later.append(candidate)
    return None


def _second_pass(trial: FairTrial, candidates: Candidates, strategy: _Strategy) -> Iterator[Target]:
    offers = Offers(trial.node, candidates)
    for queue in offers:
        ours, theirs = below_common_ancestor(trial.node, queue)
        before = theirs.share()
        if strategy(ours.share(), before, before):
            yield Target(candidates[queue.name].pop(0)[1], PreemptedReason.FAIR_SHARING)
        offers.drop(queue.name)


def below_common_ancestor(a: QuotaNode, b: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The two nodes just below the lowest common ancestor of two queues of one tree, each on the way to its queue."""
    above_a, above_b = list(a.path()), list(b.path())
    while len(above_a) > 1 and len(above_b) > 1 and above_a[-2] is above_b[-2]:
        above_a.pop()
        above_b.pop()
    return above_a[-2], above_b[-2]


class Offers:
    """The ClusterQueues to take a target from, one after the other, chosen anew for the shares of each moment."""

    def __init__(self, target: QuotaNode, candidates: Mapping[str, Sequence[tuple[Rank, Record]]]) -> None:
        self._target = target
        self._above = set(map(id, target.path()))
        self._candidates = candidates
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
        return self._candidates[a.name][0][0] < self._candidates[b.name][0][0]
