"""Quota shared between teams: borrowing, reclaiming, preemption, checks, stopped queues."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.api.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, WORKLOADS
from serried.cluster.protocol import Conflict
from serried.control.config import Configuration
from serried.schedule.types.options import FairSharing
from tests.scenarios.arena import GPU, RACK, Arena, job, node_labels

ADMITTED, EVICTED, FINISHED = WorkloadCondition.ADMITTED, WorkloadCondition.EVICTED, WorkloadCondition.FINISHED
QUOTA_RESERVED = WorkloadCondition.QUOTA_RESERVED
IN_ONE_RACK = {names.REQUIRED_TOPOLOGY: RACK}


async def team(arena: Arena, name: str, nominal: int, *, cohort: str = "", **spec: Any) -> None:
    """A ClusterQueue of the scenario's flavor, and a LocalQueue of its name that leads to it."""
    flavor = {"name": arena.queue, "resources": [{"name": GPU, "nominalQuota": str(nominal)}]}
    body = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}],
        **({"cohortName": arena.scoped(cohort)} if cohort else {}),
        **spec,
    }
    await arena.make(CLUSTER_QUEUES, arena.scoped(name), body)
    await arena.make(LOCAL_QUEUES, name, {"clusterQueue": arena.scoped(name)}, arena.namespace)


async def test_a_team_borrows_and_the_owner_reclaims(arena: Arena) -> None:
    """Team b borrows all that team a does not use; when a wants its own, b's newest job goes back to the queue."""
    await arena.set_up_queue()
    reclaims = {"preemption": {"reclaimWithinCohort": "Any"}}
    await team(arena, "a", 64, cohort="both", **reclaims)
    await team(arena, "b", 64, cohort="both", **reclaims)
    await arena.start()
    await arena.submit(job("old", 8, queue="b"))
    await arena.until_running("old", 8)
    arena.ahead += timedelta(seconds=1)  # who reserved last goes first, and times are in whole seconds
    await arena.submit(job("new", 8, queue="b"))
    await arena.until_running("new", 8)
    await arena.submit(job("mine", 8, queue="a"))
    evicted = await arena.until_condition("new", EVICTED)
    assert evicted.reason == "Preempted"
    preempted = await arena.condition("new", WorkloadCondition.PREEMPTED)
    assert preempted is not None
    assert preempted.reason == "InCohortReclamation"
    await arena.until_running("mine", 8)
    assert (await arena.job("new")).spec.suspend
    assert await arena.condition("old", EVICTED) is None
    await arena.end_job("mine")
    await arena.until_condition("mine", FINISHED)
    await arena.until_running("new", 8)  # it borrows again
    again = await arena.condition("new", EVICTED)
    assert again is not None
    assert again.status == "False"
    workload = await arena.workload("new")
    assert workload is not None
    assert workload.status.scheduling_stats is not None
    (counted,) = workload.status.scheduling_stats.evictions
    assert (counted.reason, counted.count) == ("Preempted", 1)


async def test_quota_of_a_cohort_three_levels_up(arena: Arena) -> None:
    """A team without quota of its own in a group without quota in a company that has some."""
    await arena.set_up_queue()
    flavor = {"name": arena.queue, "resources": [{"name": GPU, "nominalQuota": "64"}]}
    group = {"coveredResources": [GPU], "flavors": [flavor]}
    await arena.make(COHORTS, arena.scoped("company"), {"resourceGroups": [group]})
    await arena.make(COHORTS, arena.scoped("department"), {"parentName": arena.scoped("company")})
    await arena.make(COHORTS, arena.scoped("group"), {"parentName": arena.scoped("department")})
    await team(arena, "small", 0, cohort="group")
    await arena.start()
    await arena.submit(job("fits", 8, queue="small"))
    await arena.until_running("fits", 8)
    await arena.submit(job("waits", 1, queue="small"))
    await arena.until_condition("waits", QUOTA_RESERVED, "False", text=GPU)


