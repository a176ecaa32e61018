"""Kinds that the API server does not have: without their features, and with them as soon as they are installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from serried.api.crds import crds
from serried.api.names import WorkloadCondition
from serried.api.resources import CLUSTER_QUEUES, COHORTS, CUSTOM_RESOURCE_DEFINITIONS, Resource
from serried.cluster import informer
from serried.cluster.protocol import LeaderCluster
from serried.control.config import Configuration
from serried.control.run import run
from serried.embedded.server import EmbeddedCluster
from tests.scenarios.arena import GPU, Arena, job


def definition(resource: Resource[Any]) -> dict[str, Any]:
    return next(crd for crd in crds() if crd["spec"]["names"]["plural"] == resource.plural)


async def served(arena: Arena, resource: Resource[Any]) -> bool:
    return resource.plural in await arena.cluster.served(resource.group, resource.version)


async def uninstall(arena: Arena, resource: Resource[Any]) -> None:
    if isinstance(arena.cluster, EmbeddedCluster):
        arena.cluster.remove_kind(resource)
        return
    await arena.cluster.delete(CUSTOM_RESOURCE_DEFINITIONS, definition(resource)["metadata"]["name"])

    async def gone() -> bool:
        return not await served(arena, resource)

    await arena.until(gone)


async def install(arena: Arena, resource: Resource[Any]) -> None:
    if isinstance(arena.cluster, EmbeddedCluster):
        arena.cluster.add_kind(resource, definition(resource))
        return
    await arena.cluster.create(CUSTOM_RESOURCE_DEFINITIONS, definition(resource))
    await arena.until(lambda: served(arena, resource))


@asynccontextmanager
async def without(arena: Arena, resource: Resource[Any]) -> AsyncIterator[None]:
    """The kind is not there at first, and there again in the end, for other scenarios."""
    await uninstall(arena, resource)
    try:
        yield
    finally:
        if not await served(arena, resource):
            await install(arena, resource)


async def test_cohorts_come_and_go_while_it_runs(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of what the jobs need is quota of a Cohort object."""
    caplog.set_level("INFO", "serried")
    monkeypatch.setattr(informer, "LOOK_FOR_KIND", 0.2)
    await arena.set_up_queue(nominal=64)
    cohort = arena.scoped("team")
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": {"cohortName": cohort}})
    flavor = {"name": arena.queue, "resources": [{"name": GPU, "nominalQuota": "64"}]}
    spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]}
    body = {"metadata": {"name": cohort}, "spec": spec}
    stop = asyncio.Event()

    def said(text: str) -> int:
        return sum(record.message.startswith(f"{COHORTS!r} is {text}") for record in caplog.records)

    async with without(arena, COHORTS):
        running = asyncio.create_task(run(cast(LeaderCluster, arena.serried), Configuration(), stop))
        try:
            await arena.submit(job("small", 8, seconds=0.1))
            await arena.until_condition("small", WorkloadCondition.FINISHED)
            assert said("not served") == 1
            await arena.submit(job("first", 16))
            await arena.until_condition("first", WorkloadCondition.QUOTA_RESERVED, "False", text="more than")

            await install(arena, COHORTS)
            await arena.cluster.create(COHORTS, body)
            await arena.until_running("first", 16)
            assert said("served now") == 1

            await arena.delete_job("first")
            await uninstall(arena, COHORTS)

            async def noticed() -> bool:
                return said("not served") == 2

            await arena.until(noticed)
            await arena.submit(job("second", 16))
            await arena.until_condition("second", WorkloadCondition.QUOTA_RESERVED, "False", text="more than")
            await arena.submit(job("still", 8, seconds=0.1))
            await arena.until_condition("still", WorkloadCondition.FINISHED)
            assert not running.done()
        finally:
            stop.set()
            await running
