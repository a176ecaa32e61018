"""What one cycle decides: what becomes of each candidate, taken in the model at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from serried.api.assignment import AssignmentError
from serried.api.names import EvictedReason
from serried.api.problem import Problem
from serried.schedule.cycle.admission import Grant, to_reservation
from serried.schedule.cycle.nominate import nominate, takes
from serried.schedule.cycle.order import Entry
from serried.schedule.cycle.reason_text import preemption_message, reason_of
from serried.schedule.cycle.second_pass import Eviction, second_pass
from serried.schedule.flavors.assigner import Rules
from serried.schedule.flavors.assignment import Assignment, Fit
from serried.schedule.state import transitions
from serried.schedule.state.pending_queue import Scan, Unschedulable
from serried.schedule.state.records import ClusterQueueState, Promise, Record
from serried.schedule.state.state import State
from serried.schedule.state.unschedulable import block, pause
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.decisions import Admit, Evict
from serried.schedule.types.moment import Moment
from serried.schedule.types.refusals import RefusalKind
from serried.schedule.types.workload import Order


class Turn:
    """The decisions of one cycle in the making."""

    def __init__(self, state: State, moment: Moment) -> None:
        self.state = state
        self.moment = moment
        self.admits: list[Admit] = []
        self.evictions: list[Evict] = []

    # --- those that hold quota, or were promised some

    def look_again(self, record: Record) -> None:
        """A workload that holds quota needs a place, another place, or to be admitted or evicted by its checks; or one
        that was promised some has no victims left."""
        if record.promise is not None:
            self._keep(record, record.promise)
        else:
            self.second_pass(record)

    def second_pass(self, record: Record) -> None:
        for decision in second_pass(self.state, record):
            self.moment.moved()
            if isinstance(decision, Grant):
                self._grant(record, decision)
                continue
            self.evict(record, decision)

    def evict(self, record: Record, eviction: Eviction) -> None:
        """It has to give back what it holds."""
        transitions.evict(self.state, record, eviction.reason)
        self.evictions.append(
            Evict(
                record.info.key,
                record.info.uid,
                record.resource_version,
                eviction.reason,
                eviction.message,
                deactivate=eviction.deactivate,
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
            entry = Entry(record, queue)
            entry.nominated(found, self.moment.moves)
            self.admit(entry)
        self.moment.moved()

    # --- those that wait

    def nominate(self, entry: Entry) -> None:
        """Works out what a candidate would get now."""
        start = _start(entry.queue, entry.order)
        found = nominate(self.state, entry.queue, entry.record.info, self.moment, start)
        entry.nominated(found, self.moment.moves)

    def take(self, entry: Entry) -> None:
        """It fits, or others can be preempted for it."""
        if entry.found.fits:
            self.admit(entry)
        else:
            self.preempt(entry)

    def refuse(self, entry: Entry) -> None:
        """It does not fit: it is unschedulable, with a reason, until something changes that it is blocked on."""
        found, queue, order = entry.found.assignment, entry.queue, entry.order
        start = {
            (i, resource): choice.tried + 1
            for i, p in enumerate(found.pod_sets)
            for resource, choice in p.flavors.items()
            if choice.tried != -1
        }
        furthest = found.furthest()
        never = furthest is not None and furthest[1].kind.never
        unschedulable = Unschedulable(reason_of(self.state, queue, entry.found), found.blocked_on, never)
        if furthest is not None and furthest[1].kind == RefusalKind.WAITS_QUOTA and (hopeless := self.hopeless(entry)):
            unschedulable = hopeless
        scan = queue.pending.scan(order)
        if scan is not None:
            unschedulable = scan.so_far.and_then(unschedulable)
        if start and found.mode == Fit.PREEMPT and self.goes_on(found):
            # The scan stopped at a flavor where preemption could have helped. It goes on behind it.
            pause(self.state, queue, order, Scan(start, unschedulable))
            return
        block(self.state, queue, order, unschedulable)

    def goes_on(self, found: Assignment) -> bool:
        """Whether the scan goes on behind the flavor where preemption could have helped, but nobody may be preempted.
        Where nodes are short, all flavors have been tried already."""
        return any(r.kind == RefusalKind.WAITS_QUOTA for p in found.pod_sets for r in p.refusals)

    def hopeless(self, entry: Entry) -> Unschedulable | None:
        """What no quota, or no domain, could ever hold need not wait for what is looked at before that, nor hold back
        others, before it is told."""
        state, info = self.state, entry.record.info
        asked = {r for p in info.pod_sets for r in p.requests}
        alone = len(info.pod_sets) == 1 and any(asked <= set(g.resources) for g in entry.queue.quotas.groups)
        if alone and not any(p.topology is not None and p.topology.required for p in info.pod_sets):
            # There is nothing that was not looked at.
            return None
        found = nominate(state, entry.queue, info, self.moment, rules=Rules(as_if_unused=True))
        furthest = None if found.fits else found.assignment.furthest()
        if furthest is None or not furthest[1].kind.never:
            return None
        return Unschedulable(
            reason_of(state, entry.queue, found), Changed.NODES | found.assignment.blocked_on, never=True
        )

    def admit(self, entry: Entry) -> None:
        """It gets what was found for it."""
        state, record, queue, found = self.state, entry.record, entry.queue, entry.found
        try:
            grant = to_reservation(state, record, queue, found)
        except AssignmentError as error:
            problem = Problem("spec.podSets", f"placed as {error}", "a placement that a topologyAssignment can hold")
            reason = wording.misconfigured(problem)
            block(state, queue, record.info.order, Unschedulable(reason, Changed.NODES, never=True))
            return
        transitions.admit(state, record, grant.reservation)
        self.moment.moved()
        state.fair_usage.count(record.info.queue, grant.reservation.usage)
        self._grant(record, grant)

    def preempt(self, entry: Entry) -> None:
        """Others have to go for it, and what it was found is kept for it until they have."""
        state, record, found = self.state, entry.record, entry.found
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
        reason = wording.waits_for_victims(reason_of(state, entry.queue, found), victims)
        transitions.promise(state, record, promise, Unschedulable(reason, Changed.VICTIMS, never=False))
        self.moment.moved()


def _start(queue: ClusterQueueState, order: Order) -> Mapping[tuple[int, str], int]:
    """Where the scan of its flavors goes on."""
    scan = queue.pending.scan(order)
    return scan.start if scan is not None else {}
