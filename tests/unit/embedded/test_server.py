"""What is special about the embedded server; what it has in common with a real one is in the contract tests."""

import asyncio
from contextlib import aclosing
from typing import Any, Literal, cast

import msgspec
import pytest

from serried.api.meta import Object
from serried.api.resources import (
    CLUSTER_QUEUES,
    JOBS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from serried.cluster.protocol import ApiError, Expired, Forbidden, Invalid, Malformed, NotFound, WatchEvent
from serried.embedded.server import BOOKMARK_SECONDS, EmbeddedCluster
from tests.unit.embedded.conftest import now
from tests.unit.embedded.objects import RAW_PODS, Json, job, named, pod


async def told(
    cluster: EmbeddedCluster, resource: Resource[Any], version: str, seconds: float = 1.0, **selection: str
) -> list[WatchEvent[Any]]:
    """What a watch tells until it ends, or until so much time is over."""
    events: list[WatchEvent[Any]] = []
    async with aclosing(cast(Any, cluster.watch(resource, resource_version=version, **selection))) as stream:
        try:
            async with asyncio.timeout(seconds):
                async for event in stream:
                    events.append(event)  # noqa: PERF401 - what came before the time was over counts
        except TimeoutError:
            pass
    return events


def short(events: list[WatchEvent[Any]]) -> list[tuple[str, str]]:
    return [(event.type, event.object.metadata.name) for event in events]


async def test_the_same_calls_give_the_same_names_and_uids() -> None:
    async def story(seed: int) -> list[tuple[str, str]]:
        cluster = EmbeddedCluster(seed=seed, now=now)
        made = [await cluster.create(PODS, {**pod(), "metadata": {"generateName": "p-"}}, "default") for _ in range(5)]
        await cluster.close()
        return [(each.metadata.name, each.metadata.uid) for each in made]

    assert await story(1) == await story(1)
    assert await story(1) != await story(2)


async def test_objects_are_stamped_with_the_clock_that_was_given(cluster: EmbeddedCluster) -> None:
    await asyncio.sleep(90)
    made = await cluster.create(PODS, pod(), "default")
    assert made.metadata.creation_timestamp is not None
    assert made.metadata.creation_timestamp.isoformat() == "2026-01-01T00:01:30+00:00"


async def test_fields_nobody_here_knows_survive(cluster: EmbeddedCluster) -> None:
    class Raw(Object):
        spec: dict[str, Any] = {}

    raw = Resource("", "v1", "Pod", "pods", Raw)
    await cluster.create(PODS, pod(hostname="rank-0"), "default")
    await cluster.patch(PODS, "p", "default", patch={"metadata": {"labels": {"a": "b"}}})
    found = await cluster.get(raw, "p", "default")
    assert found.spec["hostname"] == "rank-0"
    assert found.spec["containers"][0]["image"] == "registry.example/none"


async def test_what_was_given_and_what_was_returned_is_not_the_store(cluster: EmbeddedCluster) -> None:
    manifest = pod(tolerations=[{"operator": "Exists"}])
    made = await cluster.create(PODS, manifest, "default")
    manifest["spec"]["tolerations"].clear()
    patch: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}}
    await cluster.patch(PODS, "p", "default", patch=patch)
    patch["metadata"]["labels"]["a"] = "c"
    found = await cluster.get(PODS, "p", "default")
    assert found.metadata.labels == {"a": "b"}
    assert made.metadata.labels == {}
    assert found.spec.tolerations[0].operator == "Exists"


async def test_a_kind_the_server_does_not_have_is_not_found(cluster: EmbeddedCluster) -> None:
    other = Resource("example.com", "v1", "Thing", "things", Object)
    for call in (cluster.get(other, "x", "default"), cluster.create(other, named("x"), "default"), cluster.list(other)):
        with pytest.raises(NotFound):
            await call


async def test_mutators_change_or_refuse_what_is_created() -> None:
    def suspend(resource: Resource[Any], operation: Literal["CREATE"], obj: dict[str, Any]) -> None:
        if resource is JOBS:
            assert operation == "CREATE"
            obj["spec"]["suspend"] = True
            # Before anything is filled in.
            assert "parallelism" not in obj["spec"]

    def refuse(resource: Resource[Any], operation: Literal["CREATE"], obj: dict[str, Any]) -> None:
        if obj["metadata"].get("name") == "bad":
            raise Forbidden(403, "Forbidden", "admission webhook denied the request: no bad names")

    cluster = EmbeddedCluster(mutators=[suspend, refuse], now=now)
    assert (await cluster.create(JOBS, job(), "default")).spec.suspend
    with pytest.raises(Forbidden, match="no bad names"):
        await cluster.create(LEASES, named("bad"), "default")
    await cluster.close()


