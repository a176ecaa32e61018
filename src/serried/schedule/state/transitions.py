"""The ways of a workload from one state to another: a table, and a function for each entry of it.

Each function does all that belongs to the transition: it takes back what the old state has given, and gives what the
new one has. None of them leaves a record half-moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from serried.api.meta import Key
from serried.model.placement import Placement
from serried.schedule.state.pending_queue import Unschedulable
from serried.schedule.state.records import (
    HOLDS,
    WAITS,
    Finished,
    InFlight,
    Promise,
    Record,
    Reservation,
    Transition,
    WorkloadState,
)
from serried.schedule.state.state import State
from serried.schedule.state.unschedulable import block
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import WorkloadInfo

_STORY: Final = 20
_NEW, _PENDING = frozenset({WorkloadState.NEW}), frozenset({WorkloadState.PENDING})
_RESERVING, _ADMITTED = frozenset({WorkloadState.RESERVING}), frozenset({WorkloadState.ADMITTED})
_LEAVING, _FINISHED = frozenset({WorkloadState.LEAVING}), frozenset({WorkloadState.FINISHED})
_INADMISSIBLE = frozenset({WorkloadState.INADMISSIBLE})

#: Transition → the states it leads from, and those it leads to.
TABLE: Final[Mapping[str, tuple[frozenset[WorkloadState], frozenset[WorkloadState]]]] = {
    # Whatever it was, it waits from now on: in a ClusterQueue, or for a reason in none.
    "queued": (_NEW | WAITS | HOLDS, _PENDING),
    "inadmissible": (_NEW | WAITS | HOLDS, _INADMISSIBLE),
    # Others are preempted for it; and it gives up, or takes, what was kept for it.
    "promised": (_PENDING, _PENDING),
    "promise over": (_PENDING, _PENDING),
    # A cycle has decided.
    "admission decided": (_PENDING, _RESERVING | _ADMITTED),
    "places decided": (_RESERVING | _ADMITTED, _RESERVING | _ADMITTED),
    "checks to be passed": (_RESERVING, _RESERVING),
    "checks passed": (_RESERVING, _ADMITTED),
    "eviction decided": (_RESERVING | _ADMITTED, _LEAVING),
    "preempted": (HOLDS, _LEAVING),
    # The API server has refused a decision.
    "decision refused": (HOLDS, HOLDS),
    "eviction refused": (_LEAVING, HOLDS),
    # Its status says so.
    "reservation heard": (_NEW | WAITS | HOLDS, HOLDS),
    "decision heard": (HOLDS, HOLDS),
    "claims heard": (HOLDS, HOLDS),
    "read anew": (HOLDS, HOLDS),
    "finished": (_NEW | WAITS | HOLDS, _FINISHED),
}


class IllegalTransition(Exception):
    """A transition that the table does not have; the message tells the story of the record."""

    def __init__(self, record: Record, what: str, after: WorkloadState) -> None:
        story = "".join(f"\n  {entry}" for entry in record.story)
        super().__init__(f"{'/'.join(record.info.key)}: {record.state} → {after} by {what!r} is no transition{story}")


def _move(state: State, record: Record, what: str, after: WorkloadState, detail: str = "") -> None:
    before = record.state
    legal = TABLE[what]
    if before not in legal[0] or after not in legal[1]:
        raise IllegalTransition(record, what, after)
    if what not in ("queued", "inadmissible") or before in HOLDS | _LEAVING:
        state.departures.clear()
    event = state.event_of(record.info.key)
    record.story = (*record.story[1 - _STORY :], Transition(before, after, what, detail, event, state.now))
    record.state = after


# --- waiting


def set_inadmissible(state: State, record: Record, reason: Reason, info: WorkloadInfo | None = None) -> None:
    """It waits in no ClusterQueue until it, or the queue it names, changes. `info`: what it is from now on."""
    _exit(state, record)
    record.info = info or record.info
    _move(state, record, "inadmissible", WorkloadState.INADMISSIBLE, reason.code)
    if record.info.active:
        _list_as_waiting(state, record)
    if record.info.not_before is not None:
        state.requeue.wait_until(record.info.key, record.info.not_before)
    state.report(record.info.key, reason)


def queue(state: State, record: Record, cluster_queue: str, info: WorkloadInfo | None = None) -> None:
    """It waits in a ClusterQueue. `info`: what it is from now on."""
    _exit(state, record)
    record.info = info or record.info
    _move(state, record, "queued", WorkloadState.PENDING, cluster_queue)
    record.cluster_queue = cluster_queue
    _list_as_waiting(state, record)
    found = state.cluster_queues[cluster_queue]
    found.pending.add(record.info.order, record.info.equivalence_class)
    found.unreported[record.info.order] = None
    state.requeue.activate(cluster_queue)


def _list_as_waiting(state: State, record: Record) -> None:
    """It waits for its LocalQueue, there or not."""
    if state.index.set_waiting(record.info.queue, record.info.key, waits=True):
        state.stale_queues_of(record.info.queue)


def _exit(state: State, record: Record) -> None:
    """Takes back all that a record has by its state."""
    if record.state in WAITS:
        _stop_waiting(state, record)
    elif record.reservation is not None:
        _release(state, record, record.reservation)


def _stop_waiting(state: State, record: Record) -> None:
    key = record.info.key
    if state.index.set_waiting(record.info.queue, key, waits=False):
        state.stale_queues_of(record.info.queue)
    if record.state is WorkloadState.PENDING:
        _leave_queue(state, record)
    if state.outbox.pop(key, None) is not None:
        record.last_reason = None


def _leave_queue(state: State, record: Record) -> None:
    if record.promise is not None:
        _end_promise(state, record, record.promise)
    found = state.cluster_queues.get(record.cluster_queue)
    if found is not None:  # else everyone in it goes
        found.pending.remove(record.info.order)
        found.unreported.pop(record.info.order, None)
        # Under StrictFIFO whoever it held back may be next.
        state.requeue.activate(found.name)
    record.cluster_queue = ""


# --- promises


def promise(state: State, record: Record, given: Promise, unschedulable: Unschedulable) -> None:
    """Others are preempted for this workload: what they hold is theirs no more, and what it needs is its own.

    `unschedulable`: why it waits until they are gone.
    """
    key = record.info.key
    for victim in given.victims:
        _give_up(state, state.workloads[victim], "preempted", record)
    state.ledger.charge(given.cluster_queue, given.usage)
    if given.placements:
        state.world.hold(key, given.placements, given.pod_sets, promised=True)
    state.journal.commit()
    _move(state, record, "promised", WorkloadState.PENDING, f"{len(given.victims)} preempted")
    record.promise = given
    if not given.awaited:
        state.requeue.look_at(key)
    found = state.cluster_queues[record.cluster_queue]
    found.pending.remove(record.info.order)
    found.pending.add(record.info.order, b"promise " + "/".join(key).encode())
    block(state, found, record.info.order, unschedulable)


def _give_up(state: State, record: Record, what: str, to: Record) -> None:
    """What a workload holds is another's from now on."""
    assert record.reservation is not None
    if not record.is_leaving:
        record.in_flight = InFlight("eviction", behind=record.in_flight)
    state.ledger.refund(record.reservation.cluster_queue, record.reservation.usage)
    state.world.release(record.info.key)
    record.missing = ()
    record.preempted_by = to.info.key
    _move(state, record, what, WorkloadState.LEAVING, "/".join(to.info.key))


