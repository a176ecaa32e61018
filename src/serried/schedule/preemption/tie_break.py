"""The tie-break of preemption: among candidates that Kueue's order ranks equally, those whose end gives the preemptor
the more compact placement.

Jobs that reserved in the same second, at the same priority, are equal by Kueue's order; their uids decide. Where that
is so, others of them are taken instead if the preemptor's pods are then in fewer domains. As many go, with the same
priorities and from the same queues, and they have run for as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from serried.place.measures import measure
from serried.schedule.flavors.assignment import Assignment
from serried.schedule.preemption.candidates import (
    PreemptionRequest,
    Target,
    candidate_order,
    candidates_in,
    same_but_for_chance,
)
from serried.schedule.preemption.search import find_targets
from serried.schedule.state.records import Record
from serried.schedule.state.state import State
from serried.schedule.types.moment import Moment

#: For each pod set that has a place: at which level it is together, and how many domains of each level it is in.
_Spreads = list[tuple[int, tuple[int, ...]]]


def more_compact(
    state: State,
    request: PreemptionRequest,
    found: Assignment,
    targets: list[Target],
    moment: Moment,
    place_without: Callable[[Sequence[Record]], None],
) -> list[Target]:
    """These targets, or as many equal ones with which gone the pods are closer together. At most one other set is
    looked at: those in the way where the pods would be if all that are equal were gone.

    `place_without`: sets in `found` the places that there are with some workloads gone.
    """
    chosen = [target.record for target in targets]
    equals = _equals(state, request, chosen, moment)
    if not equals:
        return targets
    place_without(chosen)
    before = _spreads(state, found)
    place_without([*chosen, *equals])
    if not _better(_spreads(state, found), before):
        return targets
    there = {(p.flavor, domain) for c in found.pod_sets if (p := c.placement) for domain, _ in p.domains}

    def near(record: Record) -> bool:
        held = record.reservation.placements if record.reservation is not None else ()
        return not there.isdisjoint((p.flavor, domain) for p in held for domain, _ in p.domains)

    others = find_targets(state, replace(request, prefers=near), moment)
    if _ranks(state, request, others, moment) != _ranks(state, request, targets, moment):
        return targets
    place_without([target.record for target in others])
    return others if _better(_spreads(state, found), before) else targets


def _equals(state: State, request: PreemptionRequest, chosen: Sequence[Record], moment: Moment) -> list[Record]:
    """Other candidates of the same queues that only chance tells from the chosen ones."""
    order = candidate_order(state, request.queue, moment)
    taken = {record.info.key for record in chosen}
    ranks = {
        (record.reservation.cluster_queue, same_but_for_chance(order(record)))
        for record in chosen
        if record.reservation is not None
    }
    policy = state.cluster_queues[request.queue].spec.preemption
    found: list[Record] = []
    for queue, chosen_rank in sorted(ranks):
        rule = policy.within_cluster_queue if queue == request.queue else policy.reclaim_within_cohort
        candidates = candidates_in(state, queue, request, rule, moment)
        for rank, record in candidates[bisect_left(candidates, chosen_rank, key=lambda c: same_but_for_chance(c[0])) :]:
            if same_but_for_chance(rank) != chosen_rank:
                break
            if record.info.key not in taken:
                found.append(record)
    return found


def _ranks(
    state: State, request: PreemptionRequest, targets: Sequence[Target], moment: Moment
) -> Counter[tuple[object, ...]]:
    order = candidate_order(state, request.queue, moment)
    held = ((t, t.record.reservation) for t in targets)
    return Counter(
        (h.cluster_queue if h is not None else "", t.reason, *same_but_for_chance(order(t.record))) for t, h in held
    )


def _spreads(state: State, found: Assignment) -> _Spreads:
    result: _Spreads = []
    for choice in found.pod_sets:
        placement = choice.placement
        tree = state.world.tree(placement.flavor, bound_by_us=choice.pod_set.bound_by_us) if placement else None
        if placement is None or tree is None:
            continue
        leaves = np.array([leaf for d, _ in placement.domains if (leaf := tree.leaf(d)) is not None], dtype=np.int64)
        found_there = measure(tree, np.zeros(tree.leaves, dtype=np.int64), leaves, np.ones(len(leaves), dtype=np.int64))
        result.append((found_there.spread, found_there.domains))
    return result


def _better(a: _Spreads, b: _Spreads) -> bool:
    """Whether some pod set is closer together and none is less so."""
    return len(a) == len(b) and a != b and all(x <= y for x, y in zip(a, b, strict=True))
