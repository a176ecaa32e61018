"""What is written next for a Workload that no job owns."""

from __future__ import annotations

from dataclasses import replace

from serried.api.assignment import encode
from serried.api.kueue import Workload
from serried.api.meta import Condition
from serried.api.resources import NODES
from serried.gang.membership import Gang, Stage
from serried.lifecycle.actions import Action, CreatePodGroup, PatchWorkload, Place, Warn
from serried.lifecycle.cluster_state import ClusterState
from serried.lifecycle.owner import Nobody
from serried.lifecycle.reconcile import Run, next_steps
from tests.unit.lifecycle.objects import NOW, Cluster, admitted, job, members, node


def alone() -> Workload:
    workload = admitted(job())
    workload.metadata.owner_references = ()
    return workload


def steps(workload: Workload, gang: Gang, *, cluster: ClusterState | None = None) -> list[Action]:
    return list(next_steps(Nobody(workload), Run([workload], gang), cluster or Cluster(), NOW).actions)


def test_its_gang_takes_its_places_when_it_is_whole() -> None:
    workload = alone()
    assert [type(s) for s in steps(workload, members(Stage.WAITING))] == [CreatePodGroup]
    place, group = steps(workload, members(Stage.WAITING, Stage.WAITING))
    assert isinstance(place, Place)
    assert [(m.pod, m.values) for m in place.moves] == [("p0", ("n0",)), ("p1", ("n1",))]
    assert isinstance(group, CreatePodGroup)
    assert group.pod_group.spec.min_member == 2


def test_nothing_is_done_before_its_admission_nor_after_its_end() -> None:
    gang = members(Stage.WAITING, Stage.WAITING)
    workload = alone()
    workload.status.conditions += (Condition(type="Finished", status="True"),)
    assert steps(workload, gang) == []
    workload = alone()
    workload.status.conditions = tuple(c for c in workload.status.conditions if c.type != "Admitted")
    assert steps(workload, gang) == []


def test_a_closed_place_takes_its_admission_back() -> None:
    (step,) = steps(alone(), members(Stage.WAITING, Stage.WAITING), cluster=Cluster((NODES, node("n1", cordoned=True))))
    assert isinstance(step, PatchWorkload)
    said = {c["type"]: (c["status"], c["reason"]) for c in step.patch["status"]["conditions"]}
    assert said["Evicted"] == ("True", "NodeFailures")
    assert step.event is not None
    assert step.event[0] == "EvictedDueToNodeFailures"


def test_evicted_it_gives_everything_back_when_none_of_its_pods_is_on_its_way() -> None:
    """A binding that was sent may still arrive: whoever got the node meanwhile would share it."""
    workload = alone()
    workload.status.conditions += (Condition(type="Evicted", status="True", reason="Preempted", message="goes"),)
    gang = members(Stage.WAITING, Stage.WAITING)
    gang.in_flight.add("uid1")
    assert steps(workload, gang) == []
    gang.set(replace(gang.members["p1"], stage=Stage.BOUND))
    (step,) = steps(workload, gang)
    assert isinstance(step, PatchWorkload)
    said = {c["type"]: (c["status"], c["message"]) for c in step.patch["status"]["conditions"]}
    assert said["QuotaReserved"] == said["Admitted"] == ("False", "goes")
    assert step.patch["status"]["admission"] is None
    workload.status.admission = None
    assert steps(workload, gang) == []


def test_pods_of_an_earlier_run_neither_begin_the_next_one_nor_make_it_ready() -> None:
    """Admitted again on n0 and n1: one on n9 is of the run before, one on n0 may stay."""
    workload = alone()
    workload.status.conditions += (Condition(type="Evicted", status="False"),)
    gang = members(Stage.READY, Stage.READY)
    gang.set(replace(gang.members["p0"], node="n9"))
    gang.set(replace(gang.members["p1"], node="n8"))
    assert [type(s) for s in steps(workload, gang)] == [CreatePodGroup]
    new = replace(gang.members["p0"], name="q0", uid="v0", stage=Stage.WAITING, node="")
    gang.set(new)
    assert [type(s) for s in steps(workload, gang)] == [CreatePodGroup]
    gang.set(replace(new, name="q1", uid="v1", rank=1))
    place = next(s for s in steps(workload, gang) if isinstance(s, Place))
    assert [(m.pod, m.values) for m in place.moves] == [("q0", ("n0",)), ("q1", ("n1",))]
    place.gang.in_flight.add("v0")
    assert gang.in_flight == {"v0"}
    stays = members(Stage.READY, Stage.WAITING)
    place = next(s for s in steps(workload, stays) if isinstance(s, Place))
    assert [(m.pod, m.values) for m in place.moves] == [("p1", ("n1",))]


def test_pods_that_it_cannot_place_are_told_on_it() -> None:
    gang = members(Stage.WAITING)
    gang.set(replace(gang.members["p0"], name="x", uid="x", pod_set="other"))
    found = [s for s in steps(alone(), gang) if isinstance(s, Warn)]
    assert [s.message for s in found] == [
        "pods name in their label kueue.x-k8s.io/podset 'other'; allowed are the Workload's pod sets: main"
    ]
    workload = alone()
    assert workload.status.admission is not None
    waiting = members(Stage.WAITING, Stage.WAITING)
    for without in (encode(["rack"], [(("r0",), 2)]), None):
        workload.status.admission.pod_set_assignments[0].topology_assignment = without
        (warning,) = (s for s in steps(workload, waiting) if isinstance(s, Place | Warn))
        assert isinstance(warning, Warn)
        assert "pods of main wait for a node, and the plan has none for them" in warning.message


def test_a_plan_that_cannot_be_read_is_told_on_the_workload() -> None:
    workload = alone()
    admission = workload.status.admission
    assert admission is not None
    assignment = admission.pod_set_assignments[0].topology_assignment
    assert assignment is not None
    assignment.levels = []
    (step,) = steps(workload, members(Stage.WAITING, Stage.WAITING))
    assert isinstance(step, Warn)
    assert step.about.object is workload
    assert "status.admission" in step.message
