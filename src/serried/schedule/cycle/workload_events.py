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
from serried.schedule.state import transitions
from serried.schedule.state.records import WAITS, InFlight, Record
from serried.schedule.state.routing import route
from serried.schedule.state.state import State
from serried.schedule.types.workload import WorkloadInfo, read_workload


def set_workload(state: State, workload: Workload, problems: Sequence[Problem] = ()) -> None:
    """A Workload was added or changed. `problems`: what else is wrong with it.

    Finished: all it held is given back. With a reservation in its status: it holds just that. Without: it waits,
    unless the engine has admitted it and the admission is still on its way.
    """
    key, version = workload.key, workload.metadata.resource_version
    finished = condition_is(workload.status.conditions, WorkloadCondition.FINISHED)
    record = state.workloads.get(key)
    if record is not None and record.info.uid != workload.metadata.uid:
        delete_workload(state, key)
        record = None
    if record is not None and _older(version, record.resource_version):
        return
    over = state.finished.pop(key, None)
    if over is not None and over.uid == workload.metadata.uid and (finished or _older(version, over.resource_version)):
        state.finished[key] = over
        return
    state.malformed.pop(key, None)
    source, checks = (*_source(workload), *problems), {c.name: c.state for c in workload.status.admission_checks}
    changed = record is None or source != record.source or checks != record.checks
    if record is None or source != record.source:
        info = _read(state, workload, problems)
    else:
        info = record.info
    if record is None:
        record = state.workloads[key] = Record(info, source, version)
    record.resource_version, record.source, record.checks = version, source, checks
    record.unhealthy = tuple(n.name for n in workload.status.unhealthy_nodes)
    if finished:
        transitions.finish(state, record)
    elif workload.status.admission is not None and condition_is(
        workload.status.conditions, WorkloadCondition.QUOTA_RESERVED
    ):
        _hear_reservation(state, record, workload, info)
    elif record.reservation is not None and record.grant is not None and record.grant.what == "admission":
        # The admission is on its way.
        transitions.read_anew(state, record, info)
    elif changed or record.state not in WAITS:
        # It may belong elsewhere now, and whatever it was refused for may be over.
        route(state, record, info)


def _read(state: State, workload: Workload, problems: Sequence[Problem]) -> WorkloadInfo:
    info = read_workload(workload, boost=state.options.priority_boost)
    return replace(info, problems=(*info.problems, *problems)) if problems else info


def _hear_reservation(state: State, record: Record, workload: Workload, info: WorkloadInfo) -> None:
    before, has = record.reservation, workload.status.admission
    if before is None:
        transitions.reserve(state, record, from_status(state, workload, info), info)
        look_again(state, record)
        return
    transitions.read_anew(state, record, info)
    grant = record.grant
    if grant is not None and _is_from_before(state, record, grant, workload):
        return
    if (before.admission, before.counts) == (has, tuple(p.count for p in info.pod_sets)):
        admitted = condition_is(workload.status.conditions, WorkloadCondition.ADMITTED)
        if grant is not None or before.admitted != admitted:
            heard = replace(before, admitted=admitted, reserved_at=reserved_at(workload))
            transitions.hear_decision(state, record, heard)
    else:
        reservation = from_status(state, workload, info)
        if same_claims(before, reservation):
            transitions.hear_decision(state, record, reservation)
        elif reservation.reserved_at == before.reserved_at:
            transitions.hear_claims(state, record, reservation)
        else:
            # It was given back and reserved anew meanwhile.
            transitions.reserve(state, record, reservation)
    look_again(state, record)


def _is_from_before(state: State, record: Record, grant: InFlight, workload: Workload) -> bool:
    """Whether this status is one from before what the engine has decided was written to it."""
    assert record.reservation is not None
    if grant.what == "places":
        assert grant.restore is not None
        return grant.restore.admission == workload.status.admission != record.reservation.admission
    if grant.what == "checks" and record.reservation.admission == workload.status.admission:
        if record.reservation.admitted:
            return not condition_is(workload.status.conditions, WorkloadCondition.ADMITTED)
        return lacks_checks(state, record)
    return False


def look_again(state: State, record: Record) -> None:
    """Whether the next cycle has to do with a workload that holds quota."""
    if needs_second(state, record):
        state.requeue.look_at(record.info.key)


def delete_workload(state: State, key: Key) -> None:
    state.malformed.pop(key, None)
    state.finished.pop(key, None)
    record = state.workloads.get(key)
    if record is not None:
        transitions.forget(state, record)
    state.outbox.pop(key, None)


def withdraw(state: State, key: Key) -> None:
    """The API refused an admission: it is taken back, unless it has been heard of. What was admitted waits again
    where it stood.

    The next cycle may decide the same, so call this after whatever pause a repeated refusal calls for.
    """
    record = state.workloads.get(key)
    if record is None or record.reservation is None or record.grant is None:
        return
    if record.grant.what != "admission":
        transitions.refuse_decision(state, record)
        look_again(state, record)
        return
    state.fair_usage.count(record.info.queue, record.reservation.usage, -1)
    route(state, record)


def withdraw_eviction(state: State, key: Key) -> None:
    """The API refused an eviction: it is taken back. What was to be preempted holds again what it held, and its
    preemptor looks for others."""
    record = state.workloads.get(key)
    if record is None or not record.is_leaving:
        return
    transitions.refuse_eviction(state, record)
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
    )


def _older(version: str, than: str) -> bool:
    """Whether a version of an object comes before another: a write's answer can overtake the watch."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)