def lift_promise(state: State, record: Record) -> None:
    """For a trial: what it was promised is free again. Journalled."""
    assert record.promise is not None
    state.ledger.refund(record.promise.cluster_queue, record.promise.usage)
    if record.promise.placements:
        state.world.release(record.info.key)


def end_promise(state: State, record: Record) -> None:
    """The promise is given up: it is a candidate again like others. Those who leave for it go on leaving."""
    if record.promise is None:
        return
    _end_promise(state, record, record.promise)
    _move(state, record, "promise over", WorkloadState.PENDING)
    found = state.cluster_queues[record.cluster_queue]
    found.pending.remove(record.info.order)
    found.pending.add(record.info.order, record.info.equivalence_class)
    state.requeue.activate(found.name)


def _end_promise(state: State, record: Record, given: Promise) -> None:
    lift_promise(state, record)
    state.journal.commit()
    record.promise = None
    state.requeue.forget(record.info.key)
    state.released(given.cluster_queue)
    state.requeue.changed(Changed.NODES)


# --- getting quota and places


def admit(state: State, record: Record, reservation: Reservation) -> None:
    """A cycle has decided that it gets this."""
    _exit(state, record)
    record.info = replace(record.info, evicted=False)
    record.in_flight = InFlight("admission")
    _enter(state, record, reservation, "admission decided")
    node = state.ledger.queue(reservation.cluster_queue)
    if node.parent is not None and any(node.exceeds(fr) for fr in reservation.usage):
        state.requeue.changed(Changed.BORROWED, state.ledger.tree_of(reservation.cluster_queue))


