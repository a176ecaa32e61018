"""What queues report is right in the end, also when nothing happens afterwards."""

from __future__ import annotations

from serried.api.meta import Condition
from serried.api.resources import CLUSTER_QUEUES, WORKLOADS
from serried.lifecycle import conditions
from tests.scenarios.arena import GPU, Arena


async def test_the_end_of_a_workload_without_pods_is_reported(arena: Arena) -> None:
    """A Workload by hand, whose end brings no cycle (nobody waits) and no change of a gang (it has none)."""
    await arena.set_up_queue()
    controller = await arena.start()
    requests = {"requests": {GPU: "8"}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [{"name": "c", "resources": requests}]}}}
    body = {"metadata": {"name": "by-hand"}, "spec": {"queueName": "main", "podSets": [pod_set]}}
    kind = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind}
    await arena.cluster.create(WORKLOADS, {**kind, **body}, arena.namespace)

    async def used() -> bool:
        queue = await arena.cluster.get(CLUSTER_QUEUES, arena.queue)
        return any(str(r.total) == "8" for f in queue.status.flavors_usage for r in f.resources)

    await arena.until(used)
    workload = await arena.cluster.get(WORKLOADS, "by-hand", arena.namespace)
    done = Condition(type="Finished", status="True", reason="Succeeded", message="by hand")
    patch = conditions.status_patch(workload, [done], controller.now())
    await arena.cluster.patch(WORKLOADS, "by-hand", arena.namespace, patch=patch, subresource="status")
    await arena.until_free()
