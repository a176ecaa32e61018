"""The writer of status: what happens to it when it is stopped, or overtaken by an admission."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import msgspec
import pytest

from serried.api.meta import ObjectMeta, condition_is
from serried.api.resources import (
    CLUSTER_QUEUES,
    EVENTS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from serried.cluster.protocol import Unavailable
from serried.cluster.work_queue import retry_later
from serried.control import events, pace
from serried.control.config import Configuration
from serried.control.controller import Controller, utc_now
from serried.control.gate import Gate
from serried.control.status_writer import StatusWriter
from serried.embedded.server import EmbeddedCluster
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine
from tests.patience import patience
from tests.scenarios.faults import Faults
from tests.unit.schedule.objects import NS, cluster_queue, flavor, local_queue, workload


async def test_a_writer_that_is_stopped_before_its_writes_begin_leaves_nothing_behind() -> None:
    cluster = EmbeddedCluster()
    engine = Engine()
    state = ClusterState(engine, lambda owner: None)
    for i in range(20):
        engine.set_cluster_queue(cluster_queue(f"queue-{i}"))
    writer = StatusWriter(
        Gate(cluster), state, lambda resource, obj: None, lambda resource, key: None, utc_now, 1.0, retry_later
    )
    writer.look()
    running = asyncio.create_task(writer.run())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await asyncio.sleep(0)  # it has begun, its writes have not
        running.cancel()
        await asyncio.wait([running])
        gc.collect()
    await cluster.close()


def test_a_lane_is_busy_for_a_tenth_of_the_time_and_rests_for_five_seconds_at_most() -> None:
    assert pace.rest(0.01) == pytest.approx(0.09)
    assert pace.rest(2.0) == 5.0


async def test_events_go_out_one_at_a_time_and_each_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = EmbeddedCluster()
    faults = Faults(cluster)
    recorder = events.Recorder(faults, utc_now)
    rests: list[float] = []

    def rest(took: float) -> float:
        rests.append(took)
        return 0.0

    monkeypatch.setattr(events, "rest", rest)
    about = JOBS.type(metadata=ObjectMeta(name="train", namespace="default", uid="u1"))
    under_way = 0

    async def before(verb: str, kind: str, name: str, body: Any) -> None:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        await asyncio.sleep(0)
        under_way -= 1

    faults.before = before
    recorder.start()
    for i in range(100):
        recorder.event(JOBS, about, "Storm", f"number {i}")
    recorder.event(JOBS, about, "Storm", "number 99")
    async with patience():
        while not recorder.is_quiet:
            await asyncio.sleep(0.002)
    written = (await cluster.list(EVENTS, "default")).items
    assert [e.message for e in written if e.count == 2] == ["number 99"]
    assert len(written) == len(rests) == 100
    await recorder.stop()
    await cluster.close()


async def until(what: Any) -> None:
    async with patience():
        while not await what():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("lost", [False, True])
async def test_an_admission_decided_while_the_wait_is_being_written_is_written_once(lost: bool) -> None:
    """And a write of the wait that was not answered is not tried beside the admission."""
    cluster = EmbeddedCluster()
    faults = Faults(cluster)
    await cluster.create(NAMESPACES, {"metadata": {"name": NS}})
    for resource, thing in (
        (RESOURCE_FLAVORS, flavor("default")),
        (CLUSTER_QUEUES, cluster_queue(flavors={"default": {"cpu": 4}})),
        (LOCAL_QUEUES, local_queue()),
    ):
        body = msgspec.to_builtins(thing)
        body["metadata"] = {k: v for k, v in body["metadata"].items() if k in ("name", "namespace")}
        body.pop("status", None)
        await cluster.create(resource, body, NS if resource is LOCAL_QUEUES else "")

    async def make(name: str) -> None:
        body = msgspec.to_builtins(workload(name, cpu=4))
        body["metadata"], body["status"] = {"name": name, "namespace": NS}, {}
        await cluster.create(WORKLOADS, body, NS)

    async def is_admitted(name: str) -> bool:
        return condition_is((await cluster.get(WORKLOADS, name, NS)).status.conditions, "Admitted")

    controller = Controller(faults, Configuration(status_interval=0.02))
    running = asyncio.create_task(controller.run())
    await controller.ready.wait()
    await make("first")
    await until(lambda: is_admitted("first"))
    began, go_on, writes = asyncio.Event(), asyncio.Event(), []

    async def before(verb: str, kind: str, name: str, body: Any) -> None:
        if name == "second":
            writes.append("admission" if "admission" in body["status"] else "wait")
            if len(writes) == 1:
                began.set()
                await go_on.wait()
                if lost:
                    raise Unavailable(0, "Lost", "no answer")
            elif writes[-1] == "admission":
                await asyncio.sleep(0.1)

    faults.before = before
    await make("second")
    await began.wait()
    await cluster.delete(WORKLOADS, "first", NS)

    async def is_decided() -> bool:
        return controller.engine.holds((NS, "second"))

    await until(is_decided)
    go_on.set()
    await until(lambda: is_admitted("second"))
    assert writes == ["wait", "admission"]
    running.cancel()
    await asyncio.wait([running])
    await cluster.close()
