"""What is written next for a Job, from how everything stands."""

from __future__ import annotations

import msgspec

from serried.api import names
from serried.api.core import ClaimVolumeSource, RuntimeClass, Volume
from serried.api.kueue import Workload
from serried.api.meta import Condition, ObjectMeta
from serried.api.resources import (
    CLAIMS,
    NODES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    WORKLOADS,
)
from serried.api.storage import PersistentVolumeClaim, StorageClass
from serried.gang.membership import Member, Stage
from serried.lifecycle.actions import (
    CreatePodGroup,
    CreateWorkload,
    DeleteWorkload,
    PatchObject,
    PatchWorkload,
    Place,
    Warn,
)
from tests.unit.lifecycle.objects import (
    KEY,
    NAME,
    NOW,
    Cluster,
    admitted,
    job,
    made,
    members,
    node,
    pod_class,
    steps,
    workload_class,
)


def test_a_job_without_a_workload_gets_one_that_it_owns() -> None:
    workload = made(job())
    assert workload.key == KEY
    owner = workload.metadata.controller
    assert owner is not None
    assert (owner.kind, owner.uid) == ("Job", "u1")
    assert workload.spec.queue_name == "lq"
    assert [p.count for p in workload.spec.pod_sets] == [2]


def test_of_pods_that_only_kube_scheduler_can_bind_the_job_is_told_so() -> None:
    given = job()
    (step,) = steps(given)
    assert isinstance(step, CreateWorkload)
    assert step.event is None

    given.spec.template.spec.volumes = (
        Volume(name="s", persistent_volume_claim=ClaimVolumeSource(claim_name="scratch")),
    )
    late = StorageClass(metadata=ObjectMeta(name="late"), volume_binding_mode="WaitForFirstConsumer")
    claim = PersistentVolumeClaim(metadata=ObjectMeta(name="scratch", namespace=KEY[0]))
    claim.spec.storage_class_name = "late"
    cluster = Cluster((STORAGE_CLASSES, late), (CLAIMS, claim))
    (step,) = steps(given, cluster=cluster)
    assert isinstance(step, CreateWorkload)
    assert step.event is not None
    assert step.event[0] == "LeftToKubeScheduler"
    assert 'persistentvolumeclaim "scratch"' in step.event[1]

    # With the claim bound, it is as any other.
    claim = msgspec.convert(msgspec.to_builtins(claim), PersistentVolumeClaim)
    claim.spec.volume_name = "pv"
    cluster.feed(CLAIMS, claim)
    (step,) = steps(given, cluster=cluster)
    assert isinstance(step, CreateWorkload)
    assert step.event is None


def test_a_running_job_is_held_back_first() -> None:
    first, second = steps(job(suspend=False))
    assert isinstance(first, PatchObject)
    assert first.patch["spec"] == {"suspend": True}
    assert isinstance(second, CreateWorkload)


def test_a_job_without_a_queue_is_nobodys() -> None:
    assert steps(job(labels={})) == []


def test_priority_is_that_of_the_workload_class_then_of_the_pods_class() -> None:
    labelled = job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"})
    (step,) = steps(labelled, cluster=Cluster(workload_class("high", 9)))
    assert isinstance(step, CreateWorkload)
    assert step.workload.spec.priority == 9
    (step,) = steps(labelled)
    assert isinstance(step, Warn)
    assert "'high'" in step.message

    of_pods = job()
    of_pods.spec.template.spec.priority_class_name = "pods"
    (step,) = steps(of_pods, cluster=Cluster(pod_class("pods", 4)))
    assert isinstance(step, CreateWorkload)
    assert step.workload.spec.priority == 4
    (step,) = steps(of_pods)
    assert isinstance(step, Warn)


def test_what_waits_is_left_alone_and_what_was_started_too_early_is_stopped() -> None:
    workload = made(job())
    assert steps(job(), workload) == []
    (step,) = steps(job(suspend=False), workload)
    assert isinstance(step, PatchObject)
    assert step.patch["spec"] == {"suspend": True}


def test_what_was_reserved_for_other_pods_or_in_another_queue_is_not_kept() -> None:
    given = job()
    reserved = admitted(given)
    reserved.status.conditions = tuple(c for c in reserved.status.conditions if c.type == "QuotaReserved")
    assert steps(given, reserved) == []
    larger = job()
    larger.spec.parallelism = larger.spec.completions = 5
    for changed in (larger, job(labels={names.QUEUE_NAME: "other"})):
        (step,) = steps(changed, reserved)
        assert isinstance(step, DeleteWorkload)
        assert "after its quota was reserved" in step.why
    # A priority can change meanwhile.
    (step,) = steps(
        job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"}),
        reserved,
        cluster=Cluster(workload_class("high", 10)),
    )
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
    assert isinstance(start, PatchObject)
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
    assert isinstance(step, PatchObject)
    assert (step.status, step.patch) == (True, {"status": {"startTime": None}})
    assert steps(job(status={**ran, "active": 1}), admitted(job())) == []


