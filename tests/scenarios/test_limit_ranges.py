"""Quota and places are those of the pods as the API server makes them: LimitRange defaults, RuntimeClass overhead."""

from __future__ import annotations

from typing import Any

from serried.api.names import WorkloadCondition
from serried.api.resources import LIMIT_RANGES, LOCAL_QUEUES, RUNTIME_CLASSES
from serried.control.config import Configuration
from serried.schedule.types.options import Resources
from tests.scenarios.arena import GPU, Arena, job

QUOTA_RESERVED = WorkloadCondition.QUOTA_RESERVED
ONLY_GPUS = Configuration(status_interval=0.1, resources=Resources(exclude_resource_prefixes=("cpu",)))


def asking(name: str, pods: int, *, runtime_class: str = "", **requests: str) -> dict[str, Any]:
    """A Job whose pods request just this."""
    body = job(name, pods)
    pod = body["spec"]["template"]["spec"]
    limits = {GPU: requests[GPU]} if GPU in requests else {}
    pod["containers"][0]["resources"] = {"requests": requests, "limits": limits}
    if runtime_class:
        pod["runtimeClassName"] = runtime_class
    return body


async def make_limit_range(arena: Arena, name: str, **item: Any) -> None:
    await arena.make(LIMIT_RANGES, name, {"limits": [{"type": "Container", **item}]}, arena.namespace)


async def test_requests_left_out_are_those_of_the_limit_range(arena: Arena) -> None:
    await arena.set_up_queue(nominal=16)
    await make_limit_range(arena, "whole-nodes", default={GPU: "8"})
    await arena.start(ONLY_GPUS)
    await arena.submit(asking("silent", 2))
    pods = await arena.until_running("silent", 2)
    assert len({pod.spec.node_name for pod in pods}) == 2
    assert [pod.spec.containers[0].resources.requests for pod in pods] == [{GPU: "8"}, {GPU: "8"}]

    async def counted() -> bool:
        queue = await arena.cluster.get(LOCAL_QUEUES, "main", arena.namespace)
        return [r.total for f in queue.status.flavors_usage for r in f.resources] == ["16"]

    await arena.until(counted)
    await arena.submit(asking("more", 1))
    await arena.until_condition("more", QUOTA_RESERVED, "False", text=GPU)
    await arena.stop()
    await arena.start(ONLY_GPUS)
    await arena.delete_job("silent")
    await arena.until_running("more", 1)


async def test_more_than_the_limit_range_allows_is_told_until_it_is_allowed(arena: Arena) -> None:
    await arena.set_up_queue()
    await make_limit_range(arena, "small", max={GPU: "4"})
    await arena.start(ONLY_GPUS)
    await arena.submit(job("large", 2))
    condition = await arena.until_condition("large", QUOTA_RESERVED, "False", text="at most 4, by LimitRange small")
    assert condition.reason == "Misconfigured"
    assert f"containers[0].resources.limits[{GPU}]: found 8" in condition.message
    await arena.submit(job("allowed", 2, gpus=4))
    await arena.until_running("allowed", 2)
    await arena.cluster.delete(LIMIT_RANGES, "small", arena.namespace)
    await arena.until_running("large", 2)


async def test_the_overhead_of_a_runtime_class_takes_room_on_nodes(arena: Arena) -> None:
    """Two pods of 40 of a node's 96 cpus, in sandboxes of 30 more each, are on a node each."""
    await arena.set_up_queue()
    sandbox = arena.scoped("sandbox")
    await arena.start(ONLY_GPUS)
    await arena.submit(asking("boxed", 2, runtime_class=sandbox, cpu="40", **{GPU: "1"}))
    await arena.until_condition("boxed", QUOTA_RESERVED, "False", text=f"runtimeClassName: found '{sandbox}'")
    await arena.submit(asking("open", 2, cpu="40", **{GPU: "1"}))
    pods = await arena.until_running("open", 2)
    assert len({pod.spec.node_name for pod in pods}) == 1
    await arena.cluster.create(
        RUNTIME_CLASSES, {"metadata": {"name": sandbox}, "handler": "sandbox", "overhead": {"podFixed": {"cpu": "30"}}}
    )
    arena.made.append((RUNTIME_CLASSES, sandbox))
    pods = await arena.until_running("boxed", 2)
    assert len({pod.spec.node_name for pod in pods}) == 2
    assert [pod.spec.overhead for pod in pods] == [{"cpu": "30"}, {"cpu": "30"}]
