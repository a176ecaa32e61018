"""What one workload gets: a flavor for each resource of each pod set, the quota for it, and a place for its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice, product

import msgspec

from serried.api.core import Toleration
from serried.api.kueue import ResourceFlavor
from serried.api.quantity import format_quantity
from serried.model.requests import PodSetRequest
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement, Placement
from serried.place.wish import check_topology_request
from serried.quota.limits import Cell
from serried.schedule import wording
from serried.schedule.match import flavor_mismatch
from serried.schedule.queues import Help
from serried.schedule.reasons import Reason
from serried.schedule.state import ClusterQueueState, State
from serried.schedule.workload import WorkloadInfo, total_requests

#: A pod set whose resources are in several groups can combine their flavors; so many combinations are placed at most.
_COMBINATIONS = 64
_HOLDERS_NAMED = 3

# How far an attempt came. The one that came furthest is the reason told.
_MISMATCH, _BAD_REQUEST, _NEVER_QUOTA, _NEVER_PLACE, _WAITS_QUOTA, _WAITS_PLACE = range(6)


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One flavor (or several, where resources have different ones) tried for one pod set, and what stood against it."""

    pod_set: str
    flavor: str
    #: what stands against it; "" where nothing does, or where it was not looked at because something earlier does
    match: str = ""
    quota: str = ""
    topology: str = ""


