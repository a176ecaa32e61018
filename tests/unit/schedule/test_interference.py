"""Queues, checks and workloads are changed while others wait, are promised something, or are on their way out."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.kueue import AdmissionCheckState, ClusterQueue, ReclaimablePod, Workload
from serried.schedule.engine import Engine
from serried.schedule.types.decisions import Admit
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    group,
    local_queue,
    node,
    pod_set,
    run,
    topology,
    with_admission,
    workload,
)
from tests.unit.schedule.stories import CHECKS, LOWER, Story, check, queue, reserved, teams, with_checks


def told(given: Engine, name: str) -> tuple[str, str]:
    found = given.inspect().workload((NS, name))
    reason = found.reason if found is not None else None
    assert reason is not None
    return reason.code, reason.message


def copy(given: Workload, version: int) -> Workload:
    result = msgspec.convert(msgspec.to_builtins(given), Workload)
    result.metadata.resource_version = str(version)
    return result


def preempting() -> Story:
    """`low` has to go for `urgent`, and has not gone yet; `mid` holds the rest."""
    story = queue()
    story.submit("low", priority=1, cpu=6)
    story.submit("mid", priority=2, cpu=4)
    story.cycle()
    story.submit("urgent", priority=9, cpu=6)
    assert [e.key[1] for e in story.cycle()[1]] == ["low"]
    return story


def write(story: Story, admit: Admit) -> None:
    """The API server takes an admission, and the watch brings it."""
    story.version += 1
    given = story.objects[admit.key[1]]
    story.engine.set_workload(with_admission(given, admit.admission, version=story.version))


# --- what was promised stays promised


def test_an_edit_of_the_queue_does_not_preempt_again_for_one_who_was_promised_something() -> None:
    for quotas in ({"cpu": 12}, {"cpu": 9}):
        story = preempting()
        feed(story.engine, cluster_queue(flavors={"f": quotas}, preemption=LOWER))
        assert story.cycle()[:2] == ([], [])
        assert story.engine.inspect().usage("cq") == {("f", "cpu"): 10_000}


def test_a_victim_whose_pods_end_one_by_one_goes_on_leaving() -> None:
    story = queue()
    story.submit("low", pod_set(3, cpu=2), priority=1)
    (admit,) = story.engine.cycle(at(0)).decisions
    write(story, admit)
    story.submit("urgent", priority=9, cpu=8)
    assert [e.key[1] for e in story.cycle()[1]] == ["low"]
    given = with_admission(story.objects["low"], admit.admission, version=20)
    given.status.reclaimable_pods = (ReclaimablePod("main", 1),)
    story.engine.set_workload(given)
    assert story.cycle()[:2] == ([], [])
    status = story.engine.status(("", "cq"))
    assert status is not None
    assert status.flavors_reservation[0].resources[0].total == "4"
    story.version = 30
    story.leave("low")
    assert story.cycle()[0] == ["urgent"]


def test_an_admission_whose_answer_was_lost_is_no_reason_to_keep_a_victim() -> None:
    story = queue()
    story.submit("low", priority=1, cpu=10)
    (admit,) = story.engine.cycle(at(0)).decisions
    story.submit("urgent", priority=9, cpu=6)
    (evict,) = story.engine.cycle(at(0)).evictions
    write(story, admit)  # it went through
    story.engine.withdraw((NS, "low"))
    story.engine.validate()
    assert evict.key == (NS, "low")
    assert story.cycle()[:2] == ([], [])
    story.leave("low")
    assert story.cycle()[0] == ["urgent"]


def test_who_preempts_others_with_fewer_pods_is_admitted_with_as_many() -> None:
    # With all of its pods it would have the larger share, be preempted in turn, and so on for ever.
    given = teams("a", "b", "c", fair=True, a={"cpu": 2}, b={"cpu": 0}, c={"cpu": 6})
    story = Story(given)
    story.submit("base", queue="a", cpu=4)
    story.submit("other", queue="b", cpu=4)
    assert sorted(story.cycle()[0]) == ["base", "other"]
    sets = pod_set(3, cpu=1)
    sets["minCount"] = 1
    story.submit("elastic", sets, queue="a", created=9)
    assert [e.key[1] for e in story.cycle()[1]] == ["other"]
    story.leave("other")
    (admit,) = given.cycle(at(0)).decisions
    assert (admit.key[1], admit.admission.pod_set_assignments[0].count) == ("elastic", 1)


# --- who could be admitted, or could preempt, does not sleep


def test_quota_that_comes_to_another_queue_of_the_cohort_wakes_what_could_never_fit() -> None:
    given = teams("a", "b")
    feed(given, workload("w", queue="a", cpu=25))
    assert run(given) == []
    assert told(given, "w")[0] == "ExceedsMaxQuota"
    feed(given, cluster_queue("b", {"f": {"cpu": 15}}, cohortName="all"))
    assert run(given) == ["w"]


def test_a_holder_that_is_given_a_lower_priority_can_be_preempted_at_once() -> None:
    story = queue()
    story.submit("holder", priority=5, cpu=10)
    (admit,) = story.engine.cycle(at(0)).decisions
    write(story, admit)
    story.submit("w", priority=5, cpu=2)
    assert story.cycle()[1] == []
    given = with_admission(story.objects["holder"], admit.admission, version=50)
    given.spec.priority = 1
    story.engine.set_workload(given)
    assert [e.key[1] for e in story.cycle()[1]] == ["holder"]


def test_who_may_reclaim_looks_again_when_others_borrow() -> None:
    given = engine(topology(), flavor("h100", "fabric"))
    for name in ("a", "b"):
        preemption = {"reclaimWithinCohort": "Any"}
        feed(given, cluster_queue(name, {"h100": {GPU: 8}}, cohortName="all", preemption=preemption))
        feed(given, local_queue(name, name))
    for i in range(2):
        feed(given, node(f"n{i}", rack="r0", gpus=4))
    story = Story(given)
    story.submit("b1", pod_set(1, required=RACK, ours=True, gpu=4), queue="b")
    story.submit("b2", pod_set(1, required=RACK, ours=True, gpu=4), queue="b", created=1)
    story.cycle()
    story.submit("a1", pod_set(1, required=RACK, ours=True, gpu=4), queue="a", created=2)
    assert story.cycle()[:2] == ([], [])  # the nodes are full, but b uses no more than its own
    story.submit("b3", pod_set(1, cpu=1), queue="b", created=3)
    story.submit("b4", pod_set(0, gpu=1), queue="b", created=4)
    story.cycle()
    feed(given, node("n2", rack="r1", gpus=1))
    story.submit("b5", pod_set(1, required=RACK, ours=True, gpu=1), queue="b", created=5)
    admitted, evictions, _ = story.cycle()
    assert ("b5" in admitted, [e.preemptor for e in evictions]) == (True, [(NS, "a1")])


def test_who_could_preempt_for_quota_but_has_no_place_waits_for_nodes_too() -> None:
    spec = cluster_queue(flavors={"h100": {GPU: 5}}, preemption=LOWER)
    given = engine(topology(), flavor("h100", "fabric"), local_queue(), spec, node("n0", gpus=6))
    feed(given, cluster_queue("others", {"h100": {GPU: 5}}))
    feed(given, local_queue("others", "others"))
    story = Story(given)
    story.submit("low", pod_set(2, required=RACK, ours=True, gpu=1))
    story.submit("stranger", pod_set(3, required=RACK, ours=True, gpu=1), queue="others", priority=9)
    story.cycle()
    story.submit("urgent", pod_set(4, required=RACK, ours=True, gpu=1), priority=5, created=1)
    assert story.cycle()[:2] == ([], [])
    given.delete_workload((NS, "stranger"))
    assert [e.key[1] for e in story.cycle()[1]] == ["low"]


def test_what_is_a_queues_own_is_not_taken_for_the_sake_of_nodes() -> None:
    # It would be taken back at once. Team b borrows cpu, but not GPUs, which are what is short.
    def team(name: str, cpu: int, gpu: int) -> ClusterQueue:
        quotas = [group({"plain": {"cpu": cpu}}), group({"h100": {GPU: gpu}})]
        preemption = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}
        return cluster_queue(name, groups=quotas, cohortName="all", preemption=preemption)

    given = engine(topology(), flavor("h100", "fabric"), flavor("plain"), team("a", 20, 4), team("b", 0, 4))
    for name in ("a", "b"):
        feed(given, local_queue(name, name))
    feed(given, node("n0", rack="r0"))
    story = Story(given)
    story.submit("b1", pod_set(4, required=RACK, ours=True, gpu=1, cpu=1), queue="b")
    story.submit("a1", pod_set(4, required=RACK, ours=True, gpu=1, cpu=1), queue="a", priority=1, created=1)
    assert sorted(story.cycle()[0]) == ["a1", "b1"]
    story.submit("a2", pod_set(1, required=RACK, ours=True, gpu=1, cpu=1), queue="a", priority=1, created=2)
    assert story.cycle()[:2] == ([], [])


# --- reasons are true


def test_what_can_never_fit_is_told_so_although_something_else_has_to_wait() -> None:
    groups = [group({"h100": {GPU: 4}}), group({"plain": {"cpu": 2}})]
    given = engine(flavor("h100"), flavor("plain"), cluster_queue(groups=groups), local_queue())
    feed(given, workload("holder", gpu=4))
    assert run(given) == ["holder"]
    feed(given, workload("both", gpu=1, cpu=9, created=1))
    feed(given, workload("sets", pod_set(1, "a", gpu=1), pod_set(1, "b", cpu=3), created=2))
    assert run(given) == []
    for name, text in (("both", "9 requested"), ("sets", "pod set b")):
        code, message = told(given, name)
        assert (code, text in message, "never have more than 2" in message) == ("ExceedsMaxQuota", True, True)


def test_what_can_never_fit_does_not_hold_back_a_strict_queue_while_something_else_is_short() -> None:
    groups = [group({"h100": {GPU: 4}}), group({"plain": {"cpu": 2}})]
    given = engine(flavor("h100"), flavor("plain"), cluster_queue(groups=groups, strict=True), local_queue())
    feed(given, workload("holder", gpu=4))
    assert run(given) == ["holder"]
    feed(given, workload("never", gpu=1, cpu=9, created=1))
    feed(given, workload("small", cpu=1, created=2))
    assert run(given) == ["small"]


def test_a_queue_that_lacks_a_flavor_names_those_that_are_left() -> None:
    given = engine(flavor("a"), flavor("b"), cluster_queue(flavors={"gone": {"cpu": 1}}))
    given.delete_flavor("b")
    status = given.status(("", "cq"))
    assert status is not None
    assert "(there is: a)" in status.conditions[0].message


# --- admission checks, and queues that are drained


def test_a_check_that_is_added_after_the_reservation_is_asked_for() -> None:
    given = with_checks()
    given.set_admission_check(check("nodes"))
    written = reserved(given, "Ready")
    two = {"admissionChecks": [{"name": "budget"}, {"name": "nodes"}]}
    feed(given, cluster_queue(flavors={"f": {"cpu": 10}}, admissionChecksStrategy=two))
    (admit,) = given.cycle(at(0)).decisions
    assert (admit.kind, admit.admitted, admit.admission) == ("checks", False, written.status.admission)
    assert [(c.name, c.state) for c in admit.checks] == [("budget", "Ready"), ("nodes", "Pending")]
    given.set_workload(copy(written, 10))  # something else has changed: the write is still on its way
    assert not given.cycle(at(0)).decisions
    given.withdraw((NS, "w"))  # and it is refused
    (admit,) = given.cycle(at(0)).decisions
    asked = copy(written, 11)
    asked.status.admission_checks = tuple(admit.checks)
    given.set_workload(asked)
    assert not given.cycle(at(0)).decisions
    ready = copy(asked, 12)
    ready.status.admission_checks = tuple(AdmissionCheckState(name=n, state="Ready") for n in ("budget", "nodes"))
    given.set_workload(ready)
    assert [(a.kind, a.admitted) for a in given.cycle(at(0)).decisions] == [("checks", True)]


def test_a_check_that_is_taken_off_the_queue_is_not_waited_for() -> None:
    given = with_checks()
    reserved(given, "Pending")
    assert not given.cycle(at(0)).decisions
    feed(given, cluster_queue(flavors={"f": {"cpu": 10}}))
    assert [(a.kind, a.admitted) for a in given.cycle(at(0)).decisions] == [("checks", True)]


def test_a_workload_that_goes_for_its_checks_is_not_preempted_besides() -> None:
    given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 4}}, preemption=LOWER, **CHECKS), local_queue())
    given.set_admission_check(check())
    reserved(given, "Retry")
    assert [e.reason for e in given.cycle(at(0)).evictions] == ["AdmissionCheck"]
    feed(given, workload("urgent", priority=9, cpu=4))
    result = given.cycle(at(0))
    assert (result.evictions, [w.reason.code for w in result.waits]) == ([], ["WaitingForPreemptedWorkloads"])
    given.validate()


def test_a_victim_whose_preemption_is_refused_is_drained_if_its_queue_is() -> None:
    story = preempting()
    drained: dict[str, Any] = {"stopPolicy": "HoldAndDrain"}
    feed(story.engine, cluster_queue(flavors={"f": {"cpu": 10}}, preemption=LOWER, **drained))
    assert [e.key[1] for e in story.cycle()[1]] == ["mid"]
    story.engine.withdraw_eviction((NS, "low"))
    assert [(e.key[1], e.reason) for e in story.cycle()[1]] == [("low", "ClusterQueueStopped")]


def test_a_local_queue_made_anew_for_another_queue_drains_what_it_has_admitted() -> None:
    given = engine(flavor("f"), cluster_queue("a", {"f": {"cpu": 4}}), cluster_queue("b", {"f": {"cpu": 4}}))
    feed(given, local_queue("lq", "a"))
    story = Story(given)
    story.submit("w", cpu=1)
    story.cycle()
    given.delete_local_queue((NS, "lq"))
    feed(given, local_queue("lq", "b", stopPolicy="HoldAndDrain"))
    assert [(e.key[1], e.reason) for e in story.cycle()[1]] == [("w", "LocalQueueStopped")]