async def test_a_gang_preempts_exactly_the_jobs_that_free_one_rack(arena: Arena) -> None:
    """All eight racks are in use: seven by jobs of equal rank, one by low ones. Only those of that rack have to go."""
    await arena.set_up_queue()
    await team(arena, "one", 512, preemption={"withinClusterQueue": "LowerPriority"})
    await arena.make_priority_class("low", 1)
    await arena.make_priority_class("high", 10)
    await arena.start()

    def classed(name: str, pods: int, level: str, **more: Any) -> dict[str, Any]:
        return job(name, pods, queue="one", labels={names.PRIORITY_CLASS: arena.scoped(level)}, **more)

    for i in range(7):
        await arena.submit(classed(f"high-{i}", 8, "high", topology=IN_ONE_RACK))
        await arena.until_running(f"high-{i}", 8)
    for i in range(2):
        await arena.submit(classed(f"low-{i}", 4, "low", topology=IN_ONE_RACK))
        await arena.until_running(f"low-{i}", 4)
    await arena.submit(classed("gang", 8, "high", topology=IN_ONE_RACK))
    pods = await arena.until_running("gang", 8)
    assert len({node_labels(int(p.spec.node_name[5:]))[RACK] for p in pods}) == 1
    for i in range(2):
        await arena.until_condition(f"low-{i}", EVICTED)
    for i in range(7):
        assert await arena.condition(f"high-{i}", EVICTED) is None


async def test_nobody_is_preempted_where_no_rack_would_be_free(arena: Arena) -> None:
    """A low job on one node of each rack, and a stranger's pod on another: without the low ones no rack is free."""
    await arena.set_up_queue()
    await team(arena, "one", 512, preemption={"withinClusterQueue": "LowerPriority"})
    await arena.make_priority_class("high", 10)
    for rack in range(8):
        await arena.run_stranger(f"stranger-{rack}", node_labels(rack * 8)[names.HOSTNAME], gpus=1)
    await arena.start()
    await arena.submit(job("low", 56, queue="one"))
    await arena.until_running("low", 56)
    high = {names.PRIORITY_CLASS: arena.scoped("high")}
    await arena.submit(job("gang", 8, queue="one", topology=IN_ONE_RACK, labels=high))
    await arena.until_condition("gang", QUOTA_RESERVED, "False", text="7 of 8")
    assert await arena.condition("low", EVICTED) is None
    await arena.until_running("low", 56)


async def test_a_queue_that_is_held_and_drained(arena: Arena) -> None:
    await arena.set_up_queue()
    await team(arena, "one", 64)
    await arena.start()
    await arena.submit(job("runs", 4, queue="one"))
    await arena.until_running("runs", 4)
    queue = arena.scoped("one")
    await arena.cluster.patch(CLUSTER_QUEUES, queue, patch={"spec": {"stopPolicy": "HoldAndDrain"}})
    evicted = await arena.until_condition("runs", EVICTED)
    assert evicted.reason == "ClusterQueueStopped"

    async def gone() -> bool:
        return not await arena.pods("runs")

    await arena.until(gone)
    await arena.cluster.patch(CLUSTER_QUEUES, queue, patch={"spec": {"stopPolicy": "None"}})
    await arena.until_running("runs", 4)


async def test_a_job_that_may_be_smaller_starts_with_what_there_is(arena: Arena) -> None:
    await arena.set_up_queue()
    await team(arena, "one", 24)
    await arena.start()
    body = job("elastic", 8, queue="one", spec={"completions": 8})
    body["metadata"]["annotations"] = {names.MIN_PARALLELISM: "2"}
    await arena.submit(body)
    await arena.until_running("elastic", 3)
    assert (await arena.job("elastic")).spec.parallelism == 3
    await arena.until_condition("elastic", WorkloadCondition.PODS_READY)


