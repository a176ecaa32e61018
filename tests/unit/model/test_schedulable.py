"""Whether pods can still go where they were planned."""

from __future__ import annotations

from serried.api.core import Taint, Toleration
from serried.api.names import HOSTNAME
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.schedulable import is_schedulable, overbooked
from tests.unit.model.clusters import BLOCK, GPU, RACK, node, pod, racks

LEVELS = (BLOCK, RACK)
IN_RACK = {BLOCK: "b0", RACK: "b0-r0"}


def test_a_host_is_open_while_it_is_ready_not_cordoned_and_tolerated() -> None:
    world = racks(1)
    name = "b0-r0-n0"
    assert is_schedulable(world, (HOSTNAME,), (name,), ())
    assert not is_schedulable(world, (HOSTNAME,), ("nowhere",), ())
    for closed in (
        node(name, labels=IN_RACK, ready=False),
        node(name, labels=IN_RACK, unschedulable=True),
        node(name, labels=IN_RACK | {HOSTNAME: "renamed"}),
    ):
        world.set_node(closed)
        assert not is_schedulable(world, (HOSTNAME,), (name,), ())
    world.set_node(node(name, labels=IN_RACK, taints=[Taint(key="x", effect="PreferNoSchedule")]))
    assert is_schedulable(world, (HOSTNAME,), (name,), ())
    world.set_node(node(name, labels=IN_RACK, taints=[Taint(key="x", effect="NoExecute")]))
    assert not is_schedulable(world, (HOSTNAME,), (name,), ())
    assert is_schedulable(world, (HOSTNAME,), (name,), (Toleration(operator="Exists"),))
    world.delete_node(name)
    assert not is_schedulable(world, (HOSTNAME,), (name,), (Toleration(operator="Exists"),))


def test_a_larger_domain_is_open_while_one_of_its_nodes_is() -> None:
    world = racks(2, 1)
    assert is_schedulable(world, LEVELS, ("b0", "b0-r0"), ())
    world.delete_node("b0-r0-n0")
    assert is_schedulable(world, LEVELS, ("b0", "b0-r0"), ())
    world.set_node(node("b0-r0-n1", labels=IN_RACK, unschedulable=True))
    assert not is_schedulable(world, LEVELS, ("b0", "b0-r0"), ())
    assert is_schedulable(world, LEVELS, ("b0", "b0-r1"), ())
    assert not is_schedulable(world, LEVELS, ("b1", "b0-r1"), ())


def test_a_workload_is_overbooked_where_others_came_in_between_or_a_node_has_shrunk() -> None:
    world = racks(2)
    key = ("default", "train")
    placement = Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1), (("b0-r0-n1",), 1)))
    world.hold(key, [placement], [PodSetRequest("main", 2, {GPU: 8, "cpu": 0})])
    assert overbooked(world, key) == set()
    world.set_pod(pod("own", "b0-r0-n0", {GPU: 8}, workload="train", pod_set="main"))
    assert overbooked(world, key) == set()
    world.set_pod(pod("daemon", "b0-r0-n0", {"cpu": "9"}))  # of what the pods do not ask for
    assert overbooked(world, key) == set()
    world.set_pod(pod("stranger", "b0-r0-n0", {GPU: 1}))
    assert overbooked(world, key) == {"b0-r0-n0"}
    world.delete_pod(("default", "stranger"))
    world.set_node(node("b0-r0-n1", labels=IN_RACK, allocatable={"cpu": "8", "pods": "110", GPU: "7"}))
    assert overbooked(world, key) == {"b0-r0-n1"}
    world.release(key)
    assert overbooked(world, key) == set()


def test_a_host_is_not_overbooked_by_pods_that_may_go_elsewhere_or_wait_for_others_to_leave() -> None:
    key, pods = ("default", "train"), [PodSetRequest("main", 1, {GPU: 4})]
    here = [Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1),))]
    world = racks(2, keys=LEVELS)
    world.hold(key, here, pods)
    # Two of 6 in a rack with room for 12: one fits on the second node, the other one only in the rack as a whole.
    in_rack = [Placement("main", "gpu", LEVELS, ((("b0", "b0-r0"), 2),))]
    world.hold(("default", "rack"), in_rack, [PodSetRequest("main", 2, {GPU: 6})])
    assert world.capacity.free[world.capacity.lines[GPU], world.nodes.row_of["b0-r0-n0"]] == -2
    assert overbooked(world, key) == set()
    world.set_pod(pod("lands", "b0-r0-n0", {GPU: "6"}, workload="rack"))
    assert overbooked(world, key) == {"b0-r0-n0"}

    world = racks(1)
    world.hold(key, here, pods)
    world.set_pod(pod("leaves", "b0-r0-n0", {GPU: "4"}, workload="victim"))
    world.hold(("default", "urgent"), here, pods, promised=True)
    assert overbooked(world, key) == set()
    world.hold(("default", "urgent"), here, pods)
    assert overbooked(world, key) == {"b0-r0-n0"}
