"""batch/v1 Jobs as pod sets, and what starts and stops them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from serried.api import names
from serried.api.batch import Job
from serried.api.core import Pod, Toleration
from serried.api.kueue import PodSet
from serried.gang.membership import Gang, Member, Stage
from serried.jobs.job import BatchJob
from serried.jobs.kind import Addition, NotYet, Outcome, Patch
from serried.jobs.podset import PodSetStart, workload_name

KIND = BatchJob()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make(
    spec: dict[str, Any] | None = None,
    *,
    annotations: dict[str, str] | None = None,
    template: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> Job:
    return msgspec.convert(
        {
            "metadata": {"name": "train", "namespace": "team", "uid": "u1", "labels": {names.QUEUE_NAME: "lq"}},
            "spec": {
                "suspend": True,
                **(spec or {}),
                "template": template or {"metadata": {"annotations": annotations or {}}},
            },
            "status": status or {},
        },
        type=Job,
    )


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386, as the API server applies it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def patched(job: Job, patch: Patch) -> Job:
    return msgspec.convert(merge(msgspec.to_builtins(job), patch.body), type=Job, strict=False)


def started(job: Job, start: PodSetStart, count: int) -> Job:
    return patched(job, KIND.start(job, {"main": start}, {"main": count}))


def test_the_workloads_name_fits_a_label_and_tells_incarnations_apart() -> None:
    long = "a" * 63
    first, second = workload_name("Job", long, "u1"), workload_name("Job", long, "u2")
    assert first != second
    assert first.startswith("job-aaa")
    assert len(first) == len(second) == 63
    assert workload_name("Job", "train", "u1") == workload_name("Job", "train", "u1")


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 8, "completions": 4}, 4),
        ({"parallelism": 4, "completions": 8}, 4),
        ({"parallelism": 0}, 0),
    ],
)
def test_pods_that_run_at_the_same_time(spec: dict[str, Any], count: int) -> None:
    pod_sets, problems = KIND.pod_sets(make(spec))
    assert ([p.count for p in pod_sets], problems) == ([count], [])


def test_topology_annotations_become_the_request() -> None:
    (pod_set,), problems = KIND.pod_sets(
        make(
            {"completionMode": "Indexed"},
            annotations={
                names.REQUIRED_TOPOLOGY: "rack",
                names.SLICE_REQUIRED_TOPOLOGY: "host",
                names.SLICE_SIZE: "2",
            },
        )
    )
    assert problems == []
    request = pod_set.topology_request
    assert request is not None
    assert (request.required, request.pod_set_slice_required_topology, request.pod_set_slice_size) == (
        "rack",
        "host",
        2,
    )
    assert request.pod_index_label == names.COMPLETION_INDEX


def test_pod_sets_are_equal_to_what_the_server_gives_back_of_them() -> None:
    """Otherwise the Workload would be taken for an older version of the job, and written again and again."""
    layers = '[{"topology": "rack", "size": 4}, {"topology": "host", "size": 2}]'
    template = {
        "metadata": {"annotations": {names.REQUIRED_TOPOLOGY: "block", names.SLICE_CONSTRAINTS: layers}},
        "spec": {
            "tolerations": [{"key": "own"}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "i"}],
            "schedulingGates": [{"name": "own"}],
        },
    }
    job = make(template=template)
    start = PodSetStart(tolerations=[Toleration(key="gpu")], scheduling_gates=[names.TOPOLOGY_GATE])
    for each in (job, started(job, start, 1)):
        pod_sets, problems = KIND.pod_sets(each)
        assert problems == []
        assert msgspec.json.decode(msgspec.json.encode(pod_sets), type=list[PodSet]) == pod_sets


def test_without_annotations_there_is_no_request() -> None:
    (pod_set,), _ = KIND.pod_sets(make())
    assert pod_set.topology_request is None


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        (names.SLICE_SIZE, "two", "a whole number from 1"),
        (names.SLICE_SIZE, "0", "a whole number from 1"),
        (names.SLICE_SIZE, "-3", "a whole number from 1"),
        (names.SLICE_SIZE, "99999999999", "a whole number from 1"),
        (names.UNCONSTRAINED_TOPOLOGY, "yes", '"true" or "false"'),
        (names.SLICE_CONSTRAINTS, "{", "a JSON list"),
        (names.SLICE_CONSTRAINTS, '[{"topology": 3}]', "a JSON list"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_is_allowed(key: str, value: str, allowed: str) -> None:
    _, problems = KIND.pod_sets(make(annotations={key: value}))
    (problem,) = problems
    assert key in problem.field
    assert value in problem.found
    assert allowed in problem.allowed


def test_a_start_adds_and_the_original_template_is_what_was_there_before() -> None:
    author = {
        "metadata": {"labels": {"app": "x"}, "annotations": {names.REQUIRED_TOPOLOGY: "rack"}},
        "spec": {
            "nodeSelector": {"pool": "author"},
            "tolerations": [{"key": "own", "operator": "Exists"}],
            "schedulingGates": [{"name": "own"}],
        },
    }
    job = make(template=author)
    start = PodSetStart(
        labels={names.POD_SET: "main"},
        annotations={names.WORKLOAD: "job-train"},
        node_selector={"pool": "flavor", "zone": "z"},
        tolerations=[Toleration(key="gpu", operator="Exists")],
        scheduling_gates=[names.TOPOLOGY_GATE],
    )
    running = started(job, start, 1)
    spec = running.spec.template.spec
    assert not running.spec.suspend
    assert running.spec.template.metadata.labels == {"app": "x", names.POD_SET: "main"}
    assert spec.node_selector == {"pool": "author", "zone": "z"}
    assert [t.key for t in spec.tolerations] == ["own", "gpu"]
    assert [g.name for g in spec.scheduling_gates] == ["own", names.TOPOLOGY_GATE]

    assert [p.template for p in KIND.pod_sets(running)[0]] == [job.spec.template]
    stopped = patched(running, KIND.suspend(running))
    assert stopped.spec.suspend
    assert KIND.pod_sets(stopped) == KIND.pod_sets(job)

    elsewhere = PodSetStart(annotations={names.WORKLOAD: "job-train"}, node_selector={"zone": "other"})
    again = started(stopped, elsewhere, 1)
    assert again.spec.template.spec.node_selector == {"pool": "author", "zone": "other"}
    assert [t.key for t in again.spec.template.spec.tolerations] == ["own"]
    assert [g.name for g in again.spec.template.spec.scheduling_gates] == ["own"]
    assert names.POD_SET not in again.spec.template.metadata.labels


def test_a_start_with_fewer_pods_is_undone_by_the_next_one() -> None:
    job = make({"parallelism": 8, "completions": 16})
    job.metadata.annotations = {names.MIN_PARALLELISM: "2"}
    (pod_set,), problems = KIND.pod_sets(job)
    assert (pod_set.count, pod_set.min_count, problems) == (8, 2, [])
    fewer = started(job, PodSetStart(), 3)
    assert fewer.spec.parallelism == 3
    assert [p.count for p in KIND.pod_sets(fewer)[0]] == [8]
    stopped = patched(fewer, KIND.suspend(fewer))
    assert started(stopped, PodSetStart(), 8).spec.parallelism == 8
    resized = patched(fewer, Patch({"spec": {"parallelism": 5}}))
    assert [p.count for p in KIND.pod_sets(resized)[0]] == [5]


@pytest.mark.parametrize("text", ["0", "-1", "two", "9"])
def test_a_least_parallelism_that_cannot_be_is_named(text: str) -> None:
    job = make({"parallelism": 8, "completions": 8})
    job.metadata.annotations = {names.MIN_PARALLELISM: text}
    _, (problem,) = KIND.pod_sets(job)
    assert "from 1 to 8" in problem.allowed


def test_a_job_that_ran_starts_again_only_when_it_has_come_to_rest() -> None:
    then = NOW.isoformat()
    suspended = [{"type": "Suspended", "status": "True"}]
    never_ran = make()
    assert KIND.before_start(never_ran, NOW) == NotYet()
    never_ran.metadata.generation = 1
    assert KIND.before_start(never_ran, NOW) is None
    assert KIND.before_start(make(status={"startTime": then}), NOW) == NotYet()
    ending = make(status={"startTime": then, "active": 1, "conditions": suspended})
    assert KIND.before_start(ending, NOW) == NotYet()
    at_rest = make(status={"startTime": then, "conditions": suspended})
    assert KIND.before_start(at_rest, NOW) == Patch({"status": {"startTime": None}}, status=True)
    assert KIND.before_start(make(status={"conditions": suspended}), NOW) is None


def test_the_end_is_the_jobs_own_word_or_that_of_all_its_pods() -> None:
    assert KIND.outcome(make(), Gang()) is None
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "too many"}]}
    assert KIND.outcome(make(status=failed), Gang()) == Outcome(False, "too many")
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert KIND.outcome(make(status=complete), Gang()) == Outcome(True)
    gang = Gang()
    job = make({"suspend": False, "completions": 2, "completionMode": "Indexed"})
    gang.set(Member("a", "a", "main", 0, Stage.SUCCEEDED, "n0", (), False))
    gang.set(Member("b", "b", "main", 0, Stage.SUCCEEDED, "n0", (), False))
    assert KIND.outcome(job, gang) is None
    gang.set(Member("c", "c", "main", 1, Stage.SUCCEEDED, "n0", (), False))
    assert KIND.outcome(job, gang) == Outcome(True)


def test_pods_of_a_job_have_the_ranks_of_their_completion_index() -> None:
    def pod(kind: str, api_version: str) -> Pod:
        owner = {"apiVersion": api_version, "kind": kind, "name": "train", "uid": "u1", "controller": True}
        return msgspec.convert(
            {"metadata": {"name": "p", "annotations": {names.COMPLETION_INDEX: "3"}, "ownerReferences": [owner]}}, Pod
        )

    assert KIND.member(pod("Job", "batch/v1")) == ("train", 3)
    assert KIND.member(pod("Job", "batch.volcano.sh/v1alpha1")) is None
    assert KIND.member(pod("ReplicaSet", "apps/v1")) is None
    assert KIND.member(Pod()) is None


def test_the_webhook_suspends_and_claims_what_has_a_queue() -> None:
    queued = {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": {"template": {"spec": {}}}}
    suspend = Addition(("spec", "suspend"), True)
    assert KIND.admit(queued, bind=True) == [
        suspend,
        Addition(("spec", "template", "spec", "schedulerName"), "serried"),
    ]
    assert KIND.admit(queued, bind=False) == [suspend]
    own = {"metadata": queued["metadata"], "spec": {"suspend": True, "template": {"spec": {"schedulerName": "mine"}}}}
    assert KIND.admit(own, bind=True) == []
    assert KIND.admit({"metadata": {}, "spec": {}}, bind=True) == []


def test_jobs_of_other_controllers_are_left_alone() -> None:
    assert KIND.is_managed(make())
    assert KIND.is_managed(make({"managedBy": "kubernetes.io/job-controller"}))
    assert not KIND.is_managed(make({"managedBy": "kueue.x-k8s.io/multikueue"}))
    assert not KIND.is_managed(Job())
