"""How long pods run, and how fast they are made, on the event loop that the command line uses."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

from serried.api import names
from serried.api.resources import JOBS, PODS
from serried.embedded.hollow import HollowNode, HollowNodes
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster
from tests.patience import until

PODS_MADE = 150


def pod(i: int) -> dict[str, Any]:
    """One that runs for 20 to 40 ms; what is left of a millisecond is different for each."""
    annotations = {names.RUN_SECONDS: str(0.02 + i * 0.02 / PODS_MADE)}
    spec = {"schedulerName": "nobody", "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    return {"metadata": {"name": f"p{i}", "annotations": annotations}, "spec": spec}


def test_every_pod_ends_though_uvloop_rounds_its_timers() -> None:
    """uvloop calls up to a millisecond early; a pod that is looked at too early must be looked at again."""

    async def main() -> None:
        cluster = EmbeddedCluster()
        nodes = HollowNodes(cluster)
        await nodes.add([HollowNode("node")])
        await nodes.start()
        for i in range(PODS_MADE):
            made = await cluster.create(PODS, pod(i), "default")
            await cluster.bind("default", made.metadata.name, "node", uid=made.metadata.uid)

        async def all_ended() -> bool:
            return {p.status.phase for p in (await cluster.list(PODS)).items} == {"Succeeded"}

        await until(all_ended)
        await nodes.stop()
        await cluster.close()

    uvloop.run(main())


async def test_pods_are_made_no_faster_than_asked() -> None:
    """At 50 pods a second the sixth pod comes 100 ms after the first, whichever Jobs they belong to."""
    cluster = EmbeddedCluster()
    controller = JobController(cluster, pods_per_second=50)
    await controller.start()
    loop = asyncio.get_running_loop()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    begin = loop.time()
    for name in ("a", "b"):
        await cluster.create(
            JOBS, {"metadata": {"name": name}, "spec": {"parallelism": 3, "template": template}}, "default"
        )
    made = 0
    while made < 6:
        await asyncio.sleep(0.001)
        made = len((await cluster.list(PODS)).items)
    assert loop.time() - begin >= 5 / 50
    await controller.stop()
    await cluster.close()
