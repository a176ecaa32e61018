"""Who is marked for another look, and what the engine is told again, when something changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api import names
from serried.api.batch import Job
from serried.api.core import LimitRange, Pod, RuntimeClass
from serried.api.kueue import Workload
from serried.api.meta import Key, OwnerReference
from serried.api.problem import Problem
from serried.api.resources import (
    JOBS,
    LIMIT_RANGES,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    WORKLOADS,
)
from serried.lifecycle.actions import CreateWorkload, DeleteWorkload
from serried.lifecycle.cluster_state import OwnerKey
from serried.lifecycle.index import Index
from tests.unit.lifecycle.objects import (
    KEY,
    NAME,
    NOW,
    Cluster,
    admitted,
    job,
    made,
    node,
    pod_class,
    workload_class,
)

JOB: OwnerKey = (JOBS, ("team", "train"))


@pytest.fixture
def marked() -> list[OwnerKey]:
    return []


@pytest.fixture
def cluster(marked: list[OwnerKey]) -> Cluster:
    return Cluster(marked=marked)


def foreign(name: str) -> Job:
    """A Job that is nobody's to queue."""
    return job(name=name, uid=name, labels={})


def workload(name: str = "alone", namespace: str = "team", *, runtime_class: str = "") -> Workload:
    """One that no job owns."""
    template = {"spec": {"runtimeClassName": runtime_class, "containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 1, "template": template}]},
        },
        Workload,
    )


def pod(name: str, *, of: Key | None = None, owner: str = "", node: str = "") -> Pod:
    """A pod of a Workload (`of`), or of a Job that no start of ours made (`owner`)."""
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "u1", "controller": True}]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": name,
                "annotations": {names.WORKLOAD: of[1]} if of else {},
                "labels": {names.POD_SET: "main"},
                "ownerReferences": owners if owner else [],
            },
            "spec": {"schedulerName": "serried", "nodeName": node},
        },
        Pod,
    )


def test_a_job_and_its_workload_find_each_other(cluster: Cluster, marked: list[OwnerKey]) -> None:
    cluster.feed(JOBS, job())
    (create,) = cluster.next_steps(JOB, NOW).actions
    assert isinstance(create, CreateWorkload)
    marked.clear()
    cluster.feed(WORKLOADS, made(job()))
    assert marked == [JOB]
    assert not cluster.next_steps(JOB, NOW).actions
    cluster.drop(JOBS, JOB[1])
    (delete,) = cluster.next_steps(JOB, NOW).actions
    assert isinstance(delete, DeleteWorkload)


@pytest.mark.parametrize("api_version", ["batch.volcano.sh/v1alpha1", ""])
def test_a_workload_of_a_kind_that_is_not_ours_or_of_nobody_outlives_a_job_of_that_name(
    cluster: Cluster, api_version: str
) -> None:
    other = made(job())
    if api_version:
        other.metadata.owner_references[0].api_version = api_version
    else:
        other.metadata.owner_references = ()
    cluster.feed(WORKLOADS, other)
    assert not cluster.next_steps(JOB, NOW).actions
    cluster.feed(JOBS, job(deletionTimestamp=NOW))
    assert not cluster.next_steps(JOB, NOW).actions


def test_a_job_whose_workload_went_is_perhaps_gone_itself(cluster: Cluster) -> None:
    cluster.feed(JOBS, job())
    cluster.feed(WORKLOADS, made(job()))
    cluster.drop(WORKLOADS, KEY)
    assert cluster.possibly_deleted == {JOB}
    cluster.drop(JOBS, JOB[1])
    assert cluster.possibly_deleted == set()


def test_only_jobs_that_still_need_a_workload_wait_for_names_and_classes(
    cluster: Cluster, marked: list[OwnerKey]
) -> None:
    queued = job(name="queued", uid="u2")
    over = job(name="over", uid="u3", status={"conditions": [{"type": "Complete", "status": "True"}]})
    for each in (job(), queued, over, foreign("a"), foreign("b")):
        cluster.feed(JOBS, each)
    cluster.feed(WORKLOADS, made(queued))
    cluster.feed(WORKLOADS, workload())
    marked.clear()
    cluster.drop(WORKLOADS, ("team", "alone"))
    cluster.feed(*workload_class("high", 9))
    cluster.feed(*pod_class("high", 9))
    assert marked == [JOB] * 3
    cluster.drop(JOBS, JOB[1])
    marked.clear()
    cluster.feed(*pod_class("low", 1))
    assert marked == []


