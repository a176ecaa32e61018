"""Whoever waits is looked at again when what it waits for changes, and not before."""

from __future__ import annotations

from serried.schedule.state.requeue import Requeue
from serried.schedule.types.changed import Changed
from tests.unit.schedule.objects import at

A, B = ("team", "a"), ("team", "b")


def test_a_change_that_nobody_waits_for_costs_nothing() -> None:
    requeue = Requeue()
    requeue.wait("q", Changed.RELEASED, "tree")
    for what, tree in ((Changed.RELEASED, "other"), (Changed.QUOTAS, "tree"), (Changed.NODES, "")):
        requeue.changed(what, tree)
    assert not requeue
    assert requeue.take_changes() == {}


def test_a_queue_is_told_once_of_all_that_has_changed_for_it() -> None:
    requeue = Requeue()
    requeue.wait("q", Changed.RELEASED | Changed.NODES, "tree")
    requeue.wait("r", Changed.NODES, "tree")
    requeue.changed(Changed.RELEASED | Changed.QUOTAS, "tree")
    requeue.changed(Changed.NODES)
    assert requeue
    assert requeue.take_changes() == {"q": Changed.RELEASED | Changed.NODES, "r": Changed.NODES}
    requeue.changed(Changed.NODES)
    assert not requeue


def test_a_workload_that_waited_is_to_be_looked_at() -> None:
    requeue = Requeue()
    requeue.wait(A, Changed.NODES)
    requeue.wait(B, Changed.NODES)
    assert requeue.waits(A, Changed.NODES)
    requeue.forget(B)
    requeue.changed(Changed.NODES)
    requeue.take_changes()
    assert list(requeue.workloads) == [A]
    requeue.forget(A)
    assert not requeue


def test_who_backs_off_comes_back_at_its_last_time_and_once() -> None:
    requeue = Requeue()
    requeue.wait_until(A, at(10))
    requeue.wait_until(A, at(10))
    requeue.wait_until(B, at(5))
    requeue.wait_until(B, at(20))
    assert requeue.next_time == at(5)
    assert requeue.end_backoff(at(9)) == []
    assert requeue.end_backoff(at(20)) == [A, B]
    assert requeue.next_time is None
