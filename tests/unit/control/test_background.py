"""The writer of status: what happens to it when it is stopped, or overtaken by an admission."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import msgspec
import pytest

from serried.api.meta import condition_is
from serried.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES, NAMESPACES, RESOURCE_FLAVORS, WORKLOADS
from serried.cluster.protocol import Unavailable
from serried.control.config import Configuration
from serried.control.controller import Controller
from serried.embedded.server import EmbeddedCluster
from tests.patience import patience
from tests.scenarios.faults import Faults
from tests.unit.schedule.objects import NS, cluster_queue, flavor, local_queue, workload


async def test_a_writer_that_is_stopped_before_its_writes_begin_leaves_nothing_behind() -> None:
    cluster = EmbeddedCluster()
    writer = Controller(cluster, Configuration())._status
    writer.queues([("", f"queue-{i}") for i in range(20)])
    running = asyncio.create_task(writer.run())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await asyncio.sleep(0)  # it has begun, its writes have not
        running.cancel()
        await asyncio.wait([running])
        gc.collect()
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
        return "second" in {key[1] for key in controller._decided.admitting}

    await until(is_decided)
    go_on.set()
    await until(lambda: is_admitted("second"))
    assert writes == ["wait", "admission"]
    running.cancel()
    await asyncio.wait([running])
    await cluster.close()
