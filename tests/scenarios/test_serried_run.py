"""`serried run` with everything that its configuration can switch on."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from serried.api.names import WorkloadCondition
from serried.api.resources import COHORTS, COSCHEDULING_POD_GROUPS, MUTATING_WEBHOOKS, NAMESPACES, WORKLOADS
from serried.cluster.protocol import AlreadyExists, LeaderCluster
from serried.control.config import Configuration, LeaderElection, Webhook
from serried.control.run import run
from serried.control.served import NotServed
from serried.embedded.server import EmbeddedCluster
from tests.scenarios.arena import Arena, job


@pytest.mark.parametrize("arena", ["real"], indirect=True)
async def test_the_webhook_suspends_and_claims_a_job_at_its_creation(arena: Arena) -> None:
    """A Job as people write it, without `suspend` and `schedulerName`, is bound by Serried."""
    await arena.set_up_queue()
    stop = asyncio.Event()
    config = Configuration(webhook=Webhook(enabled=True, host="127.0.0.1", port=0))
    running = asyncio.create_task(run(cast(LeaderCluster, arena.serried), config, stop))
    try:

        async def claimed() -> bool:
            """The API server takes a moment to know of the webhook: until then Jobs pass it by."""
            probe = job("probe", 1, queue="nowhere", scheduler=None, suspend=None)
            name = f"probe-{asyncio.get_running_loop().time():.3f}".replace(".", "-")
            probe["metadata"]["name"] = name
            made = await arena.submit(probe)
            await arena.delete_job(name)
            return made.spec.suspend

        await arena.until(claimed)
        made = await arena.submit(job("plain", 4, scheduler=None, suspend=None))
        assert made.spec.suspend
        assert made.spec.template.spec.scheduler_name == "serried"
        await arena.until_running("plain", 4)
        await arena.until_condition("plain", WorkloadCondition.PODS_READY)
        unqueued = await arena.submit(job("unqueued", 1, queue=None, scheduler=None, suspend=None))
        assert not unqueued.spec.suspend
    finally:
        stop.set()
        await running
        await arena.cluster.delete(MUTATING_WEBHOOKS, "serried")


async def test_of_two_only_the_leader_schedules_and_the_other_takes_over(arena: Arena) -> None:
    await arena.set_up_queue()
    try:
        await arena.cluster.create(NAMESPACES, {"metadata": {"name": "serried-system"}})
    except AlreadyExists:
        pass
    election = LeaderElection(enabled=True, lease_duration=3600, renew_deadline=3000, retry_period=0.2)
    stops = [asyncio.Event(), asyncio.Event()]
    cluster = cast(LeaderCluster, arena.serried)
    tasks = [asyncio.create_task(run(cluster, Configuration(leader_election=election), s)) for s in stops]
    try:
        await arena.submit(job("first", 2, seconds=0.1))
        await arena.until_condition("first", WorkloadCondition.FINISHED)
        stops[0].set()
        await tasks[0]
        await arena.submit(job("second", 2, seconds=0.1))
        await arena.until_condition("second", WorkloadCondition.FINISHED)
    finally:
        for stop in stops:
            stop.set()
        await asyncio.gather(*tasks)


async def test_without_the_custom_kinds_it_says_what_to_do() -> None:
    cluster = EmbeddedCluster()
    for resource in (WORKLOADS, COSCHEDULING_POD_GROUPS, COHORTS):
        cluster.remove_kind(resource)
    missing = "podgroups.scheduling.x-k8s.io/v1alpha1, workloads.kueue.x-k8s.io/v1beta2"
    with pytest.raises(NotServed, match=f"does not serve {missing}; .*: serried crds --apply"):
        await run(cluster, Configuration(), asyncio.Event())
