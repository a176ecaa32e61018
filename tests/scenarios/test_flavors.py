"""Flavors with and without topology, several resources, queues that share nodes, racks as the lowest level."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from serried.api import names
from serried.api.core import Pod
from serried.api.kueue import Workload
from serried.api.names import WorkloadCondition
from serried.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES, PODS, RESOURCE_FLAVORS, TOPOLOGIES
from tests.scenarios.arena import BLOCK, GPU, HOST, RACK, Arena, assigned, job, node_labels

FINISHED, ADMITTED, QUOTA_RESERVED = (
    WorkloadCondition.FINISHED,
    WorkloadCondition.ADMITTED,
    WorkloadCondition.QUOTA_RESERVED,
)


async def make_queue(
    arena: Arena, name: str, flavors: dict[str, dict[str, str]], *, covered: list[str] | None = None
) -> None:
    """A ClusterQueue of this scenario with flavors → quotas, and the LocalQueue `name`."""
    resources = covered or [GPU]
    group = {
        "coveredResources": resources,
        "flavors": [
            {"name": arena.scoped(f), "resources": [{"name": r, "nominalQuota": quota[r]} for r in resources]}
            for f, quota in flavors.items()
        ],
    }
    await arena.make(CLUSTER_QUEUES, arena.scoped(name), {"namespaceSelector": {}, "resourceGroups": [group]})
    await arena.make(LOCAL_QUEUES, name, {"clusterQueue": arena.scoped(name)}, arena.namespace)


async def make_flavor(arena: Arena, name: str, spec: dict[str, Any]) -> None:
    await arena.make(RESOURCE_FLAVORS, arena.scoped(name), spec)


async def make_topology(arena: Arena, name: str, *levels: str) -> str:
    await arena.make(TOPOLOGIES, arena.scoped(name), {"levels": [{"nodeLabel": x} for x in levels]})
    return arena.scoped(name)


def racks_of(pods: list[Pod]) -> Counter[tuple[str, str]]:
    labels = [node_labels(int(p.spec.node_name[5:])) for p in pods]
    return Counter((x[BLOCK], x[RACK]) for x in labels)


def flavors_of(workload: Workload | None) -> set[str]:
    assert workload is not None
    assert workload.status.admission is not None
    return {f for a in workload.status.admission.pod_set_assignments for f in a.flavors.values()}


@pytest.mark.parametrize("scheduler", ["serried", "default-scheduler"])
@pytest.mark.parametrize(
    "topology_request",
    [{}, {names.REQUIRED_TOPOLOGY: RACK}, {names.PREFERRED_TOPOLOGY: BLOCK}],
    ids=lambda w: "".join(w)[-18:],
)
async def test_a_topology_that_ends_at_the_rack(arena: Arena, scheduler: str, topology_request: dict[str, str]) -> None:
    """Bound by Serried each rank has a node; left to kube-scheduler each pod is steered to its rack."""
    topology = await make_topology(arena, "racks", BLOCK, RACK)
    await make_flavor(arena, "gpu", {"nodeLabels": {"pool": "gpu"}, "topologyName": topology})
    await make_queue(arena, "q", {"gpu": {GPU: "512"}})
    await arena.start()
    await arena.submit(job("train", 8, queue="q", topology=topology_request, scheduler=scheduler))
    pods = await arena.until_running("train", 8)
    assert len({p.spec.node_name for p in pods}) == 8
    levels, domains = assigned(await arena.workload("train"))
    if scheduler == "serried":
        assert levels == [HOST]
        assert [p.spec.node_name for p in pods] == [v[-1] for v, count in domains for _ in range(count)]
    else:
        assert levels == [BLOCK, RACK]
        assert racks_of(pods) == Counter(dict(domains))
    if names.REQUIRED_TOPOLOGY in topology_request:
        assert len(racks_of(pods)) == 1
    # The nodes are really taken: what is left in these racks is known.
    await arena.submit(job("second", 56, queue="q", scheduler=scheduler))
    await arena.until_running("second", 56)
    await arena.submit(job("third", 1, queue="q", scheduler=scheduler))
    await arena.until_condition("third", QUOTA_RESERVED, "False")


@pytest.mark.parametrize("scheduler", ["serried", "default-scheduler"])
async def test_a_flavor_without_topology(arena: Arena, scheduler: str) -> None:
    await make_flavor(arena, "plain", {"nodeLabels": {"pool": "gpu"}})
    await make_queue(arena, "q", {"plain": {GPU: "64"}})
    await arena.start()
    await arena.submit(job("train", 8, queue="q", scheduler=scheduler, seconds=0.3))
    await arena.until_condition("train", FINISHED)
    await arena.submit(job("required", 2, queue="q", scheduler=scheduler, topology={names.REQUIRED_TOPOLOGY: RACK}))
    waits = await arena.until_condition("required", QUOTA_RESERVED, "False")
    assert waits.reason in ("NoMatchingFlavor", "Misconfigured", "TopologyPlacementFailed")


async def test_two_queues_that_share_nodes_by_two_flavors(arena: Arena) -> None:
    """Quota for all nodes in each of them: together they never put more on a node than it has."""
    topology = await make_topology(arena, "default", BLOCK, RACK, HOST)
    await make_flavor(arena, "a", {"nodeLabels": {"pool": "gpu"}, "topologyName": topology})
    await make_flavor(arena, "b", {"nodeLabels": {"pool": "gpu"}, "topologyName": topology})
    await make_queue(arena, "qa", {"a": {GPU: "512"}})
    await make_queue(arena, "qb", {"b": {GPU: "512"}})
    await arena.start()
    for i in range(8):
        await arena.submit(job(f"j{i}", 10, queue=("qa", "qb")[i % 2], topology={names.PREFERRED_TOPOLOGY: RACK}))
    running: list[Pod] = []

    async def six_run() -> bool:
        nonlocal running
        running = [p for p in await arena.pods() if p.status.phase == "Running"]
        return len(running) == 60

    await arena.until(six_run)
    assert len({p.spec.node_name for p in running}) == 60
    waiting = [i for i in range(8) if (await arena.condition(f"j{i}", ADMITTED)) is None]
    assert len(waiting) == 2
    for i in waiting:
        waits = await arena.until_condition(f"j{i}", QUOTA_RESERVED, "False")
        assert waits.reason == "TopologyPlacementFailed"


async def test_flavors_in_order_and_all_resources_counted(arena: Arena) -> None:
    """cpu, memory and GPUs with init containers, sidecars, limits and overhead; the second flavor when one is full."""
    topology = await make_topology(arena, "default", BLOCK, RACK, HOST)
    for block in ("block-0", "block-1"):
        await make_flavor(arena, block, {"nodeLabels": {"pool": "gpu", BLOCK: block}, "topologyName": topology})
    quota = {"cpu": "100", "memory": "100Gi", GPU: "16"}
    await make_queue(arena, "q", {"block-0": quota, "block-1": quota}, covered=list(quota))
    await arena.start()

    def body(name: str) -> dict[str, Any]:
        made = job(name, 2, gpus=4, queue="q")
        spec = made["spec"]["template"]["spec"]
        spec["containers"][0]["resources"]["requests"] |= {"cpu": "2500m", "memory": "1Gi"}
        spec["containers"].append({"name": "log", "image": "x", "resources": {"limits": {"cpu": "0.5"}}})
        spec["initContainers"] = [
            {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"name": "big", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "3Gi"}}},
        ]
        return made

    for name in ("a", "b", "c"):
        await arena.submit(body(name))
        await arena.until_running(name, 2)
    assert [flavors_of(await arena.workload(n)) for n in "abc"] == [
        {arena.scoped("block-0")},
        {arena.scoped("block-0")},
        {arena.scoped("block-1")},
    ]
    workload = await arena.workload("a")
    assert workload is not None
    assert workload.status.admission is not None
    usage = workload.status.admission.pod_set_assignments[0].resource_usage
    assert (usage["cpu"], usage["memory"], usage[GPU]) == ("8", "6Gi", "8")
    await arena.submit(body("d"))
    await arena.until_running("d", 2)
    await arena.submit(body("e"))
    waits = await arena.until_condition("e", QUOTA_RESERVED, "False", text=GPU)
    assert waits.reason == "WaitingForQuota"


async def test_a_pod_on_its_way_out_keeps_its_node_until_it_is_gone(arena: Arena) -> None:
    """A stranger's pod with a finalizer of somebody's: its node is not given away while it is there."""
    await arena.set_up_queue()
    for i in range(1, 64):
        await arena.run_stranger(f"stranger-{i}", node_labels(i)[HOST], gpus=8)
    await arena.run_stranger("slow", "node-00", gpus=8)
    patch: dict[str, Any] = {"metadata": {"finalizers": ["example.com/slow"]}}
    await arena.cluster.patch(PODS, "slow", arena.namespace, patch=patch)
    await arena.start()
    await arena.submit(job("train", 1))
    await arena.until_condition("train", QUOTA_RESERVED, "False")
    await arena.cluster.delete(PODS, "slow", arena.namespace, grace_period_seconds=0)
    await arena.submit(job("other", 1))
    await arena.until_condition("other", QUOTA_RESERVED, "False")
    assert (await arena.condition("train", ADMITTED)) is None
    await arena.cluster.patch(PODS, "slow", arena.namespace, patch={"metadata": {"finalizers": None}})

    async def one_runs() -> bool:
        pods = await arena.pods("train") + await arena.pods("other")  # made in the same second, perhaps
        return [(p.spec.node_name, p.status.phase) for p in pods] == [("node-00", "Running")]

    await arena.until(one_runs)
