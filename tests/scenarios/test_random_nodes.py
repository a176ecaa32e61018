"""Nodes come, go, close and move while Jobs are submitted, changed and deleted, on a server that fails at times."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from serried.api import names
from serried.api.resources import JOBS, NODES, PODS, WORKLOADS
from serried.cluster.informer import Informer
from serried.cluster.protocol import ApiError
from serried.embedded.hollow import HollowNode
from tests.scenarios.arena import ALLOCATABLE, BLOCK, HOST, RACK, Arena, job, node_labels
from tests.scenarios.faults import Faults
from tests.scenarios.watchman import Watchman

TOPOLOGIES: list[dict[str, str]] = [{}, {names.REQUIRED_TOPOLOGY: RACK}, {names.PREFERRED_TOPOLOGY: BLOCK}]


class Upheaval:
    """One random interference after another."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena = arena
        self.chance = random.Random(seed)
        self.jobs: set[str] = set()
        self.number = 0

    async def step(self) -> None:
        actions = [self.submit] * 5 + [self.delete, self.resize, self.toggle, self.lose_workload, self.kill_pod]
        actions += [self.cordon, self.taint, self.lose_node, self.move_node, self.deactivate]
        with suppress(ApiError):
            await self.chance.choice(actions)()

    def node(self) -> str:
        return f"node-{self.chance.randrange(64):02d}"

    def any_job(self) -> str:
        return self.chance.choice(sorted(self.jobs) or ["none"])

    async def submit(self) -> None:
        name = f"j{self.number}"
        self.number += 1
        pods, gpus = self.chance.choice([(1, 8), (4, 4), (8, 8), (12, 8), (6, 3)])
        topology = self.chance.choice(TOPOLOGIES) if pods <= 8 else {}
        scheduler = self.chance.choice(["serried", "serried", "default-scheduler"])
        spec = {"backoffLimit": 50, "podReplacementPolicy": self.chance.choice(["Failed", "TerminatingOrFailed"])}
        body = job(name, pods, gpus=gpus, topology=topology, seconds=0.2, scheduler=scheduler, spec=spec)
        await self.arena.submit(body)
        self.jobs.add(name)

    async def patch_job(self, spec: dict[str, Any]) -> None:
        await self.arena.cluster.patch(JOBS, self.any_job(), self.arena.namespace, patch={"spec": spec})

    async def resize(self) -> None:
        pods = self.chance.randrange(1, 9)
        await self.patch_job({"parallelism": pods, "completions": pods})

    async def toggle(self) -> None:
        await self.patch_job({"suspend": self.chance.random() < 0.5})

    async def delete(self) -> None:
        name = self.any_job()
        await self.arena.delete_job(name)
        self.jobs.discard(name)

    async def lose_workload(self) -> None:
        found = (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items
        live = [w for w in found if not any(c.type == "Finished" for c in w.status.conditions)]
        if live:
            await self.arena.cluster.delete(WORKLOADS, self.chance.choice(live).metadata.name, self.arena.namespace)

    async def deactivate(self) -> None:
        found = (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items
        if found:
            name = self.chance.choice(found).metadata.name
            for active in (False, True):
                patch = {"spec": {"active": active}}
                await self.arena.cluster.patch(WORKLOADS, name, self.arena.namespace, patch=patch)
                await asyncio.sleep(self.chance.random() * 0.2)

    async def kill_pod(self) -> None:
        pods = [p for p in await self.arena.pods() if p.status.phase == "Running"]
        if pods:
            await self.arena.cluster.delete(PODS, self.chance.choice(pods).metadata.name, self.arena.namespace)

    async def patch_node(self, spec: dict[str, Any]) -> None:
        await self.arena.cluster.patch(NODES, self.node(), patch={"spec": spec})

    async def cordon(self) -> None:
        await self.patch_node({"unschedulable": self.chance.random() < 0.6})

    async def taint(self) -> None:
        await self.patch_node(
            {"taints": self.chance.choice([None, [{"key": "x", "value": "y", "effect": "NoSchedule"}]])}
        )

    async def lose_node(self) -> None:
        name = self.node()
        await self.arena.cluster.delete(NODES, name)
        for pod in await self.arena.pods():  # as the collector of orphaned pods does
            if pod.spec.node_name == name:
                await self.arena.cluster.delete(PODS, pod.metadata.name, self.arena.namespace, grace_period_seconds=0)

    async def move_node(self) -> None:
        labels = {RACK: f"rack-{self.chance.randrange(4)}"}
        await self.arena.cluster.patch(NODES, self.node(), patch={"metadata": {"labels": labels}})

    async def restore(self) -> None:
        await self.arena.nodes.add([HollowNode(x[HOST], x, ALLOCATABLE) for x in map(node_labels, range(64))])
        for node in (await self.arena.cluster.list(NODES)).items:
            patch = {"spec": {"unschedulable": None, "taints": None}}
            await self.arena.cluster.patch(NODES, node.metadata.name, patch=patch)
        for workload in (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items:
            await self.arena.cluster.patch(
                WORKLOADS, workload.metadata.name, self.arena.namespace, patch={"spec": {"active": True}}
            )


@pytest.mark.parametrize("arena", ["embedded"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
async def test_upheaval(arena: Arena, seed: int) -> None:
    """No node is overbooked by those that Serried binds; in the end every Job that is left has run, and all is free."""
    await arena.set_up_queue(nominal=300)
    bad = arena.serried = Faults(arena.serried, seed=seed)
    controller = await arena.start()
    bad.fail, bad.lose, bad.cut = 0.03, 0.03, 0.01
    upheaval = Upheaval(arena, seed)
    watchman = Watchman()
    informer = Informer(arena.cluster, PODS, on_change=watchman.on_change)
    informer.start()
    await informer.synced()
    try:
        for _ in range(100):
            await upheaval.step()
            await asyncio.sleep(upheaval.chance.random() * 0.1)
            controller.engine.validate()
        bad.fail = bad.lose = bad.cut = 0.0
        await upheaval.restore()

        async def all_done() -> list[str]:
            left = []
            for name in sorted(upheaval.jobs):
                found = await arena.job(name)
                if not any(c.type in ("Complete", "Failed") and c.status == "True" for c in found.status.conditions):
                    left.append(name)
            return [] if left else ["all"]

        await arena.until(all_done)
        await arena.until_free()
        assert watchman.overbooked == []
        controller.engine.validate()
    finally:
        await informer.stop()
