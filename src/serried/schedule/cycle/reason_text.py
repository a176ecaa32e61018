"""From a nomination to the reason of a wait, and from a target to the message of its preemption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest

from serried.api.names import PreemptedReason
from serried.api.quantity import format_quantity
from serried.quota.quotas import FlavorResource
from serried.schedule.cycle.nominate import Nomination
from serried.schedule.flavors.assignment import Assignment, Attempt, PodSetChoice, Tried
from serried.schedule.preemption.candidates import Target
from serried.schedule.state.records import ClusterQueueState, Record
from serried.schedule.state.state import State
from serried.schedule.types import wording
from serried.schedule.types.reasons import Reason
from serried.schedule.types.refusals import Refusal, RefusalKind


def reason_of(state: State, queue: ClusterQueueState, found: Nomination) -> Reason:
    """Why a workload does not fit now: of all that stood against it, what came closest."""
    assignment = found.assignment
    furthest = assignment.furthest()
    if furthest is None:
        return wording.no_flavor(_first(assignment.pod_sets), queue.name, [])
    choice, refusal = furthest
    if refusal.kind == RefusalKind.MISMATCH and len(choice.refusals) > 1:
        say, opening = _sentences(state, queue), wording.opening(choice.pod_set.name)
        why = [say(r).message.removeprefix(opening) for r in choice.refusals]
        return wording.no_flavor(choice.pod_set.name, queue.name, list(dict.fromkeys(why)))
    return _sentences(state, queue)(refusal)


def _sentences(state: State, queue: ClusterQueueState) -> Callable[[Refusal], Reason]:
    """What is said of refusals in a ClusterQueue."""
    return lambda refusal: wording.refusal(refusal, queue.name, partial(_holders, state, queue.name))


def _first(pod_sets: Sequence[PodSetChoice]) -> str:
    return pod_sets[0].pod_set.name if pod_sets else "main"


#: So many of those who hold most of a flavor's resource are named.
_HOLDERS_NAMED = 3

_DUE_TO = {
    PreemptedReason.IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
    PreemptedReason.RECLAMATION: "reclamation within the cohort",
    PreemptedReason.FAIR_SHARING: "Fair Sharing within the cohort",
    PreemptedReason.RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
}


def preemption_message(preemptor: Record, target: Target, preemptor_path: str, victim_path: str) -> str:
    """As Kueue words it, so that what people search logs for is still found."""
    return (
        f"Preempted to accommodate a workload (UID: {preemptor.info.uid or 'UNKNOWN'}, JobUID: "
        f"{preemptor.info.job_uid or 'UNKNOWN'}) due to {_DUE_TO[target.reason]}; preemptor path: {preemptor_path}; "
        f"preemptee path: {victim_path}"
    )


def attempts_of(state: State, queue: ClusterQueueState, found: Assignment) -> list[Attempt]:
    """The flavors that were looked at, in words."""
    units = {id(choice.tried): choice for choice in reversed(found.pod_sets)}
    say = _sentences(state, queue)
    return [_attempt(choice, t, say) for choice in reversed(units.values()) for t in choice.tried.values()]


def _attempt(choice: PodSetChoice, tried: Tried, say: Callable[[Refusal], Reason]) -> Attempt:
    name = choice.pod_set.name
    match = next((r for r in tried.refusals if r.kind <= RefusalKind.BAD_REQUEST), None)
    quota = next((r for r in tried.refusals if r.kind > RefusalKind.BAD_REQUEST), None)
    place = None
    if any(c.flavor == tried.flavor for c in choice.flavors.values()):
        place = next((r for r in choice.refusals if r.kind in (RefusalKind.WAITS_PLACE, RefusalKind.NEVER_PLACE)), None)

    def words(refusal: Refusal | None) -> str:
        return "" if refusal is None else say(refusal).message.removeprefix(wording.opening(name))

    return Attempt(name, tried.flavor, match=words(match), quota=words(quota), topology=words(place))


def _holders(state: State, queue: str, fr: FlavorResource) -> str:
    """Who holds most of a flavor's resource, in words."""
    known = state.index.top_holders.setdefault(queue, {})
    if fr not in known:
        known[fr] = _top_holders(state, queue, fr)
    return known[fr]


def _top_holders(state: State, queue: str, fr: FlavorResource) -> str:
    reservation = []
    for key in state.index.holders.get(queue, ()):
        held = state.workloads[key].reservation
        amount = held.usage.get(fr, 0) if held else 0
        if amount:
            reservation.append((-amount, key))
    named = nsmallest(_HOLDERS_NAMED, reservation)
    words = [f"{'/'.join(key)} ({format_quantity(fr[1], -amount)})" for amount, key in named]
    more = len(reservation) - len(named)
    return ", ".join(words) + (f" and {more} more" if more else "")
