"""Whether pods can still go where they were planned."""

from __future__ import annotations

from serried.api.core import Taint, Toleration
from serried.api.names import HOSTNAME
from tests.unit.model.clusters import BLOCK, RACK, node, racks

LEVELS = (BLOCK, RACK)
IN_RACK = {BLOCK: "b0", RACK: "b0-r0"}


def test_a_host_is_open_while_it_is_ready_not_cordoned_and_tolerated() -> None:
    world = racks(1)
    name = "b0-r0-n0"
    assert world.is_open((HOSTNAME,), (name,), ())
    assert not world.is_open((HOSTNAME,), ("nowhere",), ())
    for closed in (
        node(name, labels=IN_RACK, ready=False),
        node(name, labels=IN_RACK, unschedulable=True),
        node(name, labels=IN_RACK | {HOSTNAME: "renamed"}),
    ):
        world.set_node(closed)
        assert not world.is_open((HOSTNAME,), (name,), ())
    world.set_node(node(name, labels=IN_RACK, taints=[Taint(key="x", effect="PreferNoSchedule")]))
    assert world.is_open((HOSTNAME,), (name,), ())
    world.set_node(node(name, labels=IN_RACK, taints=[Taint(key="x", effect="NoExecute")]))
    assert not world.is_open((HOSTNAME,), (name,), ())
    assert world.is_open((HOSTNAME,), (name,), (Toleration(operator="Exists"),))
    world.delete_node(name)
    assert not world.is_open((HOSTNAME,), (name,), (Toleration(operator="Exists"),))


def test_a_larger_domain_is_open_while_one_of_its_nodes_is() -> None:
    world = racks(2, 1)
    assert world.is_open(LEVELS, ("b0", "b0-r0"), ())
    world.delete_node("b0-r0-n0")
    assert world.is_open(LEVELS, ("b0", "b0-r0"), ())
    world.set_node(node("b0-r0-n1", labels=IN_RACK, unschedulable=True))
    assert not world.is_open(LEVELS, ("b0", "b0-r0"), ())
    assert world.is_open(LEVELS, ("b0", "b0-r1"), ())
    assert not world.is_open(LEVELS, ("b1", "b0-r1"), ())
