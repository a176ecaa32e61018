"""What is written to the API server, and when: as little as there is to say, and nothing that refuses another write."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from serried.api.names import WorkloadCondition
from serried.api.resources import WORKLOADS, Resource
from serried.cluster.protocol import Cluster
from tests.patience import patience
from tests.scenarios.arena import Arena, job
from tests.scenarios.faults import Faults


async def test_a_workload_is_written_three_times_on_its_way(arena: Arena) -> None:
    """Reservation, place and admission in one write; that its pods are ready; that it is over."""
    await arena.set_up_queue()
    arena.serried = faults = Faults(arena.serried)
    await arena.start()
    await arena.submit(job("quick", 8, seconds=0.5))
    await arena.until_condition("quick", WorkloadCondition.FINISHED)
    await arena.until_free()
    name = await arena.workload_name("quick")
    writes = [(verb, kind) for verb, kind, of in faults.written if of == name and kind == "Workload"]
    assert writes == [("create", "Workload"), *[("patch", "Workload")] * 3]


class LateAnswer(Faults):
    """What is written of a wait is carried out at once, but its answer and the watch's news of it come late."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.carried_out, self.go_on = asyncio.Event(), asyncio.Event()

    async def patch(self, resource: Resource[Any], name: str, namespace: str = "", **more: Any) -> Any:
        conditions = more["patch"].get("status", {}).get("conditions", [])
        waits = any((c["type"], c["status"]) == (WorkloadCondition.QUOTA_RESERVED, "False") for c in conditions)
        if waits and resource is WORKLOADS:
            self.late["Workload"] = 1.0
        answer = await super().patch(resource, name, namespace, **more)
        if waits and resource is WORKLOADS:
            self.carried_out.set()
            await self.go_on.wait()
        return answer


async def test_an_admission_waits_for_what_is_being_written_of_the_wait(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided on the version before it, it would be refused, and the job would start later."""
    caplog.set_level(logging.INFO)
    await arena.set_up_queue(nominal=64)
    arena.serried = late = LateAnswer(arena.serried)
    controller = await arena.start()
    await arena.submit(job("first", 8))
    await arena.until_condition("first", WorkloadCondition.ADMITTED)
    await arena.submit(job("second", 8, seconds=0.2))
    async with patience():
        await late.carried_out.wait()
    key = (arena.namespace, await arena.workload_name("second"))
    await arena.set_quota(128)

    async def decided() -> bool:
        explanation = controller.engine.explain(key, controller.now())
        return explanation is not None and explanation.state == "admitted"

    await arena.until(decided)
    late.go_on.set()
    await arena.until_condition("second", WorkloadCondition.FINISHED)
    assert not [r.message for r in caplog.records if "refused" in r.message]
