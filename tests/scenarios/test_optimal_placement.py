"""`placement: optimal`, from the configuration to the nodes the pods run on."""

from __future__ import annotations

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.control.config import Configuration
from tests.scenarios.arena import BLOCK, RACK, Arena, assigned, job, node_labels

#: in one block, wherever
IN_ONE_BLOCK = {names.REQUIRED_TOPOLOGY: BLOCK}


async def set_up(arena: Arena) -> None:
    """A node of each rack of block 0 is taken: that block is the tighter one, but none of its racks holds 8 pods."""
    await arena.set_up_queue()
    for rack in range(4):
        await arena.run_stranger(f"stranger-{rack}", f"node-{8 * rack:02d}", gpus=8)


async def test_pods_run_where_the_spread_is_least(arena: Arena) -> None:
    await set_up(arena)
    await arena.start(Configuration(placement="optimal"))
    await arena.submit(job("together", 8, topology=IN_ONE_BLOCK))
    pods = await arena.until_running("together", 8)
    where = [node_labels(int(p.spec.node_name[5:])) for p in pods]
    assert {(labels[BLOCK], labels[RACK]) for labels in where} == {("block-1", "rack-0")}
    _, domains = assigned(await arena.workload("together"))
    assert [p.spec.node_name for p in pods] == [values[0] for values, _ in domains]
    reserved = await arena.until_condition("together", WorkloadCondition.QUOTA_RESERVED)
    assert "optimal" not in reserved.message


async def test_a_limit_that_does_not_suffice_is_told(arena: Arena) -> None:
    await set_up(arena)
    await arena.start(Configuration(placement="optimal", placement_limit=1))
    await arena.submit(job("apart", 12, topology=IN_ONE_BLOCK))
    pods = await arena.until_running("apart", 12)
    assert {node_labels(int(p.spec.node_name[5:]))[BLOCK] for p in pods} == {"block-0"}
    reserved = await arena.until_condition("apart", WorkloadCondition.QUOTA_RESERVED)
    assert reserved.message.endswith("may not be optimal: it was not found within 1 partial placements.")
