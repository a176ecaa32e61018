"""Why a workload waits, and why another has to go: from what was found, to what is told."""

from __future__ import annotations

from collections.abc import Sequence

from serried.api.names import PreemptedReason
from serried.schedule.cycle.nominate import Nomination
from serried.schedule.flavors.assignment import PodSetChoice, RefusalKind
from serried.schedule.preemption.candidates import Target
from serried.schedule.state.records import ClusterQueueState, Record
from serried.schedule.types import wording
from serried.schedule.types.reasons import Reason


def reason_of(queue: ClusterQueueState, found: Nomination) -> Reason:
    """Why a workload does not fit now: of all that stood against it, what came closest."""
    assignment = found.assignment
    furthest = assignment.furthest()
    if furthest is None:
        return wording.no_flavor(_first(assignment.pod_sets), queue.name, [])
    choice, refusal = furthest
    if refusal.kind == RefusalKind.MISMATCH and len(choice.refusals) > 1:
        opening = wording.opening(choice.pod_set.name)
        why = [r.reason().message.removeprefix(opening) for r in choice.refusals]
        return wording.no_flavor(choice.pod_set.name, queue.name, list(dict.fromkeys(why)))
    return refusal.reason()


def _first(pod_sets: Sequence[PodSetChoice]) -> str:
    return pod_sets[0].pod_set.name if pod_sets else "main"


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
