"""The model follows the cluster, and what workloads hold is right whatever happens around it."""

from __future__ import annotations

import numpy as np
import pytest

from serried.api.core import Taint
from serried.api.names import HOSTNAME
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from serried.model.world import World
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, pod, racks, topology

WL = ("default", "train")


def free(world: World, name: str, resource: str = GPU) -> int:
    return int(world.capacity.free[world.capacity.lines[resource], world.nodes.row_of[name]])


def on_hosts(*counts: tuple[str, int], pod_set: str = "main") -> Placement:
    return Placement(pod_set, "gpu", (HOSTNAME,), tuple(((name,), count) for name, count in counts))


def workers(count: int, gpus: int = 2, name: str = "main") -> PodSetRequest:
    return PodSetRequest(name, count, {GPU: gpus})


def one_of(world: World) -> dict[str, list[int]]:
    """All that decisions look at, to be compared."""
    lines = world.capacity.lines
    return {
        f"{name} {resource}": getattr(world.capacity, name)[line].tolist()
        for resource, line in lines.items()
        for name in ("allocatable", "free", "unheld")
    }


# --- nodes


def test_a_heartbeat_is_no_change() -> None:
    world = racks(1)
    beat = node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"})
    beat.metadata.resource_version = "17"
    beat.metadata.annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    assert not world.set_node(beat)


@pytest.mark.parametrize(
    "changed",
    [
        node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, ready=False),
        node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, unschedulable=True),
        node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r1"}),
        node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, taints=[Taint(key="x", effect="NoExecute")]),
        node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, allocatable={"cpu": "8", "pods": "110", GPU: "7"}),
    ],
)
def test_what_matters_to_placement_is_a_change(changed: object) -> None:
    world = racks(1)
    assert world.set_node(changed)  # type: ignore[arg-type]
    assert not world.set_node(changed)  # type: ignore[arg-type]


def test_a_node_moves_to_another_rack() -> None:
    world = racks(2, 1)

    def nodes_of(*path: str) -> list[str]:
        tree = world.topology_tree("default")
        assert tree is not None
        domain = tree.find(path)
        assert domain is not None
        bounds = tree.levels[len(path) - 1].nodes
        return [world.nodes.names[row] for row in tree.rows[bounds[domain] : bounds[domain + 1]].tolist()]

    assert nodes_of("b0", "b0-r1") == ["b0-r1-n0"]
    world.set_node(node("b0-r0-n1", labels={BLOCK: "b0", RACK: "b0-r1"}))
    assert nodes_of("b0", "b0-r1") == ["b0-r0-n1", "b0-r1-n0"]
    assert nodes_of("b0", "b0-r0") == ["b0-r0-n0"]
    tree = world.topology_tree("default")
    assert tree is not None
    assert tree.find(("b7",)) is None
    assert world.topology_tree("none") is None


def test_what_a_node_has_and_cannot_be_read_it_has_none_of() -> None:
    world = racks()
    world.set_node(node("n", allocatable={"cpu": "many", "pods": "10", GPU: "-2"}))
    assert free(world, "n", "cpu") == 0
    assert free(world, "n") == 0


def test_a_node_goes_by_its_hostname_label() -> None:
    world = racks()
    world.set_node(node("10.0.0.1", labels={HOSTNAME: "gpu-1"}))
    assert world.node_of("gpu-1") == "10.0.0.1"
    assert world.node_of("10.0.0.1") is None


def test_many_nodes_come_and_go_and_their_rows_are_used_again() -> None:
    world = racks()
    for generation in range(5):
        for i in range(200):
            world.set_node(node(f"g{generation}-{i}"))
        for i in range(200):
            assert world.delete_node(f"g{generation}-{i}")
    assert not world.delete_node("g0-0")
    assert world.capacity.rows <= 512


# --- pods


def test_bound_pods_use_their_nodes_until_they_end() -> None:
    world = racks(1)
    assert world.set_pod(pod("p", "b0-r0-n0", {GPU: "3", "cpu": "500m"}))
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n0", "cpu"), free(world, "b0-r0-n0", "pods")) == (5, 7500, 109)
    assert not world.set_pod(pod("p", "b0-r0-n0", {GPU: "3", "cpu": "500m"}, phase="Pending"))
    assert world.set_pod(pod("p", "b0-r0-n0", {GPU: "3", "cpu": "500m"}, phase="Failed"))
    assert free(world, "b0-r0-n0") == 8
    assert not world.delete_pod(("default", "p"))
    assert not world.set_pod(pod("q", "", {GPU: "3"}))


def test_a_pod_resized_in_place_counts_as_it_is_now() -> None:
    world = racks(1)
    world.set_pod(pod("p", "b0-r0-n0", {"cpu": "1"}))
    assert world.set_pod(pod("p", "b0-r0-n0", {"cpu": "3"}))
    assert free(world, "b0-r0-n0", "cpu") == 5000


