"""Condition lists as they should be after a change. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from serried.api.kueue import Admission, Workload
from serried.api.meta import Condition, find_condition
from serried.api.names import WorkloadCondition

_MESSAGE_LIMIT = 32768


def merged(existing: list[Condition], changes: Iterable[Condition], now: datetime) -> list[Condition]:
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


def same(existing: list[Condition], change: Condition) -> bool:
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
) -> dict[str, Any]:
    """The merge patch of a Workload's status: conditions, and the admission where it is given (None takes it away)."""
    generation = workload.metadata.generation
    stamped = [msgspec.structs.replace(c, observed_generation=generation) for c in changes]
    status: dict[str, Any] = {"conditions": merged(workload.status.conditions, stamped, now)}
    if admission is not False:
        status["admission"] = admission
    return {"metadata": {"resourceVersion": workload.metadata.resource_version}, "status": msgspec.to_builtins(status)}


def admitted(cluster_queue: str, waited: float, note: str = "") -> list[Condition]:
    """Quota and a place are reserved; there are no further checks, so it is admitted at once."""
    text = f"Quota reserved in ClusterQueue {cluster_queue}, wait time was {waited:.0f}s"
    if note:
        text += f". {note}"
    return [
        Condition(type=WorkloadCondition.QUOTA_RESERVED, status="True", reason="QuotaReserved", message=text),
        Condition(
            type=WorkloadCondition.ADMITTED,
            status="True",
            reason="Admitted",
            message=f"Admitted by ClusterQueue {cluster_queue}",
        ),
    ]


def requeued(workload: Workload) -> list[Condition]:
    """What an admission says of an eviction before it: that it is over. As in Kueue, the old message is kept."""
    old = find_condition(workload.status.conditions, WorkloadCondition.EVICTED)
    if old is None or old.status != "True":
        return []
    message = f"Previously: {old.message}"
    return [Condition(type=WorkloadCondition.EVICTED, status="False", reason="QuotaReserved", message=message)]


def pending(reason: str, message: str) -> Condition:
    return Condition(type=WorkloadCondition.QUOTA_RESERVED, status="False", reason=reason, message=message)


def finished(succeeded: bool, message: str) -> Condition:
    return Condition(
        type=WorkloadCondition.FINISHED,
        status="True",
        reason="Succeeded" if succeeded else "Failed",
        message=message or ("Job finished successfully" if succeeded else "Job failed"),
    )


def evicted(reason: str, message: str) -> list[Condition]:
    """Quota and place are given back; the job is suspended and waits anew."""
    return [
        Condition(type=WorkloadCondition.EVICTED, status="True", reason=reason, message=message),
        Condition(type=WorkloadCondition.QUOTA_RESERVED, status="False", reason="Pending", message=message),
        Condition(type=WorkloadCondition.ADMITTED, status="False", reason="NoReservation", message=message),
    ]


def pods_ready(ready: bool) -> Condition:
    return Condition(
        type=WorkloadCondition.PODS_READY,
        status="True" if ready else "False",
        reason="Started" if ready else "WaitForRecovery",
        message="All pods reached readiness" if ready else "At least one pod is not ready any more",
    )