async def test_a_job_waits_for_a_check_that_somebody_else_makes_ready(arena: Arena) -> None:
    """Quota is reserved first; the job starts when the check is ready, with what the check adds to its pods."""
    await arena.set_up_queue()
    check = arena.scoped("licence")
    await arena.make(ADMISSION_CHECKS, check, {"controllerName": "example.com/licences"})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await arena.cluster.patch(ADMISSION_CHECKS, check, patch={"status": {"conditions": [active]}}, subresource="status")
    await team(arena, "one", 64, admissionChecksStrategy={"admissionChecks": [{"name": check}]})
    await arena.start()
    await arena.submit(job("checked", 2, queue="one"))
    await arena.until_condition("checked", QUOTA_RESERVED)
    assert await arena.condition("checked", ADMITTED) is None
    assert (await arena.job("checked")).spec.suspend

    async def answered() -> bool:
        workload = await arena.workload("checked")
        assert workload is not None
        state = {
            "name": check,
            "state": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "podSetUpdates": [{"name": "main", "annotations": {"example.com/licence": "7"}}],
        }
        patch = {
            "metadata": {"resourceVersion": workload.metadata.resource_version},
            "status": {"admissionChecks": [state]},
        }
        try:
            await arena.cluster.patch(
                WORKLOADS, workload.metadata.name, arena.namespace, patch=patch, subresource="status"
            )
        except Conflict:
            return False
        return True

    await arena.until(answered)
    await arena.until_condition("checked", ADMITTED)
    pods = await arena.until_running("checked", 2)
    assert all(p.metadata.annotations["example.com/licence"] == "7" for p in pods)


async def test_quota_edited_below_what_is_used_stops_nobody_and_admits_nobody(arena: Arena) -> None:
    await arena.set_up_queue(nominal=64)
    await arena.start()
    await arena.submit(job("runs", 8))
    await arena.until_running("runs", 8)
    await arena.set_quota(32)
    await arena.submit(job("waits", 1, seconds=0.1))
    await arena.until_condition("waits", QUOTA_RESERVED, "False", text=GPU)
    assert await arena.condition("runs", EVICTED) is None
    await arena.end_job("runs")
    await arena.until_condition("runs", FINISHED)
    await arena.until_condition("waits", FINISHED)


async def test_cohorts_in_a_circle_admit_nothing_and_say_so(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.make(COHORTS, arena.scoped("x"), {"parentName": arena.scoped("y")})
    await arena.make(COHORTS, arena.scoped("y"), {"parentName": arena.scoped("x")})
    await team(arena, "one", 64, cohort="x")
    await arena.start()
    await arena.submit(job("stuck", 1, queue="one"))
    await arena.until_condition("stuck", QUOTA_RESERVED, "False", text="each other's parents")
    await arena.submit(job("others", 1, seconds=0.1))
    await arena.until_condition("others", FINISHED)

    async def says(reason: str) -> bool:
        both = [await arena.cluster.get(COHORTS, arena.scoped(name)) for name in ("x", "y")]
        return all([c.reason for c in found.status.conditions] == [reason] for found in both)

    await arena.until(lambda: says("CohortCycle"))
    await arena.cluster.patch(COHORTS, arena.scoped("y"), patch={"spec": {"parentName": None}})
    await arena.until(lambda: says("Ready"))
    await arena.until_running("stuck", 1)


async def test_the_share_that_a_cohort_borrows_is_in_its_status(arena: Arena) -> None:
    await arena.set_up_queue()
    for name in ("lends", "borrows"):
        await arena.make(COHORTS, arena.scoped(name), {"parentName": arena.scoped("all")})
    await team(arena, "a", 64, cohort="lends")
    await team(arena, "b", 64, cohort="borrows")
    await arena.start(Configuration(fair_sharing=FairSharing()))

    async def shares(*expected: int) -> bool:
        found = [await arena.cluster.get(COHORTS, arena.scoped(name)) for name in ("lends", "borrows")]
        return [c.status.fair_sharing and c.status.fair_sharing.weighted_share for c in found] == list(expected)

    await arena.until(lambda: shares(0, 0))
    await arena.submit(job("more", 12, queue="b"))
    await arena.until_running("more", 12)
    await arena.until(lambda: shares(0, 250))
    await arena.delete_job("more")
    await arena.until(lambda: shares(0, 0))
