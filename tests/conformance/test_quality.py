"""The judge of `--quality` lets through what is valid, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from serried.api.core import Taint
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME
from serried.model.requests import PodSetRequest
from serried.place.measures import Measures
from tests.conformance.quality import Invalid, Judge, Placed
from tests.unit.model.clusters import BLOCK, GPU, RACK, node, pod, racks


def judge() -> Judge:
    """Blocks b0 (racks of two and one nodes) and b1 (a rack of two), all of 8 GPUs; b0-r0-n0 has 4 left."""
    world = racks(2, 1, 2)
    world.set_pod(pod("p", "b0-r0-n0", {GPU: "4"}))
    labels = {BLOCK: "b1", RACK: "b1-r0"}
    world.set_node(node("tainted", labels=labels, taints=[Taint(key="k", effect="NoSchedule")]))
    return Judge(world, "gpu")


def placed(
    count: int, where: Sequence[tuple[str, int]], kept: Sequence[tuple[str, int]] | None = None, **wish: Any
) -> Placed:
    request = PodSetRequest("main", count, {GPU: 1}, topology=PodSetTopologyRequest(**wish))
    stay = None if kept is None else [((host,), n) for host, n in kept]
    return Placed(request, (HOSTNAME,), [((host,), n) for host, n in where], stay, kept_is_charged=False)


def test_what_is_valid_is_measured() -> None:
    found = judge().group(placed(6, [("b0-r0-n0", 3), ("b0-r0-n1", 3)], required=RACK), None)
    assert found == Measures(spread=1, domains=(1, 1, 2), stranded=(6, 6, 14))


def test_the_leader_counts_as_used() -> None:
    leader = Placed(PodSetRequest("leader", 1, {GPU: 8}), (HOSTNAME,), [(("b0-r0-n1",), 1)], None, False)
    found = judge().group(placed(3, [("b0-r0-n0", 3)], required=BLOCK), leader)
    assert found.domains == (1, 1, 2)
    with pytest.raises(Invalid, match=r"not in one example\.com/rack"):
        judge().group(placed(3, [("b1-r0-n0", 3)], required=RACK), leader)
    with pytest.raises(Invalid, match=r"b0-r0-n1 has 7 example\.com/gpu free, and 1 pods need 8"):
        judge().group(placed(1, [("b0-r0-n1", 1)]), leader)


def test_pod_sets_see_each_other() -> None:
    found = judge()
    found.group(placed(4, [("b0-r0-n0", 4)]), None)
    with pytest.raises(Invalid, match=r"has 0 example\.com/gpu free"):
        found.group(placed(1, [("b0-r0-n0", 1)]), None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (placed(5, [("b0-r0-n0", 5)]), "has 4 example.com/gpu free, and 5 pods need 5"),
        (placed(4, [("b0-r0-n0", 2), ("b0-r0-n1", 1)]), "3 pods are placed, of 4"),
        (placed(4, [("b0-r0-n1", 2), ("b0-r0-n0", 2)]), "not in path order"),
        (placed(4, [("b0-r0-n1", 2), ("b0-r0-n1", 2)]), "appears twice"),
        (placed(1, [("nowhere", 1)]), "no domain nowhere"),
        (placed(1, [("tainted", 1)]), "excluded by taints"),
        (placed(4, [("b0-r0-n1", 2), ("b0-r1-n0", 2)], required=RACK), "not in one example.com/rack"),
        (
            placed(
                4,
                [("b0-r0-n1", 3), ("b0-r1-n0", 1)],
                pod_set_slice_required_topology=RACK,
                pod_set_slice_size=2,
            ),
            "b0/b0-r0 has 3 pods, which are no whole slices of 2",
        ),
        (placed(2, [("b0-r0-n1", 2)], kept=[("b1-r0-n0", 1)]), "had 1 pods that stay, and has 0"),
    ],
)
def test_what_breaks_a_rule_is_refused(given: Placed, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        judge().group(given, None)
