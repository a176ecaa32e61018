"""The lease on a bad day: it is kept while anything else is late, and nothing is written after it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from serried.api.core import Lease
from serried.api.names import WorkloadCondition
from serried.api.resources import LEASES, NAMESPACES
from serried.cluster.election import LeaderElection
from serried.cluster.http import HttpCluster
from serried.cluster.loop_thread import LoopThread
from serried.cluster.protocol import AlreadyExists, LeaderCluster, NotFound
from serried.control import config
from serried.control.config import Configuration
from serried.control.run import LeadershipLost, run
from serried.embedded.server import EmbeddedCluster
from tests.conftest import SERRIED
from tests.patience import patience, until
from tests.scenarios.arena import Arena, assigned, job
from tests.scenarios.process import serried_run
from tests.scenarios.proxy import BindingProxy
from tools.controlplane import ControlPlane

NAMESPACE, NAME = "serried-system", "serried"
GANG = 64
SHORT = "leaderElection: {enabled: true, leaseDuration: 8, renewDeadline: 6, retryPeriod: 0.5}\n"


@pytest.fixture
async def arena(arena: Arena) -> Arena:
    """With the namespace of the lease, and no lease in it."""
    try:
        await arena.cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    except AlreadyExists:
        pass
    try:
        await arena.cluster.delete(LEASES, NAME, NAMESPACE)
    except NotFound:
        pass
    return arena


async def lease(arena: Arena) -> Lease:
    return await arena.cluster.get(LEASES, NAME, NAMESPACE)


async def holder(arena: Arena) -> str:
    try:
        return (await lease(arena)).spec.holder_identity
    except NotFound:
        return ""


@pytest.mark.parametrize("arena", ["real"], indirect=True)
async def test_a_loop_held_up_for_twice_the_lease_keeps_it(arena: Arena) -> None:
    """With the default durations: for 30 seconds nothing runs on the controller's loop but one call."""
    await arena.set_up_queue()
    stop = asyncio.Event()
    settings = Configuration(leader_election=config.LeaderElection(enabled=True))
    running = asyncio.create_task(run(cast(LeaderCluster, arena.serried), settings, stop))
    assert arena.kubeconfig is not None
    async with LoopThread("rival") as thread, await HttpCluster.from_kubeconfig(arena.kubeconfig) as cluster:
        client = cluster.apart()
        rival = LeaderElection(client, NAMESPACE, NAME, "rival")
        try:
            await arena.until(lambda: holder(arena))
            before = await lease(arena)
            waiting = asyncio.create_task(thread.call(rival.acquire()))
            await asyncio.sleep(0.1)
            time.sleep(30)  # noqa: ASYNC251 this is the point
            assert not rival.leads()
            after = await lease(arena)
            assert after.spec.holder_identity == before.spec.holder_identity
            assert after.spec.lease_transitions == before.spec.lease_transitions
            assert before.spec.renew_time is not None
            assert after.spec.renew_time is not None
            assert (after.spec.renew_time - before.spec.renew_time).total_seconds() > 20
            await arena.submit(job("after", 2))
            await arena.until_running("after", 2)
            assert not running.done()
            waiting.cancel()
        finally:
            stop.set()
            await running
            await thread.call(client.close())


async def test_who_loses_the_lease_steps_down() -> None:
    """An embedded cluster answers renewals on the loop that is held up."""
    cluster = EmbeddedCluster()
    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    settings = config.LeaderElection(enabled=True, lease_duration=0.3, renew_deadline=0.2, retry_period=0.05)
    running = asyncio.create_task(run(cluster, Configuration(leader_election=settings), asyncio.Event()))

    async def led() -> bool:
        return bool((await cluster.list(LEASES, NAMESPACE)).items)

    await until(led)
    time.sleep(0.5)  # noqa: ASYNC251 this is the point
    with pytest.raises(LeadershipLost):
        await running
    await cluster.close()


@asynccontextmanager
async def candidate(
    arena: Arena, kubeconfig: Path, directory: Path, name: str, more: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`serried run` with a short lease."""
    settings = directory / "serried.yaml"
    settings.write_text(SHORT + more)
    async with serried_run(kubeconfig, directory / f"{name}.log", "--config", str(settings)) as process:
        yield process


@pytest.mark.parametrize("arena", ["real"], indirect=True)
@pytest.mark.parametrize("moment", [1, 33, 60])
async def test_a_leader_that_was_stopped_amid_its_bindings_writes_nothing_when_it_wakes(
    arena: Arena, control_plane: ControlPlane, tmp_path: Path, moment: int
) -> None:
    """SIGSTOP at the Nth of 64 bindings; another one takes over and completes the gang; SIGCONT."""
    await arena.set_up_queue()
    proxy = BindingProxy(control_plane.url, control_plane.ca)
    async with proxy.serve():
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig", SERRIED.token)
        async with candidate(arena, kubeconfig, tmp_path, "first") as first:
            await arena.until(lambda: holder(arena))
            identity = await holder(arena)
            stopped = asyncio.Event()

            def stop_at(number: int) -> None:
                if number == moment:
                    first.send_signal(signal.SIGSTOP)
                    stopped.set()

            proxy.at_binding = stop_at
            await arena.submit(job("gang", GANG))
            async with patience():
                await stopped.wait()
            async with candidate(arena, control_plane.kubeconfig_for(SERRIED.name), tmp_path, "second"):
                await arena.until_condition("gang", WorkloadCondition.PODS_READY)
                assert await holder(arena) != identity
                proxy.writes.clear()
                first.send_signal(signal.SIGCONT)
                async with patience():
                    assert await first.wait() == 1
                assert proxy.writes == []
                pods = await arena.pods("gang")
                _, domains = assigned(await arena.workload("gang"))
                assert [p.spec.node_name for p in pods] == [values[0] for values, _ in domains]
    assert "could not be renewed" in (tmp_path / "first.log").read_text()


@pytest.mark.parametrize("arena", ["real"], indirect=True)
async def test_bindings_that_wait_for_slow_answers_do_not_delay_renewals(
    arena: Arena, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """64 bindings, four at a time, each answered 0.6 s late: longer than the lease lasts without a renewal."""
    await arena.set_up_queue()
    proxy = BindingProxy(control_plane.url, control_plane.ca)
    async with proxy.serve():
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig", SERRIED.token)
        async with candidate(arena, kubeconfig, tmp_path, "only", "client: {concurrency: 4}\n") as process:
            await arena.until(lambda: holder(arena))
            before = await lease(arena)
            proxy.delay = 0.6
            await arena.submit(job("gang", GANG))
            await arena.until_condition("gang", WorkloadCondition.PODS_READY)
            after = await lease(arena)
            assert after.spec.holder_identity == before.spec.holder_identity
            assert after.spec.lease_transitions == before.spec.lease_transitions
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