def reserve(state: State, record: Record, reservation: Reservation, info: WorkloadInfo | None = None) -> None:
    """By its status it has this, whether it fits or not. `info`: what it is from now on."""
    _exit(state, record)
    record.info = info or record.info
    _enter(state, record, reservation, "reservation heard")


def _enter(state: State, record: Record, reservation: Reservation, what: str) -> None:
    _set_reservation(state, record, reservation)
    _move(state, record, what, _held(record), reservation.cluster_queue)
    record.last_reason = None
    state.ledger.charge(reservation.cluster_queue, reservation.usage)
    _hold(state, record, reservation.placements)
    state.journal.commit()


def _held(record: Record) -> WorkloadState:
    """The state of a record with a reservation."""
    evicting = record.in_flight is not None and record.in_flight.what == "eviction"
    if record.info.evicted or evicting or record.preempted_by is not None:
        return WorkloadState.LEAVING
    assert record.reservation is not None
    return WorkloadState.ADMITTED if record.reservation.admitted else WorkloadState.RESERVING


def _set_reservation(state: State, record: Record, reservation: Reservation | None) -> None:
    """The indexes and the counts of queues follow: they have a workload for as long as its status may say so, also
    while it leaves."""
    before, record.reservation = record.reservation, reservation
    if before is not None and reservation is not None and _counts_alike(before, reservation):
        return
    for found, sign in ((before, -1), (reservation, 1)):
        if found is None:
            continue
        for account in (("", found.cluster_queue), found.local_queue):
            state.accounts.count(account, found.usage, sign, admitted=found.admitted)
        state.index.set_holder(found.cluster_queue, record.info.key, holds=sign > 0)


def _counts_alike(a: Reservation, b: Reservation) -> bool:
    return (a.cluster_queue, a.local_queue, a.usage, a.admitted) == (
        b.cluster_queue,
        b.local_queue,
        b.usage,
        b.admitted,
    )


def _hold(state: State, record: Record, places: Sequence[Placement]) -> None:
    """Charges these places of a workload, and no others; those that are not there, when nodes change."""
    assert record.reservation is not None
    if places:
        record.missing = tuple(state.world.hold(record.info.key, places, record.reservation.pod_sets))
    else:
        state.world.release(record.info.key)
        record.missing = ()
    if record.missing:
        state.requeue.wait(record.info.key, Changed.NODES)


def account_for_missing(state: State) -> None:
    """Charges again what workloads that are to be looked at hold on places that were not there before."""
    for key in state.requeue.workloads:
        record = state.workloads[key]
        if record.missing:
            assert record.reservation is not None
            _hold(state, record, _places(record))
            state.journal.commit()


def _places(record: Record) -> tuple[Placement, ...]:
    """All places that it holds, also those that it leaves."""
    assert record.reservation is not None
    return (*record.reservation.placements, *(record.grant.vacated if record.grant is not None else ()))


# --- changes of what is held


def decide_places(state: State, record: Record, reservation: Reservation, vacated: tuple[Placement, ...] = ()) -> None:
    """It gets places, or others, for the same quota; until that is heard of, it also holds those that it leaves."""
    record.in_flight = InFlight("places", restore=record.reservation, vacated=vacated)
    _set_reservation(state, record, reservation)
    _move(state, record, "places decided", _held(record))
    _hold(state, record, _places(record))
    state.journal.commit()
    state.requeue.changed(Changed.NODES)


def await_checks(state: State, record: Record) -> None:
    """It has to pass checks that its status does not name yet."""
    record.in_flight = InFlight("checks", restore=record.reservation)
    _move(state, record, "checks to be passed", _held(record))


def pass_checks(state: State, record: Record) -> None:
    """All its checks are ready, and it is admitted."""
    assert record.reservation is not None
    record.in_flight = InFlight("checks", restore=record.reservation)
    _set_reservation(state, record, replace(record.reservation, admitted=True))
    _move(state, record, "checks passed", _held(record))


def hear_decision(state: State, record: Record, reservation: Reservation) -> None:
    """The API server has what the workload holds; it may be admitted only now, or not any more."""
    grant = record.grant
    record.in_flight = _without_grant(record.in_flight)
    _set_reservation(state, record, reservation)
    _move(state, record, "decision heard", _held(record), grant.what if grant is not None else "")
    if grant is not None and grant.vacated and record.preempted_by is None:
        _hold(state, record, reservation.placements)
        state.journal.commit()
        state.requeue.changed(Changed.NODES)


