"""Who is admitted, in which order, and who has to wait for whom."""

from __future__ import annotations

from datetime import timedelta

import pytest

from serried.schedule.engine import Engine
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    finished,
    flavor,
    local_queue,
    node,
    pod,
    pod_set,
    run,
    topology,
    with_admission,
    workload,
)


def cpus(nominal: int = 10, *, strict: bool = False) -> Engine:
    return engine(flavor("default"), cluster_queue(flavors={"default": {"cpu": nominal}}, strict=strict), local_queue())


def reasons(given: Engine) -> dict[str, str]:
    """Name → code of all that are told something in the next cycle."""
    return {wait.key[1]: wait.reason.code for wait in given.cycle(at(0)).waits}


def test_an_admission_carries_all_that_is_written() -> None:
    given = cpus()
    feed(given, workload("w", pod_set(2, cpu="1500m"), created=10, version=7))
    cycle = given.cycle(at(52))
    (admit,) = cycle.decisions
    assert (admit.key, admit.uid, admit.resource_version, admit.waited) == ((NS, "w"), "uid-w", "7", 42.0)
    assert admit.admission.cluster_queue == "cq"
    (assignment,) = admit.admission.pod_set_assignments
    assert (assignment.name, assignment.count, assignment.topology_assignment) == ("main", 2, None)
    assert (assignment.flavors, assignment.resource_usage) == ({"cpu": "default"}, {"cpu": "3"})
    assert (cycle.waits, cycle.more) == ([], False)


def test_higher_priority_then_older_goes_first() -> None:
    given = cpus(3)
    for name, created, priority in (("young", 9, 0), ("old", 1, 0), ("urgent", 5, 10), ("lazy", 0, -1)):
        feed(given, workload(name, cpu=1, created=created, priority=priority))
    assert run(given) == ["urgent", "old", "young"]


def test_best_effort_goes_past_what_does_not_fit() -> None:
    given = cpus(4)
    for i, cpu in enumerate((3, 2, 1)):
        feed(given, workload(f"w{i}", cpu=cpu, created=i))
    assert run(given) == ["w0", "w2"]


def test_strict_stops_there_and_goes_on_once_it_fits() -> None:
    given = cpus(4, strict=True)
    first = workload("w0", cpu=3)
    feed(given, first)
    for i, cpu in ((1, 2), (2, 1)):
        feed(given, workload(f"w{i}", cpu=cpu, created=i))
    cycle = given.cycle(at(0))
    assert [a.key[1] for a in cycle.decisions] == ["w0"]
    told = {w.key[1]: w.reason for w in cycle.waits}
    assert (told["w1"].code, told["w2"].code) == ("WaitingForQuota", "Pending")
    assert "StrictFIFO" in told["w2"].message
    assert "team/w1" in told["w2"].message
    feed(given, finished(first))
    assert run(given) == ["w1", "w2"]


def test_in_strict_what_can_never_fit_holds_nobody_back() -> None:
    given = cpus(4, strict=True)
    feed(given, workload("huge", cpu=5))
    feed(given, workload("wrong", cpu="many", created=1))
    feed(given, workload("other", memory="1Gi", created=2))
    feed(given, workload("good", cpu=4, created=3))
    cycle = given.cycle(at(0))
    assert [a.key[1] for a in cycle.decisions] == ["good"]
    codes = {w.key[1]: w.reason.code for w in cycle.waits}
    assert codes == {"huge": "ExceedsMaxQuota", "wrong": "Misconfigured", "other": "NoMatchingFlavor"}


def test_what_could_fit_on_empty_nodes_holds_back_in_strict_even_while_pods_of_others_linger() -> None:
    """The workload before has ended, but its pods are still being stopped: that is no reason to be overtaken."""
    queue = cluster_queue(flavors={"h100": {GPU: 64}}, strict=True)
    given = engine(topology(), flavor("h100", "fabric"), queue, local_queue(), node("n0"), node("n1"))
    before = workload("before", pod_set(2, required=RACK, ours=True, gpu=8))
    feed(given, before)
    assert run(given) == ["before"]
    for name in ("n0", "n1"):
        running = pod(f"before-{name}", name, 8)
        running.metadata.namespace = NS
        running.metadata.annotations = {"kueue.x-k8s.io/workload": "before"}
        running.metadata.labels = {"kueue.x-k8s.io/podset": "main"}
        feed(given, running)
    feed(given, finished(before))
    feed(given, workload("big", pod_set(2, required=RACK, ours=True, gpu=8), created=1))
    feed(given, workload("small", pod_set(1, ours=True, gpu=8), created=2))
    assert run(given) == []
    given.delete_pod((NS, "before-n0"))
    assert run(given) == []
    given.delete_pod((NS, "before-n1"))
    assert run(given) == ["big"]


