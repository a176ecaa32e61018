"""Whatever happens to a Job or its Workload just before any one of the writes on its way, it ends well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.api.resources import JOBS, LOCAL_QUEUES, PODS, WORKLOADS, Resource
from serried.cluster.protocol import ApiError
from tests.scenarios.arena import RACK, Arena, job
from tests.scenarios.faults import Faults
from tests.scenarios.matrix import on_both

IN_ONE_RACK = {names.REQUIRED_TOPOLOGY: RACK}
PODS_OF_THE_JOB = 3

#: The writes on the way of one Job of three pods, but for events and for the status of queues.
MOMENTS = [
    "create Workload 1",
    "patch Workload 1",  # admitted
    "patch Job 1",  # started
    "create PodGroup 1",
    "bind Pod 1",
    "bind Pod 3",
    "patch Workload 2",  # ready
    "patch Workload 3",  # finished
]


async def delete_job(arena: Arena) -> None:
    await arena.delete_job("train")


async def delete_workload(arena: Arena) -> None:
    for found in (await arena.cluster.list(WORKLOADS, arena.namespace)).items:
        await arena.cluster.delete(WORKLOADS, found.metadata.name, arena.namespace)


async def shrink(arena: Arena) -> None:
    patch = {"spec": {"parallelism": 2, "completions": 2}}
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch=patch)


async def resume(arena: Arena) -> None:
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch={"spec": {"suspend": False}})


async def suspend(arena: Arena) -> None:
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch={"spec": {"suspend": True}})


async def touch(arena: Arena) -> None:
    """Everybody's version moves on."""
    annotations = {"metadata": {"annotations": {"touched": "yes"}}}
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch=annotations)
    kinds: tuple[Resource[Any], ...] = (WORKLOADS, PODS)
    for kind in kinds:
        for found in (await arena.cluster.list(kind, arena.namespace)).items:
            await arena.cluster.patch(kind, found.metadata.name, arena.namespace, patch=annotations)


async def move_queue(arena: Arena) -> None:
    patch = {"metadata": {"labels": {names.QUEUE_NAME: "other"}}}
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch=patch)


async def delete_a_pod(arena: Arena) -> None:
    for pod in (await arena.pods("train"))[1:2]:
        await arena.cluster.delete(PODS, pod.metadata.name, arena.namespace)


async def delete_queue(arena: Arena) -> None:
    await arena.cluster.delete(LOCAL_QUEUES, "main", arena.namespace)


async def unlabel(arena: Arena) -> None:
    patch = {"metadata": {"labels": {names.QUEUE_NAME: None}}}
    await arena.cluster.patch(JOBS, "train", arena.namespace, patch=patch)


ACTIONS = [delete_job, delete_workload, shrink, resume, suspend, touch, move_queue, delete_a_pod, delete_queue, unlabel]


class Moment:
    """Runs an action once, before the nth write of a kind."""

    def __init__(self, moment: str, action: Callable[[], Awaitable[None]]) -> None:
        self.verb, self.kind, number = moment.split()
        self.left = int(number)
        self.action = action
        self.came = False

    async def __call__(self, verb: str, kind: str, name: str, body: Any) -> None:
        if (verb, kind) != (self.verb, self.kind):
            return
        self.left -= 1
        if self.left == 0:
            self.came = True
            with suppress(ApiError):
                await self.action()


@pytest.mark.parametrize(
    ("arena", "moment", "action"),
    on_both(product(MOMENTS, ACTIONS), sample=lambda moment, _: moment == "patch Job 1"),
    indirect=["arena"],
)
async def test_it_ends_well(arena: Arena, moment: str, action: Callable[[Arena], Awaitable[None]]) -> None:
    await arena.set_up_queue()
    await arena.make_local_queue("other")
    faults = arena.serried = Faults(arena.serried)
    faults.before = then = Moment(moment, lambda: action(arena))
    controller = await arena.start()
    body = job("train", PODS_OF_THE_JOB, topology=IN_ONE_RACK, seconds=0.3, spec={"backoffLimit": 10})
    await arena.submit(body)

    async def came() -> bool:
        return then.came

    await arena.until(came)
    if action is delete_job:

        async def nothing_left() -> bool:
            group = await arena.pod_group("train")
            return not await arena.pods() and await arena.workload("train") is None and group is None

        await arena.until(nothing_left)
    elif action is delete_queue and moment in MOMENTS[:2]:
        await arena.settle()
    elif action is unlabel or (action is delete_workload and moment == MOMENTS[-1]):
        await arena.settle()  # there is nothing more to be said of it
    else:
        await arena.until_condition("train", WorkloadCondition.FINISHED)

        async def completed() -> bool:
            return (await arena.job("train")).status.completion_time is not None

        await arena.until(completed)
    controller.engine.validate()
    if action is not delete_queue:
        await arena.until_free()