def test_a_pod_counts_on_a_node_that_is_seen_later_and_after_it_came_back() -> None:
    world = racks()
    world.set_pod(pod("p", "n", {GPU: "3"}))
    world.set_node(node("n"))
    assert free(world, "n") == 5
    world.delete_node("n")
    world.set_node(node("n"))
    assert free(world, "n") == 5


def test_absurd_amounts_do_not_wrap_around() -> None:
    world = racks(1)
    world.set_node(node("b0-r0-n0", allocatable={GPU: "8", "memory": "1Ti", "pods": "500"}))
    for i in range(1000):
        world.set_pod(pod(f"p{i}", "b0-r0-n0", {GPU: "9E", "memory": f"{i % 3 + 30}Pi"}))
        assert free(world, "b0-r0-n0") < 0
        assert free(world, "b0-r0-n0", "memory") < 0
    validate(world)
    for i in range(1000):
        world.delete_pod(("default", f"p{i}"))
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n0", "memory")) == (8, 2**40)


def test_resources_that_no_node_has_are_no_lines_until_one_has_them() -> None:
    world = racks(1)
    lines = dict(world.resources())
    for i in range(10):
        asked = {f"example.com/unknown-{i}-{k}": "1" for k in range(1000)}
        world.set_pod(pod(f"p{i}", "b0-r0-n0", asked | {GPU: "1"}, workload="wl" if i else ""))
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [PodSetRequest("main", 2, {GPU: 1, "example.com/unknown-0-1": 1})])
    world.journal.commit()
    assert dict(world.resources()) == lines
    assert world.capacity.free.shape[0] == 4
    assert len(world._vectors) < 20
    validate(world)
    # What pods and holds ask for is charged once a node has it.
    allocatable = {GPU: "8", "pods": "110", "example.com/unknown-0-1": "5"}
    world.set_node(node("b0-r0-n0", allocatable=allocatable))
    assert dict(world.resources()).keys() - lines == {"example.com/unknown-0-1"}
    validate(world)
    assert free(world, "b0-r0-n0", "example.com/unknown-0-1") == 2


# --- holds


def test_a_hold_takes_and_a_release_gives_back() -> None:
    world = racks(2)
    before = one_of(world)
    assert world.hold(WL, [on_hosts(("b0-r0-n0", 3), ("b0-r0-n1", 1))], [workers(4)]) == []
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n1")) == (2, 6)
    assert free(world, "b0-r0-n0", "pods") == 107
    assert set(world.holds) == {WL}
    world.release(WL)
    assert one_of(world) == before
    assert not world.holds


def test_what_a_workload_holds_others_cannot_but_it_would_be_free_when_empty() -> None:
    world = racks(1)
    world.set_pod(pod("other", "b0-r0-n0", {GPU: "1"}))
    world.hold(WL, [on_hosts(("b0-r0-n0", 3))], [workers(3)])
    row = world.nodes.row_of["b0-r0-n0"]
    assert free(world, "b0-r0-n0") == 1
    assert world.capacity.unheld[world.capacity.lines[GPU], row] == 7


def test_a_hold_covers_its_own_pods_and_no_more_of_them_than_it_has() -> None:
    world = racks(1)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    for name in ("p0", "p1"):
        assert not world.set_pod(pod(name, "b0-r0-n0", {GPU: "2"}, workload="train"))
    assert free(world, "b0-r0-n0") == 4
    # A pod that is still ending beside its replacement takes space of its own.
    assert world.set_pod(pod("p2", "b0-r0-n0", {GPU: "2"}, workload="train"))
    assert free(world, "b0-r0-n0") == 2
    assert world.delete_pod(("default", "p0"))
    assert free(world, "b0-r0-n0") == 4


def test_pods_of_others_and_pods_elsewhere_are_not_covered() -> None:
    world = racks(2)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    world.set_pod(pod("elsewhere", "b0-r0-n1", {GPU: "2"}, workload="train"))
    world.set_pod(pod("namesake", "b0-r0-n0", {GPU: "1"}, workload="train", namespace="other"))
    world.set_pod(pod("wrong-set", "b0-r0-n0", {GPU: "1"}, workload="train", pod_set="launcher"))
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n1")) == (2, 6)


def test_pods_left_after_a_release_count_until_they_are_gone() -> None:
    world = racks(1)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    world.set_pod(pod("p0", "b0-r0-n0", {GPU: "2"}, workload="train"))
    world.release(WL)
    assert free(world, "b0-r0-n0") == 6
    world.delete_pod(("default", "p0"))
    assert free(world, "b0-r0-n0") == 8


