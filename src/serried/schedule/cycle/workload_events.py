"""What becomes of a Workload that was added, changed or deleted, and of a decision on it that was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serried.api.kueue import Workload
from serried.api.meta import Key, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.problem import Problem
from serried.schedule.cycle.admission import from_status, reserved_at, same_claims
from serried.schedule.cycle.second_pass import lacks_checks, needs_second
from serried.schedule.state.fair_usage import count_usage
from serried.schedule.state.records import Record
from serried.schedule.state.routing import route
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.workload import WorkloadInfo, read_workload


def set_workload(state: State, workload: Workload, problems: Sequence[Problem] = ()) -> None:
    """A Workload was added or changed. `problems`: what else is wrong with it.

    Finished: all it held is given back. With a reservation in its status: it holds just that. Without: it waits,
    unless the engine has admitted it and the admission is still on its way.
    """
    key = workload.key
    version = workload.metadata.resource_version
    record = state.workloads.get(key)
    if record is not None and record.info.uid != workload.metadata.uid:
        delete_workload(state, key)
        record = None
    if record is not None and _older(version, record.resource_version):
        return
    state.malformed.pop(key, None)
    conditions = workload.status.conditions
    finished = condition_is(conditions, WorkloadCondition.FINISHED)
    reserved = condition_is(conditions, WorkloadCondition.QUOTA_RESERVED) and workload.status.admission is not None

    if record is None:
        record = Record(_read(state, workload, problems), (*_source(workload), *problems), version)
        state.workloads[key] = record
        waits = False
    else:
        record.resource_version = version
        waits = record.place in ("aside", "queued")
    waits = _reread(state, record, workload, problems, waits)
    if finished:
        _finish(state, record)
    elif reserved:
        _take(state, record, workload)
    elif record.place == "held":
        assert record.reservation is not None
        # Not, as long as it is only assumed; but other places for what it held mean nothing without that.
        if record.reservation.confirmed or record.previous is not None:
            state.release(record)
            route(state, record)
    elif record.place == "finished" or not waits:
        route(state, record)


def _read(state: State, workload: Workload, problems: Sequence[Problem]) -> WorkloadInfo:
    info = read_workload(workload, boost=state.options.priority_boost)
    return replace(info, problems=(*info.problems, *problems)) if problems else info


def _reread(state: State, record: Record, workload: Workload, problems: Sequence[Problem], waits: bool) -> bool:
    """What of status and metadata counts: whether it is being evicted, its checks, its lost nodes.

    Returns whether it still waits where it did.
    """
    checks = {c.name: c.state for c in workload.status.admission_checks}
    source = (*_source(workload), *problems)
    if source != record.source or checks != record.checks:
        if waits:
            # It may belong elsewhere now, and whatever it was refused for may be over.
            state.leave(record)
            waits = False
        if source != record.source:
            before = record.info
            record.info, record.source = _read(state, workload, problems), source
            if record.reservation is not None and (before.priority, before.queued_at) != (
                record.info.priority,
                record.info.queued_at,
            ):
                # Others may preempt it that might not before.
                state.released(record.reservation.cluster_queue)
                state.requeue.changed(Changed.NODES)
        record.checks = checks
    if record.info.evicted and record.reservation is not None and not record.reservation.confirmed:
        # It was evicted before the admission that is on its way.
        record.info = replace(record.info, evicted=False)
    record.unhealthy = tuple(n.name for n in workload.status.unhealthy_nodes)
    return waits


def _finish(state: State, record: Record) -> None:
    if record.place == "held":
        state.release(record)
    elif record.place != "finished":
        state.leave(record)
    record.place = "finished"


def _take(state: State, record: Record, workload: Workload) -> None:
    before = record.reservation
    has = workload.status.admission
    if record.previous is not None and before is not None and record.previous.admission == has != before.admission:
        # From before its new places were written.
        return
    counts = tuple(p.count for p in record.info.pod_sets)
    if before is not None and (before.admission, before.counts) == (workload.status.admission, counts):
        admitted = condition_is(workload.status.conditions, WorkloadCondition.ADMITTED)
        if record.admitting and (not admitted if before.admitted else lacks_checks(state, record)):
            # From before what the engine has decided on its checks was written.
            return
        record.admitting = False
        if not before.confirmed or before.admitted != admitted:
            since = reserved_at(workload)
            state.confirm(record, replace(before, confirmed=True, admitted=admitted, reserved_at=since))
        look_again(state, record)
        return
    reservation = from_status(state, workload, record.info)
    if before is not None and same_claims(before, reservation):
        state.confirm(record, reservation)
        look_again(state, record)
        return
    if before is None:
        state.leave(record)
        state.take(record, reservation)
    elif reservation.reserved_at == before.reserved_at:
        state.change(record, reservation)
    else:
        state.release(record)
        state.take(record, reservation)
    look_again(state, record)


def look_again(state: State, record: Record) -> None:
    if needs_second(state, record):
        state.requeue.look_at(record.info.key)


def delete_workload(state: State, key: Key) -> None:
    state.malformed.pop(key, None)
    state.outbox.pop(key, None)
    record = state.workloads.get(key)
    if record is not None:
        _finish(state, record)
        del state.workloads[key]


def withdraw(state: State, key: Key) -> None:
    """The API refused an admission: it is taken back, unless it has been heard of. What was admitted waits again
    where it stood.

    The next cycle may decide the same, so call this after whatever pause a repeated refusal calls for.
    """
    record = state.workloads.get(key)
    if record is None or record.reservation is None:
        return
    if record.previous is not None:
        if record.preempted_by is None:
            state.rehold(record, record.previous)
        else:  # what it holds is its preemptor's already
            state.confirm(record, record.previous)
        look_again(state, record)
    elif record.admitting:
        record.admitting = False
        state.confirm(record, replace(record.reservation, admitted=False))
        look_again(state, record)
    elif not record.reservation.confirmed:
        count_usage(state, record, record.reservation.usage, -1)
        old = state.workloads.get(record.info.replaces) if record.info.replaces is not None else None
        state.release(record)
        if old is not None and old.preempted_by == key:
            _stay(state, old)
        route(state, record)


def withdraw_eviction(state: State, key: Key) -> None:
    """The API refused an eviction: it is taken back. What was to be preempted holds again what it held, and its
    preemptor looks for others."""
    record = state.workloads.get(key)
    if record is None or record.reservation is None:
        return
    record.evicting = False
    if record.preempted_by is not None:
        _stay(state, record)
    else:
        look_again(state, record)


def _stay(state: State, record: Record) -> None:
    state.stay(record)
    # Its checks, its nodes or its queue may have changed while it was on its way out.
    look_again(state, record)


def _source(workload: Workload) -> tuple[object, ...]:
    """What `read_workload` reads of it."""
    meta, status = workload.metadata, workload.status
    evicted = find_condition(status.conditions, WorkloadCondition.EVICTED)
    return (
        workload.spec,
        meta.labels,
        meta.annotations,
        meta.owner_references,
        evicted and (evicted.status, evicted.reason, evicted.last_transition_time),
        status.reclaimable_pods,
        status.requeue_state,
        status.preemption_gates,
    )


def _older(version: str, than: str) -> bool:
    """Whether a version of an object comes before another: a write's answer can overtake the watch."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)
