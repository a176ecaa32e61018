"""200 random submissions and deletions: no node is ever overbooked, no gang rests half bound, all quota comes back."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from serried.api import names
from serried.api.core import Pod
from serried.api.meta import Key
from serried.api.quantity import resource_value
from serried.api.resources import PODS
from serried.cluster.informer import Informer
from serried.cluster.protocol import NotFound
from tests.scenarios.arena import BLOCK, GPU, RACK, Arena, job

SUBMISSIONS = 200
TOPOLOGIES: list[dict[str, str]] = [
    {},
    {names.REQUIRED_TOPOLOGY: RACK},
    {names.PREFERRED_TOPOLOGY: RACK},
    {names.REQUIRED_TOPOLOGY: BLOCK},
]


class Watchman:
    """Adds up what is bound on every node, with every event that the API server sends."""

    def __init__(self) -> None:
        self.used: defaultdict[str, int] = defaultdict(int)
        self.most = 0
        self.overbooked: list[str] = []

    def on_change(self, old: Pod | None, new: Pod | None) -> None:
        for pod, sign in ((old, -1), (new, +1)):
            if pod is not None and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                gpus = sum(resource_value(GPU, c.resources.requests.get(GPU, 0)) for c in pod.spec.containers)
                self.used[pod.spec.node_name] += sign * gpus
        if new is not None and self.used[new.spec.node_name] > 8 and new.spec.node_name:
            self.overbooked.append(f"{new.spec.node_name}: {self.used[new.spec.node_name]} of 8 with {new.key}")
        self.most = max(self.most, sum(self.used.values()))


def partly_bound(pods: list[Pod]) -> dict[Key, tuple[int, int]]:
    """Gangs of which some pods have a node and some wait for one."""
    bound: defaultdict[Key, int] = defaultdict(int)
    waiting: defaultdict[Key, int] = defaultdict(int)
    for pod in pods:
        if pod.metadata.deletion_timestamp is None and pod.status.phase == "Pending" and not pod.spec.node_name:
            waiting[pod.metadata.namespace, pod.metadata.labels[names.JOB_NAME]] += 1
        elif pod.spec.node_name:
            bound[pod.metadata.namespace, pod.metadata.labels[names.JOB_NAME]] += 1
    return {k: (bound[k], waiting[k]) for k in bound if waiting[k]}


async def test_200_random_submissions_and_deletions(arena: Arena) -> None:
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
        for number in range(SUBMISSIONS):
            name = f"j{number}"
            pods, gpus = chance.choice([(1, 1), (1, 8), (2, 4), (3, 8), (4, 2), (8, 8), (8, 1), (12, 8), (16, 4)])
            topology = chance.choice(
                [
                    {},
                    {names.REQUIRED_TOPOLOGY: RACK},
                    {names.PREFERRED_TOPOLOGY: RACK},
                    {names.REQUIRED_TOPOLOGY: BLOCK},
                ]
            )
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
            left = [n for n in alive if n not in deleted]
            done = [await arena.condition(n, "Finished") for n in left]
            return all(c is not None and c.status == "True" for c in done)

        await arena.until(at_rest)
        assert partly_bound(await arena.pods()) == {}
        await arena.until_free()
        assert watchman.overbooked == []
        assert watchman.most > 100, "hardly anything ran: this proves nothing"
        controller.engine.validate()
    finally:
        await informer.stop()
