"""A second look at workloads that hold quota: places put off, nodes lost, checks that have answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from serried.api.assignment import AssignmentError, encode
from serried.api.kueue import Admission, AdmissionCheckState
from serried.api.names import CheckState, EvictedReason
from serried.model.placement import Placement
from serried.place.node_replacement import Replacement
from serried.place.place import place
from serried.place.result import NoPlacement
from serried.schedule.cycle.admission import Grant
from serried.schedule.state import transitions
from serried.schedule.state.admission_checks import required_checks
from serried.schedule.state.records import Record, Reservation
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed


@dataclass(frozen=True)
class Eviction:
    """A workload has to give back what it holds, and why."""

    reason: str
    message: str
    deactivate: bool = False


def needs_second(state: State, record: Record) -> bool:
    """Whether a workload that holds quota is to be looked at again."""
    reservation = record.reservation
    if reservation is None or record.is_leaving:
        return False
    if _stopped(state, record, reservation):
        return True
    if not record.confirmed:
        return False
    if record.unhealthy and reservation.placements:
        return True
    if reservation.admitted:
        return False
    if record.grant is not None or reservation.cluster_queue not in state.cluster_queues:
        return False
    states = [record.checks.get(name) for name in _checks(state, reservation)]
    answered = any(s in (CheckState.RETRY, CheckState.REJECTED) for s in states)
    return answered or None in states or all(s == CheckState.READY for s in states)


def lacks_checks(state: State, record: Record) -> bool:
    """Whether its queue has come to ask for checks that its status knows nothing of, so that nobody works on them."""
    return record.reservation is not None and any(c not in record.checks for c in _checks(state, record.reservation))


def second_pass(state: State, record: Record) -> Iterator[Grant | Eviction]:
    """What becomes of it. What it gets is taken in the model."""
    key, reservation = record.info.key, record.reservation
    if reservation is None or not needs_second(state, record):
        return
    stopped = _stopped(state, record, reservation)
    if stopped is not None:
        yield stopped
        return
    if record.unhealthy and reservation.placements:
        yield from _replace_node(state, record, reservation)
        return
    checks = _checks(state, reservation)
    failed = [c for c in checks if record.checks.get(c) in (CheckState.RETRY, CheckState.REJECTED)]
    if failed:
        rejected = [c for c in failed if record.checks.get(c) == CheckState.REJECTED]
        if rejected:
            message = f"Admission check(s): {','.join(rejected)}, were rejected"
            yield Eviction(EvictedReason.DEACTIVATED, message, deactivate=True)
        else:
            yield Eviction(EvictedReason.ADMISSION_CHECK, "At least one admission check is false")
        return
    if lacks_checks(state, record):
        states = tuple(AdmissionCheckState(name=c, state=record.checks.get(c, CheckState.PENDING)) for c in checks)
        transitions.await_checks(state, record)
        yield Grant(reservation, states, kind="checks")
        return
    delayed = [a.name for a in reservation.admission.pod_set_assignments if a.delayed_topology_request == "Pending"]
    if not delayed:
        transitions.pass_checks(state, record)
        assert record.reservation is not None
        yield Grant(record.reservation, kind="checks")
        return
    found = _place(state, reservation, delayed, None)
    if isinstance(found, NoPlacement):
        # Its nodes may still be coming up.
        state.requeue.wait(key, Changed.NODES)
        return
    placed = _with_places(reservation, found)
    if placed is not None:
        transitions.decide_places(state, record, replace(placed, admitted=True))
        assert record.reservation is not None
        yield Grant(record.reservation, kind="topology")


def _stopped(state: State, record: Record, reservation: Reservation) -> Eviction | None:
    """Whether it was deactivated, or a queue that it was admitted through is being drained."""
    if not record.info.active and record.confirmed:
        return Eviction(EvictedReason.DEACTIVATED, "The workload is deactivated: spec.active is false")
    queue = state.cluster_queues.get(reservation.cluster_queue)
    if queue is not None and queue.spec.stop_policy == "HoldAndDrain":
        return Eviction(EvictedReason.CLUSTER_QUEUE_STOPPED, "The ClusterQueue is stopped")
    local = state.local_queues.get(reservation.local_queue)
    if local is not None and local.spec.stop_policy == "HoldAndDrain":
        return Eviction(EvictedReason.LOCAL_QUEUE_STOPPED, "The LocalQueue is stopped")
    return None


def _checks(state: State, reservation: Reservation) -> list[str]:
    queue = state.cluster_queues.get(reservation.cluster_queue)
    if queue is None:
        return []
    flavors = {f for a in reservation.admission.pod_set_assignments for f in a.flavors.values()}
    return required_checks(queue, flavors)


def _replace_node(state: State, record: Record, reservation: Reservation) -> Iterator[Grant | Eviction]:
    current = {p.pod_set: p for p in reservation.placements}
    lost = [n for n in record.unhealthy if any(map(Replacement(n, current).lost, current))]
    if not lost:
        return
    if len(lost) > 1:
        names = ", ".join(lost)
        yield Eviction(
            EvictedReason.NODE_FAILURES,
            f"Workload eviction triggered due to multiple TAS assigned node failures, including: {names}",
        )
        return
    replacement = Replacement(lost[0], current, lone_pod=record.info.lone_pod)
    found = _place(state, reservation, list(current), replacement)
    if isinstance(found, NoPlacement):
        yield Eviction(
            EvictedReason.NODE_FAILURES,
            f"Workload was evicted as there was no replacement for a failed node: {lost[0]}",
        )
        return
    changed = _with_places(reservation, found)
    if changed is not None:
        # Until the change is written, and the lost pods may be gone, nobody else gets their places.
        gone = tuple(
            replace(p, domains=tuple(d for d in p.domains if d[0][-1:] == (lost[0],))) for p in reservation.placements
        )
        transitions.decide_places(state, record, changed, tuple(p for p in gone if p.domains))
        assert record.reservation is not None
        yield Grant(record.reservation, kind="replacement")


def _place(
    state: State, reservation: Reservation, wanted: Sequence[str], replacement: Replacement | None
) -> dict[str, Placement] | NoPlacement:
    """Places in the flavors that it holds."""
    by_flavor: dict[str, list[str]] = {}
    for assignment in reservation.admission.pod_set_assignments:
        flavor = next((f for f in assignment.flavors.values() if _has_topology(state, f)), "")
        if replacement is not None and assignment.name in replacement.current:
            # Pods bound by us have their nodes in a flavor without topology, too.
            flavor = replacement.current[assignment.name].flavor
        if flavor and assignment.name in wanted:
            by_flavor.setdefault(flavor, []).append(assignment.name)
    found: dict[str, Placement] = {}
    pod_sets = {p.name: p for p in reservation.pod_sets}
    for flavor, names in by_flavor.items():
        requests = [pod_sets[n] for n in names]
        result = place(state.world, flavor, requests, options=state.place_options, replacement=replacement)
        if isinstance(result, NoPlacement):
            return result
        found |= {p.pod_set: p for p in result}
    return found


def _has_topology(state: State, flavor: str) -> bool:
    return flavor in state.flavors and bool(state.flavors[flavor].spec.topology_name)


def _with_places(reservation: Reservation, found: Mapping[str, Placement]) -> Reservation | None:
    """The reservation with these places; None: they cannot be written."""
    assignments = []
    for assignment in reservation.admission.pod_set_assignments:
        placement = found.get(assignment.name)
        if placement is not None:
            try:
                written = encode(placement.levels, placement.domains)
            except AssignmentError:
                return None
            delayed = "Ready" if assignment.delayed_topology_request else None
            assignment = msgspec.structs.replace(
                assignment, topology_assignment=written, delayed_topology_request=delayed
            )
        assignments.append(assignment)
    admission = Admission(cluster_queue=reservation.admission.cluster_queue, pod_set_assignments=tuple(assignments))
    kept = [p for p in reservation.placements if p.pod_set not in found]
    return replace(reservation, admission=admission, placements=(*kept, *found.values()))
