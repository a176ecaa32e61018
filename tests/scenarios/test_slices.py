"""Pods in slices: each slice in one domain, from the annotations of a Job to the nodes its pods run on."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from serried.api import names
from tests.scenarios.arena import BLOCK, HOST, RACK, Arena, assigned, job, node_labels


def where(hosts: list[str]) -> Counter[tuple[str, str]]:
    """Pods per rack."""
    labels = [node_labels(int(host[5:])) for host in hosts]
    return Counter((each[BLOCK], each[RACK]) for each in labels)


@pytest.mark.parametrize("scheduler", ["serried", None])
async def test_slices_within_slices(arena: Arena, scheduler: str | None) -> None:
    """24 pods in one block, eight of them in a rack and four of those on a node; a rack that holds only seven is
    passed over by a slice of eight, and a node that holds only three by one of four."""
    await arena.set_up_queue()
    for node in range(6):
        await arena.run_stranger(f"full-{node}", f"node-{node:02d}", gpus=8)
    await arena.run_stranger("half", "node-06", gpus=2)
    await arena.start()
    layers = [{"topology": RACK, "size": 8}, {"topology": HOST, "size": 4}]
    request = {names.REQUIRED_TOPOLOGY: BLOCK, names.SLICE_CONSTRAINTS: json.dumps(layers)}
    await arena.submit(job("sliced", 24, gpus=2, topology=request, scheduler=scheduler))
    pods = await arena.until_running("sliced", 24)
    hosts = [p.spec.node_name for p in pods]
    assert all(count % 4 == 0 for count in Counter(hosts).values())
    assert not {"node-06"} & set(hosts)
    racks = where(hosts)
    assert len({block for block, _ in racks}) == 1
    assert all(count % 8 == 0 for count in racks.values())
    # Rank by rank, in the order of the plan.
    _, domains = assigned(await arena.workload("sliced"))
    assert hosts == [values[-1] for values, count in domains for _ in range(count)]


async def test_as_many_slices_as_fit_may_do(arena: Arena) -> None:
    """Of five slices of eight nodes, four have a rack of their own while four racks are in use."""
    await arena.set_up_queue()
    for rack in range(4):
        await arena.run_stranger(f"stranger-{rack}", f"node-{8 * rack:02d}", gpus=8)
    await arena.start()
    request = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "8"}
    body = job("partly", 40, topology=request)
    body["metadata"]["annotations"] = {names.MIN_PARALLELISM: "1"}
    await arena.submit(body)
    pods = await arena.until_running("partly", 32)
    assert where([p.spec.node_name for p in pods]) == {("block-1", f"rack-{i}"): 8 for i in range(4)}