async def test_what_does_not_decode_travels_beside_the_good_ones(cluster: EmbeddedCluster) -> None:
    """The schema of a Workload takes any template, so a bad one reaches us."""
    before = (await cluster.list(WORKLOADS)).resource_version
    good: Json = {"podSets": [{"template": {"spec": {"containers": []}}}]}
    bad = {"podSets": [{"template": {"spec": {"containers": "none"}}}]}
    await cluster.create(WORKLOADS, {**named("good"), "spec": good}, "default")
    with pytest.raises(ApiError, match=r"Workload bad: .*spec.containers"):
        await cluster.create(WORKLOADS, {**named("bad"), "spec": bad}, "default")
    listing = await cluster.list(WORKLOADS)
    assert [each.metadata.name for each in listing.items] == ["good"]
    assert [each.metadata.name for each in listing.malformed] == ["bad"]
    events = await told(cluster, WORKLOADS, before)
    assert short(events) == [("ADDED", "good"), ("ADDED", "bad")]
    assert isinstance(events[1].object, Malformed)
    with pytest.raises(ApiError, match="Malformed"):
        await cluster.get(WORKLOADS, "bad", "default")
    await cluster.delete(WORKLOADS, "bad", "default")


# --- Watching


async def test_a_watch_from_nowhere_begins_with_what_is_there(cluster: EmbeddedCluster) -> None:
    await cluster.create(LEASES, named("b"), "default")
    await cluster.create(LEASES, named("a"), "default")
    assert short(await told(cluster, LEASES, "0")) == [("ADDED", "a"), ("ADDED", "b")]
    assert short(await told(cluster, LEASES, "", field_selector="metadata.name=b")) == [("ADDED", "b")]


@pytest.mark.parametrize("version", ["x", "-1", "1.0"])
async def test_a_watch_from_a_version_that_is_none_is_refused(cluster: EmbeddedCluster, version: str) -> None:
    with pytest.raises(Invalid, match="resourceVersion"):
        await told(cluster, LEASES, version)


async def test_a_watch_from_before_the_history_has_expired() -> None:
    cluster = EmbeddedCluster(history=3, now=now)
    for number in range(10):
        await cluster.create(LEASES, named(f"l{number}"), "default")
    version = int((await cluster.list(LEASES)).resource_version)
    assert len(await told(cluster, LEASES, str(version - 3))) == 3
    with pytest.raises(Expired):
        await told(cluster, LEASES, "4")
    # Other kinds have their own history: nothing of theirs has been forgotten.
    assert await told(cluster, PODS, "1") == []
    await cluster.close()


async def test_compaction_expires_all_that_was_seen_before(cluster: EmbeddedCluster) -> None:
    old = (await cluster.list(LEASES)).resource_version
    await cluster.create(LEASES, named("a"), "default")
    new = (await cluster.list(LEASES)).resource_version
    cluster.compact()
    with pytest.raises(Expired):
        await told(cluster, LEASES, old)
    assert await told(cluster, LEASES, new) == []


async def test_a_watch_that_falls_behind_the_history_ends_and_has_expired() -> None:
    cluster = EmbeddedCluster(history=2, now=now)
    stream = cast(Any, cluster.watch(LEASES, resource_version="0"))
    await cluster.create(LEASES, named("first"), "default")
    first = await anext(stream)
    for number in range(10):
        await cluster.create(LEASES, named(f"l{number}"), "default")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises(Expired):
        await told(cluster, LEASES, first.object.metadata.resource_version)
    await cluster.close()


async def test_watches_end_without_a_word_and_can_be_resumed(cluster: EmbeddedCluster) -> None:
    version = (await cluster.list(LEASES)).resource_version
    waiting = asyncio.create_task(told(cluster, LEASES, version, seconds=1000))
    await asyncio.sleep(1)
    cluster.end_watches()
    assert await waiting == []
    await cluster.create(LEASES, named("a"), "default")
    assert short(await told(cluster, LEASES, version)) == [("ADDED", "a")]


async def test_a_quiet_watch_gets_bookmarks_that_it_can_be_resumed_from(cluster: EmbeddedCluster) -> None:
    version = (await cluster.list(LEASES)).resource_version
    for number in range(20):
        await cluster.create(PODS, pod(f"p{number}"), "default")
    cluster_version = (await cluster.list(PODS)).resource_version
    events = await told(cluster, LEASES, version, seconds=BOOKMARK_SECONDS * 2.5)
    assert [event.type for event in events] == ["BOOKMARK", "BOOKMARK"]
    assert {event.object.metadata.resource_version for event in events} == {cluster_version}


