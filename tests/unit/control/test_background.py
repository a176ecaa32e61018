"""The writer of status: what happens to it when it is stopped."""

from __future__ import annotations

import asyncio
import gc
import warnings

from serried.control.config import Configuration
from serried.control.controller import Controller
from serried.embedded.server import EmbeddedCluster


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
