"""Label and field selectors."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.label_selector import SelectorError
from serried.embedded import selectors


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a == 1", {"a": "1"}, True),
        ("a=1", {"a": "2"}, False),
        ("a=1", {}, False),
        ("a!=1", {"a": "2"}, True),
        ("a!=1", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "1"}, False),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a in (1,2)", {"a": "3"}, False),
        ("a notin (1,2)", {"a": "3"}, True),
        ("a notin (1,2)", {}, True),
        ("a notin (1,2)", {"a": "1"}, False),
        ("a=1,b!=2 , c", {"a": "1", "c": "x"}, True),
        ("a=1,b!=2,c", {"a": "1", "b": "2", "c": "x"}, False),
        ("a=", {"a": ""}, True),
        ("a=,b", {"a": "", "b": ""}, True),
        ("example.com/a-b=c.d", {"example.com/a-b": "c.d"}, True),
    ],
)
def test_labels(selector: str, labels: dict[str, str], selected: bool) -> None:
    predicate = selectors.labels(selector)
    assert predicate is not None
    assert predicate(labelled(**labels)) is selected
    if not labels:
        assert predicate({"metadata": {}}) is selected


def test_an_empty_selector_selects_everything() -> None:
    assert selectors.labels("") is None
    assert selectors.labels("  ") is None
    assert selectors.by_fields(selectors.fields("", frozenset())) is None


@pytest.mark.parametrize(
    "selector", ["a===1", "=1", "a in 1", "a in (1", "a in ()", "a,,b", "a b", "a,", "!", "a>1", "(", "a in (1 2)"]
)
def test_what_does_not_parse_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError, match="unable to parse"):
        selectors.labels(selector)


@settings(deadline=None)
@given(st.text(alphabet="ab=!,() <>in", max_size=12))
def test_any_text_is_read_or_refused(selector: str) -> None:
    try:
        predicate = selectors.labels(selector)
    except SelectorError:
        return
    assert predicate is None or predicate(labelled(a="b")) in (True, False)


POD = {"spec": {"nodeName": "n", "hostNetwork": True}, "status": {"phase": "Running"}, "metadata": {}}
FIELDS = frozenset({"spec.nodeName", "spec.hostNetwork", "status.phase", "status.podIP"})


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("spec.nodeName=n", True),
        ("spec.nodeName==m", False),
        ("spec.nodeName!=", True),
        ("spec.nodeName=", False),
        ("status.podIP=", True),
        ("spec.hostNetwork=true,status.phase!=Failed", True),
        ("spec.nodeName=n,status.phase=Failed", False),
    ],
)
def test_fields(selector: str, selected: bool) -> None:
    predicate = selectors.by_fields(selectors.fields(selector, FIELDS))
    assert predicate is not None
    assert predicate(POD) is selected


@pytest.mark.parametrize("selector", ["spec.other=1", "spec.nodeName", "spec.nodeName=n,x"])
def test_other_fields_are_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        selectors.fields(selector, FIELDS)
