"""The way of a training job, from its submission to its end."""

from __future__ import annotations

import re

import msgspec
import pytest

from serried.api import names
from serried.api.core import Pod
from serried.api.names import CoschedulingPhase, WorkloadCondition
from serried.api.resources import JOBS, PODS, WORKLOADS
from serried.control.config import Configuration
from tests.scenarios.arena import BLOCK, GPU, HOST, RACK, Arena, assigned, job, node_labels

IN_ONE_RACK = {names.REQUIRED_TOPOLOGY: RACK}


async def test_a_gang_fills_one_rack_rank_by_rank(arena: Arena) -> None:
    """8 pods of a whole node each, required in one rack: admitted, planned, bound together, running, finished."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK))

    pods = await arena.until_running("train", 8)
    nodes = [p.spec.node_name for p in pods]
    racks = {(labels[BLOCK], labels[RACK]) for i in range(64) if (labels := node_labels(i))[HOST] in nodes}
    assert len(racks) == 1
    assert nodes == sorted(nodes)
    assert len(set(nodes)) == 8

    workload = await arena.workload("train")
    levels, domains = assigned(workload)
    assert levels == [HOST]
    assert domains == [((node,), 1) for node in nodes]
    for type in (WorkloadCondition.QUOTA_RESERVED, WorkloadCondition.ADMITTED):
        await arena.until_condition("train", type)
    await arena.until_condition("train", WorkloadCondition.PODS_READY)

    async def group_runs() -> bool:
        group = await arena.pod_group("train")
        return group is not None and (group.status.phase, group.status.running) == (CoschedulingPhase.RUNNING, 8)

    await arena.until(group_runs)
    await arena.end_job("train")
    done = await arena.until_condition("train", WorkloadCondition.FINISHED)
    assert done.reason == "Succeeded"
    await arena.until_free()

    async def group_is_over() -> bool:
        group = await arena.pod_group("train")
        return group is not None and (group.status.phase, group.status.succeeded) == (CoschedulingPhase.FINISHED, 8)

    await arena.until(group_is_over)
    await arena.until_told("train", "CreatedWorkload", "Started")
    assert workload is not None
    await arena.until_told(workload.metadata.name, "QuotaReserved", "Admitted", "FinishedWorkload")


async def test_a_gang_larger_than_any_rack_waits_with_the_reason_and_without_pods(arena: Arena) -> None:
    """9 pods, required in a rack of 8: never admitted, no pod ever made; smaller Jobs go on beside it."""
    await arena.set_up_queue()
    controller = await arena.start()
    await arena.submit(job("nine", 9, topology=IN_ONE_RACK))
    await arena.submit(job("eight", 8, topology=IN_ONE_RACK, seconds=0.5))

    waits = await arena.until_condition("nine", WorkloadCondition.QUOTA_RESERVED, "False", text="8 out of 9")
    assert waits.reason == "TopologyPlacementFailed"
    await arena.until_condition("eight", WorkloadCondition.FINISHED)
    assert (await arena.job("nine")).spec.suspend
    assert await arena.pods("nine") == []

    workload = await arena.workload("nine")
    assert workload is not None
    explanation = controller.engine.explain(workload.key, controller.now())
    assert explanation is not None
    reason = explanation.reason
    assert reason is not None
    assert reason.layer == "topology"
    assert "rack" in reason.where
    assert "8 of 9" in reason.message
    assert (reason.missing, reason.what) == ("1", "pods")
    if arena.real:
        told = await arena.serried_says("explain", "job/nine", "--namespace", arena.namespace)
        assert re.search(r"largest rack \(block-\d/rack-\d\) has room for 8 of 9 pods", " ".join(told.split()))
        assert "Missing     1 pods" in told
        rows = msgspec.json.decode(await arena.serried_says("queue", "--namespace", arena.namespace, "-o", "json"))
        assert [(r["job"], r["state"], r["layer"]) for r in rows] == [
            (f"{arena.namespace}/nine", "pending", "topology")
        ]
        assert "block-1" in await arena.serried_says("topology", arena.queue)


async def test_a_job_that_waits_for_quota_starts_when_it_returns(arena: Arena) -> None:
    """Quota for one gang of two: the second starts when the first one has ended, and not before."""
    await arena.set_up_queue(nominal=64)
    await arena.start()
    await arena.submit(job("first", 8))
    await arena.until_running("first", 8)
    await arena.submit(job("second", 8, seconds=0.2))
    waits = await arena.until_condition("second", WorkloadCondition.QUOTA_RESERVED, "False", text=GPU)
    assert waits.reason == "WaitingForQuota"

    await arena.settle()
    assert (await arena.job("second")).spec.suspend

    await arena.end_job("first")
    first = await arena.until_condition("first", WorkloadCondition.FINISHED)
    second = await arena.until_condition("second", WorkloadCondition.ADMITTED)
    assert first.last_transition_time is not None
    assert second.last_transition_time is not None
    assert first.last_transition_time <= second.last_transition_time
    await arena.until_condition("second", WorkloadCondition.FINISHED)
    await arena.until_free()


async def test_a_job_without_a_topology_request_is_bound_all_the_same(arena: Arena) -> None:
    """No topology annotation, two pods to a node: bound by Serried, in rank order, on the nodes that its plan names."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("free", 6, gpus=4))
    pods = await arena.until_running("free", 6)
    _, domains = assigned(await arena.workload("free"))
    assert [p.spec.node_name for p in pods] == [values[0] for values, count in domains for _ in range(count)]


