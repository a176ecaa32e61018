"""An API server that fails, loses answers, cuts watches or is away; controllers that come, go and overlap."""

from __future__ import annotations

import asyncio
import random

import pytest

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.api.resources import PODS
from serried.cluster.informer import Informer
from serried.control.controller import Controller
from tests.patience import patience
from tests.scenarios.arena import BLOCK, RACK, Arena, job
from tests.scenarios.faults import Faults
from tests.scenarios.matrix import on_both
from tests.scenarios.watchman import Watchman, partly_bound


async def submit_many(arena: Arena, count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    jobs = [f"j{i}" for i in range(count)]
    for name in jobs:
        pods, gpus = chance.choice([(1, 8), (4, 4), (8, 8), (12, 8), (16, 4), (5, 3)])
        topology = {names.REQUIRED_TOPOLOGY: chance.choice([RACK, BLOCK])} if pods <= 8 else {}
        await arena.submit(job(name, pods, gpus=gpus, topology=topology, seconds=0.2))
        await asyncio.sleep(chance.random() * 0.1)
    return jobs


async def all_finish(arena: Arena, jobs: list[str]) -> None:
    async def finished() -> bool:
        return set(jobs) <= await arena.finished()

    await arena.until(finished)
    assert partly_bound(await arena.pods()) == {}


ONE_AT_A_TIME = [({"fail": 0.3},), ({"lose": 0.3},), ({"cut": 0.1},)]
ALL_TOGETHER = ({"fail": 0.2, "lose": 0.2, "cut": 0.05},)


@pytest.mark.parametrize(
    ("arena", "faults"),
    on_both([*ONE_AT_A_TIME, ALL_TOGETHER], sample=lambda faults: len(faults) > 1),
    indirect=["arena"],
)
async def test_writes_that_fail_answers_that_get_lost_and_watches_that_end(
    arena: Arena, faults: dict[str, float]
) -> None:
    """Every Job still runs to its end, no node is ever overbooked, and all quota comes back."""
    await arena.set_up_queue(nominal=256)
    bad = arena.serried = Faults(arena.serried, seed=7)
    controller = await arena.start()
    for name, share in faults.items():
        setattr(bad, name, share)
    watchman = Watchman()
    informer = Informer(arena.cluster, PODS, namespace=arena.namespace, on_change=watchman.on_change)
    informer.start()
    await informer.synced()
    try:
        await all_finish(arena, await submit_many(arena, 25, seed=3))
    finally:
        await informer.stop()
    bad.fail = bad.lose = bad.cut = 0.0
    await arena.until_free()
    assert watchman.overbooked == []
    controller.engine.validate()


async def test_an_admission_whose_answer_is_lost_is_not_given_to_another(arena: Arena) -> None:
    """The quota is enough for one. The answer to its admission is lost and the watch is late; then a Job of higher
    priority comes: it must wait all the same."""
    await arena.set_up_queue(nominal=64)
    await arena.make_priority_class("urgent", 1000)
    bad = arena.serried = Faults(arena.serried)
    controller = await arena.start()
    bad.late["Workload"] = 1.0

    async def lose_admission(verb: str, kind: str, name: str, body: object) -> None:
        admits = isinstance(body, dict) and body.get("status", {}).get("admission")
        bad.lose = 1.0 if verb == "patch" and kind == "Workload" and admits else 0.0

    bad.before = lose_admission
    await arena.submit(job("one", 8))
    await arena.until_condition("one", WorkloadCondition.ADMITTED)
    await arena.submit(job("two", 8, labels={names.PRIORITY_CLASS: arena.scoped("urgent")}))
    await arena.until_condition("two", WorkloadCondition.QUOTA_RESERVED, "False")
    bad.before, bad.lose = None, 0.0
    await arena.until_running("one", 8)
    await arena.until_condition("two", WorkloadCondition.QUOTA_RESERVED, "False")
    assert (await arena.workload("two")).status.admission is None  # type: ignore[union-attr]
    controller.engine.validate()


async def test_a_job_that_is_gone_before_its_watch_says_so_gets_no_new_workload(arena: Arena) -> None:
    await arena.set_up_queue()
    bad = arena.serried = Faults(arena.serried)
    await arena.start()
    await arena.submit(job("gone", 8))
    await arena.until_running("gone", 8)
    bad.late["Job"] = 0.5
    bad.written.clear()
    await arena.delete_job("gone")
    await arena.until_free()
    await arena.settle()
    assert [w for w in bad.written if w[:2] == ("create", "Workload")] == []
    assert await arena.workload("gone") is None


async def test_a_server_that_is_away_for_a_while(arena: Arena) -> None:
    await arena.set_up_queue()
    bad = arena.serried = Faults(arena.serried)
    await arena.start()
    await arena.submit(job("before", 8, seconds=0.5))
    await arena.until_condition("before", WorkloadCondition.ADMITTED)
    bad.down = True
    await arena.submit(job("meanwhile", 8, seconds=0.1))

    async def tried() -> bool:
        return bad.refused >= 10

    await arena.until(tried)
    bad.down = False
    await all_finish(arena, ["before", "meanwhile"])
    await arena.until_free()


@pytest.mark.parametrize(
    ("arena", "writes"),
    on_both([(writes,) for writes in range(1, 14)], sample=lambda writes: writes % 6 == 1),
    indirect=["arena"],
)
async def test_a_controller_that_ends_after_any_number_of_writes(arena: Arena, writes: int) -> None:
    """The next one goes on where it stopped."""
    await arena.set_up_queue()
    behind = arena.serried
    bad = arena.serried = Faults(behind)
    reached = asyncio.Event()

    async def stop_here(verb: str, kind: str, name: str, body: object) -> None:
        if len([w for w in bad.written if w[1] in ("Job", "Workload", "Pod", "PodGroup")]) >= writes:
            reached.set()
            await asyncio.sleep(3600)

    bad.before = stop_here
    await arena.start()
    await arena.submit(job("train", 8, topology={names.REQUIRED_TOPOLOGY: RACK}, seconds=0.3))
    async with patience():
        await reached.wait()
    await arena.stop()
    arena.serried = behind
    await arena.start()
    await all_finish(arena, ["train"])
    await arena.until_free()


async def test_two_controllers_at_once_only_get_in_each_others_way(arena: Arena) -> None:
    """Without leader election. Conflicts, but no node overbooked, no gang in pieces, nothing stuck."""
    await arena.set_up_queue(nominal=256)
    controller = await arena.start()
    other = Controller(arena.serried)
    running = asyncio.create_task(other.run())
    await other.ready.wait()
    watchman = Watchman()
    informer = Informer(arena.cluster, PODS, namespace=arena.namespace, on_change=watchman.on_change)
    informer.start()
    await informer.synced()
    try:
        await all_finish(arena, await submit_many(arena, 25, seed=5))
        await arena.until_free()
        assert watchman.overbooked == []
        controller.engine.validate()
        other.engine.validate()
    finally:
        await informer.stop()
        running.cancel()
        await asyncio.wait([running])
