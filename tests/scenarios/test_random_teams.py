"""Teams that lend, reclaim and preempt, while administrators edit their queues, others write to the same objects, the
server fails at times, and the controller is restarted."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from serried.api import names
from serried.api.meta import condition_is
from serried.api.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    JOBS,
    LOCAL_QUEUES,
    PODS,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from serried.cluster.informer import Informer
from serried.cluster.protocol import ApiError
from tests.scenarios.arena import BLOCK, GPU, RACK, Arena, job
from tests.scenarios.faults import Faults
from tests.scenarios.watchman import Watchman

TEAMS = ("a", "b", "c")
TOPOLOGIES: list[dict[str, str]] = [{}, {names.REQUIRED_TOPOLOGY: RACK}, {names.PREFERRED_TOPOLOGY: BLOCK}]


class Contention:
    """One random interference after another."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena = arena
        self.chance = random.Random(seed)
        self.jobs: set[str] = set()
        self.number = 0

    async def set_up(self) -> None:
        await self.arena.set_up_queue(nominal=0)
        await self.arena.make(ADMISSION_CHECKS, self.arena.scoped("check"), {"controllerName": "example.com/x"})
        for level in range(3):
            await self.arena.make_priority_class(f"p{level}", level)
        for name, parent in (("top", ""), ("mid", "top"), ("other", "")):
            spec = {"parentName": self.arena.scoped(parent)} if parent else {}
            await self.arena.make(COHORTS, self.arena.scoped(name), spec)
        for team in TEAMS:
            await self.arena.make(CLUSTER_QUEUES, self.arena.scoped(team), self.team(team))
            await self.arena.make(LOCAL_QUEUES, team, {"clusterQueue": self.arena.scoped(team)}, self.arena.namespace)

    def team(self, name: str, *, usual: bool = True) -> dict[str, Any]:
        """The spec of its ClusterQueue; not `usual`: with something changed."""
        chance = self.chance
        quota: dict[str, Any] = {"name": GPU, "nominalQuota": "128" if usual else str(chance.choice([0, 32, 96, 160]))}
        if not usual:
            quota |= {"borrowingLimit": chance.choice([None, "0", "64"])}
            quota |= {"lendingLimit": chance.choice([None, "0", "64"])}
        asks = [{"name": self.arena.scoped("check")}]
        return {
            "namespaceSelector": {},
            "cohortName": self.arena.scoped("mid" if name != "c" else "top"),
            "preemption": {
                "withinClusterQueue": "LowerPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority" if name == "b" else "Never"},
            },
            "resourceGroups": [
                {"coveredResources": [GPU], "flavors": [{"name": self.arena.queue, "resources": [quota]}]}
            ],
            "stopPolicy": "None" if usual else chance.choice(["None", "None", "Hold", "HoldAndDrain"]),
            "admissionChecksStrategy": None if usual or chance.random() < 0.6 else {"admissionChecks": asks},
        }

    async def step(self) -> None:
        actions = [self.submit] * 6 + [self.delete, self.reclass, self.move, self.take_away, self.relabel]
        actions += [self.edit_queue] * 2 + [self.answer] * 2 + [self.deactivate, self.lose_queue, self.lose_flavor]
        actions += [self.move_cohort, self.lose_workload]
        with suppress(ApiError):
            await self.chance.choice(actions)()

    def any_job(self) -> str:
        return self.chance.choice(sorted(self.jobs) or ["none"])

    async def any_workload(self) -> Any:
        found = (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items
        live = [w for w in found if not condition_is(w.status.conditions, "Finished")]
        return self.chance.choice(live) if live else None

    async def patch_workload(self, name: str, patch: dict[str, Any], *, status: bool = False) -> None:
        await self.arena.cluster.patch(
            WORKLOADS, name, self.arena.namespace, patch=patch, subresource="status" if status else ""
        )

    # --- what users do

    async def submit(self) -> None:
        name = f"j{self.number}"
        self.number += 1
        pods, gpus = self.chance.choice([(1, 8), (4, 4), (8, 8), (12, 8), (6, 3), (2, 8)])
        topology = self.chance.choice(TOPOLOGIES) if pods <= 8 else {}
        labels = {names.PRIORITY_CLASS: self.arena.scoped(f"p{self.chance.randrange(3)}")}
        team = self.chance.choice(TEAMS)
        spec = {"backoffLimit": 50}
        await self.arena.submit(
            job(name, pods, queue=team, gpus=gpus, topology=topology, seconds=0.3, labels=labels, spec=spec)
        )
        self.jobs.add(name)

    async def delete(self) -> None:
        name = self.any_job()
        await self.arena.delete_job(name)
        self.jobs.discard(name)

    async def label(self, labels: dict[str, str]) -> None:
        await self.arena.cluster.patch(
            JOBS, self.any_job(), self.arena.namespace, patch={"metadata": {"labels": labels}}
        )

    async def reclass(self) -> None:
        await self.label({names.PRIORITY_CLASS: self.arena.scoped(f"p{self.chance.randrange(3)}")})

    async def move(self) -> None:
        await self.label({names.QUEUE_NAME: self.chance.choice(TEAMS)})

    async def deactivate(self) -> None:
        found = await self.any_workload()
        if found is not None:
            for active in (False, True):
                await self.patch_workload(found.metadata.name, {"spec": {"active": active}})
                await asyncio.sleep(self.chance.random() * 0.2)

    # --- what others write to the same objects

    async def relabel(self) -> None:
        found = await self.any_workload()
        if found is not None:
            labels = {"touched": str(self.chance.randrange(100))}
            await self.patch_workload(found.metadata.name, {"metadata": {"labels": labels}})

    async def take_away(self) -> None:
        """Somebody evicts it, half or in whole."""
        found = await self.any_workload()
        if found is None or found.status.admission is None:
            return
        evicted = {"type": "Evicted", "status": "True", "reason": "Other", "message": "by hand"}
        evicted["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        kept = [c for c in msgspec.to_builtins(found.status.conditions) if c["type"] != "Evicted"]
        status: dict[str, Any] = {"conditions": [*kept, evicted]}
        await self.patch_workload(found.metadata.name, {"status": status}, status=True)

    async def lose_workload(self) -> None:
        found = await self.any_workload()
        if found is not None:
            await self.arena.cluster.delete(WORKLOADS, found.metadata.name, self.arena.namespace)

    async def answer(self, *, state: str = "") -> None:
        """The controller of the admission check answers for all that wait for it."""
        for found in (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items:
            checks = msgspec.to_builtins(found.status.admission_checks)
            if found.status.admission is None or not any(c["state"] == "Pending" for c in checks):
                continue
            for check in checks:
                check["state"] = state or self.chance.choice(["Ready", "Ready", "Ready", "Retry"])
                check["lastTransitionTime"] = "2026-01-01T00:00:00Z"
            patch = {"metadata": {"resourceVersion": found.metadata.resource_version}}
            with suppress(ApiError):
                await self.patch_workload(
                    found.metadata.name, {**patch, "status": {"admissionChecks": checks}}, status=True
                )

    # --- what administrators do

    async def edit_queue(self) -> None:
        team = self.chance.choice(TEAMS)
        spec = self.team(team, usual=False)
        await self.arena.cluster.patch(CLUSTER_QUEUES, self.arena.scoped(team), patch={"spec": spec})

    async def move_cohort(self) -> None:
        parent = self.chance.choice(["top", "other"])
        patch = {"spec": {"parentName": self.arena.scoped(parent)}}
        await self.arena.cluster.patch(COHORTS, self.arena.scoped("mid"), patch=patch)

    async def lose_queue(self) -> None:
        team = self.chance.choice(TEAMS)
        await self.arena.cluster.delete(LOCAL_QUEUES, team, self.arena.namespace)
        await asyncio.sleep(self.chance.random() * 0.2)
        await self.arena.make(LOCAL_QUEUES, team, {"clusterQueue": self.arena.scoped(team)}, self.arena.namespace)

    async def lose_flavor(self) -> None:
        spec = {"nodeLabels": {"pool": "gpu"}, "topologyName": self.arena.queue}
        await self.arena.cluster.delete(RESOURCE_FLAVORS, self.arena.queue)
        await asyncio.sleep(self.chance.random() * 0.2)
        body = {"metadata": {"name": self.arena.queue}, "spec": spec}
        await self.arena.cluster.create(RESOURCE_FLAVORS, body)

    async def restore(self) -> None:
        for team in TEAMS:
            patch = {"spec": self.team(team)}
            quota = patch["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
            quota |= {"borrowingLimit": None, "lendingLimit": None}
            await self.arena.cluster.patch(CLUSTER_QUEUES, self.arena.scoped(team), patch=patch)
        patch = {"spec": {"parentName": self.arena.scoped("top")}}
        await self.arena.cluster.patch(COHORTS, self.arena.scoped("mid"), patch=patch)
        await self.answer(state="Ready")
        for found in (await self.arena.cluster.list(WORKLOADS, self.arena.namespace)).items:
            with suppress(ApiError):
                await self.patch_workload(found.metadata.name, {"spec": {"active": True}})


@pytest.mark.parametrize("arena", ["embedded"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
async def test_contention(arena: Arena, seed: int) -> None:
    """No node is overbooked; in the end every Job that is left has run, and nothing is used or promised."""
    contention = Contention(arena, seed)
    await contention.set_up()
    bad = arena.serried = Faults(arena.serried, seed=seed)
    controller = await arena.start()
    bad.fail, bad.lose, bad.cut = 0.03, 0.03, 0.01
    watchman = Watchman()
    informer = Informer(arena.cluster, PODS, on_change=watchman.on_change)
    informer.start()
    await informer.synced()
    try:
        for i in range(120):
            await contention.step()
            await asyncio.sleep(contention.chance.random() * 0.1)
            controller.engine.validate()
            if i % 40 == 39:
                await arena.stop()
                controller = await arena.start()
        bad.fail = bad.lose = bad.cut = 0.0
        await contention.restore()

        async def all_done() -> list[str]:
            left = []
            for name in sorted(contention.jobs):
                found = await arena.job(name)
                if not any(c.type in ("Complete", "Failed") and c.status == "True" for c in found.status.conditions):
                    left.append(name)
            return [] if left else ["all"]

        await arena.until(all_done)

        async def free() -> bool:
            queues = [await arena.cluster.get(CLUSTER_QUEUES, arena.scoped(team)) for team in TEAMS]
            return not any(q.status.reserving_workloads or q.status.pending_workloads for q in queues)

        await arena.until(free)
        assert watchman.overbooked == []
        controller.engine.validate()
        view = controller.engine.inspect()
        assert not any(view.usage(arena.scoped(team)) for team in TEAMS)
    finally:
        await informer.stop()
