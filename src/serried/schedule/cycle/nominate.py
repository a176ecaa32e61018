"""What one workload would get, and whom it would preempt, in the model as it is: flavors, quota and places.

Nothing here changes the model: every trial is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from serried.model.capacity import Ints
from serried.model.departures import Departures
from serried.model.requests import PodSetRequest
from serried.place.topology_request import layers_of
from serried.quota.quotas import FlavorResource
from serried.schedule.flavors.assigner import NO_RULES, Oracle, Rules, assign
from serried.schedule.flavors.assignment import Assignment, Fit
from serried.schedule.flavors.flavor_topology import find_places, nodes_now, placed_choices, places_now
from serried.schedule.preemption.candidates import PreemptionRequest, Target, all_candidates
from serried.schedule.preemption.search import find_targets
from serried.schedule.preemption.tie_break import more_compact
from serried.schedule.state.records import ClusterQueueState, Record
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.moment import Moment
from serried.schedule.types.refusals import RefusalKind
from serried.schedule.types.workload import WorkloadInfo

#: A pod set that has no place in a flavor is tried in the next one; so many times at most.
_RETRIES = 16


@dataclass
class Nomination:
    """What a workload would get, with the counts it would get it for, and who would have to go."""

    assignment: Assignment
    pod_sets: tuple[PodSetRequest, ...]
    targets: list[Target]

    @property
    def fits(self) -> bool:
        return self.assignment.mode == Fit.FIT


def nominate(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    moment: Moment,
    start: Mapping[tuple[int, str], int] | None = None,
    rules: Rules = NO_RULES,
) -> Nomination:
    """The flavors, the places and, where nothing is free, whom to preempt for one workload; with all of its pods if
    that is possible, else with as many as possible."""
    if start:
        rules = replace(rules, start=start)
    return with_most(info, lambda pod_sets: _best(state, queue, info, pod_sets, moment, rules))


def remove(state: State, record: Record) -> None:
    """For a trial: as if a workload, and its pods, were gone."""
    assert record.reservation is not None
    state.ledger.refund(record.reservation.cluster_queue, record.reservation.usage)
    state.world.release(record.info.key, with_pods=True)


def with_most(info: WorkloadInfo, find: Callable[[tuple[PodSetRequest, ...]], Nomination]) -> Nomination:
    """What is found with all pods, or else with as many as possible."""
    full = find(info.pod_sets)
    if full.fits or full.targets:
        return full

    def acceptable(pod_sets: tuple[PodSetRequest, ...]) -> bool:
        found = find(pod_sets)
        full.assignment.blocked_on |= found.assignment.blocked_on
        return found.fits or bool(found.targets)

    fewer = reduced(info.pod_sets, info.min_counts, acceptable)
    return full if fewer is None else find(fewer)


def reduced(
    pod_sets: Sequence[PodSetRequest],
    min_counts: Sequence[int | None],
    fits: Callable[[tuple[PodSetRequest, ...]], bool],
) -> tuple[PodSetRequest, ...] | None:
    """The pod sets with the largest counts that fit, all reduced in proportion; None: not even with the least.

    `fits`: whether pod sets with these counts do. It is asked for as many times as halving takes.
    """
    pairs = [(p, m, _slice_size(p)) for p, m in _paired(pod_sets, min_counts)]
    # Pods in slices go by whole slices.
    slack = [0 if m is None else max(0, p.count - -(-max(m, 1) // size) * size) for p, m, size in pairs]
    total = sum(slack)
    if not total:
        return None

    def counts(step: int) -> tuple[PodSetRequest, ...]:
        return tuple(
            replace(p, count=p.count - -(-(less * step // total) // size) * size)
            for (p, _, size), less in zip(pairs, slack, strict=True)
        )

    low, high = 0, total + 1
    while low < high:
        middle = (low + high) // 2
        if fits(counts(middle)):
            high = middle
        else:
            low = middle + 1
    return None if low > total else counts(low)


def _slice_size(pod_set: PodSetRequest) -> int:
    """Pods per slice; 1 without slices, or if what is asked for cannot be met anyway."""
    layers = layers_of(pod_set.topology)
    size = layers[0][1] if layers else 1
    return size if size > 0 and pod_set.count % size == 0 else 1


def _paired(
    pod_sets: Sequence[PodSetRequest], min_counts: Sequence[int | None]
) -> list[tuple[PodSetRequest, int | None]]:
    padded = [*min_counts, *[None] * (len(pod_sets) - len(min_counts))]
    return list(zip(pod_sets, padded, strict=True))


def _best(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    pod_sets: tuple[PodSetRequest, ...],
    moment: Moment,
    rules: Rules,
) -> Nomination:
    """The best of several scans, each without the flavors in which the ones before found no place."""
    best: Nomination | None = None
    blocked_on = Changed.NOTHING
    for _ in range(_RETRIES):
        here = scan(state, queue, info, pod_sets, moment, rules)
        found = here.assignment
        if here.fits:
            return here
        if found.mode == Fit.PREEMPT:
            here.targets = targets_of(state, queue, info, found, moment)
        blocked_on |= found.blocked_on
        if best is None or _better(here, best):
            best = here
        if Changed.NODES not in found.blocked_on:
            break
        homeless = [
            (p.pod_set.name, c.flavor)
            for p in found.pod_sets
            if any(r.kind in (RefusalKind.WAITS_PLACE, RefusalKind.NEVER_PLACE) for r in p.refusals)
            for c in p.flavors.values()
        ]
        excluded = rules.excluded | set(homeless)
        if excluded == rules.excluded:
            break
        rules = replace(rules, excluded=excluded)
    assert best is not None
    best.assignment.blocked_on = blocked_on
    return best


def scan(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    pod_sets: tuple[PodSetRequest, ...],
    moment: Moment,
    rules: Rules,
) -> Nomination:
    """Flavors and places by one scan of the flavors. Whom to preempt is not looked for yet."""
    found = assign(state, queue, pod_sets, preemption_oracle(state, queue, info, moment), rules)
    if found.mode != Fit.NO_FIT:
        find_places(state, queue, info, found, only_whether=rules.only_whether)
    return Nomination(found, pod_sets, [])


def _better(a: Nomination, b: Nomination) -> bool:
    def worth(n: Nomination) -> int:
        furthest = n.assignment.furthest()
        may_come_free = furthest is not None and not furthest[1].kind.never
        return 3 if n.fits else 2 if n.targets else 1 if may_come_free else 0

    return worth(a) > worth(b)


def targets_of(
    state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment, moment: Moment
) -> list[Target]:
    """Whom to preempt so that the workload fits with just these flavors, in quota and on the nodes. The places that it
    will have then are set in `found`."""
    request, targets = find_for(state, queue, info, found, moment)
    if targets and request.nodes is not None:
        place_without = partial(_place_without, state, queue, info, found, all_candidates(state, request, moment))
        targets = more_compact(state, request, found, targets, moment, place_without)
        place_without([target.record for target in targets])
    return targets


def find_for(
    state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment, moment: Moment
) -> tuple[PreemptionRequest, list[Target]]:
    """What the workload may preempt others for, and whom; without breaking ties, and without the places."""
    request = preemption_request(state, queue, info, found)
    asked = [t.possibility for p in found.pod_sets for t in p.tried.values() if t.possibility is not None]
    if request.nodes is None and len(request.needed) == 1 and asked and max(asked) == Fit.NO_CANDIDATES:
        # It is all that is needed, and was searched for already.
        return request, []
    targets = find_targets(state, request, moment)
    if not targets and request.nodes is not None and request.contested != request.needed.keys():
        # Those who are in the way on the nodes may use other resources than those whose quota is short.
        request = replace(request, contested=frozenset(request.needed), short=request.contested)
        targets = find_targets(state, request, moment)
    return request, targets


def _place_without(
    state: State,
    queue: ClusterQueueState,
    info: WorkloadInfo,
    found: Assignment,
    candidates: Departures,
    gone: Sequence[Record],
) -> None:
    """Sets in an assignment the places that there are with some workloads gone."""
    mark = state.journal.checkpoint()
    state.world.leaving(candidates.of([record.info.key for record in gone])).first(len(gone))
    places_now(state, queue, info, found)
    state.journal.rollback(mark)


def preemption_request(
    state: State, queue: ClusterQueueState, info: WorkloadInfo, found: Assignment
) -> PreemptionRequest:
    """What the workload needs with these flavors, and may preempt others for. That nodes were asked for in vain is
    noted in `found`."""

    def nodes() -> Ints | None:
        rows = nodes_now(state, queue, info, found)
        if rows is None:
            # There may be quota, with those gone: it is nodes that it waits for.
            found.blocked_on |= Changed.NODES
        return rows

    needed = {fr: amount for fr, amount in found.usage.items() if amount > 0}
    placed = placed_choices(state, queue, found)
    # Of rules about other pods some are kept by pods that are there, and break when these leave.
    ruled = any(p.kind.constraints or state.world.repels(p.kind) for p in info.pod_sets)
    monotone = len(placed) == 1 and not ruled
    return PreemptionRequest(
        info, queue.name, needed, found.contested, nodes=nodes if placed else None, monotone=monotone
    )


def preemption_oracle(state: State, queue: ClusterQueueState, info: WorkloadInfo, moment: Moment) -> Oracle:
    """What preemption could do for one resource of one flavor: searched for as if it were all that is needed."""
    policy = queue.spec.preemption
    node = state.ledger.queue(queue.name)
    nobody = policy.within_cluster_queue == "Never" and (policy.reclaim_within_cohort == "Never" or not node.parent)

    def oracle(fr: FlavorResource, amount: int) -> tuple[Fit, int]:
        request = PreemptionRequest(info, queue.name, {fr: amount}, frozenset({fr}))
        targets = [] if nobody else find_targets(state, request, moment)
        if not targets:
            return Fit.NO_CANDIDATES, node.lowest_fit(fr, amount)[0]
        mark = state.journal.checkpoint()
        own = False
        for target in targets:
            reservation = target.record.reservation
            assert reservation is not None
            own |= reservation.cluster_queue == queue.name
            state.ledger.refund(reservation.cluster_queue, reservation.usage)
        borrow = node.lowest_fit(fr, amount)[0]
        state.journal.rollback(mark)
        return (Fit.PREEMPT if own else Fit.RECLAIM), borrow

    return oracle


def takes(found: Assignment) -> dict[FlavorResource, int]:
    """What an assignment charges."""
    return {fr: amount for fr, amount in found.usage.items() if amount}
