"""What is written next for a Workload that no Job owns."""

from __future__ import annotations

from typing import Any

from serried.api.kueue import Workload
from serried.api.meta import Condition
from serried.control.lifecycle import CreatePodGroup, PatchWorkload, Place, Step, Warn, steps_without_job
from serried.gang.membership import Stage
from tests.unit.control.test_lifecycle import NOW, admitted, job, members, view


def alone() -> Workload:
    workload = admitted(job())
    workload.metadata.owner_references = []
    return workload


def steps(*args: Any, **kwargs: Any) -> list[Step]:
    return steps_without_job(view(None, *args, **kwargs), NOW)


def test_its_gang_takes_its_places_when_it_is_whole() -> None:
    workload = alone()
    assert [type(s) for s in steps(workload, members(Stage.WAITING))] == [CreatePodGroup]
    place, group = steps(workload, members(Stage.WAITING, Stage.WAITING))
    assert isinstance(place, Place)
    assert [(m.pod, m.values) for m in place.moves] == [("p0", ("n0",)), ("p1", ("n1",))]
    assert isinstance(group, CreatePodGroup)
    assert group.pod_group.spec.min_member == 2


def test_nothing_is_done_before_its_admission_nor_after_its_end() -> None:
    assert steps() == []
    gang = members(Stage.WAITING, Stage.WAITING)
    for type_ in ("Finished", "Evicted"):
        workload = alone()
        workload.status.conditions.append(Condition(type=type_, status="True"))
        assert steps(workload, gang) == []
    workload = alone()
    workload.status.conditions = [c for c in workload.status.conditions if c.type != "Admitted"]
    assert steps(workload, gang) == []


def test_a_closed_place_takes_its_admission_back_at_once() -> None:
    """There is no Job to stop: evicted and released in one write."""
    (step,) = steps(alone(), members(Stage.WAITING, Stage.WAITING), closed=("n1",))
    assert isinstance(step, PatchWorkload)
    said = {c["type"]: (c["status"], c["reason"]) for c in step.patch["status"]["conditions"]}
    assert said["Evicted"] == ("True", "NodeFailures")
    assert said["QuotaReserved"][0] == said["Admitted"][0] == "False"
    assert step.patch["status"]["admission"] is None
    assert step.event is not None
    assert step.event[0] == "EvictedDueToNodeFailures"


def test_a_deactivated_one_gives_everything_back() -> None:
    workload = alone()
    workload.spec.active = False
    (step,) = steps(workload)
    assert isinstance(step, PatchWorkload)
    assert step.event is not None
    assert step.event[0] == "EvictedDueToDeactivated"


def test_a_plan_that_cannot_be_read_is_told_on_the_workload() -> None:
    workload = alone()
    admission = workload.status.admission
    assert admission is not None
    assignment = admission.pod_set_assignments[0].topology_assignment
    assert assignment is not None
    assignment.levels = []
    (step,) = steps(workload, members(Stage.WAITING, Stage.WAITING))
    assert isinstance(step, Warn)
    assert step.about is workload
    assert "status.admission" in step.message