def test_pods_that_no_start_made_are_awaited_before_and_ended_after_it() -> None:
    assert steps(job(), admitted(job()), unplanned=1) == []
    (step,) = steps(job(suspend=False), admitted(job()), unplanned=1)
    assert isinstance(step, PatchObject)
    assert step.patch["spec"] == {"suspend": True}


def test_a_job_that_we_suspended_starts_only_when_the_job_controller_has_seen_it() -> None:
    assert steps(job(generation=2), admitted(job())) == []
    noticed = {"conditions": [{"type": "Suspended", "status": "True"}]}
    assert [type(s) for s in steps(job(generation=2, status=noticed), admitted(job()))] == [PatchObject, CreatePodGroup]


def test_an_admission_whose_places_are_closed_is_taken_back_before_and_after_the_start() -> None:
    closed = Cluster((NODES, node("n1", cordoned=True)))
    (step,) = steps(job(), admitted(job()), cluster=closed)
    assert isinstance(step, PatchWorkload)
    assert step.event is not None
    assert step.event[0] == "EvictedDueToNodeFailures"
    assert "n1" in step.event[1]
    found = {c["type"]: (c["status"], c["reason"]) for c in step.patch["status"]["conditions"]}
    assert found["Evicted"] == ("True", "NodeFailures")
    assert "admission" not in step.patch["status"]
    (step,) = steps(
        job(suspend=False),
        admitted(job()),
        members(Stage.READY, Stage.WAITING),
        cluster=closed,
    )
    assert isinstance(step, PatchWorkload)
    shrunk = Cluster((WORKLOADS, admitted(job())), (NODES, node("n0", gpus=4)))
    (step,) = steps(job(), admitted(job()), cluster=shrunk)
    assert isinstance(step, PatchWorkload)
    assert step.event is not None
    assert "n0" in step.event[1]
    both = members(Stage.READY, Stage.READY)
    assert not any(isinstance(s, PatchObject) for s in steps(job(suspend=False), admitted(job()), both, cluster=closed))


def test_what_a_runtime_class_tolerates_keeps_places_open() -> None:
    workload = admitted(job())
    workload.spec.pod_sets[0].template.spec.runtime_class_name = "vm"
    given = job()
    given.spec.template.spec.runtime_class_name = "vm"
    nodes = [(NODES, node(name, taint="vm")) for name in ("n0", "n1")]
    for name, evicted in (("vm", False), ("other", True)):
        tolerates = {"metadata": {"name": name}, "scheduling": {"tolerations": [{"key": "vm", "operator": "Exists"}]}}
        cluster = Cluster((RUNTIME_CLASSES, msgspec.convert(tolerates, RuntimeClass)), *nodes)
        found = [s.event for s in steps(given, workload, cluster=cluster) if isinstance(s, PatchWorkload)]
        assert [event is not None and event[0] for event in found] == ["EvictedDueToNodeFailures"] * evicted


def test_what_is_evicted_is_stopped_and_gives_its_quota_back_with_its_last_pod() -> None:
    workload = admitted(job())
    workload.status.conditions += (Condition(type="Evicted", status="True", reason="Preempted", message="for b"),)
    (stop,) = steps(job(suspend=False), workload, members(Stage.READY, Stage.READY))
    assert isinstance(stop, PatchObject)
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
    given.status.conditions += (Condition(type="Evicted", status="True", reason="Preempted"),)
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
    other.metadata.owner_references = ()
    stop, warn = steps(job(suspend=False), other)
    assert isinstance(stop, PatchObject)
    assert isinstance(warn, Warn)
    assert NAME in warn.message


def test_another_priority_class_is_followed_while_it_waits_and_a_priority_set_by_hand_stays() -> None:
    workload = made(job())
    labelled = job(labels={names.QUEUE_NAME: "lq", names.PRIORITY_CLASS: "high"})
    (step,) = steps(labelled, workload, cluster=Cluster(workload_class("high", 9)))
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
    assert [type(s) for s in steps(bigger, admitted(job()))] == [PatchObject, DeleteWorkload]
