"""Merge patch (RFC 7386)."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.embedded.patch import merge, same

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
