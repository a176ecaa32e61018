"""A cycle whose time is up leaves the rest to the next one: nobody is forgotten, and nobody is served out of order."""

from __future__ import annotations

from typing import Any

from serried.schedule.engine import Engine
from tests.unit.schedule.objects import at, cluster_queue, engine, feed, finished, flavor, local_queue, workload


def looked_at(given: Engine) -> list[str]:
    """One cycle that has no time at all: who was admitted, or else told why it waits."""
    cycle = given.cycle(at(0), spent=lambda: True)
    given.validate()
    return [a.key[1] for a in cycle.decisions] + [w.key[1] for w in cycle.waits]


def one_queue(cpu: int, **spec: Any) -> Engine:
    return engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": cpu}}, **spec), local_queue())


def test_one_candidate_is_looked_at_however_little_time_there_is() -> None:
    given = one_queue(2)
    for i in range(4):
        feed(given, workload(f"w{i}", cpu=1, created=i))
    assert [looked_at(given) for _ in range(2)] == [["w0"], ["w1"]]
    # The others are of one class, so one look is enough for both.
    assert looked_at(given) == ["w2", "w3"]
    assert not given.dirty


def test_changes_that_come_faster_than_everyone_can_be_looked_at_starve_nobody() -> None:
    given = one_queue(10)
    running = [workload(f"r{i}", cpu=1, priority=9, created=i) for i in range(10)]
    for each in running:
        feed(given, each)
        looked_at(given)
    for i in range(5):
        feed(given, workload(f"w{i}", cpu=10 - i, memory=0, created=20 + i))
    seen = []
    for each in running[:5]:
        seen += looked_at(given)
        # It gives back what everyone waits for, and is there again at once.
        feed(given, finished(each))
        feed(given, workload(each.metadata.name + "-again", cpu=1, priority=9, created=0))
        seen += looked_at(given)
    assert {f"w{i}" for i in range(5)} <= set(seen)


def test_whoever_was_looked_at_already_comes_before_one_behind_it_that_fits() -> None:
    given = one_queue(4)
    running = workload("running", cpu=3)
    feed(given, running)
    looked_at(given)
    feed(given, workload("first", cpu=4, created=1))
    feed(given, workload("second", cpu=3, created=2))
    feed(given, workload("third", cpu=2, created=3))
    assert looked_at(given) == ["first"]
    # What it waits for comes free before the cycles have got to those behind it.
    feed(given, finished(running))
    assert looked_at(given) == []
    assert looked_at(given) == ["first"]
    assert [looked_at(given) for _ in range(2)] == [["second"], ["third"]]
    assert not given.dirty


def test_it_is_looked_at_once_more_and_then_the_one_behind_it_is_served() -> None:
    """Somebody ahead may be woken again and again: that keeps nobody from being served for ever."""
    given = one_queue(4)
    feed(given, workload("r0", cpu=3))
    looked_at(given)
    feed(given, workload("first", cpu=4, created=1))
    feed(given, workload("second", cpu=3, created=2))
    feed(given, workload("third", cpu=1, created=3))
    seen = []
    for i in range(6):
        seen += looked_at(given)
        # Each time the running one ends, another one takes its place before anyone is looked at.
        feed(given, finished(workload(f"r{i}", cpu=3)))
        feed(given, workload(f"r{i + 1}", cpu=3, priority=9))
        seen += looked_at(given)
    assert "third" in seen


def test_who_borrows_waits_for_who_does_not_also_over_several_cycles() -> None:
    queues = [cluster_queue(name, flavors={"f": {"cpu": cpu}}, cohortName="c") for name, cpu in (("a", 1), ("b", 3))]
    given = engine(flavor("f"), *queues, local_queue("a", "a"), local_queue("b", "b"))
    feed(given, workload("borrows", queue="a", cpu=2, priority=9))
    feed(given, workload("within", queue="b", cpu=3, created=1))
    assert looked_at(given) == []
    assert looked_at(given) == ["within"]
    assert looked_at(given) == ["borrows"]


def test_a_queue_that_is_woken_all_the_time_keeps_no_other_from_its_turn() -> None:
    given = engine(
        flavor("f"),
        *(cluster_queue(name, flavors={"f": {"cpu": 2}}, cohortName=name) for name in "ab"),
        *(local_queue(name, name) for name in "ab"),
    )
    feed(given, workload("r0", queue="a", cpu=1, priority=9))
    looked_at(given)
    feed(given, workload("waits", queue="a", cpu=2, priority=5))
    feed(given, workload("other", queue="b", cpu=2))
    seen = []
    for i in range(3):
        seen += looked_at(given)
        feed(given, workload(f"r{i + 1}", queue="a", cpu=1, priority=9))
        seen += looked_at(given)
        feed(given, finished(workload(f"r{i}", queue="a", cpu=1)))
    assert "other" in seen
