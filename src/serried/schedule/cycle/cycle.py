"""One scheduling cycle: candidates in order, each seeing what those before it took.

A cycle goes in rounds. In each, the first candidate of every ClusterQueue is nominated: what would it get, or whom
would it preempt? Then they are served in order, each followed by the next one of its queue. One whose quota, nodes or
victims another has taken meanwhile stays where it is, for the next round. What each takes is taken in the model at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import nsmallest

from serried.api.assignment import AssignmentError
from serried.api.names import EvictedReason, FinishedReason
from serried.api.problem import Problem
from serried.quota.quotas import FlavorResource
from serried.schedule.cycle.admission import Grant, to_reservation
from serried.schedule.cycle.nominate import Nomination, nominate, takes
from serried.schedule.cycle.order import Entry, in_order
from serried.schedule.cycle.reason_text import preemption_message, reason_of
from serried.schedule.cycle.second_pass import second_pass
from serried.schedule.flavors.assigner import NO_RULES, Rules
from serried.schedule.flavors.assignment import Fit, RefusalKind
from serried.schedule.flavors.flavor_topology import still_held
from serried.schedule.state import transitions
from serried.schedule.state.fair_usage import count_usage, sample_usage
from serried.schedule.state.pending_queue import Scan, Unschedulable
from serried.schedule.state.records import ClusterQueueState, Promise, Record
from serried.schedule.state.routing import end_backoff
from serried.schedule.state.state import State
from serried.schedule.state.unschedulable import block, pause, report_arrivals, take_changes
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.decisions import Admit, Cycle, Evict, Finish, Wait
from serried.schedule.types.moment import Moment
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, key_of

__all__ = ["Admit", "Cycle", "Evict", "Finish", "Wait", "run_cycle"]


def run_cycle(state: State, now: datetime, limit: int, spent: Callable[[], bool]) -> Cycle:
    """Looks at about `limit` candidates, and at no more once the time is `spent`: those of one round are served
    together. However little time there is, one of each kind is looked at.

    Of several ClusterQueues, those whose next candidates have the higher priority, then those who queued earlier, come
    into a round first. Within a ClusterQueue one that does not fit is followed by the next (BestEffortFIFO) or holds
    back the rest (StrictFIFO).
    """
    end_backoff(state, now)
    take_changes(state)
    transitions.account_for_missing(state)
    sample_usage(state, now)
    turn = _Turn(state, now, limit, spent)
    turn.look_again()
    while heads := turn.heads():
        turn.round(heads)
        if state.options.one_head or turn.is_over():
            break
    state.looked_at = None
    for name in list(state.requeue.queues):
        queue = state.cluster_queues.get(name)
        if queue is None or state.head(queue) is None:
            del state.requeue.queues[name]
            if queue is not None:
                report_arrivals(state, queue)
    waits = [Wait(key, reason) for key, reason in state.outbox.items()]
    state.outbox.clear()
    more = bool(state.requeue.queues or state.requeue.workloads)
    return Cycle(turn.admits, waits, more=more, evictions=turn.evictions, finishes=turn.finishes)


class _Turn:
    """One cycle in the making."""

    def __init__(self, state: State, now: datetime, limit: int, spent: Callable[[], bool]) -> None:
        self.state = state
        self.moment = Moment(now)
        self.spent = spent
        self.admits: list[Admit] = []
        self.evictions: list[Evict] = []
        self.finishes: list[Finish] = []
        #: how many candidates may still be looked at
        self.left = limit

    def is_over(self) -> bool:
        """Whether what is left is for the next cycle."""
        return self.left <= 0 or self.spent()

    # --- those that hold quota, or were promised some

    def look_again(self) -> None:
        """Workloads that hold quota and need a place, another place, or to be admitted or evicted by their checks; then
        those whose victims have gone."""
        due = [self.state.workloads[key] for key in self.state.requeue.workloads]
        for record in sorted(due, key=lambda record: record.promise is not None):
            self.state.looked_at = record.info.key
            del self.state.requeue.workloads[record.info.key]
            if record.promise is not None:
                self._keep(record, record.promise)
            else:
                self._second_pass(record)
            if self.spent():
                return

    def _second_pass(self, record: Record) -> None:
        for decision in second_pass(self.state, record):
            self.moment.moved()
            if isinstance(decision, Grant):
                self._grant(record, decision)
                continue
            transitions.evict(self.state, record, decision.reason)
            self.evictions.append(
                Evict(
                    record.info.key,
                    record.info.uid,
                    record.resource_version,
                    decision.reason,
                    decision.message,
                    deactivate=decision.deactivate,
                )
            )

    def _grant(self, record: Record, grant: Grant) -> None:
        reservation = grant.reservation
        waited = max(0.0, (self.moment.now - record.info.queued_at).total_seconds())
        self.admits.append(
            Admit(
                record.info.key,
                record.info.uid,
                record.resource_version,
                reservation.admission,
                waited,
                admitted=reservation.admitted,
                checks=grant.checks,
                kind=grant.kind,
                note=wording.not_optimal(reservation.placements),
            )
        )

    def _keep(self, record: Record, promise: Promise) -> None:
        """It takes what was kept for it; if that is not there any more, it waits anew."""
        state = self.state
        queue = state.cluster_queues[record.cluster_queue]
        mark = state.journal.checkpoint()
        transitions.lift_promise(state, record)
        # With no more pods than others were preempted for: with more it may not be worth their place any more.
        asked = replace(record.info, pod_sets=promise.pod_sets)
        found = nominate(state, queue, asked, Moment(self.moment.now))
        state.journal.rollback(mark)
        if not found.fits and any(state.world.has_pods(victim) for victim in promise.victims):
            # Their pods are still on the nodes.
            state.requeue.wait(record.info.key, Changed.NODES)
            return
        transitions.end_promise(state, record)
        if found.fits:
            self._admit(Entry(record, queue, found))
        self.moment.moved()

    # --- rounds

    def heads(self) -> list[Order]:
        """The next candidate of every ClusterQueue; of more than may be looked at, the first."""
        found = []
        for name in self.state.requeue.queues:
            queue = self.state.cluster_queues.get(name)
            if queue is not None and (head := self.state.head(queue)) is not None:
                found.append(head)
        return nsmallest(self.left, found)

    def round(self, heads: Sequence[Order]) -> None:
        entries = [self._entry(heads[0])]
        for order in heads[1:]:
            if self.spent():
                break
            entries.append(self._entry(order))
        blocked: list[Entry] = []

        def following(entry: Entry) -> Entry | None:
            # While something is blocked, nobody else is nominated: that something is blocked is no reason to wait.
            if self.state.options.one_head or entry.skipped or blocked or self.is_over():
                return None
            head = self.state.head(entry.queue)
            return None if head is None else self._entry(head)

        for entry in in_order(self.state, entries, following):
            self._serve(entry, blocked)
        for entry in blocked:
            self.state.ledger.refund(entry.queue.name, entry.blocks)
            if entry.nomination.assignment.wanted:
                self.state.world.release(entry.record.info.key)
        self.state.journal.commit()

    def _entry(self, order: Order) -> Entry:
        self.left -= 1
        record = self.state.workloads[key_of(order)]
        self.state.looked_at = record.info.key
        queue = self.state.cluster_queues[record.cluster_queue]
        found = nominate(self.state, queue, record.info, self.moment, _start(queue, order))
        return Entry(record, queue, found, self.moment.moves)

    def _serve(self, entry: Entry, blocked: list[Entry]) -> None:
        state, found = self.state, entry.nomination
        state.looked_at = entry.record.info.key
        if found.assignment.mode == Fit.NO_FIT:
            self._refuse(entry)
            return
        if found.assignment.mode == Fit.PREEMPT and not found.targets:
            if entry.queue.spec.preemption.reclaim_within_cohort != "Any":
                self._block(entry, blocked)
            self._refuse(entry)
            return
        if any(record.preempted_by is not None for record in _gone(found)):
            again = state.options.recompute_victims
        elif not self._quota_left(entry):
            again = False
        elif not self._places_left(entry):
            again = state.options.recompute
        else:
            return self._take(entry)
        if not again:
            return self._skip(entry)
        self._nominate_again(entry)
        if not entry.nomination.fits and not entry.nomination.targets:
            # What is blocked for this round alone is no reason to wait for longer.
            return self._skip(entry) if blocked and not state.options.one_head else self._refuse(entry)
        return self._take(entry)

    def _take(self, entry: Entry) -> None:
        if entry.nomination.fits:
            self._admit(entry)
        else:
            self._preempt(entry)

    def _nominate_again(self, entry: Entry) -> None:
        """In the model as it is now; in the flavors found before where others than Kueue's answers are not wanted."""
        state, record = self.state, entry.record
        rules = NO_RULES
        if state.options.one_head:
            chosen = {p.pod_set.name: p.flavors for p in entry.nomination.assignment.pod_sets}
            rules = Rules(nominated={name: {r: c.flavor for r, c in f.items()} for name, f in chosen.items()})
        entry.nomination = nominate(
            state, entry.queue, record.info, self.moment, _start(entry.queue, record.info.order), rules
        )
        entry.seen = self.moment.moves

    def _block(self, entry: Entry, blocked: list[Entry]) -> None:
        """Keeps what the candidate waits for from those behind it, until the round is over."""
        state, key = self.state, entry.record.info.key
        entry.blocks = self._blocked(entry)
        state.ledger.charge(entry.queue.name, entry.blocks)
        wanted = entry.nomination.assignment.wanted
        if wanted:
            state.world.hold(key, wanted, entry.nomination.pod_sets)
        self.moment.moved()
        state.journal.commit()
        blocked.append(entry)

    def _quota_left(self, entry: Entry) -> bool:
        state = self.state
        mark = state.journal.checkpoint()
        for gone in _gone(entry.nomination):
            assert gone.reservation is not None
            state.ledger.refund(gone.reservation.cluster_queue, gone.reservation.usage)
        left = state.ledger.fits(entry.queue.name, entry.nomination.assignment.usage)
        state.journal.rollback(mark)
        return left

    def _places_left(self, entry: Entry) -> bool:
        placements = entry.nomination.assignment.placements
        if not placements or entry.seen == self.moment.moves:
            return True
        gone = [record.info.key for record in _gone(entry.nomination)]
        return still_held(self.state, entry.record.info.key, placements, entry.nomination.pod_sets, gone)

    def _blocked(self, entry: Entry) -> dict[FlavorResource, int]:
        """What others in this round must not take, since this one comes before them."""
        found = entry.nomination.assignment
        node = self.state.ledger.queue(entry.queue.name)
        result = {}
        for fr, amount in takes(found).items():
            left = node.quotas.nominal.get(fr, 0) - node.usage.get(fr, 0)
            if found.borrowing == 0:
                result[fr] = max(0, min(amount, left))
            elif fr in node.quotas.borrowing:
                result[fr] = min(amount, left + node.quotas.borrowing[fr])
            else:
                result[fr] = amount
        return result

    # --- what becomes of a candidate

    def _refuse(self, entry: Entry) -> None:
        found, record, queue = entry.nomination.assignment, entry.record, entry.queue
        start = {
            (i, resource): choice.tried + 1
            for i, p in enumerate(found.pod_sets)
            for resource, choice in p.flavors.items()
            if choice.tried != -1
        }
        furthest = found.furthest()
        never = furthest is not None and furthest[1].kind.never
        unschedulable = Unschedulable(self._reason(entry), found.blocked_on, never)
        if furthest is not None and furthest[1].kind == RefusalKind.WAITS_QUOTA and (hopeless := self._hopeless(entry)):
            unschedulable = hopeless
        scan = queue.pending.scan(record.info.order)
        if scan is not None:
            unschedulable = scan.so_far.and_then(unschedulable)
        short = any(r.kind == RefusalKind.WAITS_QUOTA for p in found.pod_sets for r in p.refusals)
        if start and found.mode == Fit.PREEMPT and (short or self.state.options.one_head):
            # The scan stopped at a flavor where preemption could have helped. It goes on behind it.
            pause(self.state, queue, record.info.order, Scan(start, unschedulable))
            return
        block(self.state, queue, record.info.order, unschedulable)

    def _hopeless(self, entry: Entry) -> Unschedulable | None:
        """What no quota, or no domain, could ever hold need not wait for what is looked at before that, nor hold back
        others, before it is told."""
        state, info = self.state, entry.record.info
        if state.options.one_head:
            return None
        asked = {r for p in info.pod_sets for r in p.requests}
        alone = len(info.pod_sets) == 1 and any(asked <= set(g.resources) for g in entry.queue.quotas.groups)
        if alone and not any(p.topology is not None and p.topology.required for p in info.pod_sets):
            # There is nothing that was not looked at.
            return None
        found = nominate(state, entry.queue, info, self.moment, rules=Rules(as_if_unused=True))
        furthest = None if found.fits else found.assignment.furthest()
        if furthest is None or not furthest[1].kind.never:
            return None
        return Unschedulable(reason_of(entry.queue, found), Changed.NODES | found.assignment.blocked_on, never=True)

    def _reason(self, entry: Entry) -> Reason:
        return reason_of(entry.queue, entry.nomination)

    def _skip(self, entry: Entry) -> None:
        """Another one took what it would have got: it stays where it is, to be looked at again."""
        entry.skipped = True
        self.state.report(
            entry.record.info.key, wording.overtaken(entry.queue.name, preempting=bool(entry.nomination.targets))
        )

    def _admit(self, entry: Entry) -> None:
        state, record, queue, found = self.state, entry.record, entry.queue, entry.nomination
        try:
            grant = to_reservation(state, record, queue, found)
        except AssignmentError as error:
            problem = Problem("spec.podSets", f"placed as {error}", "a placement that a topologyAssignment can hold")
            reason = wording.misconfigured(problem)
            block(state, queue, record.info.order, Unschedulable(reason, Changed.NODES, never=True))
            return
        old = found.replaces
        transitions.admit(state, record, grant.reservation, old)
        if old is not None:
            uid, job = record.info.uid, record.info.job_uid
            message = (
                f"Replaced to accommodate a workload (UID: {uid}, JobUID: {job}) due to workload slice aggregation"
            )
            why = FinishedReason.SLICE_REPLACED
            self.finishes.append(Finish(old.info.key, old.info.uid, old.resource_version, why, message))
        self.moment.moved()
        count_usage(state, record, grant.reservation.usage)
        self._grant(record, grant)

    def _preempt(self, entry: Entry) -> None:
        state, record, found = self.state, entry.record, entry.nomination
        key = record.info.key
        mine = state.ledger.queue(entry.queue.name).path_name
        for target in found.targets:
            other, reservation = target.record, target.record.reservation
            assert reservation is not None
            if other.is_leaving:
                continue
            path = state.ledger.queue(reservation.cluster_queue).path_name
            message = preemption_message(record, target, mine, path)
            self.evictions.append(
                Evict(
                    other.info.key,
                    other.info.uid,
                    other.resource_version,
                    EvictedReason.PREEMPTED,
                    message,
                    preempted=target.reason,
                    preemptor=key,
                )
            )
        victims = tuple(target.record.info.key for target in found.targets)
        usage, placements = takes(found.assignment), found.assignment.placements
        promise = Promise(usage, placements, found.pod_sets, entry.queue.name, set(victims), victims)
        reason = wording.waits_for_victims(self._reason(entry), victims)
        transitions.promise(state, record, promise, Unschedulable(reason, Changed.VICTIMS, never=False))
        self.moment.moved()


def _gone(found: Nomination) -> list[Record]:
    """Those who hold nothing any more once this is decided."""
    return [v.record for v in found.targets] + ([found.replaces] if found.replaces is not None else [])


def _start(queue: ClusterQueueState, order: Order) -> Mapping[tuple[int, str], int]:
    """Where the scan of its flavors goes on."""
    scan = queue.pending.scan(order)
    return scan.start if scan is not None else {}
