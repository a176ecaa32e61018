"""What quota counts for what pods request, by the administrator's configuration; nodes count what is requested."""

from __future__ import annotations

from pathlib import Path

from serried.api.core import ResourceList
from serried.api.names import WorkloadCondition
from serried.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from serried.control.config import load
from tests.scenarios.arena import GPU, Arena, job

UNITS = "example.com/units"
CONFIG = f"""
statusInterval: 0.1
resources:
  excludeResourcePrefixes: [cpu]
  transformations:
  - input: {GPU}
    strategy: Replace
    outputs: {{{UNITS}: 2.5}}
"""


async def requests(arena: Arena, name: str) -> list[tuple[str, ResourceList]]:
    workload = await arena.workload(name)
    assert workload is not None
    return [(each.name, each.resources) for each in workload.status.resource_requests]


async def test_quota_counts_units_and_nodes_count_gpus(arena: Arena, tmp_path: Path) -> None:
    file = tmp_path / "serried.yaml"
    file.write_text(CONFIG)
    config = load(file)
    await arena.set_up_queue()
    await arena.set_quota(50, UNITS)
    await arena.start(config)
    body = job("fits", 2)
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "90"
    await arena.submit(body)
    pods = await arena.until_running("fits", 2)
    assert len({p.spec.node_name for p in pods}) == 2  # 8 GPUs each: a node of their own

    async def used(total: str) -> bool:
        local = await arena.cluster.get(LOCAL_QUEUES, "main", arena.namespace)
        shared = await arena.cluster.get(CLUSTER_QUEUES, arena.queue)
        both = (local.status.flavors_usage, shared.status.flavors_usage)
        return all([(r.name, r.total) for f in usage for r in f.resources] == [(UNITS, total)] for usage in both)

    await arena.until(lambda: used("40"))
    workload = await arena.workload("fits")
    assert workload is not None
    assert workload.status.admission is not None
    assert workload.status.admission.pod_set_assignments[0].resource_usage == {UNITS: "40"}

    await arena.stop()
    await arena.start(config)
    await arena.submit(job("waits", 1, gpus=5))  # 12.5 units, counted as 13
    await arena.until_condition("waits", WorkloadCondition.QUOTA_RESERVED, "False", text=f"13.*{UNITS}|{UNITS}.*13")
    assert await requests(arena, "waits") == [("main", {UNITS: "13"})]
    if arena.real:
        told = await arena.serried_says("explain", "job/waits", "-n", arena.namespace, "--config", str(file))
        assert UNITS in told
        assert GPU not in told
    await arena.submit(job("small", 1, gpus=4))
    await arena.until_running("small", 1)
    await arena.until(lambda: used("50"))
    await arena.delete_job("fits")
    await arena.until_running("waits", 1)
    assert await requests(arena, "waits") == []