def test_queues_take_turns_by_priority_and_age_of_their_next() -> None:
    given = engine(topology(), flavor("h100", "fabric"), *(node(f"n{i}") for i in range(3)))
    for name in ("a", "b"):
        feed(given, cluster_queue(name, {"h100": {GPU: 64}}))
        feed(given, local_queue(f"lq-{name}", name))
    for name, queue, created, priority in (
        ("a1", "a", 1, 0),
        ("a2", "a", 4, 0),
        ("b1", "b", 2, 0),
        ("b2", "b", 3, 0),
        ("b0", "b", 9, 1),
    ):
        sets = pod_set(1, ours=True, gpu=8)
        feed(given, workload(name, sets, queue=f"lq-{queue}", created=created, priority=priority))
    assert run(given) == ["b0", "a1", "b1"]


def test_what_one_takes_the_next_sees_in_the_same_cycle() -> None:
    given = engine(topology(), flavor("h100", "fabric"), *(node(f"n{i}") for i in range(4)))
    for name in ("a", "b", "c"):
        feed(given, cluster_queue(name, {"h100": {GPU: 64}}))
        feed(given, local_queue(f"lq-{name}", name))
        feed(given, workload(name, pod_set(2, required=RACK, ours=True, gpu=8), queue=f"lq-{name}"))
    cycle = given.cycle(at(0))
    places = [a.admission.pod_set_assignments[0].topology_assignment for a in cycle.decisions]
    assert [a.key[1] for a in cycle.decisions] == ["a", "b"]
    assert places[0] != places[1]
    assert [w.key[1] for w in cycle.waits] == ["c"]


def test_a_cycle_stops_at_its_limit_and_the_next_goes_on() -> None:
    given = cpus(10)
    for i in range(5):
        feed(given, workload(f"w{i}", cpu=1, created=i))
    admitted = []
    for more in (True, True, False):
        cycle = given.cycle(at(0), limit=2)
        assert cycle.more is more
        assert given.dirty is more
        admitted += [a.key[1] for a in cycle.decisions]
    assert admitted == [f"w{i}" for i in range(5)]


def test_a_thousand_of_one_class_cost_one_look() -> None:
    given = cpus(1)
    feed(given, workload("first", cpu=1))
    for i in range(1000):
        feed(given, workload(f"w{i}", cpu=1, created=1 + i))
    cycle = given.cycle(at(0), limit=2)
    assert len(cycle.decisions) == 1
    assert cycle.more is False
    assert len(cycle.waits) == 1000
    assert not given.dirty


def test_far_back_in_the_queue_new_numbers_alone_are_not_worth_a_message() -> None:
    given = cpus(100)
    first = workload("first", cpu=60)
    feed(given, first)
    feed(given, workload("second", cpu=40, created=1))
    for i in range(100):
        feed(given, workload(f"w{i:02}", cpu=61 + i % 40, memory=0, created=2 + i))
    assert len(given.cycle(at(0)).waits) == 100
    feed(given, finished(first))
    told = [wait.key[1] for wait in given.cycle(at(0)).waits]
    assert told == [f"w{i:02}" for i in range(16)]


