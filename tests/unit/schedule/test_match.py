"""Whether labels, taints and flavors match."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import NodeAffinity, Toleration
from serried.api.meta import LabelSelector
from serried.model.requests import PodSetRequest
from serried.schedule.types.label_match import flavor_mismatch, selects
from tests.unit.schedule.objects import flavor

LABELS = {"team": "a", "size": "7"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchLabels": {"missing": "a"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["b", "a"]}]}, True),
        ({"matchExpressions": [{"key": "missing", "operator": "In", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "missing", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "missing", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Sideways"}]}, False),
        ({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors(selector: dict[str, Any], selected: bool) -> None:
    assert selects(msgspec.convert(selector, LabelSelector), LABELS) is selected


def test_no_selector_selects_nothing() -> None:
    assert selects(None, LABELS) is False


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
    assert (why == "") is fits, why
    assert fits or "h100" in why


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
    assert flavor_mismatch(request(), spot, ()) == "untolerated taint spot=yes:NoSchedule in flavor spot"
    tolerating = PodSetRequest("main", 1, {}, tolerations=(msgspec.convert(toleration, Toleration),))
    assert (flavor_mismatch(tolerating, spot, ()) == "") is fits
    assert (flavor_mismatch(request(), flavor("spot", nodeTaints=taints, tolerations=[toleration]), ()) == "") is fits
