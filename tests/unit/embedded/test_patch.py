"""Merge patch (RFC 7386) and JSON patch (RFC 6902)."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.embedded.patch import PatchError, apply, merge, same

#: RFC 7386, appendix A: original, patch, result.
MERGES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("original", "patch", "result"), MERGES)
def test_merge(original: Any, patch: Any, result: Any) -> None:
    assert merge(original, patch) == result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from("abcd"), children, max_size=3),
    max_leaves=12,
)
without_nulls = json_values.filter(lambda value: "None" not in repr(value))


@settings(deadline=None)
@given(json_values, json_values)
def test_merging_changes_neither_side(original: Any, patch: Any) -> None:
    before = copy.deepcopy((original, patch))
    merge(original, patch)
    assert same((original, patch), before)


@settings(deadline=None)
@given(json_values, json_values)
def test_merging_twice_is_merging_once(original: Any, patch: Any) -> None:
    once = merge(original, patch)
    assert merge(once, patch) is once or not isinstance(patch, dict)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), without_nulls), st.dictionaries(st.sampled_from("abcd"), without_nulls))
def test_there_is_a_merge_patch_from_anything_to_anything_without_nulls(
    original: dict[str, Any], wanted: dict[str, Any]
) -> None:
    def difference(old: Any, new: Any) -> Any:
        if not isinstance(old, dict) or not isinstance(new, dict):
            return new
        gone = dict.fromkeys(old.keys() - new.keys())
        return gone | {name: difference(old.get(name), value) for name, value in new.items()}

    assert same(merge(original, difference(original, wanted)), wanted)


@settings(deadline=None)
@given(json_values)
def test_true_is_not_one(value: Any) -> None:
    assert same(value, copy.deepcopy(value))
    assert not same([True, value], [1, value])
    assert same(1, 1.0)


DOCUMENT = {"a": {"b": [1, 2]}, "m/n": 3, "t~u": 4, "": 5}
#: operations and what they make of DOCUMENT
APPLIED: list[tuple[list[dict[str, Any]], Any]] = [
    ([{"op": "add", "path": "/a/b/1", "value": 9}], {**DOCUMENT, "a": {"b": [1, 9, 2]}}),
    ([{"op": "add", "path": "/a/b/-", "value": 9}], {**DOCUMENT, "a": {"b": [1, 2, 9]}}),
    ([{"op": "add", "path": "/a/b/2", "value": 9}], {**DOCUMENT, "a": {"b": [1, 2, 9]}}),
    ([{"op": "add", "path": "/a/b", "value": None}], {**DOCUMENT, "a": {"b": None}}),
    ([{"op": "remove", "path": "/a/b/0"}], {**DOCUMENT, "a": {"b": [2]}}),
    ([{"op": "remove", "path": "/m~1n"}], {"a": {"b": [1, 2]}, "t~u": 4, "": 5}),
    ([{"op": "replace", "path": "/t~0u", "value": 7}], {**DOCUMENT, "t~u": 7}),
    ([{"op": "replace", "path": "/a/b/1", "value": 7}], {**DOCUMENT, "a": {"b": [1, 7]}}),
    ([{"op": "replace", "path": "/new", "value": 7}], {**DOCUMENT, "new": 7}),
    ([{"op": "replace", "path": "", "value": 7}], 7),
    ([{"op": "move", "from": "/a/b/0", "path": "/x"}], {**DOCUMENT, "a": {"b": [2]}, "x": 1}),
    ([{"op": "move", "from": "/a/b", "path": "/a/c"}], {**DOCUMENT, "a": {"c": [1, 2]}}),
    ([{"op": "copy", "from": "/a/b", "path": "/c"}], {**DOCUMENT, "c": [1, 2]}),
    ([{"op": "test", "path": "/", "value": 5}], DOCUMENT),
    ([{"op": "test", "path": "/absent", "value": None}], DOCUMENT),
    ([{"op": "test", "path": "/a", "value": {"b": [1, 2.0]}}], DOCUMENT),
    (
        [{"op": "add", "path": "/x", "value": {}}, {"op": "add", "path": "/x/y", "value": 1}],
        {**DOCUMENT, "x": {"y": 1}},
    ),
]


@pytest.mark.parametrize(("operations", "result"), APPLIED)
def test_operations(operations: list[dict[str, Any]], result: Any) -> None:
    before = copy.deepcopy(DOCUMENT)
    assert apply(DOCUMENT, operations) == result
    assert before == DOCUMENT


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ({"op": "remove", "path": "/absent"}, "there is no 'absent'"),
        ({"op": "remove", "path": ""}, "the whole object"),
        ({"op": "add", "path": "/x/y", "value": 1}, "there is no 'x'"),
        ({"op": "add", "path": "/a/b/3", "value": 1}, "there is no item '3' in a list of 2"),
        ({"op": "add", "path": "/a/b/01", "value": 1}, "there is no item '01'"),
        ({"op": "add", "path": "/m~1n/x", "value": 1}, "nothing to put 'x' into"),
        ({"op": "replace", "path": "/a/b/-", "value": 1}, "there is no item '-'"),
        ({"op": "test", "path": "/a/b/0", "value": True}, "/a/b/0 holds 1, not True"),
        ({"op": "move", "from": "/a", "path": "/a/b"}, "/a cannot move into itself"),
        ({"op": "copy", "path": "/a"}, "from must be a JSON pointer"),
        ({"op": "add", "path": "a", "value": 1}, "path must be a JSON pointer"),
        ({"op": "add", "path": "/a"}, "has no value"),
        ({"op": "mend", "path": "/a"}, "op must be"),
        ("add", "not an object"),
    ],
)
def test_what_cannot_be_done_is_said(operation: Any, why: str) -> None:
    with pytest.raises(PatchError, match="operation 1 ") as caught:
        apply(DOCUMENT, [{"op": "add", "path": "/fine", "value": 1}, operation])
    assert why in str(caught.value)


paths = st.lists(st.sampled_from("ab0-"), max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))
operations = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": paths, "value": json_values}),
    st.fixed_dictionaries({"op": st.sampled_from(["remove"]), "path": paths}),
    st.fixed_dictionaries({"op": st.sampled_from(["move", "copy"]), "path": paths, "from": paths}),
)


@settings(deadline=None)
@given(json_values, st.lists(operations, max_size=4))
def test_operations_change_nothing_in_place_and_fail_cleanly(value: Any, steps: list[dict[str, Any]]) -> None:
    before = copy.deepcopy((value, steps))
    try:
        result = apply(value, steps)
    except PatchError:
        result = None
    assert same((value, steps), before)
    if result is not None and steps:
        # Step by step comes to the same.
        for step in steps:
            value = apply(value, [step])
        assert same(value, result)
