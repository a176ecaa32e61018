"""What is wrong with a topologyRequest, all of it and by field."""

from __future__ import annotations

from typing import Any

import pytest

from serried.api.kueue import PodSetTopologyRequest, SliceConstraint
from serried.api.problem import Problem
from serried.place.topology_request import TopologyRequestError, check_topology_request, read_topology_request

LEVELS = ("block", "rack", "host")


def check(count: int = 8, **wish: Any) -> list[Problem]:
    return check_topology_request(PodSetTopologyRequest(**wish), LEVELS, count)


def layers(*of: tuple[str, int]) -> list[SliceConstraint]:
    return [SliceConstraint(topology=topology, size=size) for topology, size in of]


@pytest.mark.parametrize(
    "wish",
    [
        {"required": "rack"},
        {"preferred": "host"},
        {"unconstrained": True},
        {"pod_set_slice_required_topology": "rack", "pod_set_slice_size": 4},
        {"required": "rack", "pod_set_slice_required_topology": "rack", "pod_set_slice_size": 8},
        {"podset_slice_required_topology_constraints": layers(("block", 8), ("rack", 4), ("host", 2))},
    ],
)
def test_nothing_is_wrong(wish: dict[str, Any]) -> None:
    assert check(**wish) == []
    read_topology_request(PodSetTopologyRequest(**wish), LEVELS)


def test_no_request_is_fine_and_so_is_no_pod() -> None:
    assert check_topology_request(None, LEVELS, 8) == []
    assert check_topology_request(None, (), 0) == []


SLICES = "topologyRequest.podsetSliceRequiredTopologyConstraints"
KNOWN = "a level of the topology: block, rack, host"


@pytest.mark.parametrize(
    ("count", "wish", "problems"),
    [
        (8, {"required": "row"}, [("topologyRequest.required", "row", KNOWN)]),
        (
            8,
            {"required": "rack", "preferred": "block"},
            [
                (
                    "topologyRequest",
                    "required rack and preferred block",
                    "one of required, preferred and unconstrained",
                )
            ],
        ),
        (-1, {"required": "rack"}, [("count", "-1", "0 to 2147483647")]),
        (
            8,
            {"required": "rack", "pod_set_slice_size": 2},
            [("topologyRequest.podSetSliceRequiredTopology", "nothing", f"with a slice size, {KNOWN}")],
        ),
        (
            8,
            {"pod_set_slice_required_topology": "rack"},
            [("topologyRequest.podSetSliceSize", "0", "1 or more")],
        ),
        (
            8,
            {"pod_set_slice_required_topology": "rack", "pod_set_slice_size": 3},
            [("topologyRequest.podSetSliceSize", "3", "a divisor of the number of pods, 8")],
        ),
        (
            8,
            {"required": "rack", "pod_set_slice_required_topology": "block", "pod_set_slice_size": 4},
            [("topologyRequest.podSetSliceRequiredTopology", "block", "rack or a level below it")],
        ),
        (
            8,
            {"podset_slice_required_topology_constraints": layers(("rack", 4), ("rack", 3), ("row", -2))},
            [
                (f"{SLICES}[1].topology", "rack", "a level below rack"),
                (f"{SLICES}[1].size", "3", "a divisor of the size of the layer above, 4"),
                (f"{SLICES}[2].topology", "row", KNOWN),
                (f"{SLICES}[2].size", "-2", "1 or more"),
            ],
        ),
    ],
)
def test_each_problem_is_told_with_what_is_allowed(
    count: int, wish: dict[str, Any], problems: list[tuple[str, str, str]]
) -> None:
    assert check(count, **wish) == problems


def test_a_flavor_without_topology_allows_no_level() -> None:
    assert check_topology_request(PodSetTopologyRequest(required="rack"), (), 1) == [
        ("topologyRequest.required", "rack", "nothing: the flavor has no topology")
    ]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({}, "topology level not specified"),
        ({"required": "row"}, "no requested topology level: row"),
        (
            {"required": "row", "pod_set_slice_required_topology": "rack", "pod_set_slice_size": -1},
            "slice topology requested, but slice size not provided",
        ),
        (
            {"required": "rack", "pod_set_slice_required_topology": "row", "pod_set_slice_size": 1},
            "no requested topology level for slices: row",
        ),
        (
            {"required": "rack", "pod_set_slice_required_topology": "block", "pod_set_slice_size": 1},
            "podset slice topology block is above the podset topology rack",
        ),
        (
            {"podset_slice_required_topology_constraints": layers(("rack", 4), ("rack", 2))},
            "additional slice layer topology rack must be at a lower level than rack",
        ),
        (
            {"podset_slice_required_topology_constraints": layers(("rack", 4), ("row", 2))},
            "no requested topology level for additional slice layer: row",
        ),
        (
            {"podset_slice_required_topology_constraints": layers(("rack", 4), ("host", 0))},
            "additional slice layer size 0 must evenly divide parent layer size 4",
        ),
    ],
)
def test_what_can_never_be_met_has_the_text_that_users_know(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyRequestError, match=message):
        read_topology_request(PodSetTopologyRequest(**wish), LEVELS)


def test_slices_alone_may_go_anywhere() -> None:
    wish = read_topology_request(
        PodSetTopologyRequest(pod_set_slice_required_topology="rack", pod_set_slice_size=4), LEVELS
    )
    assert (wish.mode, wish.level, wish.slice_level, wish.size) == ("unconstrained", 0, 1, 4)


def test_inner_layers_hold_for_every_level_down_to_theirs() -> None:
    constraints = layers(("block", 8), ("host", 2))
    wish = read_topology_request(
        PodSetTopologyRequest(podset_slice_required_topology_constraints=tuple(constraints)), LEVELS
    )
    assert wish.inner == (0, 2, 2)
    assert wish.layers == ((0, 8), (2, 2))