class TestRetries:
    """Whoever waits is looked at again when, and only when, something changed that could help."""

    @pytest.fixture
    def given(self) -> Engine:
        queue = cluster_queue(flavors={"h100": {GPU: 16}})
        result = engine(topology(), flavor("h100", "fabric"), queue, local_queue(), node("n0"))
        feed(result, workload("quota", pod_set(3, gpu=8)))
        feed(result, workload("nodes", pod_set(2, required=RACK, ours=True, gpu=8), created=1))
        assert reasons(result) == {"quota": "ExceedsMaxQuota", "nodes": "TopologyPlacementFailed"}
        assert not result.dirty
        return result

    def test_nothing_relevant(self, given: Engine) -> None:
        feed(given, node("n0"))
        feed(given, local_queue("other"))
        feed(given, flavor("unused"))
        feed(given, workload("nodes", pod_set(2, required=RACK, ours=True, gpu=8), created=1, version=2))
        assert not given.dirty

    def test_a_node(self, given: Engine) -> None:
        feed(given, node("n1"))
        assert given.dirty
        assert run(given) == ["nodes"]

    def test_a_quota(self, given: Engine) -> None:
        feed(given, cluster_queue(flavors={"h100": {GPU: 24}}))
        for name in ("n1", "n2"):
            feed(given, node(name))
        assert run(given) == ["quota"]

    def test_a_pod_that_is_not_ours(self) -> None:
        queue = cluster_queue(flavors={"h100": {GPU: 16}})
        given = engine(topology(), flavor("h100", "fabric"), queue, local_queue(), node("n0"), pod("p", "n0", 1))
        feed(given, workload("w", pod_set(1, required=RACK, ours=True, gpu=8)))
        assert run(given) == []
        feed(given, pod("p", "n0", 1, phase="Succeeded"))
        assert run(given) == ["w"]

    def test_a_flavor(self, given: Engine) -> None:
        feed(given, node("n1", tier="fast"))
        feed(given, flavor("h100", "fabric", nodeLabels={"tier": "fast"}))
        assert run(given) == []
        feed(given, flavor("h100", "fabric"))
        assert run(given) == ["nodes"]


def test_the_same_events_give_the_same_decisions_in_any_hash_order() -> None:
    def story() -> list[str]:
        given = engine(topology(), flavor("h100", "fabric"), *(node(f"n{i}", rack=f"r{i % 3}") for i in range(6)))
        for name in ("a", "b", "c"):
            feed(given, cluster_queue(name, {"h100": {GPU: 16}}))
            feed(given, local_queue(f"lq-{name}", name))
            for i in range(4):
                sets = pod_set(1 + i % 2, ours=True, gpu=8)
                feed(given, workload(f"{name}{i}", sets, queue=f"lq-{name}", created=i))
        return [str(given.cycle(at(1)))]

    assert story() == story()


def test_waiting_is_counted_from_creation_and_never_negative() -> None:
    given = cpus()
    feed(given, workload("w", cpu=1, created=100))
    (admit,) = given.cycle(at(0) - timedelta(days=1)).decisions
    assert admit.waited == 0.0
    feed(given, with_admission(workload("w", cpu=1, created=100), admit.admission))
    given.validate()


def test_what_no_rack_can_hold_steps_aside_also_while_quota_is_short() -> None:
    """In a StrictFIFO queue: it need not wait for quota to be told, and those behind it need not wait for it."""
    engine = Engine()
    engine.set_namespace(NS, {})
    nodes = [node(f"{rack}-{i}", block="a", rack=rack) for rack in ("r0", "r1") for i in range(4)]
    queue = cluster_queue(flavors={"gpu": {GPU: 48}}, strict=True)
    for item in [*nodes, topology(), flavor("gpu", topology="fabric"), queue, local_queue()]:
        feed(engine, item)
    feed(engine, workload("first", pod_set(3, gpu=8)))
    assert [d.key[1] for d in engine.cycle(at(0)).decisions] == ["first"]
    feed(engine, workload("never", pod_set(5, required=RACK, gpu=8), created=1))
    feed(engine, workload("third", pod_set(1, gpu=8), created=2))
    cycle = engine.cycle(at(3))
    assert [d.key[1] for d in cycle.decisions] == ["third"]
    (reason,) = [w.reason for w in cycle.waits if w.key[1] == "never"]
    assert reason.code == "TopologyPlacementFailed"
    assert "4 of 5" in reason.message
    # A fifth node for one of the racks is what it can wait for.
    feed(engine, node("r0-4", block="a", rack="r0"))
    waits = {w.key[1]: w.reason.code for w in engine.cycle(at(4)).waits}
    assert waits == {"never": "WaitingForQuota"}
