"""Workloads that hold quota are looked at again: admission checks, lost nodes, draining queues."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.assignment import decode
from serried.api.duration import Duration
from serried.api.kueue import AdmissionCheckState, UnhealthyNode, Workload, WorkloadStatus
from serried.schedule.engine import Engine
from serried.schedule.types.options import AdmissionFairSharing, Options
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    run,
    topology,
    with_admission,
    workload,
)
from tests.unit.schedule.stories import CHECKS, check, reserved, with_checks

BY_USAGE = AdmissionFairSharing(usage_half_life_time=Duration(10), usage_sampling_interval=Duration(1))


def test_quota_is_reserved_first_and_admitted_when_the_checks_are_ready() -> None:
    given = with_checks()
    written = reserved(given, "Ready")
    (admit,) = given.cycle(at(0)).decisions
    assert (admit.kind, admit.admitted, admit.admission) == ("checks", True, written.status.admission)
    # Not again, whatever else changes before it is written.
    given.set_workload(written)
    assert not given.cycle(at(0)).decisions


def test_a_check_that_wants_a_retry_sends_it_back_and_one_that_rejects_it_ends_it() -> None:
    for state, reason, deactivate in (("Retry", "AdmissionCheck", False), ("Rejected", "Deactivated", True)):
        given = with_checks()
        reserved(given, state)
        (evict,) = given.cycle(at(0)).evictions
        assert (evict.reason, evict.deactivate, evict.preempted) == (reason, deactivate, "")
        assert not given.cycle(at(0)).evictions


def test_a_deactivated_one_gives_back_what_it_holds_also_before_its_checks_have_answered() -> None:
    for admitted in (False, True):
        given = with_checks()
        written = msgspec.convert(msgspec.to_builtins(reserved(given, "Pending")), Workload)
        if admitted:
            assert written.status.admission is not None
            written = with_admission(written, written.status.admission, version=10)
            given.set_workload(written)
        assert not given.cycle(at(0)).evictions
        written = msgspec.convert(msgspec.to_builtins(written), Workload)
        written.metadata.resource_version = "11"
        written.spec.active = False
        given.set_workload(written)
        (evict,) = given.cycle(at(0)).evictions
        assert (evict.reason, evict.deactivate) == ("Deactivated", False)
        assert "spec.active is false" in evict.message
        assert not given.cycle(at(0)).evictions
        given.validate()


def test_without_the_check_the_queue_admits_nothing() -> None:
    given = with_checks()
    given.delete_admission_check("budget")
    feed(given, workload("w", cpu=4))
    assert run(given) == []


def test_places_wait_for_nodes_that_are_still_to_be_made() -> None:
    queue = cluster_queue(flavors={"h100": {GPU: 64}}, **CHECKS)
    given = engine(topology(), flavor("h100", "fabric"), queue, local_queue())
    given.set_admission_check(check(controller="kueue.x-k8s.io/provisioning-request"))
    pending = workload("w", pod_set(2, required=RACK, ours=True, gpu=8))
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    (assignment,) = admit.admission.pod_set_assignments
    assert (admit.admitted, assignment.delayed_topology_request, assignment.topology_assignment) == (
        False,
        "Pending",
        None,
    )
    written = with_admission(pending, admit.admission, admitted=False)
    written.status.admission_checks = (AdmissionCheckState(name="budget", state="Ready"),)
    given.set_workload(written)
    assert not given.cycle(at(0)).decisions
    assert not given.dirty, "nothing is tried again until nodes come"
    for name in ("n0", "n1"):
        feed(given, node(name))
    (admit,) = given.cycle(at(0)).decisions
    (assignment,) = admit.admission.pod_set_assignments
    assert (admit.kind, admit.admitted, assignment.delayed_topology_request) == ("topology", True, "Ready")
    given.validate()


def test_places_that_are_refused_are_no_longer_held() -> None:
    queue = cluster_queue(flavors={"h100": {GPU: 64}}, **CHECKS)
    given = engine(topology(), flavor("h100", "fabric"), queue, local_queue())
    given.set_admission_check(check(controller="kueue.x-k8s.io/provisioning-request"))
    pending = workload("w", pod_set(2, required=RACK, ours=True, gpu=8))
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    written = with_admission(pending, admit.admission, admitted=False)
    written.status.admission_checks = (AdmissionCheckState(name="budget", state="Ready"),)
    given.set_workload(written)
    for name in ("n0", "n1"):
        feed(given, node(name))
    assert [a.kind for a in given.cycle(at(0)).decisions] == ["topology"]
    given.withdraw((NS, "w"))
    given.validate()
    assert [a.kind for a in given.cycle(at(0)).decisions] == ["topology"]


def placed(spare: bool) -> tuple[Engine, Workload]:
    """A gang on two of the nodes, one of which is lost; `spare`: there is a third."""
    queue = cluster_queue(flavors={"h100": {GPU: 64}}, preemption={"withinClusterQueue": "LowerPriority"})
    given = engine(topology(), flavor("h100", "fabric"), queue, local_queue())
    for i in range(2 + spare):
        feed(given, node(f"n{i}"))
    pending = workload("w", pod_set(2, required=RACK, ours=True, gpu=8))
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    written = with_admission(pending, admit.admission)
    given.set_workload(written)
    written = msgspec.convert(msgspec.to_builtins(written), Workload)
    written.metadata.resource_version = "9"
    written.status.unhealthy_nodes = (UnhealthyNode(name="n0"),)
    given.set_workload(written)
    return given, written


def test_pods_of_a_lost_node_get_another_one() -> None:
    given, written = placed(spare=True)
    (admit,) = given.cycle(at(0)).decisions
    topology_assignment = admit.admission.pod_set_assignments[0].topology_assignment
    assert topology_assignment is not None
    assert admit.kind == "replacement"
    assert [values[-1] for values, _ in decode(topology_assignment)] == ["n1", "n2"]
    given.validate()
    # An older version that arrives meanwhile changes nothing; a refusal takes the new places back.
    given.set_workload(written)
    assert not given.cycle(at(0)).decisions
    given.withdraw((NS, "w"))
    given.validate()
    (again,) = given.cycle(at(1)).decisions
    assert again.admission == admit.admission
    given.set_workload(with_admission(written, again.admission, version=10))
    given.validate()
    assert not given.cycle(at(1)).decisions


def test_a_refused_replacement_of_a_workload_that_was_preempted_meanwhile_keeps_nobody_waiting() -> None:
    given, written = placed(spare=True)
    feed(given, workload("urgent", pod_set(3, required=BLOCK, ours=True, gpu=8), priority=5, created=1))
    decided = given.cycle(at(0))
    assert [d.kind for d in decided.decisions] == ["replacement"]
    assert [e.key[1] for e in decided.evictions] == ["w"]
    given.withdraw((NS, "w"))
    given.validate()
    evicted = msgspec.convert(msgspec.to_builtins(written), Workload)
    evicted.metadata.resource_version = "10"
    evicted.status = WorkloadStatus()
    given.set_workload(evicted)
    given.validate()
    assert [d.key[1] for d in given.cycle(at(2)).decisions] == ["urgent"]


def test_pods_in_a_flavor_without_topology_get_another_node_too() -> None:
    given = engine(flavor("plain"), cluster_queue(flavors={"plain": {GPU: 64}}), local_queue())
    for i in range(3):
        feed(given, node(f"n{i}"))
    pending = workload("w", pod_set(2, ours=True, gpu=8))
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    lost = with_admission(pending, admit.admission)
    lost.status.unhealthy_nodes = (UnhealthyNode(name="n0"),)
    given.set_workload(lost)
    (admit,) = given.cycle(at(0)).decisions
    topology_assignment = admit.admission.pod_set_assignments[0].topology_assignment
    assert topology_assignment is not None
    assert [values[-1] for values, _ in decode(topology_assignment)] == ["n1", "n2"]


def test_what_is_taken_away_while_other_places_are_written_is_not_held_any_more() -> None:
    given, written = placed(spare=True)
    (admit,) = given.cycle(at(0)).decisions
    assert admit.kind == "replacement"
    gone = msgspec.convert(msgspec.to_builtins(written), Workload)
    gone.metadata.resource_version = "10"
    gone.status.admission = None
    gone.status.conditions = ()
    given.set_workload(gone)
    given.withdraw((NS, "w"))  # the write was too late
    given.validate()
    assert [a.kind for a in given.cycle(at(0)).decisions] == ["new"]


def test_a_gang_without_another_node_is_evicted() -> None:
    given, _ = placed(spare=False)
    (evict,) = given.cycle(at(0)).evictions
    assert evict.reason == "NodeFailures"
    assert "no replacement for a failed node: n0" in evict.message
    assert not given.cycle(at(0)).evictions


def test_draining_a_queue_evicts_what_it_admitted() -> None:
    for drain in (
        cluster_queue(flavors={"f": {"cpu": 10}}, stopPolicy="HoldAndDrain"),
        local_queue(stopPolicy="HoldAndDrain"),
    ):
        given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
        pending = workload("w", cpu=4)
        feed(given, pending)
        (admit,) = given.cycle(at(0)).decisions
        given.set_workload(with_admission(pending, admit.admission))
        feed(given, workload("x", cpu=4))
        feed(given, drain)
        cycle = given.cycle(at(0))
        assert [e.key[1] for e in cycle.evictions] == ["w"]
        assert cycle.evictions[0].reason.endswith("QueueStopped")
        assert cycle.decisions == []
        given.validate()


def test_partial_admission_takes_as_many_as_fit() -> None:
    given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
    sets = pod_set(20, cpu=1)
    feed(given, workload("w", {**sets, "minCount": 5}))
    (admit,) = given.cycle(at(0)).decisions
    assert admit.admission.pod_set_assignments[0].count == 10
    feed(given, workload("x", {**sets, "minCount": 5}))
    assert not given.cycle(at(0)).decisions
    given.validate()


def test_partial_admission_takes_whole_slices() -> None:
    """Two racks of two nodes with room for two slices of four pods, of the three that are asked for."""
    given = engine(topology(), flavor("h100", "fabric"), cluster_queue(flavors={"h100": {GPU: 64}}), local_queue())
    for i in range(4):
        feed(given, node(f"n{i}", rack=f"r{i // 2}"))
    slices = {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}
    feed(given, workload("w", {**pod_set(12, topology=slices, gpu=4), "minCount": 1}))
    (admit,) = given.cycle(at(0)).decisions
    assert admit.admission.pod_set_assignments[0].count == 8
    given.validate()


def test_reclaimable_pods_give_back_their_quota() -> None:
    given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
    pending = workload("w", pod_set(10, cpu=1))
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    given.set_workload(with_admission(pending, admit.admission))
    feed(given, workload("x", cpu=4, created=1))
    assert not given.cycle(at(0)).decisions
    done = msgspec.to_builtins(with_admission(pending, admit.admission, version=3))
    done["status"]["reclaimablePods"] = [{"name": "main", "count": 4}]
    given.set_workload(msgspec.convert(done, Workload))
    given.validate()
    assert run(given) == ["x"]


def test_the_local_queue_that_used_less_is_served_first() -> None:
    given = Engine(options=Options(admission_fair_sharing=BY_USAGE))
    given.set_namespace(NS, {})
    scope: dict[str, Any] = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
    for item in (flavor("f"), cluster_queue(flavors={"f": {"cpu": 8}}, **scope), local_queue("a"), local_queue("b")):
        feed(given, item)
    for i in range(4):
        feed(given, workload(f"a{i}", queue="a", cpu=2, created=i))
        feed(given, workload(f"b{i}", queue="b", cpu=2, created=10 + i))
    assert run(given) == ["a0", "b0", "a1", "b1"]


def test_under_strict_fifo_who_is_first_by_usage_holds_back_the_others() -> None:
    given = Engine(options=Options(admission_fair_sharing=BY_USAGE))
    given.set_namespace(NS, {})
    scope: dict[str, Any] = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
    queue = cluster_queue(flavors={"f": {"cpu": 8}}, strict=True, **scope)
    for item in (flavor("f"), queue, local_queue("a"), local_queue("b")):
        feed(given, item)
    feed(given, workload("a0", queue="a", cpu=2))
    assert run(given) == ["a0"]
    feed(given, workload("a1", queue="a", cpu=2, created=1))
    feed(given, workload("b1", queue="b", cpu=7, created=2))
    feed(given, workload("b2", queue="b", cpu=1, created=3))
    # b has used nothing: b1 comes first, and waits. The cycles come to an end.
    assert run(given) == []
    given.delete_workload((NS, "b1"))
    assert run(given) == ["b2", "a1"]


def test_a_workload_that_backs_off_is_looked_at_when_its_time_comes() -> None:
    given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
    body = msgspec.to_builtins(workload("w", cpu=4))
    body["status"] = {"requeueState": {"count": 1, "requeueAt": at(60).isoformat()}}
    given.set_workload(msgspec.convert(body, Workload))
    assert not given.cycle(at(59)).decisions
    assert (given.dirty, given.wake_at) == (False, at(60))
    given.validate()
    assert [d.key[1] for d in given.cycle(at(60)).decisions] == ["w"]
    assert given.wake_at is None
