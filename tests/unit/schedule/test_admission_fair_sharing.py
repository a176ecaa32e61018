"""Admission fair sharing: what LocalQueues have used lately, how it fades, and that it is not forgotten."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from serried.api.duration import Duration
from serried.api.kueue import LocalQueue, LocalQueueStatus
from serried.api.meta import Key
from serried.schedule.engine import Engine
from serried.schedule.types.options import AdmissionFairSharing, Options
from tests.unit.schedule.objects import (
    GPU,
    NS,
    at,
    cluster_queue,
    feed,
    finished,
    flavor,
    local_queue,
    run,
    with_admission,
    workload,
)

A: Key = (NS, "a")


def sharing(half_life: float = 100, interval: float = 10, **weights: float) -> Engine:
    """A ClusterQueue in which usage counts, with the LocalQueues a and b."""
    config = AdmissionFairSharing(
        usage_half_life_time=Duration(half_life), usage_sampling_interval=Duration(interval), resource_weights=weights
    )
    result = Engine(options=Options(admission_fair_sharing=config))
    result.set_namespace(NS, {})
    scope: dict[str, Any] = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
    quota = cluster_queue(flavors={"f": {"cpu": 8, "memory": "1Ti", GPU: 8}}, **scope)
    for item in (flavor("f"), quota, local_queue("a"), local_queue("b")):
        feed(result, item)
    return result


def holds(engine: Engine, name: str, queue: str = "a", **requests: Any) -> Any:
    """A workload that has been admitted; returns it as the API server has it."""
    pending = workload(name, queue=queue, **requests)
    feed(engine, pending)
    (admit,) = [d for d in engine.cycle(at(0)).decisions if d.key[1] == name]
    held = with_admission(pending, admit.admission)
    engine.set_workload(held)
    return held


def consumed(engine: Engine, key: Key = A) -> dict[str, Any]:
    status = engine.status(key)
    assert isinstance(status, LocalQueueStatus)
    assert status.fair_sharing is not None
    assert status.fair_sharing.admission_fair_sharing_status is not None
    return dict(status.fair_sharing.admission_fair_sharing_status.consumed_resources)


def remembered(name: str, seconds: float, **consumed: str) -> LocalQueue:
    """A LocalQueue whose status was written so many seconds after the start."""
    body = msgspec.to_builtins(local_queue(name))
    past = {"consumedResources": consumed, "lastUpdate": at(seconds).isoformat()}
    body["status"] = {"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": past}}
    return msgspec.convert(body, LocalQueue)


def test_what_was_used_counts_half_after_the_half_life() -> None:
    engine = sharing(half_life=100)
    feed(engine, remembered("past", 0, cpu="8", memory="2Gi"))
    engine.cycle(at(100))
    assert consumed(engine, (NS, "past")) == {"cpu": "4", "memory": str(2**30)}
    engine.cycle(at(300))
    assert consumed(engine, (NS, "past")) == {"cpu": "1", "memory": str(2**28)}


def test_what_is_held_counts_more_and_more() -> None:
    engine = sharing(half_life=100)
    feed(engine, remembered("past", 0, cpu="8"))
    held = holds(engine, "w", "past", cpu=4)
    before = float(consumed(engine, (NS, "past"))["cpu"].removesuffix("m")) / 1000
    assert before == pytest.approx(8 + 4 * (1 - 0.5**0.1), abs=0.001)  # the admission counts at once
    engine.cycle(at(100))
    after = float(consumed(engine, (NS, "past"))["cpu"].removesuffix("m")) / 1000
    assert after == pytest.approx(before / 2 + 2, abs=0.001)
    engine.set_workload(finished(held))
    engine.cycle(at(5000))
    assert consumed(engine, (NS, "past")) == {}


def test_a_queue_of_which_nothing_is_known_counts_as_if_it_had_always_held_what_it_holds() -> None:
    first = sharing()
    held = holds(first, "w", cpu=4)
    again = sharing()
    again.set_workload(held)
    again.cycle(at(50))
    assert consumed(again) == {"cpu": "4"}


def test_usage_is_worked_out_once_every_interval() -> None:
    engine = sharing(interval=10)
    assert engine.wake_at is None
    engine.cycle(at(0))
    assert engine.wake_at == at(10)
    feed(engine, remembered("past", 0, cpu="8"))
    engine.queues_changed()
    engine.cycle(at(9))
    assert consumed(engine, (NS, "past")) == {"cpu": "8"}
    assert not engine.has_news
    engine.cycle(at(10))
    assert engine.queues_changed() == {(NS, "past")}
    assert engine.wake_at == at(20)


def test_the_status_brings_a_new_engine_to_where_the_old_one_was() -> None:
    old = sharing()
    holds(old, "w", cpu=6)
    old.cycle(at(40))
    status = old.status(A)
    new = sharing()
    new.delete_local_queue(A)
    body = {**msgspec.to_builtins(local_queue("a")), "status": msgspec.to_builtins(status)}
    feed(new, msgspec.convert(body, LocalQueue))
    feed(new, workload("a1", queue="a", cpu=8, created=1))
    feed(new, workload("b1", queue="b", cpu=8, created=2))
    assert run(new, 50) == ["b1"]


def test_weights_of_resources_and_of_queues_count() -> None:
    engine = sharing(cpu=2, memory=0)
    for name, weight in (("light", 1), ("heavy", 4), ("nothing", 0)):
        body = msgspec.to_builtins(remembered(name, 0, cpu="8", memory="64Gi"))
        body["spec"]["fairSharing"] = {"weight": weight}
        feed(engine, msgspec.convert(body, LocalQueue))

    def share(name: str) -> int:
        status = engine.status((NS, name))
        assert isinstance(status, LocalQueueStatus)
        assert status.fair_sharing is not None
        return status.fair_sharing.weighted_share

    assert (share("light"), share("heavy"), share("nothing")) == (8 * 2, 8 * 2 // 4, 2**63 - 1)


def test_a_half_life_of_nothing_remembers_nothing() -> None:
    engine = sharing(half_life=0)
    feed(engine, remembered("past", 0, cpu="8"))
    holds(engine, "w", cpu=4)
    engine.cycle(at(10))
    assert consumed(engine, (NS, "past")) == consumed(engine) == {}


def test_a_queue_that_is_deleted_is_forgotten() -> None:
    engine = sharing()
    feed(engine, remembered("past", 0, cpu="8"))
    engine.delete_local_queue((NS, "past"))
    feed(engine, local_queue("past"))
    engine.cycle(at(0))
    assert consumed(engine, (NS, "past")) == {}


def test_what_cannot_be_read_counts_as_nothing() -> None:
    engine = sharing()
    feed(engine, remembered("past", 500, cpu="8", memory="lots", gpu="-3"))  # from a clock that is ahead, too
    engine.cycle(at(0))
    assert consumed(engine, (NS, "past")) == {"cpu": "8"}


def test_without_the_option_nothing_is_said() -> None:
    engine = Engine()
    feed(engine, remembered("past", 0, cpu="8"))
    status = engine.status((NS, "past"))
    assert isinstance(status, LocalQueueStatus)
    assert status.fair_sharing is None
    assert engine.wake_at is None


@each(
    past=st.integers(0, 1000),
    held=st.integers(0, 8),
    times=st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True),
)
def test_usage_is_the_same_however_often_it_is_worked_out(past: int, held: int, times: list[int]) -> None:
    """And it lies between what was used before and what is held now, the nearer to this the later."""
    amounts = []
    for stops in (sorted(times), [max(times)]):
        engine = sharing(half_life=100, interval=1)
        engine.delete_local_queue(A)
        if held:
            feed(engine, local_queue("a"))
            body = holds(engine, "w", cpu=held)
            engine = sharing(half_life=100, interval=1)
            engine.delete_local_queue(A)
            engine.set_workload(body)
        feed(engine, remembered("a", 0, cpu=str(past)))
        for time in stops:
            engine.cycle(at(time))
        amounts.append(engine.inspect().local_usage(A).get("cpu", 0.0))
    often, once = amounts
    keeps = 0.5 ** (max(times) / 100)
    assert once == pytest.approx(past * keeps + held * (1 - keeps), abs=0.001)
    assert often == pytest.approx(once, abs=0.01)


def test_an_explanation_counts_those_ahead_by_usage() -> None:
    engine = sharing()
    feed(engine, remembered("past", 0, cpu="8"))
    holds(engine, "w", "b", cpu=8)
    for name, queue in (("p0", "past"), ("a0", "a"), ("a1", "a")):
        feed(engine, workload(name, queue=queue, cpu=8))
    engine.cycle(at(0))
    found = engine.explain((NS, "p0"), at(0))
    assert found is not None
    assert (found.ahead, found.ahead_of_it) == (2, [f"{NS}/a0", f"{NS}/a1"])
    first = engine.explain((NS, "a0"), at(0))
    assert first is not None
    assert first.ahead == 0


def test_an_admission_that_is_refused_does_not_count() -> None:
    engine = sharing()
    engine.cycle(at(0))
    feed(engine, workload("w", queue="a", cpu=4))
    (admit,) = engine.cycle(at(1)).decisions
    assert consumed(engine) != {}
    engine.withdraw(admit.key)
    assert consumed(engine) == {}


def test_a_clock_that_is_set_back_does_not_stop_the_sampling() -> None:
    given = sharing()
    holds(given, "w", cpu=4)
    given.cycle(at(10_000))
    before = consumed(given)
    given.cycle(at(0))
    assert (consumed(given), given.wake_at) == (before, at(10))
    holds(given, "b", "b", cpu=4)
    given.cycle(at(110))
    b = given.status((NS, "b"))
    assert isinstance(b, LocalQueueStatus)
    assert b.fair_sharing is not None
    assert b.fair_sharing.admission_fair_sharing_status is not None
    assert b.fair_sharing.admission_fair_sharing_status.last_update == at(110)
