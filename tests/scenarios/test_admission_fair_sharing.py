"""Admission fair sharing: of two LocalQueues of a ClusterQueue, the one that has used more waits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from serried.api.duration import Duration
from serried.api.names import WorkloadCondition
from serried.api.quantity import MILLI, parse
from serried.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from serried.control.config import Configuration
from serried.schedule.types.options import AdmissionFairSharing
from tests.scenarios.arena import GPU, Arena, job

USAGE = AdmissionFairSharing(usage_half_life_time=Duration(3600), usage_sampling_interval=Duration(0.5))
SHARING = Configuration(status_interval=0.1, admission_fair_sharing=USAGE)


async def set_up(arena: Arena) -> None:
    """One ClusterQueue with room for one gang of 8 nodes, and two ways into it."""
    await arena.set_up_queue(nominal=64)
    await change(arena, admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"})
    for name in ("busy", "calm"):
        await arena.make_local_queue(name)


async def change(arena: Arena, **spec: Any) -> None:
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": spec})


async def usage(arena: Arena, queue: str) -> tuple[float, int]:
    """What the status of a LocalQueue remembers of GPUs, and its share."""
    found = await arena.cluster.get(LOCAL_QUEUES, queue, arena.namespace)
    fair = found.status.fair_sharing
    if fair is None or fair.admission_fair_sharing_status is None:
        return 0.0, 0
    consumed = fair.admission_fair_sharing_status.consumed_resources
    return parse(consumed.get(GPU, 0), MILLI) / MILLI, fair.weighted_share


async def gpus_used(arena: Arena, queue: str) -> float:
    return (await usage(arena, queue))[0]


async def test_the_queue_that_used_more_waits(arena: Arena, tmp_path: Path) -> None:
    await set_up(arena)
    await arena.start(SHARING)
    await arena.submit(job("first", 8, queue="busy"))
    await arena.until_running("first", 8)
    await arena.submit(job("again", 8, queue="busy", seconds=0.1))
    await arena.until_condition("again", WorkloadCondition.QUOTA_RESERVED, "False")
    await arena.submit(job("other", 8, queue="calm", seconds=0.1))
    await arena.until_condition("other", WorkloadCondition.QUOTA_RESERVED, "False")
    before = await arena.until(lambda: gpus_used(arena, "busy"))

    async def more() -> bool:
        return await gpus_used(arena, "busy") > before  # it goes on counting while the job runs

    await arena.until(more)
    assert await gpus_used(arena, "calm") == 0
    if arena.real:
        file = tmp_path / "serried.yaml"
        file.write_text("admissionFairSharing: {usageHalfLifeTime: 1h}")
        told = await arena.serried_says("explain", "lq/busy", "-n", arena.namespace, "--config", str(file))
        assert "used lately" in told
        told = await arena.serried_says("explain", "job/again", "-n", arena.namespace, "--config", str(file))
        assert "1 ahead of 2" in told  # the job that was submitted after it, of the queue that used less
    await arena.delete_job("first")
    assert await arena.finished_order("other", "again") == ["other", "again"]
    used, share = await usage(arena, "busy")
    assert share == pytest.approx(used, abs=0.51)


async def test_what_was_used_is_not_forgotten_when_the_controller_starts_anew(arena: Arena) -> None:
    await set_up(arena)
    await arena.start(SHARING)
    await arena.submit(job("first", 8, queue="busy"))
    await arena.until_running("first", 8)
    arena.ahead += timedelta(minutes=30)

    async def written() -> bool:
        return await gpus_used(arena, "busy") > 10

    await arena.until(written)
    await arena.end_job("first")
    await arena.until_free()
    await change(arena, stopPolicy="Hold")
    await arena.stop()
    used = await gpus_used(arena, "busy")
    await arena.submit(job("again", 8, queue="busy"))
    await arena.submit(job("other", 8, queue="calm"))
    await arena.start(SHARING)
    for name in ("again", "other"):
        await arena.until_condition(name, WorkloadCondition.QUOTA_RESERVED, "False", text="stopPolicy")
    await change(arena, stopPolicy="None")
    await arena.until_running("other", 8)
    await arena.until_condition("again", WorkloadCondition.QUOTA_RESERVED, "False", text=GPU)
    assert await gpus_used(arena, "busy") >= 0.9 * used
