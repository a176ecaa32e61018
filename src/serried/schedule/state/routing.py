"""Which ClusterQueue a workload waits in, or why in none; and whether a queue admits at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from serried.api.label_selector import selects
from serried.api.meta import Key, condition_is
from serried.api.names import CheckState, PendingReason, QueueReason
from serried.quota.quotas import missing_flavors, missing_topologies
from serried.schedule.state import transitions
from serried.schedule.state.records import Activity, ClusterQueueState, Record, WorkloadState
from serried.schedule.state.state import State
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import WorkloadInfo

READY = "Can admit new workloads"


def route(state: State, record: Record, info: WorkloadInfo | None = None) -> None:
    """A workload waits from now on, where it belongs. `info`: what it is from now on."""
    _go(state, record, _destination(state, info or record.info, record.checks), info)


def _go(state: State, record: Record, destination: str | Reason, info: WorkloadInfo | None = None) -> None:
    if isinstance(destination, Reason):
        transitions.set_inadmissible(state, record, destination, info)
    else:
        transitions.queue(state, record, destination, info)


def reroute(state: State, local_queue: Key) -> None:
    """Something about this LocalQueue, its ClusterQueue or its namespace changed: its workloads may move."""
    for key in list(state.index.waiting.get(local_queue, ())):
        record = state.workloads[key]
        destination = _destination(state, record.info, record.checks)
        here = record.cluster_queue if record.state is WorkloadState.PENDING else record.last_reason
        if destination != here:
            _go(state, record, destination)


def end_backoff(state: State, now: datetime) -> None:
    """Those whose time to back off is over wait in their queues again."""
    state.now = now
    for key in state.requeue.end_backoff(now):
        record = state.workloads.get(key)
        if record is not None and record.state is WorkloadState.INADMISSIBLE:
            route(state, record)


def refresh(state: State, queue: ClusterQueueState) -> None:
    """Works out anew what follows from the queue's spec and the flavors and topologies there are."""
    flavors = [[state.flavors[name] for name in g.flavors if name in state.flavors] for g in queue.quotas.groups]
    queue.topology_only = all(f.spec.topology_name for group in flavors for f in group)
    queue.has_topology = any(f.spec.topology_name in state.topologies for group in flavors for f in group)
    if len(queue.pending):
        queue.pending.changed(Changed.QUOTAS)
        state.requeue.activate(queue.name)
    before, queue.activity = queue.activity, _activity(state, queue)
    state.stale.queue(("", queue.name))
    for local_queue in state.leads_to.get(queue.name, ()):
        state.stale.queue(local_queue)
        refresh_local(state, local_queue)
        if queue.activity != before:
            reroute(state, local_queue)


def refresh_local(state: State, key: Key) -> None:
    """Works out anew whether a LocalQueue admits."""
    queue = state.local_queues[key]
    target = queue.spec.cluster_queue
    cluster_queue = state.cluster_queues.get(target)
    activity = Activity(True, QueueReason.READY, READY)
    if queue.terminating:
        activity = Activity(
            False, QueueReason.TERMINATING, "Can't admit new workloads: the LocalQueue is being deleted"
        )
    elif queue.spec.stop_policy != "None":
        activity = Activity(False, QueueReason.STOPPED, f"spec.stopPolicy is {queue.spec.stop_policy}")
    elif cluster_queue is None:
        message = f"spec.clusterQueue is {target!r}, but there is no such ClusterQueue"
        activity = Activity(False, QueueReason.CLUSTER_QUEUE_NOT_FOUND, message)
    elif not cluster_queue.activity.active:
        message = f"ClusterQueue {target} does not admit: {cluster_queue.activity.message}"
        activity = Activity(False, QueueReason.CLUSTER_QUEUE_INACTIVE, message)
    if activity != queue.activity:
        queue.activity = activity
        state.stale.queue(key)


def cohort_activity(state: State, name: str) -> Activity:
    """Whether the queues below a Cohort can use it."""
    fault = _cohort_fault(state, name)
    if fault is None:
        return Activity(True, QueueReason.READY, "Can share quota")
    return Activity(False, fault[0], f"The queues below can't admit new workloads: {fault[1]}")


def _cohort_fault(state: State, name: str) -> tuple[str, str] | None:
    """What keeps the queues of a cohort from admitting, in it or above it: the reason, and the message."""
    if circle := state.ledger.cycle_above(name):
        message = f"cohorts {' → '.join([*circle, circle[0]])} are each other's parents"
        return QueueReason.COHORT_CYCLE, message
    for above in state.ledger.ancestors(name):
        cohort = state.cohorts.get(above)
        if cohort is not None and cohort.problems:
            why = "; ".join(map(str, cohort.problems))
            return QueueReason.MISCONFIGURED, f"Cohort {above}: {why}"
    return None