@dataclass(frozen=True)
class Fit:
    """What the workload takes. It is charged and held in the journal: commit it, or roll it back."""

    #: per pod set: resource → flavor
    flavors: tuple[Mapping[str, str], ...]
    usage: Mapping[Cell, int]
    placements: tuple[Placement, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class NoFit:
    """Why it gets nothing now. Nothing is left charged or held."""

    reason: Reason
    helped_by: Help
    #: whether it cannot fit on the quota and nodes there are, even if all were free
    never: bool
    attempts: tuple[Attempt, ...]


@dataclass
class _Trial:
    """The choice so far."""

    place_options: PlaceOptions
    flavors: dict[int, Mapping[str, str]] = field(default_factory=dict)
    usage: dict[Cell, int] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    helped_by: Help = Help.NOTHING
    #: quota that others use counts as free
    as_if_unused: bool = False


@dataclass(frozen=True)
class _Refusal:
    rank: int
    pod_set: str
    reason: Reason

    @property
    def why(self) -> str:
        return self.reason.message.removeprefix(wording.opening(self.pod_set))


def choose(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    *,
    as_if_unused: bool = False,
    only_whether: bool = False,
) -> Fit | NoFit:
    """The first flavors, in the order of the queue, that have both the quota and the place for the workload.

    Pod sets are served one after the other, each seeing what the earlier ones took; pod sets of one group (same
    podSetGroupName) together. What an earlier pod set got is not reconsidered for a later one. `as_if_unused`: what
    if nobody used any quota? `only_whether`: the places do not matter, so the best ones need not be searched for.
    """
    mark = state.journal.checkpoint()
    options = replace(state.place_options, optimal=False) if only_whether else state.place_options
    trial = _Trial(options, as_if_unused=as_if_unused)
    for unit in _units(info.pod_sets):
        refusals = _choose_unit(state, queue, info, unit, trial)
        if refusals:
            state.journal.rollback(mark)
            furthest = max(refusals, key=lambda r: r.rank)
            reason = furthest.reason
            if furthest.rank == _MISMATCH and len(refusals) > 1:
                why = list(dict.fromkeys(r.why for r in refusals))
                reason = wording.no_flavor(furthest.pod_set, queue.name, why)
            never = furthest.rank < _WAITS_QUOTA
            return NoFit(reason, trial.helped_by, never, tuple(trial.attempts))
    flavors = tuple(trial.flavors[i] for i in range(len(info.pod_sets)))
    placements = tuple(trial.placements[p.name] for p in info.pod_sets if p.name in trial.placements)
    return Fit(flavors, trial.usage, placements, tuple(trial.attempts))


def _units(pod_sets: Sequence[PodSetRequest]) -> Iterator[tuple[int, ...]]:
    """Indices of pod sets that are served together, in the order of the first of each group."""
    groups: dict[str, list[int]] = {}
    for i, pod_set in enumerate(pod_sets):
        group = (pod_set.topology.pod_set_group_name if pod_set.topology else None) or ""
        groups.setdefault(f"group {group}" if group else f"pod set {i}", []).append(i)
    return (tuple(indices) for indices in groups.values())


def _choose_unit(
    state: State, queue: ClusterQueueState, info: WorkloadInfo, unit: tuple[int, ...], trial: _Trial
) -> list[_Refusal]:
    """Takes flavors, quota and places for some pod sets together; or says, for each attempt, why not."""
    pod_sets = [info.pod_sets[i] for i in unit]
    name = pod_sets[0].name
    totals = [_charged(queue, p) for p in pod_sets]
    needed: dict[str, int] = {}
    for total in totals:
        for resource, amount in total.items():
            needed[resource] = needed.get(resource, 0) + amount
    for resource, amount in needed.items():
        if queue.limits.group_of(resource) is None:
            covered = [r for group in queue.limits.groups for r in group.resources]
            return [_Refusal(_NEVER_QUOTA, name, wording.not_covered(name, queue.name, resource, amount, covered))]

    refusals: list[_Refusal] = []
    options: list[list[str]] = []
    groups = [g for g in queue.limits.groups if not needed.keys().isdisjoint(g.resources)]
    for group in groups:
        keys = queue.label_keys[queue.limits.groups.index(group)]
        resources = [r for r in group.resources if r in needed]
        open_flavors = []
        for flavor_name in group.flavors:
            flavor = state.flavors[flavor_name]
            cells = {(flavor_name, r): needed[r] for r in resources}
            if refusal := _mismatch(state, queue, info, unit, flavor, keys, alone=len(groups) == 1):
                trial.attempts.append(Attempt(name, flavor_name, match=refusal.why))
                refusals.append(refusal)
            elif refusal := _lacks_quota(state, queue, name, cells, trial):
                trial.attempts.append(Attempt(name, flavor_name, quota=refusal.why))
                refusals.append(refusal)
            else:
                open_flavors.append(flavor_name)
        if not open_flavors:
            return refusals
        options.append(open_flavors)

    for combination in islice(product(*options), _COMBINATIONS):
        flavor_of = {r: f for group, f in zip(groups, combination, strict=True) for r in group.resources}
        mark = state.journal.checkpoint()
        cells = {(flavor_of[r], r): amount for r, amount in needed.items()}
        state.ledger.charge(queue.name, cells)
        placed = _place(state, queue, info, pod_sets, list(dict.fromkeys(combination)), trial)
        flavors = "+".join(dict.fromkeys(combination))
        if isinstance(placed, _Refusal):
            state.journal.rollback(mark)
            refusals.append(placed)
            trial.helped_by |= Help.NODES
            trial.attempts.append(Attempt(name, flavors, topology=placed.why))
            continue
        trial.attempts.append(Attempt(name, flavors))
        for i, total in zip(unit, totals, strict=True):
            trial.flavors[i] = {r: flavor_of[r] for r in total}
        for cell, amount in cells.items():
            trial.usage[cell] = trial.usage.get(cell, 0) + amount
        trial.placements.update((p.pod_set, p) for p in placed)
        return []
    return refusals


def _charged(queue: ClusterQueueState, pod_set: PodSetRequest) -> dict[str, int]:
    """What quota the pod set needs. Requests of nothing, and `pods`, count only where the queue covers them."""
    totals = total_requests(pod_set)
    covered = queue.limits.group_of
    result = {r: n for r, n in totals.items() if covered(r) or (n > 0 and r != "pods")}
    if not result and queue.limits.groups:
        # It still needs a flavor: for its nodes.
        result[queue.limits.groups[0].resources[0]] = 0
    return result


def _mismatch(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    unit: tuple[int, ...],
    flavor: ResourceFlavor,
    keys: frozenset[str],
    *,
    alone: bool,
) -> _Refusal | None:
    """Why the pod sets may not use the flavor at all, whatever is free in it.

    `alone`: all their resources come from it. If not, the topology may be that of another of their flavors.
    """
    name = flavor.metadata.name
    for i in unit:
        pod_set = info.pod_sets[i]
        why = flavor_mismatch(pod_set, flavor, keys)
        if why:
            return _Refusal(_MISMATCH, pod_set.name, wording.no_flavor(pod_set.name, queue.name, [why]))
        if pod_set.topology is None:
            if flavor.spec.topology_name and not queue.topology_only:
                why = f"flavor {name} is only for pods with a topology request"
                return _Refusal(_MISMATCH, pod_set.name, wording.no_flavor(pod_set.name, queue.name, [why]))
            continue
        if not flavor.spec.topology_name and not alone:
            continue
        levels = state.world.levels(name, bound_by_us=pod_set.bound_by_us)
        if not levels:
            return _no_topology(queue, pod_set, [name])
        for problem in check_topology_request(pod_set.topology, levels, pod_set.count):
            field = f"spec.podSets[{i}].{problem.field}"
            bad = wording.bad_request(pod_set.name, name, field, problem.found, problem.allowed)
            return _Refusal(_BAD_REQUEST, pod_set.name, bad)
    return None


def _no_topology(queue: ClusterQueueState, pod_set: PodSetRequest, flavors: Sequence[str]) -> _Refusal:
    why = f"flavor {', '.join(flavors)} has no topology, which the pods request"
    return _Refusal(_MISMATCH, pod_set.name, wording.no_flavor(pod_set.name, queue.name, [why]))


def _lacks_quota(
    state: State, queue: ClusterQueueState, pod_set: str, cells: Mapping[Cell, int], trial: _Trial
) -> _Refusal | None:
    shortages = state.ledger.shortages(queue.name, cells, trial.usage)
    never = [s for s in shortages if s.never]
    if not shortages or (trial.as_if_unused and not never):
        return None
    # Of several resources, the one that is missed by the largest share.
    short = max(never or shortages, key=lambda s: s.missing / s.requested)
    if not never:
        trial.helped_by |= Help.QUOTA
    reason = wording.lacks_quota(pod_set, queue.name, short, _holders(state, queue.name, short.cell))
    return _Refusal(_NEVER_QUOTA if never else _WAITS_QUOTA, pod_set, reason)


def _holders(state: State, queue: str, cell: Cell) -> str:
    """Who holds most of a cell, in words."""
    known = state.top_holders.setdefault(queue, {})
    if cell not in known:
        known[cell] = _top_holders(state, queue, cell)
    return known[cell]


def _top_holders(state: State, queue: str, cell: Cell) -> str:
    holding = []
    for key in state.holders.get(queue, ()):
        held = state.workloads[key].holding
        amount = held.usage.get(cell, 0) if held else 0
        if amount:
            holding.append((-amount, key))
    named = nsmallest(_HOLDERS_NAMED, holding)
    words = [f"{'/'.join(key)} ({format_quantity(cell[1], -amount)})" for amount, key in named]
    more = len(holding) - len(named)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _place(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    pod_sets: Sequence[PodSetRequest],
    flavors: Sequence[str],
    trial: _Trial,
) -> list[Placement] | _Refusal:
    """Places the pod sets on the nodes that all these flavors name, beside what the workload has placed already."""
    with_topology = [f for f in flavors if state.flavors[f].spec.topology_name]
    for pod_set in pod_sets:
        if pod_set.topology is not None and not with_topology and not pod_set.bound_by_us:
            return _no_topology(queue, pod_set, flavors)
    to_place = [p for p in pod_sets if with_topology or p.bound_by_us]
    if not to_place:
        return []
    name = to_place[0].name
    if len(with_topology) > 1:
        why = f"flavors {' and '.join(with_topology)} each have a topology, and a pod can be placed in one only"
        return _Refusal(_MISMATCH, name, wording.no_flavor(name, queue.name, [why]))
    if not flavors:
        why = "the ClusterQueue has no flavor that could name nodes"
        return _Refusal(_MISMATCH, name, wording.no_flavor(name, queue.name, [why]))
    main = with_topology[0] if with_topology else flavors[0]
    others = [state.flavors[f] for f in flavors if f != main]
    labels = dict(state.flavors[main].spec.node_labels)
    for other in others:
        for key, value in other.spec.node_labels.items():
            if labels.setdefault(key, value) != value:
                why = f"flavors {', '.join(flavors)} want different values of node label {key}"
                return _Refusal(_MISMATCH, name, wording.no_flavor(name, queue.name, [why]))
    result = place(state.world, main, [_narrowed(p, others) for p in to_place], options=trial.place_options)
    if isinstance(result, NoPlacement):
        never = bool(result.field) or result.fits_when_empty is False
        return _Refusal(_NEVER_PLACE if never else _WAITS_PLACE, result.pod_set, wording.no_place(main, result))
    placed = [*trial.placements.values(), *result]
    by_name = {p.name: p for p in info.pod_sets}
    state.world.hold(info.key, placed, [by_name[p.pod_set] for p in placed])
    return result


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
