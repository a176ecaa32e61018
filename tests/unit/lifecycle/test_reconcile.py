"""What is written next for a Job, from how everything stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from serried.api import names
from serried.api.assignment import encode
from serried.api.batch import Job
from serried.api.core import PriorityClass, RuntimeClass, Toleration
from serried.api.kueue import ResourceFlavor, Workload, WorkloadPriorityClass
from serried.api.meta import Condition, Key
from serried.gang.membership import Gang, Member, Stage
from serried.jobs.podset import workload_name
from serried.lifecycle.actions import (
    CreatePodGroup,
    CreateWorkload,
    DeleteWorkload,
    PatchJob,
    PatchWorkload,
    Place,
    Step,
    Warn,
)
from serried.lifecycle.reconcile import View, next_steps

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = workload_name("Job", "train", "u1")
KEY: Key = ("team", NAME)


def job(*, suspend: bool = True, status: dict[str, Any] | None = None, **metadata: Any) -> Job:
    return msgspec.convert(
        {
            "metadata": {
                "name": "train",
                "namespace": "team",
                "uid": "u1",
                "resourceVersion": "7",
                "generation": 1,
                "labels": {names.QUEUE_NAME: "lq"},
                **metadata,
            },
            "spec": {
                "suspend": suspend,
                "parallelism": 2,
                "completions": 2,
                "completionMode": "Indexed",
                "template": {"spec": {"schedulerName": "serried"}},
            },
            "status": status or {},
        },
        type=Job,
        strict=False,
    )


def view(
    given: Job | None,
    workload: Workload | None = None,
    gang: Gang | None = None,
    *,
    classes: dict[str, int] | None = None,
    pod_classes: dict[str, int] | None = None,
    unplanned: int = 0,
    closed: tuple[str, ...] = (),
    overbooked: tuple[str, ...] = (),
    runtime_classes: dict[str, RuntimeClass] | None = None,
) -> View:
    flavor = msgspec.convert(
        {"metadata": {"name": "gpu"}, "spec": {"nodeLabels": {"pool": "gpu"}}}, type=ResourceFlavor
    )
    return View(
        job=given,
        workloads=[workload] if workload is not None else [],
        unplanned_pods=unplanned,
        gangs={KEY: gang} if gang is not None else {},
        pod_groups={},
        flavors={"gpu": flavor},
        workload_priority_classes={("", n): WorkloadPriorityClass(value=v) for n, v in (classes or {}).items()},
        priority_classes={("", n): PriorityClass(value=v) for n, v in (pod_classes or {}).items()},
        runtime_classes=runtime_classes or {},
        node_of=lambda host: host,
        is_schedulable=lambda levels, values, tolerations: values[-1] not in closed,
        overbooked=lambda key: overbooked,
    )


def steps(*args: Any, **kwargs: Any) -> list[Step]:
    return next_steps(view(*args, **kwargs), NOW)


def made(given: Job) -> Workload:
    """The Workload that is created for a Job, as the server would hold it."""
    (step,) = (s for s in steps(given) if isinstance(s, CreateWorkload))
    step.workload.metadata.uid = "w1"
    return step.workload


def admitted(given: Job) -> Workload:
    workload = made(given)
    assignment = encode([names.HOSTNAME], [(("n0",), 1), (("n1",), 1)])
    workload.status = msgspec.convert(
        {
            "conditions": [{"type": t, "status": "True"} for t in ("QuotaReserved", "Admitted")],
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {"name": "main", "flavors": {"gpu": "gpu"}, "count": 2, "topologyAssignment": assignment}
                ],
            },
        },
        type=type(workload.status),
        from_attributes=True,
    )
    return workload


def members(*stages: Stage) -> Gang:
    gang = Gang()
    for i, stage in enumerate(stages):
        node = f"n{i}" if stage not in (Stage.WAITING, Stage.HELD) else ""
        gang.set(Member(f"p{i}", f"uid{i}", "main", i, stage, node, (), False))
    return gang


def test_a_job_without_a_workload_gets_one_that_it_owns() -> None:
    workload = made(job())
    assert workload.key == KEY
    owner = workload.metadata.controller
    assert owner is not None
    assert (owner.kind, owner.uid) == ("Job", "u1")
    assert workload.spec.queue_name == "lq"
    assert [p.count for p in workload.spec.pod_sets] == [2]


def test_a_running_job_is_held_back_first() -> None:
    first, second = steps(job(suspend=False))
    assert isinstance(first, PatchJob)
    assert first.patch["spec"] == {"suspend": True}
    assert isinstance(second, CreateWorkload)


def test_a_job_without_a_queue_is_nobodys() -> None:
    assert steps(job(labels={})) == []


def test_priority_is_that_of_the_workload_class_then_of_the_pods_class() -> None:
    labelled = job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"})
    (step,) = steps(labelled, classes={"high": 9})
    assert isinstance(step, CreateWorkload)
    assert step.workload.spec.priority == 9
    (step,) = steps(labelled)
    assert isinstance(step, Warn)
    assert "'high'" in step.message

    of_pods = job()
    of_pods.spec.template.spec.priority_class_name = "pods"
    (step,) = steps(of_pods, pod_classes={"pods": 4})
    assert isinstance(step, CreateWorkload)
    assert step.workload.spec.priority == 4
    (step,) = steps(of_pods)
    assert isinstance(step, Warn)


def test_what_waits_is_left_alone_and_what_was_started_too_early_is_stopped() -> None:
    workload = made(job())
    assert steps(job(), workload) == []
    (step,) = steps(job(suspend=False), workload)
    assert isinstance(step, PatchJob)
    assert step.patch["spec"] == {"suspend": True}


def test_what_was_reserved_for_other_pods_or_in_another_queue_is_not_kept() -> None:
    given = job()
    reserved = admitted(given)
    reserved.status.conditions = [c for c in reserved.status.conditions if c.type == "QuotaReserved"]
    assert steps(given, reserved) == []
    larger = job()
    larger.spec.parallelism = larger.spec.completions = 5
    for changed in (larger, job(labels={names.QUEUE_NAME: "other"})):
        (step,) = steps(changed, reserved)
        assert isinstance(step, DeleteWorkload)
        assert "after its quota was reserved" in step.why
    # A priority can change meanwhile.
    (step,) = steps(job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"}), reserved, classes={"high": 10})
    assert isinstance(step, PatchWorkload)


def test_the_workload_follows_its_job_while_it_waits() -> None:
    workload = made(job())
    changed = job(labels={names.QUEUE_NAME: "other"})
    changed.spec.parallelism = changed.spec.completions = 3
    (step,) = steps(changed, workload)
    assert isinstance(step, PatchWorkload)
    assert not step.status
    assert step.patch["spec"]["queueName"] == "other"
    assert step.patch["spec"]["podSets"][0]["count"] == 3


def test_an_admitted_job_is_started_with_its_flavors_nodes_and_its_gang_recorded() -> None:
    start, group = steps(job(), admitted(job()))
    assert isinstance(start, PatchJob)
    assert start.patch["spec"]["suspend"] is False
    template = start.patch["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert template["metadata"]["annotations"] == {names.WORKLOAD: NAME}
    assert template["metadata"]["labels"][names.POD_GROUP] == NAME
    assert isinstance(group, CreatePodGroup)
    assert group.pod_group.spec.min_member == 2


def test_a_job_that_ran_before_has_its_start_time_cleared_first_and_its_pods_awaited() -> None:
    suspended = [{"type": "Suspended", "status": "True"}]
    ran = {"startTime": NOW, "conditions": suspended}
    (step,) = steps(job(status=ran), admitted(job()))
    assert isinstance(step, PatchJob)
    assert (step.status, step.patch) == (True, {"status": {"startTime": None}})
    assert steps(job(status={**ran, "active": 1}), admitted(job())) == []


def test_pods_that_no_start_made_are_awaited_before_and_ended_after_it() -> None:
    assert steps(job(), admitted(job()), unplanned=1) == []
    (step,) = steps(job(suspend=False), admitted(job()), unplanned=1)
    assert isinstance(step, PatchJob)
    assert step.patch["spec"] == {"suspend": True}


def test_a_job_that_we_suspended_starts_only_when_the_job_controller_has_seen_it() -> None:
    assert steps(job(generation=2), admitted(job())) == []
    noticed = {"conditions": [{"type": "Suspended", "status": "True"}]}
    assert [type(s) for s in steps(job(generation=2, status=noticed), admitted(job()))] == [PatchJob, CreatePodGroup]


def test_an_admission_whose_places_are_closed_is_taken_back_before_and_after_the_start() -> None:
    (step,) = steps(job(), admitted(job()), closed=("n1",))
    assert isinstance(step, PatchWorkload)
    assert step.event is not None
    assert step.event[0] == "EvictedDueToNodeFailures"
    assert "n1" in step.event[1]
    found = {c["type"]: (c["status"], c["reason"]) for c in step.patch["status"]["conditions"]}
    assert found["Evicted"] == ("True", "NodeFailures")
    assert "admission" not in step.patch["status"]
    (step,) = steps(job(suspend=False), admitted(job()), members(Stage.READY, Stage.WAITING), closed=("n1",))
    assert isinstance(step, PatchWorkload)
    (step,) = steps(job(), admitted(job()), overbooked=("n0",))
    assert isinstance(step, PatchWorkload)
    both = members(Stage.READY, Stage.READY)
    assert not any(isinstance(s, PatchJob) for s in steps(job(suspend=False), admitted(job()), both, closed=("n1",)))


def test_what_a_runtime_class_tolerates_keeps_places_open() -> None:
    workload = admitted(job())
    workload.spec.pod_sets[0].template.spec.runtime_class_name = "vm"
    vm = msgspec.convert({"scheduling": {"tolerations": [{"key": "vm", "operator": "Exists"}]}}, RuntimeClass)

    def is_schedulable(levels: object, values: object, tolerations: Sequence[Toleration]) -> bool:
        return "vm" in {t.key for t in tolerations}

    given = job()
    given.spec.template.spec.runtime_class_name = "vm"
    for classes, evicted in (({"vm": vm}, False), ({"other": vm}, True)):
        seen = replace(view(given, workload, runtime_classes=classes), is_schedulable=is_schedulable)
        found = [s.event for s in next_steps(seen, NOW) if isinstance(s, PatchWorkload)]
        assert [event is not None and event[0] for event in found] == ["EvictedDueToNodeFailures"] * evicted


def test_what_is_evicted_is_stopped_and_gives_its_quota_back_with_its_last_pod() -> None:
    workload = admitted(job())
    workload.status.conditions.append(Condition(type="Evicted", status="True", reason="Preempted", message="for b"))
    (stop,) = steps(job(suspend=False), workload, members(Stage.READY, Stage.READY))
    assert isinstance(stop, PatchJob)
    assert stop.patch["spec"] == {"suspend": True}
    leaving = members(Stage.READY, Stage.SUCCEEDED)
    assert steps(job(), workload, leaving) == []
    leaving.set(Member("p0", "uid0", "main", 0, Stage.READY, "n0", (), deleting=True))
    (release,) = steps(job(), workload, leaving)
    assert isinstance(release, PatchWorkload)
    assert release.patch["status"]["admission"] is None
    found = {c["type"]: (c["status"], c["reason"]) for c in release.patch["status"]["conditions"]}
    assert found["QuotaReserved"] == ("False", "Pending")
    assert found["Admitted"] == ("False", "NoReservation")


def test_a_template_changed_between_admission_and_start_is_queued_anew() -> None:
    changed = job()
    changed.spec.template.spec.node_selector = {"zone": "b"}
    assert [type(s) for s in steps(changed, admitted(job()))] == [DeleteWorkload]


def test_a_whole_gang_is_placed_by_rank() -> None:
    found = steps(job(suspend=False), admitted(job()), members(Stage.WAITING, Stage.WAITING))
    (place,) = (s for s in found if isinstance(s, Place))
    assert [(m.pod, m.values) for m in place.moves] == [("p0", ("n0",)), ("p1", ("n1",))]
    assert not any(isinstance(s, Place) for s in steps(job(suspend=False), admitted(job()), members(Stage.WAITING)))


def test_pods_ready_is_written_once_and_taken_back() -> None:
    workload = admitted(job())
    found = steps(job(suspend=False), workload, members(Stage.READY, Stage.READY))
    (ready,) = (s for s in found if isinstance(s, PatchWorkload))
    conditions = {c["type"]: c["status"] for c in ready.patch["status"]["conditions"]}
    assert conditions == {"QuotaReserved": "True", "Admitted": "True", "PodsReady": "True"}

    workload = msgspec.convert(
        {
            **msgspec.to_builtins(workload),
            "status": {**msgspec.to_builtins(admitted(job()).status), **ready.patch["status"]},
        },
        type=Workload,
    )
    found = steps(job(suspend=False), workload, members(Stage.READY, Stage.READY))
    assert not any(isinstance(s, PatchWorkload) for s in found)
    found = steps(job(suspend=False), workload, members(Stage.READY, Stage.BOUND))
    (lost,) = (s for s in found if isinstance(s, PatchWorkload))
    assert {c["type"]: c["status"] for c in lost.patch["status"]["conditions"]}["PodsReady"] == "False"


def test_the_end_is_written_when_the_job_says_so_or_all_its_pods_have_succeeded() -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "too many"}]}
    for given, gang in [
        (job(suspend=False, status=failed), members(Stage.FAILED, Stage.READY)),
        (job(suspend=False), members(Stage.SUCCEEDED, Stage.SUCCEEDED)),
    ]:
        (step,) = steps(given, admitted(job()), gang)
        assert isinstance(step, PatchWorkload)
        (condition,) = (c for c in step.patch["status"]["conditions"] if c["type"] == "Finished")
        assert condition["reason"] == ("Failed" if given.status.conditions else "Succeeded")
    assert not any(
        isinstance(s, PatchWorkload) for s in steps(job(suspend=False), admitted(job()), members(Stage.SUCCEEDED))
    )


def test_pods_that_succeed_after_their_job_was_stopped_are_not_its_end() -> None:
    # They may not count for the Job, which then is neither complete nor queued any more.
    given = admitted(job())
    given.status.conditions.append(Condition(type="Evicted", status="True", reason="Preempted"))
    (step,) = steps(job(), given, members(Stage.SUCCEEDED, Stage.SUCCEEDED))
    assert isinstance(step, PatchWorkload)
    assert step.patch["status"]["admission"] is None
    assert not any(c["type"] == "Finished" for c in step.patch["status"]["conditions"])


def test_a_running_job_that_names_no_queue_any_more_stays_ours_until_it_is_suspended() -> None:
    workload = admitted(job())
    waits = members(Stage.WAITING, Stage.WAITING)
    assert any(isinstance(s, Place) for s in steps(job(suspend=False, labels={}), workload, waits))
    (step,) = steps(job(labels={}), workload)
    assert isinstance(step, DeleteWorkload)
    (step,) = steps(job(suspend=False, labels={}), made(job()))
    assert isinstance(step, DeleteWorkload)


def test_somebody_elses_workload_of_that_name_is_left_alone_and_the_job_is_told() -> None:
    other = made(job())
    other.metadata.owner_references = []
    stop, warn = steps(job(suspend=False), other)
    assert isinstance(stop, PatchJob)
    assert isinstance(warn, Warn)
    assert NAME in warn.message
    assert steps(job(deletionTimestamp=NOW), other) == []
    other = made(job())
    other.metadata.owner_references[0].api_version = "batch.volcano.sh/v1alpha1"
    assert steps(None, other) == []


def test_another_priority_class_is_followed_while_it_waits_and_a_priority_set_by_hand_stays() -> None:
    workload = made(job())
    labelled = job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"})
    (step,) = steps(labelled, workload, classes={"high": 9})
    assert isinstance(step, PatchWorkload)
    spec = step.patch["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (9, "high")
    workload.spec.priority = 5
    assert steps(job(), workload) == []


def test_a_workload_whose_job_is_gone_or_another_is_deleted() -> None:
    workload = made(job())
    (step,) = steps(None, workload)
    assert isinstance(step, DeleteWorkload)
    anew = steps(job(uid="u2"), workload)
    assert [type(s) for s in anew] == [DeleteWorkload, CreateWorkload]


def test_a_job_resized_under_way_is_stopped_and_queued_anew() -> None:
    bigger = job(suspend=False)
    bigger.spec.parallelism = bigger.spec.completions = 5
    assert [type(s) for s in steps(bigger, admitted(job()))] == [PatchJob, DeleteWorkload]