def _activity(state: State, queue: ClusterQueueState) -> Activity:
    if queue.terminating:
        message = "Can't admit new workloads: the ClusterQueue is being deleted"
        return Activity(False, QueueReason.TERMINATING, message)
    if queue.spec.stop_policy != "None":
        return Activity(False, QueueReason.STOPPED, f"spec.stopPolicy is {queue.spec.stop_policy}")
    if (fault := _cohort_fault(state, queue.spec.cohort_name)) is not None:
        return Activity(False, fault[0], f"Can't admit new workloads: {fault[1]}")
    strategy = queue.spec.admission_checks_strategy
    names = [check.name for check in strategy.admission_checks] if strategy is not None else []
    # To admit without a check that the administrator asks for would be worse than not to admit.
    if missing := [name for name in names if name not in state.checks]:
        message = (
            f"Can't admit new workloads: spec.admissionChecksStrategy names {', '.join(missing)}, but there is no such "
            "AdmissionCheck"
        )
        return Activity(False, QueueReason.ADMISSION_CHECK_NOT_FOUND, message)
    if inactive := [n for n in names if condition_is(state.checks[n].status.conditions, "Active", "False")]:
        message = f"Can't admit new workloads: AdmissionCheck {', '.join(inactive)} is not active"
        return Activity(False, QueueReason.ADMISSION_CHECK_INACTIVE, message)
    for reason, problems in (
        (QueueReason.MISCONFIGURED, queue.problems),
        (QueueReason.FLAVOR_NOT_FOUND, missing_flavors(queue.quotas, state.flavors)),
        (QueueReason.TOPOLOGY_NOT_FOUND, missing_topologies(queue.quotas, state.flavors, state.topologies)),
    ):
        if problems:
            return Activity(False, reason, "Can't admit new workloads: " + "; ".join(map(str, problems)))
    return Activity(True, QueueReason.READY, READY)


def _destination(state: State, info: WorkloadInfo, checks: Mapping[str, str]) -> str | Reason:
    """The ClusterQueue this workload waits in, or the reason why in none."""
    if not info.active:
        return Reason(
            layer="queue",
            code=PendingReason.INADMISSIBLE,
            message="The workload is deactivated: spec.active is false. Set it to true to queue it again.",
            field="spec.active",
            found="false",
            allowed="true",
        )
    if info.problems:
        return wording.misconfigured(info.problems[0])
    failed = [name for name, s in checks.items() if s in (CheckState.RETRY, CheckState.REJECTED)]
    if failed:
        return wording.failed_checks(failed)
    if info.not_before is not None and (state.now is None or info.not_before > state.now):
        return wording.backs_off(info.not_before)
    namespace, name = info.queue
    if not name:
        allowed = _names(n for ns, n in state.local_queues if ns == namespace)
        return _no_queue("spec.queueName", "(empty)", f"the name of a LocalQueue in namespace {namespace}: {allowed}")
    local = state.local_queues.get(info.queue)
    if local is None:
        allowed = _names(n for ns, n in state.local_queues if ns == namespace)
        message = f"There is no LocalQueue {name} in namespace {namespace} (there is: {allowed})"
        return _no_queue("spec.queueName", name, allowed, message)
    if not local.activity.active and local.activity.reason != QueueReason.CLUSTER_QUEUE_INACTIVE:
        code = _code(local.activity)
        message = f"LocalQueue {name} does not admit: {local.activity.message}"
        return Reason(layer="queue", code=code, message=message, where=f"LocalQueue {namespace}/{name}")
    target = local.spec.cluster_queue
    cluster_queue = state.cluster_queues[target]
    if not cluster_queue.activity.active:
        message = f"ClusterQueue {target} does not admit: {cluster_queue.activity.message}"
        code = _code(cluster_queue.activity)
        return Reason(layer="queue", code=code, message=message, where=f"ClusterQueue {target}")
    if not selects(cluster_queue.spec.namespace_selector, state.namespaces.get(namespace, {})):
        return Reason(
            layer="queue",
            code=PendingReason.INADMISSIBLE,
            message=f"Namespace {namespace} is not selected by the namespaceSelector of ClusterQueue {target}. Use a "
            "queue that is open to it, or label the namespace accordingly.",
            constraint=f"spec.namespaceSelector of ClusterQueue {target}",
            where=f"ClusterQueue {target}",
        )
    return target


def _code(activity: Activity) -> str:
    return PendingReason.SUSPENDED if activity.reason == QueueReason.STOPPED else PendingReason.INADMISSIBLE


def _no_queue(field: str, found: str, allowed: str, message: str = "") -> Reason:
    return Reason(
        layer="queue",
        code=PendingReason.INADMISSIBLE,
        message=message or f"{field} is {found}; allowed is {allowed}.",
        field=field,
        found=found,
        allowed=allowed,
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none exists yet"
