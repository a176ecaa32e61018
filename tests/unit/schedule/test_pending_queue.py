"""Pending workloads wait in order; only those that could fit are looked at."""

from __future__ import annotations

import pytest

from serried.schedule.state.pending_queue import PendingQueue, Scan, Unschedulable
from serried.schedule.state.sweep import Sweep
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order


def order(position: int) -> Order:
    return (0, float(position), "uid", "team", f"w{position}")


def refused(
    blocked_on: Changed = Changed.RELEASED, *, never: bool = False, code: str = "WaitingForQuota"
) -> Unschedulable:
    return Unschedulable(Reason(layer="quota", code=code, message="no"), blocked_on | Changed.QUOTAS, never)


def queue(*classes: str, strict: bool = False) -> PendingQueue:
    result = PendingQueue(Sweep(), strict=strict)
    for i, name in enumerate(classes):
        result.add(order(i), name.encode())
    return result


def looked_at(pending: PendingQueue, outcome: Unschedulable) -> list[int]:
    """Refuses each candidate in turn; their positions."""
    seen = []
    while (head := pending.head()) is not None:
        seen.append(int(head[1]))
        pending.block(head, outcome)
    return seen


def test_best_effort_looks_at_the_first_of_each_class() -> None:
    pending = queue("a", "a", "b", "a", "b", "c")
    assert looked_at(pending, refused()) == [0, 2, 5]
    assert len(pending) == 6


def test_nobody_is_looked_at_again_before_what_it_is_blocked_on_changes() -> None:
    pending = queue("a", "b")
    pending.block(order(0), refused(Changed.RELEASED))
    pending.block(order(1), refused(Changed.NODES))
    assert pending.head() is None
    pending.changed(Changed.NODES)
    assert looked_at(pending, refused(Changed.RELEASED | Changed.NODES)) == [1]
    pending.changed(Changed.RELEASED)
    assert looked_at(pending, refused()) == [0, 1]
    pending.changed(Changed.NODES)
    assert pending.head() is None
    pending.changed(Changed.QUOTAS)
    assert looked_at(pending, refused()) == [0, 1]


def test_an_arrival_of_an_unschedulable_class_is_unschedulable_too() -> None:
    pending = queue("a")
    looked_at(pending, refused())
    pending.add(order(-1), b"a")
    assert pending.head() is None
    assert pending.unschedulable(order(-1)) is not None
    pending.add(order(5), b"b")
    assert pending.head() == order(5)


def test_after_the_first_of_a_class_left_the_next_is_looked_at() -> None:
    pending = queue("a", "b", "a")
    pending.remove(order(0))
    assert looked_at(pending, refused()) == [1, 2]


def test_one_that_is_refused_for_a_reason_of_its_own_is_a_class_by_itself() -> None:
    pending = queue("a", "a", "a")
    pending.separate(order(0))
    assert looked_at(pending, refused(Changed.NODES)) == [0, 1]
    pending.separate(order(0))
    pending.changed(Changed.NODES)
    assert looked_at(pending, refused(Changed.NODES)) == [0, 1]
    pending.remove(order(0))
    assert len(pending) == 2


def test_strict_fifo_stops_behind_the_first_that_does_not_fit() -> None:
    pending = queue("a", "b", "a", strict=True)
    assert looked_at(pending, refused()) == [0]
    assert pending.holder() == order(0)
    assert pending.position(order(2)) == 2
    assert pending.ahead(order(2), 5) == [order(0), order(1)]
    assert pending.ahead(order(2), 1) == [order(1)]
    pending.remove(order(0))
    assert looked_at(pending, refused()) == [1]


def test_strict_fifo_still_looks_at_what_arrives_ahead() -> None:
    pending = queue("a", "b", strict=True)
    looked_at(pending, refused())
    pending.add(order(-1), b"c")
    assert looked_at(pending, refused()) == [-1]
    pending.remove(order(-1))
    assert pending.holder() == order(0)
    assert pending.head() is None


def test_strict_fifo_keeps_holding_back_when_only_the_one_ahead_is_looked_at_again() -> None:
    pending = queue("a", "b", "c", strict=True)
    pending.block(order(0), refused(Changed.NODES))
    pending.add(order(-1), b"d")
    pending.block(order(-1), refused(Changed.RELEASED))
    pending.changed(Changed.RELEASED)
    assert pending.head() == order(-1)
    pending.remove(order(-1))
    assert pending.head() is None


def test_in_strict_fifo_what_can_never_fit_steps_aside() -> None:
    pending = queue("a", "b", "c", strict=True)
    pending.block(order(0), refused(never=True))
    assert pending.head() == order(1)
    pending.block(order(1), refused())
    assert pending.head() is None


def test_all_of_a_class_are_told_a_new_kind_of_reason_but_only_the_first_new_numbers() -> None:
    pending = queue("a", "a")
    assert pending.block(order(0), refused()) == [order(0), order(1)]
    pending.changed(Changed.QUOTAS)
    assert pending.block(order(0), refused()) == [order(0)]
    pending.changed(Changed.QUOTAS)
    assert pending.block(order(0), refused(code="TopologyPlacementFailed")) == [order(0), order(1)]


@pytest.mark.parametrize("strict", [False, True])
def test_waiting_long_costs_no_memory(strict: bool) -> None:
    pending = queue("a", "b", "c", strict=strict)
    for _ in range(1000):
        looked_at(pending, refused())
        pending.changed(Changed.RELEASED)
    assert len(pending._active) + len(pending._holding) < 200
    assert pending.head() == order(0)


def test_a_scan_of_flavors_goes_on_where_it_stopped_until_anything_changes() -> None:
    pending = queue("a", "b")
    scan = Scan({(0, "cpu"): 1}, refused())
    pending.pause(order(0), scan)
    assert pending.scan(order(0)) == scan
    pending.changed(Changed.NODES)
    assert pending.scan(order(0)) is None
    pending.pause(order(0), scan)
    pending.block(order(0), refused())
    assert pending.scan(order(0)) is None
    pending.pause(order(1), scan)
    pending.remove(order(1))
    pending.add(order(1), b"b")
    assert pending.scan(order(1)) is None