def test_after_a_restart_the_pods_may_be_seen_before_the_hold() -> None:
    world = racks(1)
    world.set_pod(pod("p0", "b0-r0-n0", {GPU: "2"}, workload="train"))
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    assert free(world, "b0-r0-n0") == 4


def test_places_that_are_gone_are_told_and_not_charged() -> None:
    world = racks(1)
    problems = world.hold(WL, [on_hosts(("b0-r0-n0", 1), ("gone", 1)), on_hosts(pod_set="ghost")], [workers(2)])
    assert problems == [
        'pod set "main": there is no node in gone (kubernetes.io/hostname)',
        'placement of pod set "ghost": the workload has no such pod set',
    ]
    assert free(world, "b0-r0-n0") == 6
    racks_gone = Placement("main", "gpu", (BLOCK, RACK), ((("b0", "r9"), 2),))
    assert world.hold(WL, [racks_gone], [workers(2)]) == [
        f'pod set "main": there is no node in b0/r9 ({BLOCK}, {RACK})'
    ]


def test_a_hold_replaces_the_one_before() -> None:
    world = racks(2)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    world.hold(WL, [on_hosts(("b0-r0-n1", 1))], [workers(1)])
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n1")) == (8, 6)


def test_a_hold_is_still_there_when_its_node_comes_back() -> None:
    world = racks(1)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    world.journal.commit()
    world.delete_node("b0-r0-n0")
    for i in range(200):
        world.set_node(node(f"n{i}"))
    world.set_node(node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}))
    assert free(world, "b0-r0-n0") == 4
    world.release(WL)
    assert free(world, "b0-r0-n0") == 8


def test_a_hold_outlives_its_topology_and_flavor() -> None:
    world = racks(1)
    world.hold(WL, [on_hosts(("b0-r0-n0", 2))], [workers(2)])
    assert world.set_topology(topology(BLOCK))
    assert not world.set_topology(topology(BLOCK))
    assert world.delete_flavor("gpu")
    assert world.delete_topology("default")
    assert free(world, "b0-r0-n0") == 4
    world.release(WL)
    assert free(world, "b0-r0-n0") == 8


# --- holds of domains larger than a host


def in_racks(*counts: tuple[str, int]) -> Placement:
    return Placement("main", "gpu", (BLOCK, RACK), tuple((("b0", rack), count) for rack, count in counts))


def test_pods_of_a_rack_are_reckoned_on_its_nodes() -> None:
    world = racks(3, keys=(BLOCK, RACK))
    world.hold(WL, [in_racks(("b0-r0", 5))], [workers(5, gpus=4)])
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [0, 0, 4]


def test_a_pod_takes_its_charge_to_the_node_where_it_lands() -> None:
    world = racks(3, keys=(BLOCK, RACK))
    world.hold(WL, [in_racks(("b0-r0", 3))], [workers(3, gpus=4)])
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [0, 4, 8]
    assert world.set_pod(pod("p0", "b0-r0-n2", {GPU: "4"}, workload="train"))
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [0, 8, 4]
    assert not world.set_pod(pod("p1", "b0-r0-n0", {GPU: "4"}, workload="train"))
    # Its place stays: it is expected to be filled again.
    assert not world.delete_pod(("default", "p0"))
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [0, 8, 4]
    world.release(WL)
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [4, 8, 8]


def test_a_rack_that_has_room_only_as_a_whole_is_charged_as_a_whole() -> None:
    """Three pods of 5 fit into 16 by number, though not onto two nodes of 8; kube-scheduler has the last word."""
    world = racks(2, keys=(BLOCK, RACK))
    world.hold(WL, [in_racks(("b0-r0", 3))], [workers(3, gpus=5)])
    assert sum(free(world, f"b0-r0-n{i}") for i in range(2)) == 1


IN_RACK = {BLOCK: "b0", RACK: "b0-r0"}


@pytest.mark.parametrize("how", ["not ready", "cordoned", "gone", "in another rack"])
def test_pods_that_are_not_on_a_node_yet_are_reckoned_where_they_can_still_go(how: str) -> None:
    world = racks(3, keys=(BLOCK, RACK))
    world.hold(WL, [in_racks(("b0-r0", 3))], [workers(3, gpus=4)])
    world.journal.commit()
    world.set_pod(pod("p0", "b0-r0-n0", {GPU: "4"}, workload="train"))
    assert [free(world, f"b0-r0-n{i}") for i in range(3)] == [0, 4, 8]
    before = {
        "not ready": lambda: world.set_node(node("b0-r0-n0", labels=IN_RACK, ready=False)),
        "cordoned": lambda: world.set_node(node("b0-r0-n0", labels=IN_RACK, unschedulable=True)),
        "gone": lambda: world.delete_node("b0-r0-n0"),
        "in another rack": lambda: world.set_node(node("b0-r0-n0", labels=IN_RACK | {RACK: "r9"})),
    }
    before[how]()
    # The pod that is there stays there; the other one that was expected there goes beside the third.
    assert [free(world, f"b0-r0-n{i}") for i in (1, 2)] == [0, 8]
    assert free(world, "b0-r0-n0") == (-4 if how == "gone" else 4)
    # When it ends, its successor goes elsewhere, too.
    assert world.delete_pod(("default", "p0"))
    assert [free(world, f"b0-r0-n{i}") for i in (1, 2)] == [0, 4]
    validate(world)
    world.release(WL)
    assert [free(world, f"b0-r0-n{i}") for i in (1, 2)] == [8, 8]


