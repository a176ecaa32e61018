"""Drives `bench/end_to_end.py`: a stream of Workloads through queues and quota, marked Finished after their time.

    python -m bench.end_to_end --driver bench/workloads.py -- SHARE PERCENT

30 ClusterQueues in 5 cohorts, each with 20 CPU and borrowing up to 100. Into each come 350 small, 100 medium and 50
large Workloads (1, 5, 20 CPU; 0.2, 0.5, 1 s; priority 50, 100, 200), one of each every 100, 500 and 1200 ms; SHARE of
the numbers, with PERCENT of the time between them (0: all at once). That is the stream of Kueue's own performance
test. For `floor` the driver writes the admissions itself: of those for whom the cohort has enough left, the highest
priority first. It decides nothing else, so what remains is what the API server needs. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.gangs import kubeconfig
from serried.api.kueue import Admission, PodSetAssignment, Workload
from serried.api.meta import condition_is
from serried.api.names import WorkloadCondition
from serried.api.resources import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NAMESPACES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from serried.cluster.http import HttpCluster
from serried.cluster.informer import Informer
from serried.lifecycle import conditions

NAMESPACE, FLAVOR = "bench", "default"
COHORTS, QUEUES, NOMINAL, BORROWING = 5, 30, 20, 100
QUOTA = QUEUES * NOMINAL
LIMIT = 800.0  # seconds until the driver gives up


@dataclass(frozen=True)
class Class:
    name: str
    count: int
    interval: float
    cpu: int
    run: float
    priority: int


CLASSES = (
    Class("small", 350, 0.1, 1, 0.2, 50),
    Class("medium", 100, 0.5, 5, 0.5, 100),
    Class("large", 50, 1.2, 20, 1.0, 200),
)


def cohort_of(queue: int) -> int:
    return queue % COHORTS


def workload(queue: int, kind: Class, index: int) -> dict[str, Any]:
    container = {"name": "c", "image": "train", "resources": {"requests": {"cpu": str(kind.cpu)}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "metadata": {"name": f"{kind.name}-{queue}-{index}"},
        "spec": {"queueName": f"q{queue}", "priority": kind.priority, "podSets": [pod_set]},
    }


def queue_spec(queue: int) -> dict[str, Any]:
    quota = {"name": "cpu", "nominalQuota": NOMINAL, "borrowingLimit": BORROWING}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": FLAVOR, "resources": [quota]}]}
    return {"cohortName": f"cohort-{cohort_of(queue)}", "namespaceSelector": {}, "resourceGroups": [group]}


async def set_up(cluster: HttpCluster) -> None:
    async def make(resource: Any, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
        await cluster.create(resource, body, namespace)

    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await make(RESOURCE_FLAVORS, FLAVOR, {})
    for i in range(QUEUES):
        await make(CLUSTER_QUEUES, f"q{i}", queue_spec(i))
        await make(LOCAL_QUEUES, f"q{i}", {"clusterQueue": f"q{i}"}, NAMESPACE)


@dataclass
class Cohort:
    """What its queues have waiting and running, by what the API server says."""

    free: int = QUOTA // COHORTS
    #: CPU of each class that waits
    pending: dict[int, int] = field(default_factory=lambda: {kind.cpu: 0 for kind in CLASSES})
    since: float = 0.0
    #: CPU seconds while somebody waited who would fit, or nothing was left: held, and there
    held: float = 0.0
    there: float = 0.0

    def settle(self, now: float) -> None:
        """Accounts for the time since the last change."""
        if any(self.pending.values()):
            total = QUOTA // COHORTS
            self.held += (total - self.free) * (now - self.since)
            self.there += total * (now - self.since)
        self.since = now


class Driver:
    """Sees Workloads appear and be admitted, and marks them Finished; for `floor`, admits them too."""

    def __init__(self, cluster: HttpCluster, stack: str) -> None:
        self.cluster, self.stack = cluster, stack
        self.cohorts = [Cohort() for _ in range(COHORTS)]
        self.left = [QUOTA // COHORTS] * COHORTS  # for `floor`: what it has not given away
        #: … and who waits for it, by cohort and class
        self.waiting: list[dict[str, deque[Workload]]] = [{k.name: deque() for k in CLASSES} for _ in range(COHORTS)]
        self.created: dict[str, float] = {}
        self.admitted: dict[str, float] = {}
        self.over: dict[str, float] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.kinds = {kind.name: kind for kind in CLASSES}
        self.informer = Informer(cluster, WORKLOADS, namespace=NAMESPACE, on_change=self.change)

    def change(self, old: Workload | None, new: Workload | None) -> None:
        if new is None:
            return
        now = time.monotonic()
        name = new.metadata.name
        kind_name, queue, _ = name.split("-")
        kind, number = self.kinds[kind_name], cohort_of(int(queue))
        cohort = self.cohorts[number]
        if old is None:
            self.created[name] = now
            cohort.settle(now)
            cohort.pending[kind.cpu] += 1
            if self.stack == "floor":
                self.waiting[number][kind.name].append(new)
                self.admit(number)
        if name not in self.admitted and condition_is(new.status.conditions, WorkloadCondition.ADMITTED):
            self.admitted[name] = now
            cohort.settle(now)
            cohort.pending[kind.cpu] -= 1
            cohort.free -= kind.cpu
            asyncio.get_running_loop().call_later(kind.run, self.spawn_end, name)
        if name not in self.over and condition_is(new.status.conditions, WorkloadCondition.FINISHED):
            self.over[name] = now
            cohort.settle(now)
            cohort.free += kind.cpu
            if self.stack == "floor":
                self.left[number] += kind.cpu
                self.admit(number)

    def admit(self, number: int) -> None:
        for kind in sorted(CLASSES, key=lambda kind: -kind.priority):
            waiting = self.waiting[number][kind.name]
            while waiting and kind.cpu <= self.left[number]:
                self.left[number] -= kind.cpu
                self.spawn(self.write_admission(waiting.popleft(), kind.cpu))

    async def write_admission(self, workload: Workload, cpu: int) -> None:
        queue = workload.spec.queue_name
        assignment = PodSetAssignment(name="main", count=1, flavors={"cpu": FLAVOR}, resource_usage={"cpu": str(cpu)})
        patch = conditions.status_patch(
            workload,
            [conditions.reserved(queue, 0), conditions.admitted(queue)],
            datetime.now(UTC),
            admission=Admission(cluster_queue=queue, pod_set_assignments=(assignment,)),
        )
        await self.patch(workload, patch)

    def spawn_end(self, name: str) -> None:
        self.spawn(self.end(self.informer.store[NAMESPACE, name]))

    async def end(self, workload: Workload) -> None:
        patch = conditions.status_patch(workload, [conditions.finished(True, "")], datetime.now(UTC))
        del patch["metadata"]  # whatever else was written meanwhile
        await self.patch(workload, patch)

    async def patch(self, workload: Workload, patch: dict[str, Any]) -> None:
        await self.cluster.patch(WORKLOADS, workload.metadata.name, NAMESPACE, patch=patch, subresource="status")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.done)

    def done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        task.result()

    async def submit(self, share: float, pace: float) -> int:
        """Creates all Workloads, each when it is due; returns how many."""
        due = sorted(
            (i * kind.interval * pace, i, queue, kind.name)
            for kind in CLASSES
            for i in range(round(kind.count * share))
            for queue in range(QUEUES)
        )
        slots, start = asyncio.Semaphore(32), time.monotonic()

        async def create(body: dict[str, Any]) -> None:
            try:
                await self.cluster.create(WORKLOADS, body, NAMESPACE)
            finally:
                slots.release()

        for at, i, queue, name in due:
            if (early := at - (time.monotonic() - start)) > 0:
                await asyncio.sleep(early)
            await slots.acquire()
            self.spawn(create(workload(queue, self.kinds[name], i)))
        return len(due)

    def result(self, start: float) -> dict[str, Any]:
        held, there = (sum(getattr(c, x) for c in self.cohorts) for x in ("held", "there"))
        waits: dict[str, list[float]] = {kind.name: [] for kind in CLASSES}
        for name, at in self.admitted.items():
            waits[name.split("-")[0]].append(at - self.created[name])
        return {
            "stack": self.stack,
            "workloads": len(self.created),
            "ended": len(self.over),
            "created_s": round(max(self.created.values()) - start, 1),
            "wall_s": round(max(self.over.values(), default=start) - start, 1),
            "held_percent": round(100 * held / there, 1) if there else None,
            "wait_s": {name: round(sum(all_) / len(all_), 2) for name, all_ in waits.items() if all_},
        }


async def main(stack: str, share: float, pace: float) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig()))
        async with await HttpCluster.from_kubeconfig(path, concurrency=64) as cluster:
            await set_up(cluster)
            driver = Driver(cluster, stack)
            driver.informer.start()
            await driver.informer.synced()
            await asyncio.sleep(1)  # whoever decides has seen the queues by then
            start = time.monotonic()
            for cohort in driver.cohorts:
                cohort.since = start
            count = await driver.submit(share, pace)
            while len(driver.over) < count and time.monotonic() - start < LIMIT:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await driver.informer.stop()
    mine = os.times()
    return driver.result(start) | {"driver_cpu_s": round(mine.user + mine.system, 1)}


if __name__ == "__main__":
    stack, *numbers = sys.argv[1:]
    share, percent = map(float, numbers)
    print(json.dumps(uvloop.run(main(stack, share, percent / 100))))