async def test_a_job_of_another_queue_system_is_left_alone(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("alone", 2, queue=None, scheduler="nobody", suspend=False))
    await arena.submit(job("ours", 2, seconds=0.1))
    await arena.until_condition("ours", WorkloadCondition.FINISHED)
    assert await arena.workload("alone") is None
    assert not (await arena.job("alone")).spec.suspend


async def test_without_the_webhook_an_unsuspended_job_is_held_back_and_kube_scheduler_binds_it(arena: Arena) -> None:
    """It came with `suspend: false` and the default scheduler: suspended, queued, then gated pods with a place each."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("plain", 8, topology=IN_ONE_RACK, scheduler=None, suspend=False, spec={"backoffLimit": 20}))
    await arena.until_condition("plain", WorkloadCondition.ADMITTED)

    async def placed() -> list[Pod]:
        """Its pods since the admission; those of its false start have no Workload."""
        pods = [p for p in await arena.pods("plain") if names.WORKLOAD in p.metadata.annotations]
        return pods if len(pods) == 8 and all(p.status.phase == "Running" for p in pods) else []

    pods = await arena.until(placed)
    _, domains = assigned(await arena.workload("plain"))
    assert [p.spec.node_name for p in pods] == [values[0] for values, _ in domains]
    assert all(p.spec.scheduler_name == "default-scheduler" for p in pods)
    assert all(p.spec.node_selector[HOST] == p.spec.node_name for p in pods)


async def test_with_kube_scheduler_binding_pods_are_gated_until_the_gang_is_whole(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(Configuration(binding="kube-scheduler"))
    await arena.submit(job("gated", 4, topology={names.PREFERRED_TOPOLOGY: RACK}, scheduler=None))

    async def template_is_gated() -> bool:
        template = (await arena.job("gated")).spec.template
        return [g.name for g in template.spec.scheduling_gates] == [names.TOPOLOGY_GATE]

    await arena.until(template_is_gated)
    pods = await arena.until_running("gated", 4)
    assert all(p.spec.scheduling_gates == () for p in pods)
    assert len({node_labels(int(p.spec.node_name[5:]))[RACK] for p in pods}) == 1


async def test_a_failed_job_gives_its_quota_back(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("broken", 2, seconds=0.2, result="fail"))
    done = await arena.until_condition("broken", WorkloadCondition.FINISHED)
    assert done.reason == "Failed"
    await arena.until_free()


@pytest.mark.parametrize("moment", ["pending", "admitted", "running"])
async def test_a_job_deleted_at_any_point_leaves_nothing(arena: Arena, moment: str) -> None:
    await arena.set_up_queue(nominal=8 if moment == "pending" else 512)
    await arena.start()
    await arena.submit(job("gone", 8, topology=IN_ONE_RACK))
    if moment == "pending":
        await arena.until_condition("gone", WorkloadCondition.QUOTA_RESERVED, "False")
    elif moment == "admitted":
        await arena.until_condition("gone", WorkloadCondition.ADMITTED)
    else:
        await arena.until_running("gone", 8)
    await arena.delete_job("gone")

    async def nothing_left() -> bool:
        group = await arena.pod_group("gone")
        return not await arena.pods() and await arena.workload("gone") is None and group is None

    await arena.until(nothing_left)
    await arena.until_free()


async def test_a_deleted_workload_stops_its_job_which_queues_anew(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("again", 4, topology=IN_ONE_RACK))
    before = {p.metadata.uid for p in await arena.until_running("again", 4)}
    workload = await arena.workload("again")
    assert workload is not None
    await arena.cluster.delete(WORKLOADS, workload.metadata.name, arena.namespace)

    async def runs_anew() -> bool:
        pods = [p for p in await arena.pods("again") if p.metadata.deletion_timestamp is None]
        fresh = [p for p in pods if p.metadata.uid not in before and p.status.phase == "Running"]
        return len(fresh) == len(pods) == 4

    await arena.until(runs_anew)
    _, domains = assigned(await arena.workload("again"))
    assert sum(count for _, count in domains) == 4


async def test_a_job_resized_while_it_waits_is_queued_with_its_new_size(arena: Arena) -> None:
    await arena.set_up_queue(nominal=32)
    await arena.start()
    await arena.submit(job("resized", 8, spec={"completions": 8}))
    await arena.until_condition("resized", WorkloadCondition.QUOTA_RESERVED, "False")
    patch = {"spec": {"parallelism": 4, "completions": 4}}
    await arena.cluster.patch(JOBS, "resized", arena.namespace, patch=patch)
    await arena.until_running("resized", 4)


async def test_a_pod_that_is_replaced_takes_its_old_place(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK, spec={"backoffLimit": 10}))
    pods = await arena.until_running("train", 8)
    lost = pods[3]
    await arena.cluster.delete(PODS, lost.metadata.name, arena.namespace, uid=lost.metadata.uid)

    async def replaced() -> str:
        there = await arena.pods("train")
        fresh = [
            p
            for p in there
            if p.metadata.uid != lost.metadata.uid and p.metadata.annotations[names.COMPLETION_INDEX] == "3"
        ]
        return fresh[0].spec.node_name if fresh and fresh[0].status.phase == "Running" else ""

    assert await arena.until(replaced) == lost.spec.node_name


async def test_what_others_run_on_a_node_is_counted(arena: Arena) -> None:
    """A pod of nobody's queue sits in each rack but one: the gang that needs a whole rack goes to that one."""
    await arena.set_up_queue()
    for rack in range(8):
        if rack != 5:
            await arena.run_stranger(f"stranger-{rack}", node_labels(rack * 8 + 2)[HOST], gpus=1)
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK))
    pods = await arena.until_running("train", 8)
    assert [p.spec.node_name for p in pods] == [f"node-{i}" for i in range(40, 48)]


