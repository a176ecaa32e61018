"""Pending workloads wait in order; only those that could fit are looked at."""

from __future__ import annotations

import pytest

from serried.schedule.state.pending_queue import PendingQueue, Unschedulable
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order


def order(position: int) -> Order:
    return (0, float(position), "uid", "team", f"w{position}")


def parked(
    blocked_on: Changed = Changed.RELEASED, *, never: bool = False, code: str = "WaitingForQuota"
) -> Unschedulable:
    return Unschedulable(Reason(layer="quota", code=code, message="no"), blocked_on, never)


def queue(*shapes: str, strict: bool = False) -> PendingQueue:
    result = PendingQueue(strict=strict)
    for i, shape in enumerate(shapes):
        result.add(order(i), shape.encode())
    return result


def looked_at(pending: PendingQueue, outcome: Unschedulable) -> list[int]:
    """Parks each candidate in turn; their positions."""
    seen = []
    while (head := pending.head()) is not None:
        seen.append(int(head[1]))
        pending.park(head, outcome)
    return seen


def test_best_effort_looks_at_the_first_of_each_shape() -> None:
    pending = queue("a", "a", "b", "a", "b", "c")
    assert looked_at(pending, parked()) == [0, 2, 5]
    assert len(pending) == 6


def test_nobody_is_looked_at_again_before_the_help_that_counts() -> None:
    pending = queue("a", "b")
    pending.park(order(0), parked(Changed.RELEASED))
    pending.park(order(1), parked(Changed.NODES))
    assert pending.head() is None
    pending.wake(Changed.NODES)
    assert looked_at(pending, parked(Changed.RELEASED | Changed.NODES)) == [1]
    pending.wake(Changed.RELEASED)
    assert looked_at(pending, parked()) == [0, 1]
    assert not pending.waits_for(Changed.NODES)
    pending.wake_all()
    assert looked_at(pending, parked()) == [0, 1]


def test_an_arrival_of_a_parked_shape_is_parked_with_it() -> None:
    pending = queue("a")
    looked_at(pending, parked())
    pending.add(order(-1), b"a")
    assert pending.head() is None
    assert pending.unschedulable(order(-1)) is not None
    pending.add(order(5), b"b")
    assert pending.head() == order(5)


def test_after_the_first_of_a_shape_left_the_next_is_looked_at() -> None:
    pending = queue("a", "b", "a")
    pending.remove(order(0))
    assert looked_at(pending, parked()) == [1, 2]


def test_strict_fifo_stops_behind_the_first_that_does_not_fit() -> None:
    pending = queue("a", "b", "a", strict=True)
    assert looked_at(pending, parked()) == [0]
    assert pending.holder() == order(0)
    assert pending.position(order(2)) == 2
    assert pending.ahead(order(2), 5) == [order(0), order(1)]
    assert pending.ahead(order(2), 1) == [order(1)]
    pending.remove(order(0))
    assert looked_at(pending, parked()) == [1]


def test_strict_fifo_still_looks_at_what_arrives_ahead() -> None:
    pending = queue("a", "b", strict=True)
    looked_at(pending, parked())
    pending.add(order(-1), b"c")
    assert looked_at(pending, parked()) == [-1]
    pending.remove(order(-1))
    assert pending.holder() == order(0)
    assert pending.head() is None


def test_strict_fifo_keeps_holding_back_when_only_the_one_ahead_was_helped() -> None:
    pending = queue("a", "b", "c", strict=True)
    pending.park(order(0), parked(Changed.NODES))
    pending.add(order(-1), b"d")
    pending.park(order(-1), parked(Changed.RELEASED))
    pending.wake(Changed.RELEASED)
    assert pending.head() == order(-1)
    pending.remove(order(-1))
    assert pending.head() is None


def test_in_strict_fifo_what_can_never_fit_steps_aside() -> None:
    pending = queue("a", "b", "c", strict=True)
    pending.park(order(0), parked(never=True))
    assert pending.head() == order(1)
    pending.park(order(1), parked())
    assert pending.head() is None


def test_all_of_a_shape_are_told_a_new_kind_of_reason_but_only_the_first_new_numbers() -> None:
    pending = queue("a", "a")
    assert pending.park(order(0), parked()) == [order(0), order(1)]
    pending.wake_all()
    assert pending.park(order(0), parked()) == [order(0)]
    pending.wake_all()
    assert pending.park(order(0), parked(code="TopologyPlacementFailed")) == [order(0), order(1)]


@pytest.mark.parametrize("strict", [False, True])
def test_waiting_long_costs_no_memory(strict: bool) -> None:
    pending = queue("a", "b", "c", strict=strict)
    for _ in range(1000):
        looked_at(pending, parked())
        pending.wake(Changed.RELEASED)
    assert len(pending._ready) + len(pending._holding) < 200
    assert pending.head() == order(0)
