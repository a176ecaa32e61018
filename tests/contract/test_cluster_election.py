"""Leader election on both clusters, with times short enough to wait for."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from serried.api.resources import LEASES
from serried.cluster.election import LeaderElection
from serried.cluster.protocol import Cluster, Conflict, LeaderCluster, NotLeading, Unavailable
from tests.patience import PATIENCE, patience

LEASE_DURATION = 3.0


class _Line:
    """A way to the cluster that can be cut."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.cut = False

    def __getattr__(self, method: str) -> Any:
        if self.cut:
            raise Unavailable(0, "NoAnswer", "the line is cut")
        return getattr(self._cluster, method)


class _Overtaken:
    """A way to the cluster on which somebody else's write comes between a read and what follows it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.overtakes = 0

    def __getattr__(self, method: str) -> Any:
        return getattr(self._cluster, method)

    async def get(self, resource: Any, name: str, namespace: str) -> Any:
        found = await self._cluster.get(resource, name, namespace)
        if self.overtakes:
            self.overtakes -= 1
            await self._cluster.patch(
                resource, name, namespace, patch={"metadata": {"labels": {"n": str(self.overtakes)}}}
            )
        return found


class Candidates:
    """Makes candidates for one Lease, and has none of them lead on when the test is over."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.made: list[LeaderElection] = []

    def __call__(self, identity: str, cluster: Any = None, *, lease_duration: float = LEASE_DURATION) -> LeaderElection:
        candidate = LeaderElection(
            cluster or self.cluster,
            self.namespace,
            "serried",
            identity,
            lease_duration=lease_duration,
            renew_deadline=2.0,
            retry_period=0.3,
        )
        self.made.append(candidate)
        return candidate

    async def write(self, **spec: Any) -> None:
        await self.cluster.create(LEASES, {"metadata": {"name": "serried"}, "spec": spec}, self.namespace)


@pytest.fixture
async def candidates(cluster: Cluster, namespace: str) -> AsyncIterator[Candidates]:
    made = Candidates(cluster, namespace)
    yield made
    for candidate in made.made:
        await candidate.release()


async def _acquire(candidate: LeaderElection) -> float:
    """The seconds it took to lead."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with patience():
        await candidate.acquire()
    assert candidate.leads()
    return loop.time() - start


async def test_the_lease_names_its_holder_as_other_tools_expect(
    cluster: Cluster, namespace: str, candidates: Candidates
) -> None:
    await _acquire(candidates("one"))
    lease = await cluster.get(LEASES, "serried", namespace)
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("one", 3)
    assert lease.spec.acquire_time is not None
    assert lease.spec.renew_time is not None


async def test_the_second_waits_while_the_first_renews(candidates: Candidates) -> None:
    first, second = candidates("first"), candidates("second")
    await _acquire(first)
    waiting = asyncio.create_task(_acquire(second))
    await asyncio.sleep(LEASE_DURATION + 0.5)
    assert first.lost.is_set() or (first.leads() and not waiting.done())
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_the_second_leads_as_soon_as_the_first_lets_go(
    cluster: Cluster, namespace: str, candidates: Candidates
) -> None:
    first, second = candidates("first", lease_duration=3600), candidates("second")
    await _acquire(first)
    await first.release()
    assert not first.leads()
    assert not first.lost.is_set()
    await _acquire(second)
    lease = await cluster.get(LEASES, "serried", namespace)
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("second", 1)


async def test_a_renewal_that_was_on_its_way_does_not_keep_the_lease(
    cluster: Cluster, namespace: str, candidates: Candidates
) -> None:
    """Cancelled here, it is carried out there, between the read and the write with which the Lease is given back."""
    line = _Overtaken(cluster)
    first = candidates("first", line, lease_duration=3600)
    await _acquire(first)
    line.overtakes = 2
    await first.release()
    assert line.overtakes == 0
    assert (await cluster.get(LEASES, "serried", namespace)).spec.holder_identity == ""


async def test_who_cannot_renew_stops_before_another_starts(cluster: Cluster, candidates: Candidates) -> None:
    line = _Line(cluster)
    first, second = candidates("first", line), candidates("second")
    await _acquire(first)
    waiting = asyncio.create_task(_acquire(second))
    await asyncio.sleep(0.5)
    line.cut = True
    async with patience():
        await first.lost.wait()
    assert not first.leads()
    assert not waiting.done()
    await waiting


async def test_who_finds_another_in_the_lease_stops_at_once(
    cluster: Cluster, namespace: str, candidates: Candidates, caplog: pytest.LogCaptureFixture
) -> None:
    first = candidates("first")
    await _acquire(first)
    while True:
        lease = await cluster.get(LEASES, "serried", namespace)
        patch = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": {"holderIdentity": "thief"}}
        try:
            await cluster.patch(LEASES, "serried", namespace, patch=patch)
        except Conflict:
            continue
        break
    async with patience():
        await first.lost.wait()
    assert "'thief' holds it" in caplog.text
    await first.release()
    assert (await cluster.get(LEASES, "serried", namespace)).spec.holder_identity == "thief"


async def test_a_leader_that_was_held_up_finds_its_fence_closed(
    cluster: Cluster, namespace: str, candidates: Candidates
) -> None:
    """Renewals that share the loop are held up, too. What is first on it afterwards is a write."""
    leader = candidates("leader")
    fenced = cast(LeaderCluster, cluster).fenced(leader.leads)
    await _acquire(leader)
    await fenced.create(LEASES, {"metadata": {"name": "written"}}, namespace)
    time.sleep(LEASE_DURATION)  # noqa: ASYNC251 this is the point
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: fenced.create(LEASES, {"metadata": {"name": "late"}}, namespace),
        lambda: fenced.patch(LEASES, "written", namespace, patch={"metadata": {"labels": {"late": "yes"}}}),
        lambda: fenced.delete(LEASES, "written", namespace),
        lambda: fenced.bind(namespace, "pod", "node"),
    ]
    for write in writes:
        with pytest.raises(NotLeading):
            await write()
    assert (await fenced.get(LEASES, "written", namespace)).metadata.labels == {}


@pytest.mark.parametrize("year", [2001, 2099])
async def test_a_holder_with_a_wrong_clock_is_waited_for(candidates: Candidates, year: int) -> None:
    await candidates.write(holderIdentity="other", leaseDurationSeconds=1, renewTime=f"{year}-01-01T00:00:00.000000Z")
    assert await _acquire(candidates("one")) >= 1.0


async def test_a_lease_given_back_is_free_at_once(candidates: Candidates) -> None:
    await candidates.write(holderIdentity="", leaseDurationSeconds=3600, renewTime="2026-01-01T00:00:00.000000Z")
    await _acquire(candidates("one"))


async def test_of_many_candidates_one_leads(candidates: Candidates) -> None:
    waiting = [asyncio.create_task(_acquire(candidates(f"candidate-{number}"))) for number in range(8)]
    await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    done, pending = await asyncio.wait(waiting, timeout=1.0)
    assert len(done) == 1
    assert [candidate.leads() for candidate in candidates.made].count(True) == 1
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