async def test_higher_priority_goes_first(arena: Arena) -> None:
    await arena.set_up_queue(nominal=8)
    await arena.make_priority_class("urgent", 1000)
    await arena.start()
    await arena.submit(job("holds", 1))
    await arena.until_running("holds", 1)
    await arena.submit(job("early", 1, seconds=0.1))
    await arena.until_condition("early", WorkloadCondition.QUOTA_RESERVED, "False")
    await arena.submit(job("late", 1, seconds=0.1, labels={names.PRIORITY_CLASS: arena.scoped("urgent")}))
    await arena.until_condition("late", WorkloadCondition.QUOTA_RESERVED, "False")
    await arena.end_job("holds")
    late = await arena.until_condition("late", WorkloadCondition.ADMITTED)
    early = await arena.until_condition("early", WorkloadCondition.ADMITTED)
    assert late.last_transition_time is not None
    assert early.last_transition_time is not None
    assert late.last_transition_time <= early.last_transition_time
    assert await arena.finished_order("late", "early") == ["late", "early"]


async def test_a_job_deleted_and_made_anew_under_its_name_is_another_job(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    first = await arena.submit(job("same", 2))
    await arena.until_running("same", 2)
    await arena.delete_job("same")

    await arena.until_gone(JOBS, "same", arena.namespace)
    second = await arena.submit(job("same", 2, seconds=0.1))
    assert second.metadata.uid != first.metadata.uid

    async def done() -> bool:
        found = (await arena.cluster.list(WORKLOADS, arena.namespace)).items
        owned = [w for w in found if w.metadata.owner_references[0].uid == second.metadata.uid]
        return bool(owned) and any(c.type == "Finished" for c in owned[0].status.conditions)

    await arena.until(done)
    await arena.until_free()
