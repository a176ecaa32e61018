"""A decision as it is written to the Workload's status, and read back after a restart."""

from __future__ import annotations

from dataclasses import replace

from serried.api.assignment import AssignmentError, decode, encode
from serried.api.kueue import Admission, PodSetAssignment, Workload
from serried.api.meta import condition_is
from serried.api.names import WorkloadCondition
from serried.api.quantity import QuantityError, format_quantity, resource_value
from serried.model.placement import Placement
from serried.quota.limits import Cell
from serried.schedule.flavors import Fit
from serried.schedule.state import Holding, State
from serried.schedule.workload import WorkloadInfo, total_requests


def to_holding(info: WorkloadInfo, cluster_queue: str, fit: Fit) -> Holding:
    """What the workload holds once it is admitted as decided.

    Raises:
        AssignmentError: the placement cannot be written as a topologyAssignment.
    """
    placed = {p.pod_set: p for p in fit.placements}
    assignments = []
    for pod_set, flavors in zip(info.pod_sets, fit.flavors, strict=True):
        totals = total_requests(pod_set)
        placement = placed.get(pod_set.name)
        assignments.append(
            PodSetAssignment(
                name=pod_set.name,
                flavors=dict(flavors),
                resource_usage={r: format_quantity(r, totals.get(r, 0)) for r in flavors},
                count=pod_set.count,
                topology_assignment=encode(placement.levels, placement.domains)
                if placement and placement.levels
                else None,
            )
        )
    return Holding(
        cluster_queue=cluster_queue,
        local_queue=info.queue,
        usage=fit.usage,
        placements=fit.placements,
        pod_sets=info.pod_sets,
        admission=Admission(cluster_queue=cluster_queue, pod_set_assignments=assignments),
        admitted=True,
        confirmed=False,
    )


def from_status(state: State, workload: Workload, info: WorkloadInfo) -> Holding:
    """What a workload holds by its status. What cannot be read of it is left out and named in `problems`.

    The workload must have an admission.
    """
    admission = workload.status.admission
    assert admission is not None
    by_name = {p.name: p for p in info.pod_sets}
    usage: dict[Cell, int] = {}
    placements: list[Placement] = []
    pod_sets = []
    problems: list[str] = []
    for i, assignment in enumerate(admission.pod_set_assignments):
        at = f"status.admission.podSetAssignments[{i}]"
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
            usage[flavor, resource] = usage.get((flavor, resource), 0) + amount
        pod_set = by_name.pop(assignment.name, None)
        if pod_set is None:
            known = ", ".join(p.name for p in info.pod_sets)
            problems.append(f"{at}.name is {assignment.name!r}, which is no pod set of the workload (allowed: {known})")
            continue
        if assignment.count is not None and assignment.count != pod_set.count:
            pod_set = replace(pod_set, count=max(0, assignment.count))
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
    return Holding(
        cluster_queue=admission.cluster_queue,
        local_queue=info.queue,
        usage=usage,
        placements=tuple(placements),
        pod_sets=tuple(pod_sets),
        admission=admission,
        admitted=condition_is(workload.status.conditions, WorkloadCondition.ADMITTED),
        confirmed=True,
        problems=tuple(problems),
    )


def same_claims(a: Holding, b: Holding) -> bool:
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
