"""The way of all writes of one engine can be shut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serried.api.resources import NAMESPACES
from serried.cluster.protocol import Unavailable
from serried.control.gate import Gate
from serried.embedded.server import EmbeddedCluster
from tests.scenarios.faults import Faults


async def test_once_it_is_shut_no_write_begins_and_those_that_have_come_to_their_end() -> None:
    cluster = EmbeddedCluster()
    faults = Faults(cluster)
    gate = Gate(faults)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def before(*write: Any) -> None:
        begun.set()
        await go_on.wait()

    faults.before = before
    writing = asyncio.create_task(gate.create(NAMESPACES, {"metadata": {"name": "first"}}))
    await begun.wait()
    assert gate.writes == 1
    gate.shut()
    for write in (
        gate.create(NAMESPACES, {"metadata": {"name": "second"}}),
        gate.patch(NAMESPACES, "first", patch={}),
        gate.delete(NAMESPACES, "first", "", uid="x"),
        gate.bind("default", "pod", "node", uid="x"),
    ):
        with pytest.raises(Unavailable):
            await write
    drained = asyncio.create_task(gate.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    go_on.set()
    await drained
    assert (await writing).metadata.name == "first"
    assert [name for _, _, name in faults.written] == ["first"]
    await cluster.close()
