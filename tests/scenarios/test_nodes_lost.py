"""Nodes that close between the plan and the binding, or under a gang that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serried.api import names
from serried.api.core import Pod
from serried.api.names import WorkloadCondition
from serried.api.resources import NODES, PODS
from tests.scenarios.arena import GPU, HOST, RACK, Arena, assigned, job, node_labels
from tests.scenarios.faults import Faults

IN_ONE_RACK = {names.REQUIRED_TOPOLOGY: RACK}
TAINT = {"key": "maintenance", "value": "now", "effect": "NoSchedule"}


@pytest.fixture
async def arena(arena: Arena) -> AsyncIterator[Arena]:
    """Nodes that a scenario has cordoned, tainted or renamed are as they were afterwards."""
    yield arena
    for node in (await arena.cluster.list(NODES)).items:
        hostname = {"metadata": {"labels": {HOST: node.metadata.name}}}
        if node.spec.unschedulable or node.spec.taints or node.metadata.labels.get(HOST) != node.metadata.name:
            await arena.cluster.patch(
                NODES, node.metadata.name, patch={**hostname, "spec": {"unschedulable": None, "taints": None}}
            )


async def close(arena: Arena, node: str, how: str) -> None:
    if how == "deleted":
        await arena.cluster.delete(NODES, node)
        return
    if how == "taken":
        await arena.run_stranger("stranger", node, gpus=1)
        return
    if how == "shrunk":
        less = {"status": {"allocatable": {GPU: "7"}}}
        await arena.cluster.patch(NODES, node, patch=less, subresource="status")
        return
    patches: dict[str, dict[str, Any]] = {
        "cordoned": {"spec": {"unschedulable": True}},
        "tainted": {"spec": {"taints": [TAINT]}},
        "renamed": {"metadata": {"labels": {HOST: "another"}}},
    }
    await arena.cluster.patch(NODES, node, patch=patches[how])


async def run_by_plan(arena: Arena, name: str, pods: int) -> list[Pod]:
    """Waits until the whole gang runs, each rank in its place of the plan there is now."""

    async def whole() -> list[Pod]:
        there = [p for p in await arena.pods(name) if p.metadata.deletion_timestamp is None]
        workload = await arena.workload(name)
        if len(there) != pods or workload is None or workload.status.admission is None:
            return []
        _, domains = assigned(workload)
        planned = [values[0] for values, count in domains for _ in range(count)]
        hosts = {n.metadata.name: n.metadata.labels[HOST] for n in (await arena.cluster.list(NODES)).items}
        runs = [hosts.get(p.spec.node_name) for p in there if p.status.phase == "Running"]
        return there if runs == planned else []

    found = await arena.until(whole, hint="the gang runs where it is planned")
    assert len({node_labels(int(p.spec.node_name[5:]))[RACK] for p in found}) == 1
    return found


@pytest.mark.parametrize("how", ["deleted", "cordoned", "tainted", "renamed"])
@pytest.mark.parametrize("scheduler", ["serried", None])
async def test_a_planned_node_that_closes_before_the_binding(arena: Arena, how: str, scheduler: str | None) -> None:
    """The admission is taken back with the reason, and the whole gang is placed anew."""
    await arena.set_up_queue()
    faults = arena.serried = Faults(arena.serried)
    lost = ""

    async def lose_one(verb: str, kind: str, name: str, body: Any) -> None:
        nonlocal lost
        binds = verb == "bind" or (verb == "patch" and kind == "Pod")
        if lost or not binds:
            return
        _, domains = assigned(await arena.workload("train"))
        lost = domains[5][0][0]
        await close(arena, lost, how)

    faults.before = lose_one
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK, scheduler=scheduler))
    if how == "deleted":
        pods = await run_by_plan(arena, "train", 8)
        assert lost not in [p.spec.node_name for p in pods]
    else:  # bindings that were on their way have gone through
        await arena.until_running("train", 8)


@pytest.mark.parametrize("how", ["deleted", "cordoned", "tainted", "renamed", "taken", "shrunk"])
@pytest.mark.parametrize("scheduler", ["serried", None])
async def test_a_planned_node_that_closes_before_the_start(arena: Arena, how: str, scheduler: str | None) -> None:
    await arena.set_up_queue()
    faults = arena.serried = Faults(arena.serried)
    lost = ""

    async def lose_one(verb: str, kind: str, name: str, body: Any) -> None:
        nonlocal lost
        if not lost and verb == "patch" and kind == "Job" and body["spec"].get("suspend") is False:
            _, domains = assigned(await arena.workload("train"))
            lost = domains[5][0][0]
            await close(arena, lost, how)

    faults.before = lose_one
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK, scheduler=scheduler))
    pods = await run_by_plan(arena, "train", 8)
    assert how == "renamed" or lost not in [p.spec.node_name for p in pods]
    evicted = await arena.condition("train", WorkloadCondition.EVICTED)
    assert evicted is not None
    assert (evicted.status, evicted.reason) == ("False", "QuotaReserved")
    assert lost in evicted.message
    await arena.until_condition("train", WorkloadCondition.ADMITTED)
    await arena.until_told(await arena.workload_name("train"), "EvictedDueToNodeFailures")


async def test_a_gang_with_no_other_place_waits_and_says_so(arena: Arena) -> None:
    """Every rack but one is in use; a node of that one goes: the gang holds nothing and says what is missing."""
    await arena.set_up_queue()
    for rack in range(1, 8):
        await arena.run_stranger(f"stranger-{rack}", node_labels(rack * 8)[HOST], gpus=8)
    faults = arena.serried = Faults(arena.serried)

    async def lose_one(verb: str, kind: str, name: str, body: Any) -> None:
        if verb == "patch" and kind == "Job" and body["spec"].get("suspend") is False:
            await close(arena, "node-03", "cordoned")

    faults.before = lose_one
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK))
    await arena.until_condition("train", WorkloadCondition.EVICTED, text="node-03")
    waits = await arena.until_condition("train", WorkloadCondition.QUOTA_RESERVED, "False", text="7 out of 8")
    assert waits.reason == "TopologyPlacementFailed"
    await arena.until_condition("train", WorkloadCondition.ADMITTED, "False")
    assert (await arena.job("train")).spec.suspend
    await arena.until_free(pending=1)
    faults.before = None
    await arena.cluster.patch(NODES, "node-03", patch={"spec": {"unschedulable": None}})
    await arena.until_running("train", 8)


async def test_a_pod_replaced_after_its_node_was_cordoned_moves_the_whole_gang(arena: Arena) -> None:
    """`kubectl drain`: the pod must not go back where it was driven out."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK, spec={"backoffLimit": 10}))
    pods = await arena.until_running("train", 8)
    lost = pods[3].spec.node_name
    await close(arena, lost, "cordoned")
    await arena.cluster.delete(PODS, pods[3].metadata.name, arena.namespace)
    await arena.until_condition("train", WorkloadCondition.EVICTED, "False", text=lost)
    pods = await run_by_plan(arena, "train", 8)
    assert lost not in [p.spec.node_name for p in pods]
    await arena.until_condition("train", WorkloadCondition.PODS_READY)


async def test_a_dead_node_that_keeps_its_pod_does_not_keep_the_gang(arena: Arena) -> None:
    """The node stops answering: its pod is deleted but never goes away. The gang is placed anew without it."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("train", 8, topology=IN_ONE_RACK, spec={"backoffLimit": 10}))
    pods = await arena.until_running("train", 8)
    lost = pods[3].spec.node_name
    await arena.nodes.fail_node(lost)
    await arena.cluster.delete(PODS, pods[3].metadata.name, arena.namespace)
    pods = await run_by_plan(arena, "train", 8)
    assert lost not in [p.spec.node_name for p in pods]
    await arena.nodes.restore_node(lost)
