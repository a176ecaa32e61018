"""Topology requests beyond one rack, from the Job to the nodes that its pods run on, rank by rank."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from serried.api import names
from serried.api.assignment import decode
from serried.api.core import Pod
from serried.api.names import CoschedulingPhase, WorkloadCondition
from serried.api.resources import COSCHEDULING_POD_GROUPS, JOBS, WORKLOADS
from tests.scenarios.arena import BLOCK, HOST, RACK, Arena, assigned, index, job, node_labels, pod_set

SCHEDULERS = pytest.mark.parametrize("scheduler", ["serried", None], ids=["bound-by-us", "by-kube-scheduler"])


def where(pod: Pod) -> dict[str, str]:
    """The labels of the node that a pod runs on."""
    return node_labels(int(pod.spec.node_name.removeprefix("node-")))


async def as_planned(arena: Arena, name: str, pods: list[Pod]) -> bool:
    """Whether rank i runs on the i-th place of the plan."""
    _, domains = assigned(await arena.workload(name))
    return [p.spec.node_name for p in pods] == [values[0] for values, count in domains for _ in range(count)]


@SCHEDULERS
async def test_four_slices_of_two_racks_each(arena: Arena, scheduler: str | None) -> None:
    """64 pods in slices of 16 nodes, each within a block: two slices in either, of consecutive ranks."""
    await arena.set_up_queue()
    await arena.start()
    request = {names.PREFERRED_TOPOLOGY: BLOCK, names.SLICE_REQUIRED_TOPOLOGY: BLOCK, names.SLICE_SIZE: "16"}
    await arena.submit(job("slices", 64, topology=request, scheduler=scheduler))
    pods = await arena.until_running("slices", 64)
    assert await as_planned(arena, "slices", pods)
    assert [index(p)[0] for p in pods] == list(range(64))
    blocks = [{where(p)[BLOCK] for p in pods[i : i + 16]} for i in range(0, 64, 16)]
    assert [len(b) for b in blocks] == [1, 1, 1, 1]
    racks = [{(where(p)[BLOCK], where(p)[RACK]) for p in pods[i : i + 16]} for i in range(0, 64, 16)]
    assert [len(r) for r in racks] == [2, 2, 2, 2]
    assert len(set.union(*racks)) == 8


async def test_slices_pass_over_racks_that_cannot_hold_one(arena: Arena) -> None:
    """4 slices of 8 nodes in a rack each, within no level: the two racks with a stranger in them get none."""
    await arena.set_up_queue()
    for node in ("node-00", "node-40"):
        await arena.run_stranger(f"on-{node}", node, gpus=1)
    await arena.start()
    await arena.submit(job("slices", 32, topology={names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "8"}))
    pods = await arena.until_running("slices", 32)
    assert await as_planned(arena, "slices", pods)
    racks = [{(where(p)[BLOCK], where(p)[RACK]) for p in pods[i : i + 8]} for i in range(0, 32, 8)]
    assert [len(r) for r in racks] == [1, 1, 1, 1]
    used = set.union(*racks)
    assert len(used) == 4
    assert not used & {("block-0", "rack-0"), ("block-1", "rack-1")}


@SCHEDULERS
async def test_preferred_falls_back_across_racks(arena: Arena, scheduler: str | None) -> None:
    """12 whole nodes, preferred in a rack of 8: one block, as few racks as there can be."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("twelve", 12, topology={names.PREFERRED_TOPOLOGY: RACK}, scheduler=scheduler))
    pods = await arena.until_running("twelve", 12)
    assert await as_planned(arena, "twelve", pods)
    assert len({where(p)[BLOCK] for p in pods}) == 1
    assert len({where(p)[RACK] for p in pods}) == 2


async def test_preferred_falls_back_across_blocks(arena: Arena) -> None:
    """40 whole nodes fit in no block of 32: both are used, and the ranks of each are consecutive."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("forty", 40, topology={names.PREFERRED_TOPOLOGY: RACK}))
    pods = await arena.until_running("forty", 40)
    assert await as_planned(arena, "forty", pods)
    blocks = [where(p)[BLOCK] for p in pods]
    assert sorted((blocks.count("block-0"), blocks.count("block-1"))) == [8, 32]
    assert sum(a != b for a, b in pairwise(blocks)) == 1


def member(name: str, pods: int, gpus: int, scheduler: str) -> dict[str, Any]:
    """A Job of a group that its maker runs himself: its pods say to which Workload and pod set they belong."""
    body = job(name, pods, gpus=gpus, queue=None, suspend=False, scheduler=scheduler)
    body["spec"]["template"]["metadata"] = {
        "annotations": {names.WORKLOAD: "group"},
        "labels": {names.POD_SET: name},
    }
    if scheduler != names.SCHEDULER_NAME:
        body["spec"]["template"]["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    return body


@pytest.mark.parametrize("scheduler", ["serried", "default-scheduler"])
async def test_a_leader_group_runs_in_one_rack(arena: Arena, scheduler: str) -> None:
    """A Workload of two pod sets, made by hand with the pods of both: leader and workers run in the same rack.

    The leader needs half a node. Racks of which no node is free for it beside 7 whole ones are passed over.
    """
    await arena.set_up_queue()
    for rack in (0, 1, 2):
        await arena.run_stranger(f"stranger-{rack}", f"node-{8 * rack + 3:02d}", gpus=8)
    await arena.start()
    for name, pods, gpus in (("leader", 1, 4), ("workers", 7, 8)):
        await arena.submit(member(name, pods, gpus, scheduler))
    await arena.make(
        WORKLOADS,
        "group",
        {"queueName": "main", "podSets": [pod_set("leader", 1, 4), pod_set("workers", 7, 8)]},
        arena.namespace,
    )
    leader = await arena.until_running("leader", 1)
    workers = await arena.until_running("workers", 7)
    workload = await arena.cluster.get(WORKLOADS, "group", arena.namespace)
    assert workload.status.admission is not None
    plans = {}
    for assignment in workload.status.admission.pod_set_assignments:
        assert assignment.topology_assignment is not None
        assert assignment.topology_assignment.levels == [HOST]
        plans[assignment.name] = [v[0] for v, n in decode(assignment.topology_assignment) for _ in range(n)]
    assert [p.spec.node_name for p in leader] == plans["leader"]
    assert [p.spec.node_name for p in workers] == plans["workers"]
    racks = {(where(p)[BLOCK], where(p)[RACK]) for p in (*leader, *workers)}
    assert len(racks) == 1
    assert not racks & {("block-0", f"rack-{i}") for i in (0, 1, 2)}

    async def group_runs() -> bool:
        group = await arena.cluster.get(COSCHEDULING_POD_GROUPS, "group", arena.namespace)
        return (group.status.phase, group.status.running) == (CoschedulingPhase.RUNNING, 8)

    await arena.until(group_runs)
    for name in ("leader", "workers"):
        await arena.cluster.delete(JOBS, name, arena.namespace)
    done = {"type": WorkloadCondition.FINISHED, "status": "True", "reason": "Succeeded", "message": "done"}
    stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    await arena.cluster.patch(
        WORKLOADS, "group", arena.namespace, patch={"status": {"conditions": [done | stamp]}}, subresource="status"
    )
    await arena.until_free()
