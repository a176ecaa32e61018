"""A pod set group: a leader and its workers, in one domain also when a node is lost."""

from __future__ import annotations

from typing import Any

from serried.api.assignment import decode
from serried.api.kueue import Workload
from serried.api.names import SCHEDULER_NAME
from serried.api.resources import WORKLOADS
from tests.scenarios.arena import GPU, RACK, Arena

NODES = {"leader": 1, "workers": 6}


def group() -> dict[str, Any]:
    """A Workload of a leader and six workers, a node each, in one rack."""
    pod_sets = []
    for name, count in NODES.items():
        containers = [{"name": "c", "image": "train", "resources": {"requests": {GPU: "8"}}}]
        template = {"spec": {"schedulerName": SCHEDULER_NAME, "containers": containers}}
        request = {"required": RACK, "podSetGroupName": "together"}
        pod_sets.append({"name": name, "count": count, "template": template, "topologyRequest": request})
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {"name": "group"},
        "spec": {"queueName": "main", "podSets": pod_sets},
    }


def hosts(workload: Workload) -> dict[str, list[str]]:
    assert workload.status.admission is not None
    found = {}
    for pod_set in workload.status.admission.pod_set_assignments:
        assert pod_set.topology_assignment is not None
        found[pod_set.name] = [values[-1] for values, _ in decode(pod_set.topology_assignment)]
    return found


async def test_a_leader_that_loses_its_node_gets_another_one_beside_its_workers(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.cluster.create(WORKLOADS, group(), arena.namespace)

    async def seen() -> Workload:
        return await arena.cluster.get(WORKLOADS, "group", arena.namespace)

    async def admitted() -> bool:
        return (await seen()).status.admission is not None

    await arena.until(admitted, hint="the group admitted")
    before = hosts(await seen())
    assert {name: len(each) for name, each in before.items()} == NODES
    (spare,) = {f"node-{i:02d}" for i in range(8)} - {*before["leader"], *before["workers"]}

    lost = {"status": {"unhealthyNodes": [{"name": before["leader"][0]}]}}
    await arena.cluster.patch(WORKLOADS, "group", arena.namespace, patch=lost, subresource="status")

    async def replaced() -> bool:
        return not (await seen()).status.unhealthy_nodes

    await arena.until(replaced, hint="another node for the leader")
    assert hosts(await seen()) == {"leader": [spare], "workers": before["workers"]}