async def test_all_watchers_of_a_kind_share_one_struct(cluster: EmbeddedCluster) -> None:
    version = (await cluster.list(PODS)).resource_version
    made = await cluster.create(PODS, pod(), "default")
    first, second = (
        await told(cluster, PODS, version),
        await told(cluster, PODS, version, field_selector="spec.nodeName="),
    )
    assert first[0].object is second[0].object is made
    assert (await cluster.list(PODS)).items[0] is made


async def test_a_watch_can_be_left_while_it_waits(cluster: EmbeddedCluster) -> None:
    """One reader that is cancelled takes nothing from another."""
    version = (await cluster.list(LEASES)).resource_version
    staying = asyncio.create_task(told(cluster, LEASES, version, seconds=100))
    leaving = asyncio.create_task(told(cluster, LEASES, version, seconds=100))
    await asyncio.sleep(1)
    leaving.cancel()
    await asyncio.wait([leaving])
    await cluster.create(LEASES, named("a"), "default")
    assert short(await staying)[:1] == [("ADDED", "a")]


# --- Rules of single kinds that no contract test is about


async def test_priority_comes_from_the_class_of_that_name_or_the_default_one(cluster: EmbeddedCluster) -> None:
    await cluster.create(PRIORITY_CLASSES, {**named("high"), "value": 100})
    await cluster.create(PRIORITY_CLASSES, {**named("usual"), "value": 7, "globalDefault": True})
    with pytest.raises(Forbidden, match="usual"):
        await cluster.create(PRIORITY_CLASSES, {**named("other"), "globalDefault": True})
    high = await cluster.create(RAW_PODS, pod("high", priorityClassName="high"), "default")
    usual = await cluster.create(RAW_PODS, pod("usual"), "default")
    assert (high.spec["priority"], usual.spec["priority"]) == (100, 7)
    assert usual.spec["priorityClassName"] == "usual"


async def test_a_node_is_not_ready_at_first_and_its_capacity_is_allocatable(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(NODES, {**named("n"), "status": {"capacity": {"cpu": 4}}})
    assert [(taint.key, taint.effect) for taint in made.spec.taints] == [("node.kubernetes.io/not-ready", "NoSchedule")]
    assert made.status.allocatable == {"cpu": "4"}


async def test_namespaces_that_must_stay_stay(cluster: EmbeddedCluster) -> None:
    with pytest.raises(Forbidden):
        await cluster.delete(NAMESPACES, "default")
    assert {each.metadata.name for each in (await cluster.list(NAMESPACES)).items} >= {"default", "kube-system"}


async def test_an_unbound_pod_needs_a_node_to_be_bound_to(cluster: EmbeddedCluster) -> None:
    await cluster.create(PODS, pod(), "default")
    with pytest.raises(Invalid, match=r"target\.name"):
        await cluster.bind("default", "p", "")


async def test_bad_quantities_are_refused_wherever_they_stand(cluster: EmbeddedCluster) -> None:
    bad = {"name": "c", "image": "i", "resources": {"limits": {"cpu": "1.2.3"}}}
    template = {"template": {"spec": {"restartPolicy": "Never", "containers": [bad]}}}
    with pytest.raises(Invalid, match=r"Pod: '1\.2\.3' is no quantity"):
        await cluster.create(PODS, pod(containers=[bad]), "default")
    with pytest.raises(Invalid, match=r"Job: '1\.2\.3' is no quantity"):
        await cluster.create(JOBS, {**named("j"), "spec": template}, "default")
    with pytest.raises(Invalid, match="is no quantity"):
        await cluster.create(NODES, {**named("n"), "status": {"allocatable": {"cpu": ""}}})


async def test_a_listing_is_of_one_moment(cluster: EmbeddedCluster) -> None:
    await cluster.create(CLUSTER_QUEUES, {**named("cq"), "spec": {}})
    await cluster.create(LOCAL_QUEUES, {**named("lq"), "spec": {"clusterQueue": "cq"}}, "default")
    queues = await cluster.list(CLUSTER_QUEUES)
    assert queues.resource_version == (await cluster.list(LOCAL_QUEUES)).resource_version
    assert int(queues.items[0].metadata.resource_version) == int(queues.resource_version) - 1


async def test_thousands_of_pods_are_no_trouble(cluster: EmbeddedCluster) -> None:
    """All are told to a watcher once, and a node's are found without looking at the others."""
    version = (await cluster.list(PODS)).resource_version
    for number in range(2000):
        await cluster.create(PODS, pod(f"p{number}"), "default")
        await cluster.bind("default", f"p{number}", f"n{number % 100}")
    assert len(await told(cluster, PODS, version)) == 4000
    found = await cluster.list(PODS, field_selector="spec.nodeName=n7")
    assert len(found.items) == 20
    assert {each.spec.node_name for each in found.items} == {"n7"}
    assert msgspec.to_builtins(found.items[0].metadata.name).startswith("p")
