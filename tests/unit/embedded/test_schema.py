"""Structural schemas: what they prune, fill in and refuse, and the rules in them."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.crds import crds
from serried.embedded.problems import Problems
from serried.embedded.rules import Rule, RuleError
from serried.embedded.schema import Schema

SCHEMA = Schema.read(
    {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
            "mode": {"type": "string", "enum": ["On", "Off"], "default": "On"},
            "count": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 9},
            "size": {"x-kubernetes-int-or-string": True},
            "maybe": {"type": "string", "nullable": True},
            "when": {"type": "string", "format": "date-time"},
            "deep": {
                "type": "object",
                "default": {},
                "properties": {"on": {"type": "boolean", "default": True}, "off": {"type": "boolean"}},
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "words": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}, "maxProperties": 2},
            "parts": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["key"],
                "items": {
                    "type": "object",
                    "required": ["key"],
                    "properties": {"key": {"type": "string"}, "n": {"type": "integer", "default": 1}},
                },
            },
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        },
    }
)
FILLED = {"name": "abc", "mode": "On", "deep": {"on": True}}


def applied(**content: Any) -> tuple[dict[str, Any], Problems]:
    """An object with a good name and this content after the schema has gone over it, and the problems found."""
    value = {"name": "abc", **copy.deepcopy(content)}
    problems = Problems()
    SCHEMA.apply(value, "", problems)
    return value, problems


def paths(problems: Problems) -> list[str]:
    return [path for path, _ in problems.found]


@pytest.mark.parametrize(
    ("content", "filled"),
    [
        ({}, {}),
        ({"unknown": 1, "deep": {"unknown": 1, "off": False}}, {"deep": {"on": True, "off": False}}),
        ({"mode": None, "count": None}, {}),
        ({"maybe": None}, {"maybe": None}),
        ({"free": {"any": {"thing": [None]}}}, {"free": {"any": {"thing": [None]}}}),
        ({"parts": [{"key": "a", "x": 1}]}, {"parts": [{"key": "a", "n": 1}]}),
        ({"words": {"a": "b"}}, {"words": {"a": "b"}}),
        ({"count": 3.0}, {"count": 3.0}),
    ],
)
def test_unknown_fields_go_and_defaults_come(content: dict[str, Any], filled: dict[str, Any]) -> None:
    value, problems = applied(**content)
    assert value == FILLED | filled
    assert not problems.found


@pytest.mark.parametrize(
    ("content", "path", "blocking"),
    [
        ({"name": 5}, "name", True),
        ({"name": "a"}, "name", False),
        ({"name": "abcde"}, "name", True),
        ({"name": "A-b"}, "name", False),
        ({"mode": "Half"}, "mode", True),
        ({"count": -1}, "count", False),
        ({"count": 10}, "count", False),
        ({"count": True}, "count", True),
        ({"size": 1.5}, "size", False),
        ({"when": "noon"}, "when", False),
        ({"deep": []}, "deep", True),
        ({"deep": {"on": 1}}, "deep.on", True),
        ({"words": {"a": "bc"}}, "words.a", True),
        ({"words": dict.fromkeys("abc", "")}, "words", True),
        ({"parts": []}, "parts", False),
        ({"parts": [{"key": k} for k in "abc"]}, "parts", True),
        ({"parts": [{"n": 2}]}, "parts[0].key", True),
        ({"parts": [{"key": "a"}, {"key": "a"}]}, "parts[1]", False),
        ({"tags": ["a", "b", "a"]}, "tags[2]", False),
    ],
)
def test_the_field_that_is_wrong_is_named(content: dict[str, Any], path: str, blocking: bool) -> None:
    """`blocking` problems are those after which a real server does not evaluate the CEL rules."""
    problems = applied(**content)[1]
    assert paths(problems) == [path]
    assert problems.blocking is blocking


def test_a_required_field_is_missed() -> None:
    problems = Problems()
    SCHEMA.apply({}, "spec", problems)
    assert paths(problems) == ["spec.name"]
    assert problems.blocking


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from([*SCHEMA.properties, "key", "n", "on", "x"]), below, max_size=4)
    ),
    max_leaves=15,
)


@settings(deadline=None)
@given(anything)
def test_any_value_is_filled_in_or_refused_and_what_was_filled_in_stays(value: Any) -> None:
    problems = Problems()
    SCHEMA.apply(value, "", problems)
    if not problems.found:
        again = copy.deepcopy(value)
        SCHEMA.apply(again, "", problems)
        assert again == value
        assert not problems.found
        assert isinstance(value, dict)
        assert value.keys() <= SCHEMA.properties.keys()


RULED = Schema.read(
    {
        "type": "object",
        "properties": {
            "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]},
            "list": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                    "x-kubernetes-validations": [{"rule": "self.low <= self.high"}],
                },
            },
        },
    }
)


@pytest.mark.parametrize(
    ("new", "old", "fields"),
    [
        ({"fixed": "a"}, {"fixed": "a"}, []),
        ({"fixed": "a"}, {"fixed": "b"}, ["fixed"]),
        ({"fixed": "a"}, {}, []),
        ({"fixed": "a"}, None, []),
        ({"list": [{"low": 1, "high": 2}]}, None, []),
        ({"list": [{"low": 3, "high": 2}]}, {}, ["list[0]"]),
        ({"list": [{"low": 3}]}, {}, ["list[0]"]),
    ],
)
def test_rules_hold_where_they_stand(new: dict[str, Any], old: dict[str, Any] | None, fields: list[str]) -> None:
    problems = Problems()
    RULED.check_rules(new, old, "", problems)
    assert paths(problems) == fields


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self.size() == 2 && size(self[1]) == 3", ["a", "abc"], True),
        ("self.all(x, x > 1)", [2, 3], True),
        ("self.all(x, x > 1)", [2, 1], False),
        ("self.all(x, x > 1)", [], True),
        ("self.exists(x, x == 'b')", ["a", "b"], True),
        ("self.all(a, self.exists_one(b, a == b))", [1, 2, 1], False),
        ("!has(self.a) || self.a.b - 1 < 3", {}, True),
        ("!has(self.a) || self.a.b - 1 < 3", {"a": {"b": 4}}, False),
        ("!(has(self.a.b) && self.a.b != 'x')", {"a": {"b": "x"}}, True),
        ("(self.a == true || self.b == null) && 1 + 1 >= 2", {"a": True, "b": 1}, True),
        ("self.a == 1", {"a": True}, False),
    ],
)
def test_rules_are_understood(rule: str, value: Any, holds: bool) -> None:
    assert Rule(rule).holds(value) is holds


@pytest.mark.parametrize(
    "rule",
    ["", "self ==", "self = 1", "self.matches('a')", "self.map(x, x)", "a b", "has(self)", "self ? 1 : 2", "(self"],
)
def test_rules_in_more_of_the_language_are_an_error_when_read(rule: str) -> None:
    with pytest.raises(RuleError, match="not understood"):
        Rule(rule)


@pytest.mark.parametrize(
    ("rule", "value"), [("self.a.b", {}), ("self[2]", [1]), ("self.a < 1", {"a": "x"}), ("!self", 1)]
)
def test_rules_that_lead_nowhere_do_not_hold(rule: str, value: Any) -> None:
    assert not Rule(rule).holds(value)


def test_all_of_our_definitions_can_be_read() -> None:
    """Each limit and rule in them is one that holds here, too."""
    for definition in crds():
        for version in definition["spec"]["versions"]:
            assert Schema.read(version["schema"]["openAPIV3Schema"]).properties
