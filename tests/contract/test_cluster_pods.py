"""What Serried relies on of pods: binding, gates, eviction, deletion. The same on both clusters."""

import asyncio
from typing import Any

import pytest

from serried.api.resources import NODES, PODS
from serried.cluster.protocol import Cluster, Conflict, Invalid, NotFound


async def test_a_new_pod_is_pending_on_no_node(cluster: Cluster, namespace: str, pod: Any) -> None:
    made = await cluster.create(PODS, pod("a"), namespace)
    assert made.status.phase == "Pending"
    assert made.spec.node_name == ""
    assert made.spec.scheduler_name == "nobody"


async def test_a_bound_pod_is_on_its_node(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    made = await cluster.create(PODS, pod("a"), namespace)
    await cluster.bind(namespace, "a", node, uid=made.metadata.uid)
    bound = await cluster.get(PODS, "a", namespace)
    assert bound.spec.node_name == node
    assert int(bound.metadata.resource_version) > int(made.metadata.resource_version)
    assert [(c.type, c.status) for c in bound.status.conditions] == [("PodScheduled", "True")]


async def test_a_pod_is_bound_once(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    await cluster.create(PODS, pod("a"), namespace)
    outcomes = await asyncio.gather(*(cluster.bind(namespace, "a", node) for _ in range(5)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 4 + ["NoneType"]
    with pytest.raises(Conflict):
        await cluster.bind(namespace, "a", "another-node")
    assert (await cluster.get(PODS, "a", namespace)).spec.node_name == node


async def test_another_pod_of_the_same_name_is_not_bound(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    await cluster.create(PODS, pod("a"), namespace)
    with pytest.raises(Conflict):
        await cluster.bind(namespace, "a", node, uid="other")
    with pytest.raises(NotFound):
        await cluster.bind(namespace, "absent", node)
    assert (await cluster.get(PODS, "a", namespace)).spec.node_name == ""


async def test_a_gated_pod_is_bound_only_once_its_gates_are_off(
    cluster: Cluster, namespace: str, node: str, pod: Any
) -> None:
    gates = [{"name": "example.com/quota"}, {"name": "example.com/topology"}]
    made = await cluster.create(PODS, pod("a", schedulingGates=gates), namespace)
    assert [gate.name for gate in made.spec.scheduling_gates] == ["example.com/quota", "example.com/topology"]
    with pytest.raises(Conflict):
        await cluster.bind(namespace, "a", node)
    # The node may still be chosen while there are gates.
    release = {"spec": {"schedulingGates": [], "nodeSelector": {"kubernetes.io/hostname": node}}}
    with pytest.raises(Invalid):
        await cluster.patch(PODS, "a", namespace, patch={"spec": {"schedulingGates": [{"name": "example.com/new"}]}})
    released = await cluster.patch(PODS, "a", namespace, patch=release)
    assert released.spec.scheduling_gates == ()
    assert released.spec.node_selector == {"kubernetes.io/hostname": node}
    await cluster.bind(namespace, "a", node)
    assert (await cluster.get(PODS, "a", namespace)).spec.node_name == node


async def test_a_pod_that_is_being_deleted_is_not_bound(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    manifest = pod("a")
    manifest["metadata"]["finalizers"] = ["example.com/hold"]
    await cluster.create(PODS, manifest, namespace)
    await cluster.delete(PODS, "a", namespace)
    with pytest.raises(Conflict):
        await cluster.bind(namespace, "a", node)
    await cluster.patch(PODS, "a", namespace, patch={"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    "spec", [{"schedulerName": "another"}, {"nodeName": "another"}, {"nodeSelector": {"zone": "a"}}]
)
async def test_what_a_pod_asked_for_stays(cluster: Cluster, namespace: str, pod: Any, spec: dict[str, Any]) -> None:
    made = await cluster.create(PODS, pod("a"), namespace)
    with pytest.raises(Invalid):
        await cluster.patch(PODS, "a", namespace, patch={"spec": spec})
    assert await cluster.get(PODS, "a", namespace) == made


async def test_a_pod_on_no_node_is_deleted_at_once(cluster: Cluster, namespace: str, pod: Any) -> None:
    await cluster.create(PODS, pod("a"), namespace)
    await cluster.delete(PODS, "a", namespace)
    with pytest.raises(NotFound):
        await cluster.get(PODS, "a", namespace)


async def test_a_pod_on_a_node_waits_for_its_kubelet(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    made = await cluster.create(PODS, pod("a"), namespace)
    await cluster.bind(namespace, "a", node)
    await cluster.delete(PODS, "a", namespace)
    leaving = await cluster.get(PODS, "a", namespace)
    assert leaving.metadata.deletion_timestamp is not None
    assert leaving.metadata.uid == made.metadata.uid
    # What the kubelet does when the containers have ended.
    await cluster.delete(PODS, "a", namespace, grace_period_seconds=0, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await cluster.get(PODS, "a", namespace)


async def test_a_pod_that_has_ended_is_deleted_at_once(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    await cluster.create(PODS, pod("a"), namespace)
    await cluster.bind(namespace, "a", node)
    ended = await cluster.patch(PODS, "a", namespace, patch={"status": {"phase": "Succeeded"}}, subresource="status")
    assert ended.status.phase == "Succeeded"
    await cluster.delete(PODS, "a", namespace)
    with pytest.raises(NotFound):
        await cluster.get(PODS, "a", namespace)


async def test_a_node_has_its_taints_and_labels(cluster: Cluster, node: str) -> None:
    """A new node is not ready until its status says so, whoever made it."""
    made = await cluster.get(NODES, node)
    assert [(taint.key, taint.effect) for taint in made.spec.taints] == [("node.kubernetes.io/not-ready", "NoSchedule")]
    patched = await cluster.patch(NODES, node, patch={"spec": {"taints": []}, "metadata": {"labels": {"rack": "r1"}}})
    assert (patched.spec.taints, patched.metadata.labels["rack"]) == ((), "r1")
