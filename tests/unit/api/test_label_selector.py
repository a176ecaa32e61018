"""Label selectors, as objects hold them. Their form as text is tested on the embedded server's selectors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.label_selector import selects
from serried.api.meta import LabelSelector

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
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": []}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["a"]}]}, False),
        ({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors(selector: dict[str, Any], selected: bool) -> None:
    assert selects(msgspec.convert(selector, LabelSelector), LABELS) is selected


def test_no_selector_selects_nothing() -> None:
    assert selects(None, LABELS) is False