def refuse_decision(state: State, record: Record) -> None:
    """The API server has refused what was given to a workload that held quota before: it holds again what it held."""
    grant = record.grant
    assert grant is not None
    assert grant.restore is not None
    record.in_flight = _without_grant(record.in_flight)
    _set_reservation(state, record, grant.restore)
    _move(state, record, "decision refused", _held(record), grant.what)
    if grant.what == "places" and record.preempted_by is None:  # else its places are its preemptor's
        _hold(state, record, grant.restore.placements)
        state.journal.commit()
        state.requeue.changed(Changed.NODES)


def _without_grant(in_flight: InFlight | None) -> InFlight | None:
    return InFlight("eviction") if in_flight is not None and in_flight.what == "eviction" else None


def hear_claims(state: State, record: Record, reservation: Reservation) -> None:
    """Of the same reservation it holds more or less than before. If it is on its way out, it stays so."""
    before = record.reservation
    assert before is not None
    record.in_flight = _without_grant(record.in_flight)
    _set_reservation(state, record, reservation)
    _move(state, record, "claims heard", _held(record))
    if record.preempted_by is None:
        state.ledger.refund(before.cluster_queue, before.usage)
        state.ledger.charge(reservation.cluster_queue, reservation.usage)
        _hold(state, record, reservation.placements)
        state.journal.commit()
    state.released(before.cluster_queue)
    state.requeue.changed(Changed.NODES)


def read_anew(state: State, record: Record, info: WorkloadInfo) -> None:
    """What a workload that holds something is has changed, or that it is being evicted, and not what it holds."""
    before = record.info
    if info.evicted and not record.confirmed:
        # It was evicted before the admission that is on its way.
        info = replace(info, evicted=False)
    record.info = info
    if info.evicted and record.in_flight is not None and record.in_flight.what == "eviction":
        record.in_flight = record.in_flight.behind
    if (before.priority, before.queued_at) != (info.priority, info.queued_at):
        # Others may preempt it that might not before.
        assert record.reservation is not None
        state.released(record.reservation.cluster_queue)
        state.requeue.changed(Changed.NODES)
    if _held(record) is not record.state:
        _move(state, record, "read anew", _held(record))


# --- going


def evict(state: State, record: Record, reason: str) -> None:
    """A cycle has decided that it has to go; it holds what it holds until it is gone."""
    record.in_flight = InFlight("eviction", behind=record.in_flight)
    _move(state, record, "eviction decided", WorkloadState.LEAVING, reason)


def refuse_eviction(state: State, record: Record) -> None:
    """The API server has refused an eviction: it stays, unless its status says that it is evicted. If it was preempted,
    it holds again what it held, and its preemptor nothing."""
    if record.in_flight is not None and record.in_flight.what == "eviction":
        record.in_flight = record.in_flight.behind
    if record.preempted_by is not None:
        _undo_preemption(state, record, record.preempted_by)
    _move(state, record, "eviction refused", _held(record))


def _undo_preemption(state: State, record: Record, preemptor: Key) -> None:
    reservation = record.reservation
    assert reservation is not None
    record.preempted_by = None
    other = state.workloads.get(preemptor)
    if other is not None:
        end_promise(state, other)
    state.ledger.charge(reservation.cluster_queue, reservation.usage)
    _hold(state, record, _places(record))
    state.journal.commit()


def _release(state: State, record: Record, reservation: Reservation) -> None:
    """It gives back quota and places."""
    key = record.info.key
    if record.preempted_by is None:
        state.ledger.refund(reservation.cluster_queue, reservation.usage)
        state.world.release(key)
        state.journal.commit()
    else:
        _victim_gone(state, record, record.preempted_by)
    state.requeue.forget(key)
    _set_reservation(state, record, None)
    record.in_flight, record.missing = None, ()
    state.released(reservation.cluster_queue)
    if reservation.placements:
        state.requeue.changed(Changed.NODES)


def _victim_gone(state: State, record: Record, preemptor: Key) -> None:
    record.preempted_by = None
    other = state.workloads.get(preemptor)
    if other is not None and other.promise is not None:
        other.promise.awaited.discard(record.info.key)
        if not other.promise.awaited:
            state.requeue.look_at(preemptor)


def finish(state: State, record: Record) -> None:
    """It has ended, and its record with it: of those that have, there may be many thousands."""
    forget(state, record)
    _move(state, record, "finished", WorkloadState.FINISHED)
    state.finished[record.info.key] = Finished(record.info.uid, record.resource_version, record.info.queue[1])


def forget(state: State, record: Record) -> None:
    """Nothing is left of it."""
    _exit(state, record)
    del state.workloads[record.info.key]