def test_a_node_that_closes_concerns_gangs_that_are_not_yet_bound(cluster: Cluster, marked: list[OwnerKey]) -> None:
    cluster.feed(JOBS, job())
    cluster.feed(WORKLOADS, admitted(job()))
    cluster.feed(WORKLOADS, workload())
    cluster.feed(PODS, pod("p", of=KEY))
    cluster.feed(PODS, pod("q", of=("team", "alone"), node="n1"))
    marked.clear()
    cluster.feed(NODES, node("n0", cordoned=True))
    assert marked == [JOB]
    cluster.feed(PODS, pod("p", of=KEY, node="n1"))
    marked.clear()
    cluster.drop(NODES, ("", "n0"))
    assert marked == []


def test_pods_that_no_start_made_are_counted_for_their_job(cluster: Cluster, marked: list[OwnerKey]) -> None:
    cluster.feed(JOBS, job())
    marked.clear()
    cluster.feed(PODS, pod("p", owner="train"))
    assert marked == [JOB]
    owner = cluster.job_owner(JOB)
    assert owner is not None
    assert owner.unplanned_pods == 1
    cluster.drop(PODS, ("team", "p"))
    owner = cluster.job_owner(JOB)
    assert owner is not None
    assert owner.unplanned_pods == 0


def test_a_job_that_a_queued_job_made_is_not_queued_itself(cluster: Cluster) -> None:
    cluster.feed(JOBS, job())
    parent = OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="u1", controller=True)
    child = job(name="child", uid="u2", ownerReferences=[msgspec.to_builtins(parent)])
    cluster.feed(JOBS, child)
    assert not cluster.next_steps((JOBS, ("team", "child")), NOW).actions
    cluster.feed(JOBS, foreign("train"))
    (create,) = cluster.next_steps((JOBS, ("team", "child")), NOW).actions
    assert isinstance(create, CreateWorkload)


def told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Problem]]]:
    """Names of the Workloads that the engine is told of from now on, with what is wrong with them."""
    found: list[tuple[str, list[Problem]]] = []
    tell = cluster.engine.set_workload

    def set_workload(workload: Workload, problems: Any = ()) -> Any:
        found.append((workload.metadata.name, list(problems)))
        return tell(workload, problems)

    monkeypatch.setattr(cluster.engine, "set_workload", set_workload)
    return found


def test_a_runtime_class_concerns_those_that_name_it_and_only_when_it_changes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.feed(WORKLOADS, workload("plain"))
    cluster.feed(WORKLOADS, workload("vm", runtime_class="vm"))
    cluster.feed(WORKLOADS, workload("other", runtime_class="other"))
    heard = told(cluster, monkeypatch)

    def feed(cpu: str) -> None:
        raw = {"metadata": {"name": "vm"}, "handler": "vm", "overhead": {"podFixed": {"cpu": cpu}}}
        cluster.feed(RUNTIME_CLASSES, msgspec.convert(raw, RuntimeClass))

    for cpu in ("1", "1", "2"):
        feed(cpu)
    assert heard == [("vm", []), ("vm", [])]
    cluster.drop(RUNTIME_CLASSES, ("", "vm"))
    name, (problem,) = heard[-1]
    assert (name, problem.found) == ("vm", "'vm'")
    cluster.drop(WORKLOADS, ("team", "vm"))
    heard.clear()
    feed("3")
    assert heard == []


def test_a_limit_range_concerns_what_waits_in_its_namespace(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.feed(WORKLOADS, workload("here"))
    cluster.feed(WORKLOADS, workload("there", namespace="elsewhere"))
    cluster.feed(WORKLOADS, admitted(job()))
    heard = told(cluster, monkeypatch)
    raw = {
        "metadata": {"name": "limits", "namespace": "team"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]},
    }
    cluster.feed(LIMIT_RANGES, msgspec.convert(raw, LimitRange))
    cluster.feed(LIMIT_RANGES, msgspec.convert(raw, LimitRange))
    assert [name for name, _ in heard] == ["here"]
    assert "at most 500m" in heard[0][1][0].allowed
    assert NAME not in {name for name, _ in heard}


def test_an_index_forgets_names_without_keys() -> None:
    index: Index[str, int] = Index()
    index.move(1, [], ["a", "b"])
    index.move(2, [], ["b"])
    assert (index["a"], index["b"], index["c"]) == ({1}, {1, 2}, set())
    index.move(1, ["a", "b"], ["b", "c"])
    assert (index["a"], index["b"], index["c"]) == (set(), {1, 2}, {1})
    index.move(1, ["a", "b", "c"], [])
    index.move(2, ["b"], [])
    assert (index["a"], index["b"], index["c"]) == (set(), set(), set())
