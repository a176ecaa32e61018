"""Whether pods may use a flavor, by its taints and node labels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import NodeAffinity, Toleration
from serried.model.requests import PodSetRequest
from serried.schedule.types.label_match import flavor_mismatch
from serried.schedule.types.refusals import Untolerated
from tests.unit.schedule.objects import flavor


def request(affinity: list[dict[str, Any]] | None = None, **selector: str) -> PodSetRequest:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": affinity}}
    node_affinity = msgspec.convert(required, NodeAffinity) if affinity is not None else None
    return PodSetRequest("main", 1, {}, node_selector=selector, node_affinity=node_affinity)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pods", "fits"),
    [
        (request(), True),
        (request(gpu="h100"), True),
        (request(gpu="a100"), False),
        (request(zone="z1"), False),  # another flavor of the group is in a zone, this one is in none
        (request(disk="ssd"), True),  # nothing that flavors speak of
        (request([expression("gpu", "In", "h100", "h200")]), True),
        (request([expression("gpu", "NotIn", "h100")]), False),
        (request([expression("gpu", "In", "a100"), expression("gpu", "In", "h100")]), True),
        (request([expression("gpu", "In", "a100"), expression("disk", "In", "ssd")]), True),
        (request([expression("size", "Gt", "6")]), True),
        (request([expression("size", "Lt", "7")]), False),
        (request([expression("size", "Gt", "a few")]), False),
        (request([]), True),
    ],
)
def test_selector_and_affinity_against_the_labels_of_a_flavor(pods: PodSetRequest, fits: bool) -> None:
    h100 = flavor("h100", nodeLabels={"gpu": "h100", "size": "7"})
    why = flavor_mismatch(pods, h100, {"gpu", "size", "zone"})
    assert (why is None) is fits, why
    assert why is None or why.flavor == "h100"


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "spot", "value": "yes"}, True),
        ({"key": "spot", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "spot", "value": "no"}, False),
        ({"key": "spot", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_of_a_flavor_must_be_tolerated_by_the_pods_or_the_flavor(toleration: dict[str, str], fits: bool) -> None:
    taints = [{"key": "spot", "value": "yes", "effect": "NoSchedule"}, {"key": "x", "effect": "PreferNoSchedule"}]
    spot = flavor("spot", nodeTaints=taints)
    assert flavor_mismatch(request(), spot, ()) == Untolerated("spot", "spot", "yes", "NoSchedule")
    tolerating = PodSetRequest("main", 1, {}, tolerations=(msgspec.convert(toleration, Toleration),))
    assert (flavor_mismatch(tolerating, spot, ()) is None) is fits
    assert (flavor_mismatch(request(), flavor("spot", nodeTaints=taints, tolerations=[toleration]), ()) is None) is fits
