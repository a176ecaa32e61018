"""A decision as it is written to the Workload's status, and read back after a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from serried.api.assignment import AssignmentError, decode, encode
from serried.api.kueue import Admission, AdmissionCheckState, PodSetAssignment, Workload
from serried.api.meta import condition_is, find_condition
from serried.api.names import CheckState, WorkloadCondition
from serried.api.quantity import QuantityError, format_quantity, resource_value
from serried.model.placement import Placement
from serried.quota.quotas import FlavorResource
from serried.schedule.cycle.nominate import Nomination
from serried.schedule.state.admission_checks import required_checks
from serried.schedule.state.records import ClusterQueueState, Record, Reservation
from serried.schedule.state.state import State
from serried.schedule.types.workload import WorkloadInfo


@dataclass(frozen=True)
class Grant:
    """What a workload holds from now on, and how that has come about."""

    reservation: Reservation
    checks: tuple[AdmissionCheckState, ...] = ()
    kind: Literal["new", "topology", "replacement", "checks"] = "new"


def to_reservation(state: State, record: Record, queue: ClusterQueueState, found: Nomination) -> Grant:
    """What the workload holds once it gets what was found for it.

    Raises:
        AssignmentError: the placement cannot be written as a topologyAssignment.
    """
    info = record.info
    used = [c.flavor for p in found.assignment.pod_sets for c in p.flavors.values()]
    checks = required_checks(queue, used)
    by_name = {p.pod_set.name: p for p in found.assignment.pod_sets}
    assignments = []
    placements = []
    for pod_set in found.pod_sets:
        choice = by_name[pod_set.name]
        placement = choice.placement
        if placement is not None:
            placements.append(placement)
        assignments.append(
            PodSetAssignment(
                name=pod_set.name,
                flavors={r: c.flavor for r, c in choice.flavors.items()},
                resource_usage={r: format_quantity(r, choice.requests.get(r, 0)) for r in choice.flavors},
                count=pod_set.count,
                topology_assignment=encode(placement.levels, placement.domains)
                if placement is not None and placement.levels and placement.domains
                else None,
                delayed_topology_request="Pending" if choice.delayed else None,
            )
        )
    ready = all(record.checks.get(check) == CheckState.READY for check in {*checks, *record.checks})
    waits = any(a.delayed_topology_request for a in assignments)
    states = tuple(
        AdmissionCheckState(name=check, state=record.checks.get(check, CheckState.PENDING)) for check in checks
    )
    reservation = Reservation(
        cluster_queue=queue.name,
        local_queue=info.queue,
        usage=dict(found.assignment.usage),
        placements=tuple(placements),
        pod_sets=found.pod_sets,
        admission=Admission(cluster_queue=queue.name, pod_set_assignments=tuple(assignments)),
        admitted=ready and not waits,
        counts=tuple(p.count for p in info.pod_sets),
    )
    return Grant(reservation, states)


def from_status(state: State, workload: Workload, info: WorkloadInfo) -> Reservation:
    """What a workload holds by its status. What cannot be read of it is left out and named in `problems`.

    The workload must have an admission.
    """
    admission = workload.status.admission
    assert admission is not None
    by_name = {p.name: p for p in info.pod_sets}
    usage: dict[FlavorResource, int] = {}
    placements: list[Placement] = []
    pod_sets = []
    problems: list[str] = []
    for i, assignment in enumerate(admission.pod_set_assignments):
        at = f"status.admission.podSetAssignments[{i}]"
        now, then = (by_name[assignment.name].count if assignment.name in by_name else 0), assignment.count or 0
        for resource, quantity in assignment.resource_usage.items():
            flavor = assignment.flavors.get(resource)
            if flavor is None:
                problems.append(f"{at}.flavors has no flavor for {resource}, of which resourceUsage has {quantity}")
                continue
            try:
                amount = max(0, resource_value(resource, quantity))
            except QuantityError as error:
                problems.append(f"{at}.resourceUsage[{resource}]: {error}")
                continue
            if assignment.name in by_name and 0 <= now < then:
                # Pods that have ended for good have given back their part.
                amount = amount // then * now
            usage[flavor, resource] = usage.get((flavor, resource), 0) + amount
        pod_set = by_name.pop(assignment.name, None)
        if pod_set is None:
            known = ", ".join(p.name for p in info.pod_sets)
            problems.append(f"{at}.name is {assignment.name!r}, which is no pod set of the workload (allowed: {known})")
            continue
        if assignment.count is not None and assignment.count != pod_set.count:
            pod_set = replace(pod_set, count=max(0, min(assignment.count, pod_set.count)))
        pod_sets.append(pod_set)
        if assignment.topology_assignment is not None:
            try:
                domains = decode(assignment.topology_assignment)
            except AssignmentError as error:
                problems.append(f"{at}.topologyAssignment.{error}")
                continue
            levels = tuple(assignment.topology_assignment.levels)
            flavor = _placed_in(state, assignment)
            placements.append(Placement(assignment.name, flavor, levels, tuple(domains)))
    return Reservation(
        cluster_queue=admission.cluster_queue,
        local_queue=info.queue,
        usage=usage,
        placements=tuple(placements),
        pod_sets=tuple(pod_sets),
        admission=admission,
        admitted=condition_is(workload.status.conditions, WorkloadCondition.ADMITTED),
        reserved_at=reserved_at(workload),
        counts=tuple(p.count for p in info.pod_sets),
        problems=tuple(problems),
    )


def reserved_at(workload: Workload) -> datetime | None:
    """When its quota was reserved, by its status."""
    reserved = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED)
    return reserved.last_transition_time if reserved is not None else None


def same_claims(a: Reservation, b: Reservation) -> bool:
    """Whether two holdings take the same quota in the same queues and the same places."""
    return (a.cluster_queue, a.local_queue, a.usage, a.placements, a.pod_sets) == (
        b.cluster_queue,
        b.local_queue,
        b.usage,
        b.placements,
        b.pod_sets,
    )


def _placed_in(state: State, assignment: PodSetAssignment) -> str:
    """The flavor the places are in: the one with a topology, else the first."""
    flavors = list(dict.fromkeys(assignment.flavors.values()))
    with_topology = [f for f in flavors if f in state.flavors and state.flavors[f].spec.topology_name]
    return (with_topology or flavors or [""])[0]
