"""Condition lists as they should be after a change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from serried.api.kueue import Admission, AdmissionCheckState, EvictionCount, Workload
from serried.api.meta import Condition, condition_is, find_condition
from serried.api.names import CheckState, WorkloadCondition

_MESSAGE_LIMIT = 32768


def merged(existing: Sequence[Condition], changes: Iterable[Condition], now: datetime) -> list[Condition]:
    """`existing` with `changes` put in by type; the transition time moves only when the status does."""
    result = {c.type: c for c in existing}
    for change in changes:
        old = result.get(change.type)
        moved = old is None or old.status != change.status or old.last_transition_time is None
        result[change.type] = msgspec.structs.replace(
            change,
            message=change.message[:_MESSAGE_LIMIT],
            last_transition_time=now.replace(microsecond=0) if moved else old.last_transition_time if old else None,
        )
    return list(result.values())


def same(existing: Sequence[Condition], change: Condition) -> bool:
    """Whether the condition already says this."""
    old = find_condition(existing, change.type)
    return old is not None and (old.status, old.reason, old.message) == (
        change.status,
        change.reason,
        change.message[:_MESSAGE_LIMIT],
    )


def status_patch(
    workload: Workload,
    changes: Iterable[Condition],
    now: datetime,
    *,
    admission: Admission | Literal[False] | None = False,
    checks: Sequence[AdmissionCheckState] = (),
) -> dict[str, Any]:
    """The merge patch of a Workload's status: conditions, the admission where it is given (None takes it away), and
    the states of its admission checks where they are given. An eviction that is new is counted."""
    generation = workload.metadata.generation
    stamped = [msgspec.structs.replace(c, observed_generation=generation) for c in changes]
    status: dict[str, Any] = {"conditions": merged(workload.status.conditions, stamped, now)}
    if admission is not False:
        status["admission"] = admission
        if admission is not None and workload.status.resource_requests:
            status["resourceRequests"] = None  # what it uses is in the admission
    if not condition_is(workload.status.conditions, WorkloadCondition.EVICTED):
        for change in stamped:
            if (change.type, change.status) == (WorkloadCondition.EVICTED, "True"):
                status["schedulingStats"] = {"evictions": _counted(workload, change.reason)}
    if checks:
        stamp = now.replace(microsecond=0)
        status["admissionChecks"] = [
            msgspec.structs.replace(c, last_transition_time=c.last_transition_time or stamp) for c in checks
        ]
    return {"metadata": {"resourceVersion": workload.metadata.resource_version}, "status": msgspec.to_builtins(status)}


def _counted(workload: Workload, reason: str) -> list[EvictionCount]:
    """How often it was evicted for which reason, once more for this one."""
    stats = workload.status.scheduling_stats
    counts = {(c.reason, c.underlying_cause): c for c in (stats.evictions if stats is not None else ())}
    before = counts.get((reason, ""))
    counts[reason, ""] = EvictionCount(reason=reason, count=(before.count if before is not None else 0) + 1)
    return list(counts.values())


def reserved(cluster_queue: str, waited: float, note: str = "") -> Condition:
    """Quota is reserved, and a place where there is a topology."""
    text = f"Quota reserved in ClusterQueue {cluster_queue}, wait time was {waited:.0f}s"
    if note:
        text += f". {note}"
    return Condition(type=WorkloadCondition.QUOTA_RESERVED, status="True", reason="QuotaReserved", message=text)


def admitted(cluster_queue: str) -> Condition:
    """All that it needs is reserved, and all its checks are ready."""
    return Condition(
        type=WorkloadCondition.ADMITTED,
        status="True",
        reason="Admitted",
        message=f"Admitted by ClusterQueue {cluster_queue}",
    )


def requeued(workload: Workload) -> list[Condition]:
    """What an admission says of an eviction before it: that it is over. As in Kueue, the old message is kept."""
    over = []
    for type in (WorkloadCondition.EVICTED, WorkloadCondition.PREEMPTED):
        old = find_condition(workload.status.conditions, type)
        if old is not None and old.status == "True":
            message = f"Previously: {old.message}"
            over.append(Condition(type=type, status="False", reason="QuotaReserved", message=message))
    return over


def pending(reason: str, message: str) -> Condition:
    return Condition(type=WorkloadCondition.QUOTA_RESERVED, status="False", reason=reason, message=message)


def finished(succeeded: bool, message: str, reason: str = "") -> Condition:
    """It is over; without a `reason` of its own as Succeeded or Failed."""
    return Condition(
        type=WorkloadCondition.FINISHED,
        status="True",
        reason=reason or ("Succeeded" if succeeded else "Failed"),
        message=message or ("Job finished successfully" if succeeded else "Job failed"),
    )


def evicted(reason: str, message: str) -> Condition:
    """It has to go: its job is stopped, then it gives back what it holds and waits anew."""
    return Condition(type=WorkloadCondition.EVICTED, status="True", reason=reason, message=message)


def preempted(reason: str, message: str) -> Condition:
    """It has to go for another workload."""
    return Condition(type=WorkloadCondition.PREEMPTED, status="True", reason=reason, message=message)


def release_patch(workload: Workload, message: str, now: datetime) -> dict[str, Any]:
    """The merge patch that gives back quota and places; admission checks begin anew."""
    released = [
        Condition(type=WorkloadCondition.QUOTA_RESERVED, status="False", reason="Pending", message=message),
        Condition(type=WorkloadCondition.ADMITTED, status="False", reason="NoReservation", message=message),
    ]
    if condition_is(workload.status.conditions, WorkloadCondition.PODS_READY):
        released.append(pods_ready(False))
    checks = [
        msgspec.structs.replace(
            check,
            state=CheckState.PENDING,
            message=f"Reset to Pending after eviction. Previously: {check.state}",
            last_transition_time=None,
            pod_set_updates=(),
        )
        for check in workload.status.admission_checks
    ]
    return status_patch(workload, released, now, admission=None, checks=checks)


def pods_ready(ready: bool) -> Condition:
    return Condition(
        type=WorkloadCondition.PODS_READY,
        status="True" if ready else "False",
        reason="Started" if ready else "WaitForRecovery",
        message="All pods reached readiness" if ready else "At least one pod is not ready any more",
    )
