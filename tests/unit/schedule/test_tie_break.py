"""Of victims that are equal by Kueue's order, those go whose end leaves the preemptor closer together."""

from __future__ import annotations

import pytest

from serried.api.assignment import decode
from serried.api.meta import Condition
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    feed,
    finished,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    workload,
)

HOSTS = [f"{rack}-{i}" for rack in ("r0", "r1", "r2") for i in range(3)]


def cluster(uids: str, times: str = "000000000", priorities: str = "000000000", *, fair: bool = False) -> Engine:
    """Three racks of three nodes, each node with a job of its own name: its uid, when it reserved, its priority."""
    engine = Engine(options=Options(fair_sharing=FairSharing() if fair else None))
    engine.set_namespace(NS, {})
    queue = cluster_queue(flavors={"gpu": {GPU: 72}}, preemption={"withinClusterQueue": "LowerPriority"})
    for item in (topology(), flavor("gpu", topology="fabric"), queue, local_queue()):
        feed(engine, item)
    for host, uid, time, priority in zip(HOSTS, uids, times, priorities, strict=True):
        feed(engine, node(host, rack=host[:2]))
        pod = pod_set(1, gpu=8, required=RACK)
        running = workload(host, pod, uid=uid, priority=int(priority))
        feed(engine, running)
        (admit,) = engine.cycle(at(0)).decisions
        running.status.admission = admit.admission
        assert hosts_of(running) == [host]
        running.status.conditions = tuple(
            Condition(type=t, status="True", reason=t, last_transition_time=at(int(time)))
            for t in ("QuotaReserved", "Admitted")
        )
        running.metadata.resource_version = "2"
        feed(engine, running)
    return engine


def hosts_of(given: object) -> list[str]:
    assignment = given.status.admission.pod_set_assignments[0].topology_assignment  # type: ignore[attr-defined]
    return [values[-1] for values, _ in decode(assignment)]


def victims(engine: Engine, *, pods: int = 2) -> list[str]:
    """Who is preempted for a gang that would like to be in one rack."""
    feed(engine, workload("gang", pod_set(pods, gpu=8, topology={"preferred": RACK}), priority=9))
    found = sorted(e.key[1] for e in engine.cycle(at(9)).evictions)
    engine.validate()
    return found


@pytest.mark.parametrize("fair", [False, True])
def test_equal_jobs_of_one_rack_go_rather_than_those_whose_uids_come_first(fair: bool) -> None:
    # By uid it would be one of r0, one of r1 and one of r2.
    assert victims(cluster("adgbehcfi", fair=fair), pods=3) == ["r0-0", "r0-1", "r0-2"]
    engine = cluster("adgbehcfi", fair=fair)
    assert {name[:2] for name in victims(engine, pods=2)} in ({"r0"}, {"r1"}, {"r2"})


def test_those_that_have_run_for_less_time_go_wherever_they_are() -> None:
    assert victims(cluster("adgbehcfi", times="200200000")) == ["r0-0", "r1-0"]
    # One is newer than all others; the second is chosen among equals, beside it.
    assert victims(cluster("adgbehcfi", times="100210111")) == ["r1-0", "r1-1"]


def test_those_of_lower_priority_go_wherever_they_are() -> None:
    assert victims(cluster("adgbehcfi", priorities="122212221")) == ["r0-0", "r1-1"]


def test_as_many_go_as_by_uid_where_some_nodes_are_free() -> None:
    engine = cluster("adgbehcfi")
    gone = workload("r2-2", pod_set(1, gpu=8, required=RACK), uid="i")
    feed(engine, finished(gone))
    assert len(victims(engine, pods=3)) == 2


def test_the_gang_gets_the_place_that_its_victims_leave() -> None:
    engine = cluster("adgbehcfi")
    names = victims(engine, pods=3)
    for name in names:
        engine.delete_workload((NS, name))
    (admit,) = engine.cycle(at(10)).decisions
    assert admit.key[1] == "gang"
    assignment = admit.admission.pod_set_assignments[0].topology_assignment
    assert assignment is not None
    assert [values[-1] for values, _ in decode(assignment)] == names
