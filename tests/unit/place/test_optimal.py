"""What `placement: optimal` does that the default does not, and when it leaves the choice to that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from serried.api.core import NodeAffinity
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement
from tests.unit.model.clusters import BLOCK, GPU, RACK, pod, racks

OPTIMAL = PlaceOptions(optimal=True)


def workers(count: int, gpus: int = 8, *, name: str = "main", **wish: Any) -> PodSetRequest:
    return PodSetRequest(name, count, {GPU: gpus}, topology=PodSetTopologyRequest(**wish))


def placed(world: World, *pod_sets: PodSetRequest, options: PlaceOptions = OPTIMAL, **more: Any) -> list[Placement]:
    result = place(world, "gpu", pod_sets, options=options, **more)
    assert not isinstance(result, NoPlacement), result.message
    return result


def hosts(placement: Placement) -> dict[str, int]:
    return {values[-1]: count for values, count in placement.domains}


def test_within_a_required_block_one_rack_is_found() -> None:
    """Best fit takes the fuller block, though its racks hold only half of the pods each."""
    world = racks(2, 2, 4, 4)
    request = workers(4, required=BLOCK)
    (best_fit,) = placed(world, request, options=PlaceOptions())
    assert list(hosts(best_fit)) == ["b0-r0-n0", "b0-r0-n1", "b0-r1-n0", "b0-r1-n1"]
    (optimal,) = placed(world, request)
    assert list(hosts(optimal)) == ["b1-r0-n0", "b1-r0-n1", "b1-r0-n2", "b1-r0-n3"]
    assert (best_fit.fallback, optimal.fallback) == ("", "")


def test_unconstrained_pods_stay_together() -> None:
    """The default fills up what is nearly full, wherever it is."""
    world = racks(2, 2, 2)
    for i, host in enumerate(["b0-r0-n0", "b0-r1-n0", "b1-r0-n0"]):
        world.set_pod(pod(f"p{i}", host, {GPU: "7"}))
    request = workers(3, 1, unconstrained=True)
    assert len(hosts(placed(world, request, options=PlaceOptions())[0])) == 1
    request = workers(12, 1, unconstrained=True)
    assert hosts(placed(world, request)[0]).keys() <= {"b0-r0-n0", "b0-r0-n1", "b0-r1-n0", "b0-r1-n1"}


def test_nodes_that_are_filled_up_come_before_nodes_with_a_rest() -> None:
    world = racks(3)
    world.set_pod(pod("p", "b0-r0-n2", {GPU: "4"}))
    # 12 pods need two nodes; those with 8 and 4 leave nothing over.
    assert hosts(placed(world, workers(12, 1, required=RACK))[0]) == {"b0-r0-n0": 8, "b0-r0-n2": 4}


def test_beyond_its_limit_the_default_places_and_says_so() -> None:
    world = racks(2, 2, 4, 4)
    request = workers(6, required=BLOCK)
    (limited,) = placed(world, request, options=replace(OPTIMAL, optimal_limit=1))
    assert limited == placed(world, request, options=PlaceOptions())[0]
    assert limited.fallback == "it was not found within 1 partial placements"


def test_a_count_beyond_all_bounds_is_answered() -> None:
    world = racks(2)
    huge = PodSetRequest("main", 2**31 - 1, {}, topology=PodSetTopologyRequest(unconstrained=True))
    assert isinstance(place(world, "gpu", [huge], options=OPTIMAL), NoPlacement)
    for name in ("b0-r0-n0", "b0-r0-n1"):
        given = world.nodes.seen[world.nodes.row_of[name]]
        assert given is not None
        given.status.allocatable = {**given.status.allocatable, "pods": 2**30}
        world.delete_node(name)
        world.set_node(given)
    (found,) = placed(world, huge)
    assert sum(hosts(found).values()) == 2**31 - 1
    assert "partial placements" in found.fallback


def test_groups_replacements_and_ranked_nodes_are_left_to_the_default() -> None:
    world = racks(2, 2, 3, 3)
    leader = PodSetRequest("leader", 1, {GPU: 1}, topology=PodSetTopologyRequest(pod_set_group_name="g"))
    grouped = [leader, workers(3, required=BLOCK, pod_set_group_name="g")]
    assert [p.fallback for p in placed(world, *grouped)] == ["", "it does not cover pod set groups"]
    assert placed(world, *grouped) == placed(world, *grouped, options=PlaceOptions())

    before = Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1), (("b0-r0-n1",), 1)))
    lost = Replacement("b0-r0-n0", {"main": before})
    (replaced,) = placed(world, workers(2, preferred=RACK), replacement=lost)
    assert replaced.fallback == "other pods of the pod set keep their places"

    term = {"weight": 1, "preference": {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["b1-r1"]}]}}
    affinity = msgspec.convert({"preferredDuringSchedulingIgnoredDuringExecution": [term]}, NodeAffinity)
    ranked = replace(workers(2, preferred=RACK), node_affinity=affinity)
    assert placed(world, ranked, options=replace(OPTIMAL, preferred_affinity=True))[0].fallback == (
        "preferred node affinity ranks the nodes"
    )
    assert placed(world, ranked)[0].fallback == ""


@pytest.mark.parametrize("wish", [{"required": RACK}, {"preferred": RACK}, {"unconstrained": True}])
def test_where_nothing_fits_the_reason_is_the_usual_one(wish: dict[str, Any]) -> None:
    world = racks(2, 2)
    refusal = place(world, "gpu", [workers(5, **wish)], options=OPTIMAL)
    assert isinstance(refusal, NoPlacement)
    assert refusal == place(world, "gpu", [workers(5, **wish)])
