"""The binding plan: which pod of a gang goes to which place, decided by rank.

The plan itself is the Workload's topologyAssignment: its domains in order, each repeated by its count, are the
places of rank 0, 1, 2 … What is decided here is only which pods may take their places now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serried.api import names
from serried.gang.membership import Gang, Member, Stage

#: Label values from the top level down, as in the topologyAssignment.
Values = tuple[str, ...]


@dataclass(frozen=True)
class PodSetPlan:
    """Where the pods of one pod set go. `places[rank]` holds one label value for each of `levels`."""

    pod_set: str
    levels: tuple[str, ...]
    places: tuple[Values, ...]

    @property
    def names_hosts(self) -> bool:
        return bool(self.levels) and self.levels[-1] == names.HOSTNAME

    @staticmethod
    def of(pod_set: str, levels: Sequence[str], domains: Sequence[tuple[Values, int]]) -> PodSetPlan:
        places = tuple(values for values, count in domains for _ in range(count))
        return PodSetPlan(pod_set, tuple(levels), places)


@dataclass(frozen=True)
class Move:
    """One pod that goes to its place now: `values` are those of the plan's levels."""

    pod: str
    uid: str
    values: Values
    levels: tuple[str, ...]
    #: scheduling gates, the topology gate among them, of a pod that kube-scheduler binds; none: we bind it
    gates: tuple[str, ...]


def may_move(gang: Gang, sizes: Mapping[str, int]) -> bool:
    """Whether members are to take their places: all are there, or some have begun, and not all are on their way.

    `sizes`: pod set → how many pods it has. More of one do not stand in for those that another one lacks.
    """
    whole = all(gang.present[name] >= size for name, size in sizes.items())
    return len(gang.waiting) > len(gang.in_flight) and bool(whole or gang.in_flight or gang.placed)


def moves(
    gang: Gang, plans: Mapping[str, PodSetPlan], sizes: Mapping[str, int], node_of: Callable[[str], str | None]
) -> list[Move]:
    """The pods that take their places now, all of the gang together.

    Nothing moves before the gang is whole: as many members of each pod set as `sizes` says. A gang of which some are
    placed already is rolled forward with the members there are (after a crash in the middle, or for a replaced pod).
    A place is taken while an unfinished pod, also one that is being deleted, stands on it; its successor waits.

    `node_of` maps the value of `kubernetes.io/hostname` to the node's name (None: no such node).
    """
    if not may_move(gang, sizes):
        return []
    result: list[Move] = []
    for name, plan in plans.items():
        members = [m for m in gang if m.pod_set == name and has_place(m, plan)]
        for m, place in _places(members, plan, node_of):
            if m.uid not in gang.in_flight:
                result.append(Move(m.name, m.uid, plan.places[place], plan.levels, m.gates))
    return result


def has_place(member: Member, plan: PodSetPlan | None) -> bool:
    """Whether the plan has places for such a member: one that Serried is to bind needs a node, not a larger domain."""
    return plan is not None and (plan.names_hosts or bool(member.gates) or member.stage is not Stage.WAITING)


def _places(
    members: Sequence[Member], plan: PodSetPlan, node_of: Callable[[str], str | None]
) -> list[tuple[Member, int]]:
    """A free place for each waiting member: that of its rank, else the first that nobody of that rank wants."""
    taken: set[int] = set()
    by_host: dict[str, list[int]] = {}
    elsewhere: list[Member] = []
    for m in members:
        if not m.stage.is_standing:
            continue
        if m.rank is not None and m.rank < len(plan.places) and _stands_at(m, plan, m.rank, node_of):
            taken.add(m.rank)
        else:
            elsewhere.append(m)
    if elsewhere and plan.names_hosts:
        for place, values in enumerate(plan.places):
            for name in {values[-1], node_of(values[-1]) or values[-1]}:
                by_host.setdefault(name, []).append(place)
    for m in elsewhere:
        # Which of several equal places on a node it took does not matter, only that one fewer is free there.
        free_there = next((p for p in by_host.get(m.node, ()) if p not in taken), None)
        if free_there is None and not plan.names_hosts and not m.deleting:
            free_there = next((p for p in range(len(plan.places)) if p not in taken), None)
        if free_there is not None:
            taken.add(free_there)
    waiting = sorted((m for m in members if m.stage is Stage.WAITING and not m.deleting), key=lambda m: m.name)
    result: list[tuple[Member, int]] = []
    rest: list[Member] = []
    for m in waiting:
        if m.rank is None or m.rank >= len(plan.places):
            rest.append(m)
        elif m.rank not in taken:
            taken.add(m.rank)
            result.append((m, m.rank))
    free = (p for p in range(len(plan.places)) if p not in taken)
    result.extend(zip(rest, free, strict=False))
    return result


