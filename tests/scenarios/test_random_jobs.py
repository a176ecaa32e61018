"""Random submissions and deletions: no node is ever overbooked, no gang rests half bound, all quota comes back."""

from __future__ import annotations

import asyncio
import random

import pytest

from serried.api import names
from serried.api.resources import PODS
from serried.cluster.informer import Informer
from serried.cluster.protocol import NotFound
from tests.scenarios.arena import BLOCK, RACK, Arena, job
from tests.scenarios.matrix import on_both
from tests.scenarios.watchman import Watchman, partly_bound

TOPOLOGIES: list[dict[str, str]] = [
    {},
    {names.REQUIRED_TOPOLOGY: RACK},
    {names.PREFERRED_TOPOLOGY: RACK},
    {names.REQUIRED_TOPOLOGY: BLOCK},
]


@pytest.mark.parametrize(
    ("arena", "submissions"), [*on_both([(200,)], sample=lambda _: False), ("real", 60)], indirect=["arena"]
)
async def test_random_submissions_and_deletions(arena: Arena, submissions: int) -> None:
    await arena.set_up_queue(nominal=400)
    controller = await arena.start()
    watchman = Watchman()
    informer = Informer(arena.cluster, PODS, on_change=watchman.on_change)
    informer.start()
    await informer.synced()
    chance = random.Random(20)
    alive: list[str] = []
    deleted: set[str] = set()
    try:
        for number in range(submissions):
            name = f"j{number}"
            pods, gpus = chance.choice([(1, 1), (1, 8), (2, 4), (3, 8), (4, 2), (8, 8), (8, 1), (12, 8), (16, 4)])
            topology = chance.choice(TOPOLOGIES)
            if pods > 8 and topology.get(names.REQUIRED_TOPOLOGY) == RACK and gpus == 8:
                topology = {names.REQUIRED_TOPOLOGY: BLOCK}
            seconds = chance.choice([0.0, 0.1, 0.3, None])
            await arena.submit(job(name, pods, gpus=gpus, topology=topology, seconds=seconds))
            alive.append(name)
            if chance.random() < 0.4:
                victim = alive.pop(chance.randrange(len(alive)))
                deleted.add(victim)
                try:
                    await arena.delete_job(victim)
                except NotFound:
                    pass
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.2)
        # Those that run until they are deleted hold quota; they go one by one until all others have had their turn.
        for name in alive:
            if (await arena.job(name)).spec.template.metadata.annotations.get(names.RUN_SECONDS) is None:
                deleted.add(name)
                await arena.delete_job(name)

        async def at_rest() -> bool:
            return set(alive) - deleted <= await arena.finished()

        await arena.until(at_rest)
        assert partly_bound(await arena.pods()) == {}
        await arena.until_free()
        assert watchman.overbooked == []
        assert watchman.most > 100, "hardly anything ran: this proves nothing"
        controller.engine.validate()
    finally:
        await informer.stop()
