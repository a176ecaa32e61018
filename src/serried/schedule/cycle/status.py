"""The status of queues and cohorts, and what of a Workload's is not a condition, as it is written to the API."""

from __future__ import annotations

from serried.api.core import ResourceList
from serried.api.kueue import (
    ClusterQueueStatus,
    CohortStatus,
    FairSharingStatus,
    LocalQueueStatus,
    PodSetResources,
)
from serried.api.meta import Condition, Key
from serried.api.quantity import format_quantity
from serried.quota.quotas import Quotas
from serried.schedule.flavors.assigner import counted_totals
from serried.schedule.state.queue_usage import flavor_usage
from serried.schedule.state.records import Activity
from serried.schedule.state.routing import cohort_activity
from serried.schedule.state.state import State


def queue_status(state: State, queue: Key) -> ClusterQueueStatus | LocalQueueStatus | None:
    """The status of ClusterQueue ("", name) or LocalQueue (namespace, name), its conditions without times."""
    account = state.accounts[queue]
    if not queue[0]:
        found = state.cluster_queues.get(queue[1])
        if found is None:
            return None
        declared = found.quotas.nominal
        return ClusterQueueStatus(
            conditions=[_condition(found.activity, found.generation)],
            flavors_reservation=flavor_usage(
                declared, account.reserved, borrows=True, in_cohort=bool(found.spec.cohort_name)
            ),
            flavors_usage=flavor_usage(declared, account.used, borrows=True, in_cohort=bool(found.spec.cohort_name)),
            pending_workloads=sum(len(state.index.waiting.get(key, ())) for key in state.leads_to.get(queue[1], ())),
            reserving_workloads=account.reserving,
            admitted_workloads=account.admitted,
            fair_sharing=FairSharingStatus(weighted_share=state.ledger.queue(queue[1]).share().rounded)
            if state.fair_sharing is not None
            else None,
        )
    local = state.local_queues.get(queue)
    if local is None:
        return None
    target = state.cluster_queues.get(local.spec.cluster_queue)
    declared = (target.quotas if target is not None else Quotas()).nominal
    return LocalQueueStatus(
        conditions=[_condition(local.activity, local.generation)],
        flavors_reservation=flavor_usage(declared, account.reserved, borrows=False),
        flavors_usage=flavor_usage(declared, account.used, borrows=False),
        pending_workloads=len(state.index.waiting.get(queue, ())),
        reserving_workloads=account.reserving,
        admitted_workloads=account.admitted,
        fair_sharing=state.fair_usage.status(queue),
    )


def cohort_status(state: State, name: str) -> CohortStatus | None:
    """The status of a Cohort, its condition without a time; None: there is no such object."""
    found = state.cohorts.get(name)
    node = state.ledger.cohort(name)
    if found is None or node is None:
        return None
    return CohortStatus(
        conditions=[_condition(cohort_activity(state, name), found.generation)],
        fair_sharing=FairSharingStatus(weighted_share=node.share().rounded) if state.fair_sharing is not None else None,
    )


def resource_requests(state: State, key: Key) -> tuple[PodSetResources, ...]:
    """What a workload that waits asks for, as quota counts it; () when nothing is known of it."""
    record = state.workloads.get(key)
    if record is None or record.info.problems:
        return ()
    found = []
    for pod_set in record.info.pod_sets:
        totals = counted_totals(state.options, pod_set)
        resources: ResourceList = {r: format_quantity(r, n) for r, n in sorted(totals.items()) if r != "pods"}
        found.append(PodSetResources(name=pod_set.name, resources=resources))
    return tuple(found)


def queues_changed(state: State) -> set[Key]:
    """The queues whose status may differ from what it was when this was last called."""
    return state.stale.take_queues(state.cluster_queues, state.ledger.tree_of)


def cohorts_changed(state: State) -> set[str]:
    """The same of Cohorts, once `queues_changed` has looked."""
    return state.stale.take_cohorts(state.cohorts, state.ledger.tree_above)


def _condition(activity: Activity, generation: int) -> Condition:
    return Condition(
        type="Active",
        status="True" if activity.active else "False",
        reason=activity.reason,
        message=activity.message,
        observed_generation=generation,
    )
