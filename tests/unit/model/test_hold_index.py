"""The change of one node concerns the holds on it and in its domains, and no others."""

from __future__ import annotations

import pytest

from serried.model.holds import PodSetHold
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.schedulable import overbooked
from serried.model.validate import validate
from serried.model.world import World
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, pod, topology


@pytest.fixture
def world() -> World:
    """10 racks of 2 nodes with 8 GPUs each; in each rack a hold of 2 pods that are yet to come."""
    world = World(Journal())
    world.set_topology(topology(BLOCK, RACK))
    world.set_flavor(flavor())
    for i in range(20):
        world.set_node(node(f"n{i}", labels={BLOCK: "b", RACK: f"r{i // 2}"}, allocatable={GPU: "8", "pods": "9"}))
    for rack in range(10):
        hold(world, f"w{rack}", f"r{rack}", pods=2)
    return world


def hold(world: World, name: str, rack: str, pods: int) -> None:
    placement = Placement("main", "gpu", (BLOCK, RACK), ((("b", rack), pods),))
    world.hold(("default", name), [placement], [PodSetRequest("main", pods, {GPU: 1})])
    world.journal.commit()


def looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workloads whose holds are recomputed from now on."""
    found: list[str] = []
    recompute = World._recompute

    def counted(self: World, part: PodSetHold, domain: int) -> bool:
        found.append(part.workload[1])
        return recompute(self, part, domain)

    monkeypatch.setattr(World, "_recompute", counted)
    return found


def test_a_node_that_closes_concerns_the_holds_of_its_domains_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked_at(world, monkeypatch)
    labels = {BLOCK: "b", RACK: "r3"}
    world.set_node(node("n6", labels=labels, allocatable={GPU: "8", "pods": "9"}, unschedulable=True))
    assert found == ["w3"]
    (part,) = world.holds["default", "w3"].parts
    assert part.charged == {world.nodes.row_of["n7"]: 2}
    validate(world)


def test_a_node_that_changes_racks_concerns_those_of_both(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_at(world, monkeypatch)
    world.set_node(node("n6", labels={BLOCK: "b", RACK: "r5"}, allocatable={GPU: "8", "pods": "9"}))
    assert sorted(found) == ["w3", "w5"]
    validate(world)


def test_a_hold_that_is_released_is_looked_at_no_more_and_again_after_a_rollback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = world.journal.checkpoint()
    world.release(("default", "w3"))
    assert world.estimated_on(world.nodes.row_of["n6"]) == []
    world.journal.rollback(mark)
    found = looked_at(world, monkeypatch)
    world.delete_node("n6")
    assert found == ["w3"]
    validate(world)


def test_a_pod_on_a_node_moves_what_is_charged_for_it(world: World) -> None:
    world.set_pod(pod("p", "n7", {GPU: "1"}, workload="w3"))
    rows = [world.nodes.row_of["n6"], world.nodes.row_of["n7"]]
    assert [len(world.estimated_on(row)) for row in rows] == [1, 1]
    validate(world)


def test_what_others_only_estimate_on_a_host_does_not_make_it_overbooked(world: World) -> None:
    """Pods of w3 that may go to either node of the rack leave the host to whom it was given."""
    placement = Placement("main", "gpu", ("kubernetes.io/hostname",), ((("n6",), 7),))
    world.hold(("default", "host"), [placement], [PodSetRequest("main", 7, {GPU: 1})])
    world.journal.commit()
    assert overbooked(world, ("default", "host")) == set()
    world.set_pod(pod("stranger", "n6", {GPU: "2"}))
    assert overbooked(world, ("default", "host")) == {"n6"}
