"""A fault of ours over one object costs that object, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from serried.api.kueue import Workload
from serried.api.names import WorkloadCondition
from serried.api.resources import WORKLOADS
from serried.schedule.engine import Engine
from tests.scenarios.arena import Arena, job


async def test_a_job_over_which_the_engine_fails_is_held_back(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before goes on to its end, what comes after is admitted, and once it is changed it is tried again."""
    await arena.set_up_queue()
    controller = await arena.start()
    await arena.submit(job("before", 8))
    await arena.until_running("before", 8)
    first = controller.engine
    changes = Engine._run

    def fails(engine: Engine, kind: str, key: Any, change: Any, *arguments: Any, **more: Any) -> Any:
        def raises(state: Any, workload: Workload, problems: Sequence[Any] = ()) -> None:
            raise RuntimeError("boom")

        bad = kind == "Workload" and key[1].startswith("job-bad-")
        return changes(engine, kind, key, raises if bad else change, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_run", fails)
        await arena.submit(job("bad", 8))
        await arena.until(lambda: arena.workload("bad"))
        name = await arena.workload_name("bad")
        await arena.until_told(name, "Misconfigured")
        await arena.submit(job("after", 8))
        await arena.until_running("after", 8)
        await arena.settle()
        assert controller.engine is not first
        controller.engine.validate()
        assert (await arena.job("bad")).spec.suspend
        for each in ("before", "after"):
            await arena.end_job(each)
            await arena.until_condition(each, WorkloadCondition.FINISHED)
    await arena.cluster.patch(WORKLOADS, name, arena.namespace, patch={"spec": {"priority": 1}})
    await arena.until_running("bad", 8)