def test_pods_of_a_rack_that_is_closed_are_reckoned_on_the_first_node_that_opens() -> None:
    world = racks(2, keys=(BLOCK, RACK))
    for i in range(2):
        world.set_node(node(f"b0-r0-n{i}", labels=IN_RACK, ready=False))
    world.hold(WL, [in_racks(("b0-r0", 1))], [workers(1, gpus=4)])
    world.journal.commit()
    world.set_node(node("b0-r0-n1", labels=IN_RACK))
    assert [free(world, f"b0-r0-n{i}") for i in range(2)] == [8, 4]
    validate(world)


def test_a_pod_is_covered_as_soon_as_its_node_is_in_the_domain_where_it_is_expected() -> None:
    world = racks(2, keys=(BLOCK, RACK))
    world.hold(WL, [in_racks(("b0-r0", 1))], [workers(1, gpus=2)])
    world.set_node(node("b0-r0-n1", labels=IN_RACK | {RACK: "r9"}))
    assert world.set_pod(pod("p0", "b0-r0-n1", {GPU: "2"}, workload="train"))
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n1")) == (6, 6)
    world.set_node(node("b0-r0-n1", labels=IN_RACK))
    assert (free(world, "b0-r0-n0"), free(world, "b0-r0-n1")) == (8, 6)


def test_a_pod_that_is_said_to_be_of_another_pod_set_is_looked_at_anew() -> None:
    world = racks(1)
    world.hold(WL, [on_hosts(("b0-r0-n0", 1))], [workers(1)])
    assert world.set_pod(pod("p0", "b0-r0-n0", {GPU: "2"}, workload="train", pod_set="launcher"))
    assert free(world, "b0-r0-n0") == 4
    world.set_pod(pod("p0", "b0-r0-n0", {GPU: "2"}, workload="train", pod_set="main"))
    assert free(world, "b0-r0-n0") == 6


# --- the journal


def test_rollback_restores_every_number() -> None:
    world = racks(2, 2, keys=(BLOCK, RACK))
    world.set_pod(pod("mine", "b0-r0-n1", {GPU: "2"}, workload="train"))
    world.set_pod(pod("other", "b0-r1-n0", {GPU: "1"}))
    world.hold(("default", "held"), [on_hosts(("b0-r1-n1", 2))], [workers(2)])
    world.set_pod(pod("theirs", "b0-r1-n1", {GPU: "2"}, workload="held"))
    world.journal.commit()
    before, holds = one_of(world), dict(world.holds)
    references = world.nodes.references.copy()

    mark = world.journal.checkpoint()
    world.hold(WL, [in_racks(("b0-r0", 3), ("b0-r1", 1))], [workers(4)])
    world.release(("default", "held"))
    world.hold(WL, [on_hosts(("b0-r0-n0", 1), pod_set="main")], [workers(1, gpus=1)])
    world.hold(("default", "new"), [on_hosts(("b0-r1-n1", 4))], [PodSetRequest("main", 4, {"example.com/nic": 1})])
    world.release(WL)
    assert one_of(world) != before
    world.journal.rollback(mark)

    after = one_of(world)
    assert {name: after[name] for name in before} == before
    assert dict(world.holds) == holds
    assert np.array_equal(world.nodes.references, references)
    # The pods know again who covers them.
    world.release(("default", "held"))
    assert free(world, "b0-r1-n1") == 6


def test_levels_that_pods_are_placed_by() -> None:
    world = racks(1, keys=(BLOCK, RACK))
    world.set_flavor(flavor("plain", topology=""))
    world.set_flavor(flavor("lost", topology="nowhere"))
    assert world.levels("gpu") == (BLOCK, RACK)
    assert world.levels("gpu", bound_by_us=True) == (BLOCK, RACK, HOSTNAME)
    assert world.levels("plain") == ()
    assert world.levels("plain", bound_by_us=True) == (HOSTNAME,)
    assert world.levels("lost", bound_by_us=True) == ()
    assert world.levels("none") == ()
