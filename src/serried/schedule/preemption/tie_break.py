"""Of victims that the order of preemption leaves to chance: those whose end gives the preemptor the better place.

Jobs that reserved in the same second, at the same priority, are equal by Kueue's order; their uids decide. Where that
is so, other ones of them are taken instead if the pods of the preemptor are then in fewer domains. As many go, with the
same priorities and from the same queues, and they have run for as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from serried.place.measures import measure
from serried.schedule.flavors.assignment import Assignment
from serried.schedule.preemption.candidates import PreemptionRequest, Victim, victim_order
from serried.schedule.preemption.classical import find_victims
from serried.schedule.state.records import Record
from serried.schedule.state.state import State

#: For each pod set that has a place: at which level it is together, and how many domains of each level it is in.
_Spreads = list[tuple[int, tuple[int, ...]]]


def closer_victims(
    state: State,
    want: PreemptionRequest,
    found: Assignment,
    victims: list[Victim],
    now: datetime,
    place_without: Callable[[Sequence[Record]], None],
) -> list[Victim]:
    """These victims, or as many equal ones with which gone the pods are closer together. At most one other set is
    looked at: those in the way where the pods would be if all that are equal were gone.

    `place_without`: sets in `found` the places that there are with some workloads gone.
    """
    chosen = [victim.record for victim in victims]
    equals = _equals(state, want, chosen, now)
    if not equals:
        return victims
    place_without(chosen)
    before = _spreads(state, found)
    place_without([*chosen, *equals])
    if not _better(_spreads(state, found), before):
        return victims
    there = {(p.flavor, domain) for c in found.pod_sets if (p := c.placement) for domain, _ in p.domains}

    def near(record: Record) -> bool:
        held = record.reservation.placements if record.reservation is not None else ()
        return not there.isdisjoint((p.flavor, domain) for p in held for domain, _ in p.domains)

    others = find_victims(state, replace(want, first=near), now)
    if _ranks(state, want, others, now) != _ranks(state, want, victims, now):
        return victims
    place_without([victim.record for victim in others])
    return others if _better(_spreads(state, found), before) else victims


def _equals(state: State, want: PreemptionRequest, chosen: Sequence[Record], now: datetime) -> list[Record]:
    """Others of the same queues that the order of preemption tells from the chosen ones by their uids only."""
    key = victim_order(state, want.queue, now)
    ranks = {
        (record.reservation.cluster_queue, key(record)[:-2]) for record in chosen if record.reservation is not None
    }
    taken = {record.info.key for record in chosen}
    found = []
    for queue in sorted({queue for queue, _ in ranks}):
        for other in state.holders.get(queue, ()):
            record = state.workloads[other]
            if other in taken or record.preempted_by is not None or other in (want.info.key, want.info.replaces):
                continue
            if (queue, key(record)[:-2]) in ranks:
                found.append(record)
    return found


def _ranks(
    state: State, want: PreemptionRequest, victims: Sequence[Victim], now: datetime
) -> Counter[tuple[object, ...]]:
    key = victim_order(state, want.queue, now)
    held = ((v, v.record.reservation) for v in victims)
    return Counter((h.cluster_queue if h is not None else "", v.reason, *key(v.record)[:-2]) for v, h in held)


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
