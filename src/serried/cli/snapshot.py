"""The cluster as it is right now, for a command that only looks. Most modules are loaded while its lists come."""

from __future__ import annotations

import asyncio
import gc
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from serried.api.resources import NODES, PODS, WORKLOADS
from serried.cli.common import Failure
from serried.cli.connect import complete, configuration, connect

if TYPE_CHECKING:
    from serried.lifecycle.cluster_state import ClusterState

#: What there are many of.
_LONG = (WORKLOADS, PODS, NODES)
#: Objects of a kind read at once: an API server answers from memory then, and fast.
_PAGE = 20_000
#: Each costs a TLS handshake.
_CONNECTIONS = 4


def snapshot(kubeconfig: Path | None, context: str | None, config: Path | None = None) -> ClusterState:
    """All that the controller watches, in an engine. Raises `Failure`."""
    settings = configuration(config)

    async def work() -> ClusterState:
        async with connect(kubeconfig, context, page=_PAGE, concurrency=_CONNECTIONS) as cluster:
            listing = {resource: asyncio.create_task(cluster.list(resource)) for resource in _LONG}
            reading = await asyncio.to_thread(importlib.import_module, "serried.control.snapshot")
            try:
                state: ClusterState = await reading.read(cluster, settings, listing)
                return state
            except reading.NotServed as error:
                raise Failure(str(error)) from error
            finally:
                for task in listing.values():
                    task.cancel()

    gc.disable()  # all that is read stays: to look through it again and again for garbage takes half of the time
    try:
        return complete(work)
    finally:
        gc.freeze()
        gc.enable()
