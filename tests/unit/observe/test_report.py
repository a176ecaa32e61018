"""One report of a job over all layers."""

from __future__ import annotations

from typing import Any

import pytest

from serried.api.kueue import Workload
from serried.api.meta import Condition
from serried.gang.membership import Gang, Member, Stage
from serried.jobs.job import BatchJob
from serried.lifecycle.owner import JobOwner
from serried.observe.report import Report, report
from tests.unit.lifecycle.objects import NAME, admitted, job, made, members

KIND = BatchJob()


def owner(**given: Any) -> JobOwner:
    found = job(**given)
    return JobOwner(KIND, found, KIND.is_managed(found), 0)


def running(gang: Gang | None, workload: Workload | None = None) -> Report:
    return report(owner(suspend=False), workload or admitted(job()), gang, None)


def test_without_a_workload_it_says_what_is_missing() -> None:
    assert report(None, None, None, None).summary == "There is no such job."
    foreign = report(owner(labels={}), None, None, None)
    assert (foreign.kind, foreign.job, foreign.layer) == ("Job", "team/train", "")
    assert "names no queue" in foreign.summary
    assert report(owner(), None, None, None).layer == "queue"
    broken = owner(annotations={"kueue.x-k8s.io/job-min-parallelism": "many"})
    found = report(broken, None, None, None)
    assert found.layer == "input"
    assert "job-min-parallelism" in found.summary


@pytest.mark.parametrize(
    ("stages", "layer", "text"),
    [
        ((Stage.WAITING,), "gang", "1 of 2 pods exist"),
        ((Stage.WAITING, Stage.HELD), "gang", "1 of 2 pods are behind a scheduling gate"),
        ((Stage.BOUND, Stage.RELEASED), "binding", "1 of 2 pods are bound"),
        ((Stage.READY, Stage.BOUND), "start-up", "1 of 2 pods are ready"),
        ((Stage.READY, Stage.SUCCEEDED), "training", "1 run, 1 have ended"),
    ],
)
def test_it_is_in_the_layer_of_its_last_pod(stages: tuple[Stage, ...], layer: str, text: str) -> None:
    found = running(members(*stages))
    assert (found.kind, found.job, found.workload) == ("Job", "team/train", f"team/{NAME}")
    assert found.layer == layer
    assert text in found.summary
    here = [step.layer for step in found.steps if step.state == "here"]
    assert here == [layer]
    assert found.places == ["n0", "n1"]


def test_pods_of_one_pod_set_do_not_count_for_another() -> None:
    gang = members(Stage.READY)
    gang.set(Member("x", "x", "other", 0, Stage.READY, "n1", (), False))
    assert running(gang).layer == "gang"


def test_as_many_pods_are_expected_as_were_admitted() -> None:
    workload = admitted(job())
    assert workload.status.admission is not None
    workload.status.admission.pod_set_assignments[0].count = 1
    assert running(members(Stage.READY), workload).layer == "training"


def test_before_its_admission_and_its_start_and_after_its_end() -> None:
    assert report(owner(), made(job()), None, None).summary == "It waits for its first look."
    assert "about to be started" in report(owner(), admitted(job()), None, None).summary
    workload = admitted(job())
    workload.status.conditions += (Condition(type="Finished", status="True", reason="Failed", message="too many"),)
    found = running(None, workload)
    assert (found.layer, found.summary) == ("", "Finished (Failed): too many")
