"""Topology inside the flavor choice: which pods need a place, in which flavor, and whether it has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serried.api.core import Toleration
from serried.api.kueue import ResourceFlavor
from serried.api.names import PendingReason
from serried.model.capacity import Ints
from serried.model.requests import PodSetRequest
from serried.place.place import nodes_for, place
from serried.place.result import NoPlacement
from serried.place.topology_request import check_topology_request
from serried.schedule.flavors.assignment import Assignment, Fit, PodSetChoice
from serried.schedule.state.admission_checks import delays_places, required_checks
from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.refusals import (
    BadRequest,
    Cause,
    NoPlace,
    NoTopologyChosen,
    Refusal,
    RefusalKind,
    SeveralTopologies,
    TopologyOnly,
    WithoutTopology,
)
from serried.schedule.types.workload import WorkloadInfo


def topology_mismatch(
    state: State,
    queue: ClusterQueueState,
    index: int,
    pod_set: PodSetRequest,
    flavor: ResourceFlavor,
    *,
    alone: bool,
) -> Cause | None:
    """Why the topology of a flavor, or that it has none, keeps a pod set from using it.

    `alone`: all its resources come from this flavor. If not, the topology may be that of another of its flavors.
    """
    name = flavor.metadata.name
    if not has_topology_request(pod_set):
        return TopologyOnly(name) if flavor.spec.topology_name and not queue.topology_only else None
    if not flavor.spec.topology_name and (not alone or not (queue.has_topology or pod_set.bound_by_us)):
        return None
    levels = state.world.levels(name, bound_by_us=pod_set.bound_by_us)
    if not levels:
        return WithoutTopology(name)
    for problem in check_topology_request(pod_set.topology, levels, pod_set.count):
        return BadRequest(name, problem._replace(field=f"spec.podSets[{index}].{problem.field}"))
    return None


def has_topology_request(pod_set: PodSetRequest) -> bool:
    """Whether a pod set says anything about where its pods go (to name a group alone is not saying it)."""
    return pod_set.topology is not None


def find_places(
    state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment, *, only_whether: bool = False
) -> None:
    """Adds places to an assignment that quota would allow, or takes it back as far as the nodes say.

    A pod set that has no place now, but would have one on empty nodes, is in mode PREEMPT; one that would not, does not
    fit. The places are looked for beside each other, and nothing of them is left in the model. `only_whether`: the best
    ones need not be searched for.
    """
    groups: dict[str, list[PodSetChoice]] = {}
    for choice in found.pod_sets:
        if not queue.has_topology and not choice.pod_set.bound_by_us and not has_topology_request(choice.pod_set):
            continue
        flavor = _flavor_of(state, queue, choice)
        if choice.error is not None:
            return
        if flavor and delays_places(state, required_checks(queue, [flavor])):
            choice.delayed = True
        elif flavor:
            groups.setdefault(flavor, []).append(choice)
    if not groups:
        return
    looked_when_empty = False
    if found.mode == Fit.FIT:
        failure = _search(state, info, groups, assume_empty=False, only_whether=only_whether)
        if failure is None:
            return
        _refuse_place(found, *failure, assume_empty=False)
        # For pod sets of one flavor, the failure says what is on empty nodes, too.
        looked_when_empty = len(groups) == 1 and failure[1].fits_when_empty is not None
    if found.mode == Fit.PREEMPT and not looked_when_empty:
        failure = _search(state, info, groups, assume_empty=True, only_whether=True)
        if failure is not None:
            _refuse_place(found, *failure, assume_empty=True)
    for choice in found.pod_sets:
        choice.placement = None


def places_now(state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment) -> bool:
    """Whether the pod sets have a place with these flavors as the nodes are now; sets them if so."""
    groups = by_flavor(state, queue, found)
    return _search(state, info, groups, assume_empty=False, only_whether=False) is None


def nodes_now(state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment) -> Ints | None:
    """The rows of the nodes where `places_now` finds a place; None: there is none. Costs less."""
    groups = by_flavor(state, queue, found)
    if len(groups) == 1:
        ((flavor, choices),) = groups.items()
        others, clash = _other_flavors(state, flavor, choices)
        requests = [_narrowed(p.pod_set, others) for p in choices]
        return None if clash else nodes_for(state.world, flavor, requests, options=state.place_options)
    if _search(state, info, groups, assume_empty=False, only_whether=True) is not None:
        return None
    return state.world.rows_of(found.placements)


def by_flavor(state: State, queue: ClusterQueueState, found: Assignment) -> dict[str, list[PodSetChoice]]:
    """Flavor → the pod sets that are placed in it now."""
    groups: dict[str, list[PodSetChoice]] = {}
    for choice in found.pod_sets:
        flavor = _flavor_of(state, queue, choice)
        if flavor and not choice.delayed:
            groups.setdefault(flavor, []).append(choice)
    return groups


def placed_choices(state: State, queue: ClusterQueueState, found: Assignment) -> list[PodSetChoice]:
    """The pod sets that need places on the nodes now."""
    return [
        choice
        for choice in found.pod_sets
        if (queue.has_topology or choice.pod_set.bound_by_us or has_topology_request(choice.pod_set))
        and not choice.delayed
        and _flavor_of(state, queue, choice)
    ]


def _flavor_of(state: State, queue: ClusterQueueState, choice: PodSetChoice) -> str:
    """The flavor in which a pod set has to be placed; "": in none. What is wrong with it is noted in the choice."""
    pod_set = choice.pod_set
    used = {c.flavor for c in choice.flavors.values()}
    flavors = [f for f in queue.quotas.flavors if f in used]
    with_topology = [f for f in flavors if f in state.flavors and state.flavors[f].spec.topology_name]
    if not (
        with_topology
        or pod_set.bound_by_us
        or has_topology_request(pod_set)
        or (queue.topology_only and queue.has_topology)
    ):
        return ""
    if len(with_topology) == 1:
        return with_topology[0]
    if with_topology:
        _refuse(choice, SeveralTopologies("", tuple(with_topology)))
        return ""
    if pod_set.bound_by_us:
        if flavors:
            return flavors[0]
        first = [f for f in queue.quotas.flavors if f in state.flavors]
        if first and (not has_topology_request(pod_set) or state.flavors[first[0]].spec.topology_name):
            return first[0]
    if not choice.flavors and not choice.requests and not has_topology_request(pod_set) and not pod_set.bound_by_us:
        return ""
    _refuse(choice, NoTopologyChosen("", tuple(flavors), in_queue=queue.has_topology))
    return ""


def _refuse(choice: PodSetChoice, cause: Cause) -> None:
    choice.error = cause
    choice.refusals.append(Refusal(RefusalKind.MISMATCH, choice.pod_set.name, cause))


def _refuse_place(found: Assignment, flavor: str, result: NoPlacement, *, assume_empty: bool) -> None:
    """Takes back what an assignment says of a pod set that has no place."""
    if assume_empty:
        result = replace(result, fits_when_empty=False, fits_empty=result.fits, best_domain_empty=result.best_domain)
    found.blocked_on |= Changed.NODES
    never = bool(result.field) or (assume_empty or result.fits_when_empty is False)
    choice = next(p for p in found.pod_sets if p.pod_set.name == result.pod_set)
    mode = Fit.NO_FIT if never else Fit.PREEMPT
    for resource_choice in choice.flavors.values():
        resource_choice.mode = min(resource_choice.mode, mode)
    tried = choice.tried.get(flavor)
    if never:
        choice.hopeless.add(flavor)
        choice.no_fit = PendingReason.TOPOLOGY_PLACEMENT_FAILED
        if tried is not None:
            tried.mode, tried.no_fit = mode, choice.no_fit
    cause = NoPlace(flavor, result)
    if not choice.flavors:
        choice.error = cause
    if not assume_empty or not any(isinstance(r.cause, NoPlace) for r in choice.refusals):
        kind = RefusalKind.NEVER_PLACE if never else RefusalKind.WAITS_PLACE
        choice.refusals.append(Refusal(kind, choice.pod_set.name, cause))


def _search(
    state: State,
    info: WorkloadInfo,
    groups: dict[str, list[PodSetChoice]],
    *,
    assume_empty: bool,
    only_whether: bool,
) -> tuple[str, NoPlacement] | None:
    """Places all pod sets, flavor by flavor; the first failure, or None. The model is as it was before."""
    mark = state.journal.checkpoint()
    options = replace(state.place_options, optimal=False) if only_whether else state.place_options
    placed = []
    try:
        for main, choices in groups.items():
            others, clash = _other_flavors(state, main, choices)
            if clash:
                return main, NoPlacement(choices[0].pod_set.name, clash, field="spec.nodeLabels")
            requests = [_narrowed(p.pod_set, others) for p in choices]
            result = place(state.world, main, requests, options=options, assume_empty=assume_empty)
            if isinstance(result, NoPlacement):
                return main, result
            for choice, placement in zip(choices, result, strict=True):
                choice.placement = placement
            placed += result
            if len(groups) > 1 and not assume_empty:
                by_name = {c.pod_set.name: c.pod_set for g in groups.values() for c in g}
                state.world.hold(info.key, placed, [by_name[p.pod_set] for p in placed])
        return None
    finally:
        state.journal.rollback(mark)


def _other_flavors(state: State, main: str, choices: Sequence[PodSetChoice]) -> tuple[list[ResourceFlavor], str]:
    """The further flavors that pod sets placed in one flavor have; and why no node can be of all of them, or ""."""
    flavors = list(dict.fromkeys(c.flavor for p in choices for c in p.flavors.values() if c.flavor != main))
    others = [state.flavors[f] for f in flavors]
    labels = dict(state.flavors[main].spec.node_labels)
    for other in others:
        for key, value in other.spec.node_labels.items():
            if labels.setdefault(key, value) != value:
                return others, f"flavors {main}, {', '.join(flavors)} want different values of node label {key}"
    return others, ""


def _narrowed(pod_set: PodSetRequest, others: Sequence[ResourceFlavor]) -> PodSetRequest:
    """The pod set with what further flavors add to its pods: their node labels, and tolerations."""
    if not others:
        return pod_set
    selector = dict(pod_set.node_selector)
    tolerations: list[Toleration] = list(pod_set.tolerations)
    for flavor in others:
        selector |= flavor.spec.node_labels
        tolerations += flavor.spec.tolerations
    return replace(pod_set, node_selector=selector, tolerations=tuple(tolerations))
