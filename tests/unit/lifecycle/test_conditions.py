"""The status of a Workload after a change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from serried.api.kueue import Workload
from serried.lifecycle import conditions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def evicted(workload: Workload, reason: str) -> Any:
    return conditions.status_patch(workload, [conditions.evicted(reason, "go")], NOW)["status"]


def with_status(status: Any) -> Workload:
    return msgspec.convert({"metadata": {"name": "w"}, "status": status}, Workload)


def test_evictions_are_counted_by_their_reasons() -> None:
    status = evicted(Workload(), "Preempted")
    again = conditions.status_patch(with_status(status), [conditions.evicted("NodeFailures", "go")], NOW)
    assert "schedulingStats" not in again["status"]  # it is the same eviction still
    for reason in ("Preempted", "NodeFailures"):
        status["conditions"] = []
        status = evicted(with_status(status), reason)
    assert status["schedulingStats"] == {
        "evictions": [
            {"reason": "Preempted", "underlyingCause": "", "count": 2},
            {"reason": "NodeFailures", "underlyingCause": "", "count": 1},
        ]
    }


def test_what_is_no_eviction_is_not_counted() -> None:
    over = conditions.requeued(with_status(evicted(Workload(), "Preempted")))
    for changes in ([conditions.admitted("cq")], over):
        assert "schedulingStats" not in conditions.status_patch(Workload(), changes, NOW)["status"]