def on_plan(gang: Gang, plans: Mapping[str, PodSetPlan], node_of: Callable[[str], str | None]) -> Gang:
    """The gang without those that stand on hosts where no pod of their pod set is planned: they are of an earlier run,
    and neither begin this one nor make it ready. What is in flight is shared."""
    off: set[str] = set()
    for name, plan in plans.items():
        if plan.names_hosts:
            hosts = {values[-1] for values in plan.places}
            hosts |= {node for host in hosts if (node := node_of(host)) is not None}
            off.update(
                m.name for m in gang if m.pod_set == name and m.stage.is_standing and m.node and m.node not in hosts
            )
    if not off:
        return gang
    result = Gang(in_flight=gang.in_flight)
    for m in gang:
        if m.name not in off:
            result.set(m)
    return result


def _stands_at(member: Member, plan: PodSetPlan, place: int, node_of: Callable[[str], str | None]) -> bool:
    """Whether a member that stands somewhere stands at this place. One of an earlier run may stand at another.

    In a domain larger than a host kube-scheduler counts who is still there: those about to leave take no place.
    """
    if not plan.names_hosts:
        return not member.deleting
    host = plan.places[place][-1]
    return member.node in (host, node_of(host))


def unschedulable_places(
    gang: Gang,
    plans: Mapping[str, PodSetPlan],
    is_schedulable: Callable[[str, tuple[str, ...], Values], bool],
    node_of: Callable[[str], str | None],
    *,
    every: bool,
) -> list[Values]:
    """The places of the plan that nobody can take any more although somebody is to: each once, by rank.

    With `every`, before the start, all places count; afterwards those of members that wait, and the hosts that
    kube-scheduler was told to bind members to and has not yet. `is_schedulable`: (pod set, levels, values) → whether
    its pods can still go there.
    """
    found: dict[Values, None] = {}
    if gang.counts[Stage.RELEASED]:
        steered = {(m.pod_set, m.node): None for m in gang if m.stage is Stage.RELEASED and not m.deleting and m.node}
        found.update(
            ((host,), None) for pod_set, host in steered if not is_schedulable(pod_set, (names.HOSTNAME,), (host,))
        )
    for plan in plans.values():
        wanted = set(range(len(plan.places))) if every else _awaited(gang, plan, node_of)
        distinct = dict.fromkeys(plan.places[p] for p in sorted(wanted))
        found.update((values, None) for values in distinct if not is_schedulable(plan.pod_set, plan.levels, values))
    return list(found)


def _awaited(gang: Gang, plan: PodSetPlan, node_of: Callable[[str], str | None]) -> set[int]:
    """The places that members are still to take, also those on which somebody is dying."""
    members = [m for m in gang if m.pod_set == plan.pod_set and has_place(m, plan)]
    awaited = {p for m, p in _places(members, plan, node_of) if m.uid not in gang.in_flight}
    waiting = [m for m in members if m.stage is Stage.WAITING and not m.deleting and m.uid not in gang.in_flight]
    awaited.update(m.rank for m in waiting if m.rank is not None and m.rank < len(plan.places))
    return awaited
