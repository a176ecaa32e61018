"""How objects go: owners of several kinds, namespaces with pods in them, finalizers."""

import asyncio
from typing import Any

import pytest

from serried.api.resources import LEASES, LOCAL_QUEUES, NAMESPACES, NODES, PODS, Resource
from serried.cluster.protocol import Forbidden, Invalid, NotFound
from serried.embedded.server import EmbeddedCluster
from tests.unit.embedded.objects import named, pod


def owned_by(*owners: tuple[str, str, str]) -> dict[str, Any]:
    """Metadata that names owners by kind, name and uid."""
    return {
        "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid} for kind, name, uid in owners]
    }


async def names(cluster: EmbeddedCluster, resource: Resource[Any], namespace: str = "default") -> list[str]:
    # What garbage collection has to do is done when the loop comes round again.
    for _ in range(5):
        await asyncio.sleep(0)
    return [each.metadata.name for each in (await cluster.list(resource, namespace)).items]


async def lease(cluster: EmbeddedCluster, name: str, **metadata: Any) -> tuple[str, str, str]:
    made = await cluster.create(LEASES, named(name, **metadata), "default")
    return ("Lease", name, made.metadata.uid)


async def test_what_has_another_owner_left_stays_and_forgets_the_one_that_went(cluster: EmbeddedCluster) -> None:
    one, two = await lease(cluster, "one"), await lease(cluster, "two")
    await lease(cluster, "child", **owned_by(one, two))
    await cluster.delete(LEASES, "one", "default")
    assert await names(cluster, LEASES) == ["child", "two"]
    child = await cluster.get(LEASES, "child", "default")
    assert [owner.name for owner in child.metadata.owner_references] == ["two"]
    await cluster.delete(LEASES, "two", "default")
    assert await names(cluster, LEASES) == []


async def test_children_go_with_their_parents(cluster: EmbeddedCluster) -> None:
    parent = await lease(cluster, "a")
    for name in "bcd":
        parent = await lease(cluster, name, **owned_by(parent))
    await cluster.delete(LEASES, "a", "default")
    assert await names(cluster, LEASES) == []


async def test_an_owner_has_to_be_the_one_that_is_named(cluster: EmbeddedCluster) -> None:
    _, _, uid = await lease(cluster, "owner")
    await cluster.create(NAMESPACES, named("other"))
    for number, reference in enumerate([("Pod", "owner", uid), ("Lease", "another", uid)]):
        await lease(cluster, f"child-{number}", **owned_by(reference))
    await cluster.create(LEASES, named("abroad", **owned_by(("Lease", "owner", uid))), "other")
    assert await names(cluster, LEASES) == ["owner"]
    assert await names(cluster, LEASES, "other") == []


async def test_an_owner_without_a_namespace_owns_everywhere(cluster: EmbeddedCluster) -> None:
    node = await cluster.create(NODES, named("node"))
    await lease(cluster, "child", **owned_by(("Node", "node", node.metadata.uid)))
    assert await names(cluster, LEASES) == ["child"]
    await cluster.delete(NODES, "node")
    assert await names(cluster, LEASES) == []


async def test_an_owner_that_is_added_later_and_is_not_there_takes_it_along(cluster: EmbeddedCluster) -> None:
    await lease(cluster, "child")
    await cluster.patch(LEASES, "child", "default", patch={"metadata": owned_by(("Lease", "x", "nobody"))})
    assert await names(cluster, LEASES) == []


async def test_no_finalizer_comes_late(cluster: EmbeddedCluster) -> None:
    await lease(cluster, "a", finalizers=["example.com/one"])
    await cluster.delete(LEASES, "a", "default")
    with pytest.raises(Invalid, match=r"metadata\.finalizers"):
        await cluster.patch(
            LEASES, "a", "default", patch={"metadata": {"finalizers": ["example.com/one", "example.com/two"]}}
        )


async def test_a_namespace_goes_when_all_in_it_is_gone(cluster: EmbeddedCluster) -> None:
    await cluster.create(NAMESPACES, named("team"))
    await cluster.create(LOCAL_QUEUES, {**named("q"), "spec": {"clusterQueue": "c"}}, "team")
    await cluster.create(PODS, pod("waiting"), "team")
    await cluster.create(PODS, pod("running", nodeName="node"), "team")
    await cluster.create(LEASES, named("held", finalizers=["example.com/hold"]), "team")
    await cluster.create(PODS, pod("elsewhere"), "default")
    await cluster.delete(NAMESPACES, "team")
    assert await names(cluster, PODS, "team") == ["running"]
    assert await names(cluster, LOCAL_QUEUES, "team") == []
    with pytest.raises(Forbidden):
        await cluster.create(PODS, pod("late"), "team")
    # The node says that the pod has ended.
    await cluster.delete(PODS, "running", "team", grace_period_seconds=0)
    await cluster.get(NAMESPACES, "team")
    await cluster.patch(LEASES, "held", "team", patch={"metadata": {"finalizers": None}})
    await names(cluster, LEASES, "team")
    with pytest.raises(NotFound):
        await cluster.get(NAMESPACES, "team")
    assert await names(cluster, PODS) == ["elsewhere"]
    await cluster.create(NAMESPACES, named("team"))
    await cluster.create(PODS, pod("again"), "team")


async def test_an_empty_namespace_goes_at_once(cluster: EmbeddedCluster) -> None:
    await cluster.create(NAMESPACES, named("team", finalizers=["example.com/hold"]))
    await cluster.delete(NAMESPACES, "team")
    await cluster.delete(NAMESPACES, "team")
    assert "team" in await names(cluster, NAMESPACES, "")
    await cluster.patch(NAMESPACES, "team", patch={"metadata": {"finalizers": None}})
    assert "team" not in await names(cluster, NAMESPACES, "")


async def test_a_pod_can_be_given_less_time_but_not_more(cluster: EmbeddedCluster) -> None:
    await cluster.create(PODS, pod(nodeName="node", terminationGracePeriodSeconds=20), "default")

    async def left(grace: int | None) -> float:
        await cluster.delete(PODS, "p", "default", grace_period_seconds=grace)
        metadata = (await cluster.get(PODS, "p", "default")).metadata
        assert metadata.deletion_timestamp is not None
        assert metadata.creation_timestamp is not None
        return (metadata.deletion_timestamp - metadata.creation_timestamp).total_seconds()

    assert await left(None) == 20
    assert await left(30) == 20
    assert await left(5) == 5
    assert await left(None) == 5
    await cluster.delete(PODS, "p", "default", grace_period_seconds=0)
    assert await names(cluster, PODS) == []
