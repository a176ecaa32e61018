"""The stage of the demo: the embedded cluster with all that runs beside it, on one loop, in the day's own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from serried.api.names import HOSTNAME
from serried.api.resources import (
    CLUSTER_QUEUES,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
)
from serried.cli import demo_story as story
from serried.cli.demo_story import Training
from serried.cluster.protocol import Cluster
from serried.control.controller import Controller
from serried.embedded import webhook
from serried.embedded.hollow import HollowNode, HollowNodes
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster

#: kube-controller-manager's own client makes no more requests than this (--kube-api-qps), so gangs assemble in time.
_PODS_PER_SECOND = 20.0


class Clock:
    """The time of day. From `start` to `stop` it goes `pace` times faster than real time, otherwise it stands still."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self._started: float | None = None
        self._stopped = 0.0

    def start(self) -> None:
        self._started = time.monotonic()

    def stop(self) -> None:
        self._stopped, self._started = self.seconds, None

    @property
    def seconds(self) -> float:
        """Real seconds since the start."""
        return self._stopped if self._started is None else time.monotonic() - self._started

    @property
    def minutes(self) -> float:
        """Minutes of the day since the start."""
        return self.seconds * self.pace / 60

    def now(self) -> datetime:
        return story.MORNING + timedelta(minutes=self.minutes)


@dataclass
class RunningDemo:
    """What is running: submit to `cluster`, look at `controller`. `running` ends only if the controller fails."""

    cluster: Cluster
    controller: Controller
    clock: Clock
    running: asyncio.Task[None]

    async def play(self, day: Sequence[Training]) -> None:
        """Submits each Job at its time."""
        for training in day:
            await asyncio.sleep(training.at * 60 / self.clock.pace - self.clock.seconds)
            await self.cluster.create(JOBS, training.manifest(), training.team)


@asynccontextmanager
async def staged(speed: float) -> AsyncIterator[RunningDemo]:
    """Sets up cluster, queues, nodes and controllers; the clock starts when all is ready. All ends with the context."""
    clock = Clock(story.PACE * speed)
    cluster = EmbeddedCluster(mutators=[webhook.mutate], now=clock.now)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        nodes = HollowNodes(cluster, speed=clock.pace, now=clock.now)
        await nodes.add(
            HollowNode(p.node, p.labels, {"cpu": "192", "memory": "2Ti", "pods": "110", story.GPU: str(story.GPUS)})
            for p in story.PLACES
        )
        await _set_up_queues(cluster)
        job_controller = JobController(
            cluster, speed=clock.pace, now=clock.now, pods_per_second=_PODS_PER_SECOND * speed
        )
        for helper in (nodes, job_controller):
            stack.push_async_callback(helper.stop)
            await helper.start()
        controller = Controller(cluster, clock=clock.now)
        running = asyncio.create_task(controller.run())
        stack.push_async_callback(_cancelled, running)
        ready = asyncio.create_task(controller.ready.wait())
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            running.result()
        clock.start()
        yield RunningDemo(cluster, controller, clock, running)


async def _set_up_queues(cluster: Cluster) -> None:
    async def make(resource: Resource[Any], name: str, namespace: str = "", **body: Any) -> None:
        await cluster.create(resource, {"metadata": {"name": name}, **body}, namespace)

    levels = [{"nodeLabel": label} for label in (story.BLOCK, story.RACK, HOSTNAME)]
    await make(TOPOLOGIES, story.TOPOLOGY, spec={"levels": levels})
    await make(RESOURCE_FLAVORS, story.FLAVOR, spec={"nodeLabels": story.POOL, "topologyName": story.TOPOLOGY})
    for name, value in story.PRIORITIES.items():
        await make(WORKLOAD_PRIORITY_CLASSES, name, value=value)
    for team in story.TEAMS:
        quota = {"name": story.FLAVOR, "resources": [{"name": story.GPU, "nominalQuota": str(team.nominal_gpus)}]}
        await make(
            CLUSTER_QUEUES,
            team.name,
            spec={
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.name}},
                "queueingStrategy": team.strategy,
                "resourceGroups": [{"coveredResources": [story.GPU], "flavors": [quota]}],
            },
        )
        await make(NAMESPACES, team.name)
        await make(LOCAL_QUEUES, story.QUEUE, team.name, spec={"clusterQueue": team.name})


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
