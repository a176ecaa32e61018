"""Structural OpenAPI schemas of custom resources: what they fill in, drop and refuse.

Does what an API server does with the schema of a CustomResourceDefinition: unknown fields are pruned, defaults filled
in, and values checked; its CEL rules are evaluated, too (`serried.embedded.rules`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from serried.embedded.patch import same
from serried.embedded.problems import Problems
from serried.embedded.rules import Rule

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}
_BITS = {"int32": 31, "int64": 63}
_ABSENT: Any = object()


@dataclass(frozen=True)
class Check:
    """A limit of one node. It holds for any value of another type; `blocking`: CEL rules wait until it holds."""

    holds: Callable[[Any], bool]
    blocking: bool = False


@dataclass(frozen=True)
class Schema:
    """One node of a schema, read once: `Schema.read(openapi)`."""

    type: str = ""
    nullable: bool = False
    default: Any = _ABSENT
    properties: Mapping[str, Schema] = field(default_factory=dict)
    #: the fields of `properties` with a default
    defaulted: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    additional: Schema | None = None
    #: unknown fields stay
    open: bool = False
    items: Schema | None = None
    unique_by: tuple[str, ...] | None = None
    checks: tuple[Check, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: whether there are rules here or below
    has_rules: bool = False
    #: nothing below this node needs to be looked at
    opaque: bool = False

    @staticmethod
    def read(source: Mapping[str, Any]) -> Schema:
        """The node that an OpenAPI v3 schema describes, with all below it."""
        properties = {name: Schema.read(below) for name, below in source.get("properties", {}).items()}
        additional = source.get("additionalProperties")
        items = source.get("items")
        checks = tuple(_checks(source))
        keeps_unknown = bool(source.get("x-kubernetes-preserve-unknown-fields")) or additional is True
        below = Schema.read(additional) if isinstance(additional, Mapping) else None
        rules = tuple(Rule(each["rule"]) for each in source.get("x-kubernetes-validations", ()))
        item = Schema.read(items) if items else None
        return Schema(
            type="" if source.get("x-kubernetes-int-or-string") else source.get("type", ""),
            nullable=bool(source.get("nullable")),
            default=source.get("default", _ABSENT),
            properties=properties,
            defaulted=tuple(name for name, node in properties.items() if node.default is not _ABSENT),
            required=tuple(source.get("required", ())),
            additional=below,
            open=keeps_unknown,
            items=item,
            unique_by=_unique_by(source),
            checks=checks,
            rules=rules,
            has_rules=bool(rules) or any(node.has_rules for node in (*properties.values(), below, item) if node),
            opaque=keeps_unknown and not properties and not source.get("required") and not checks and not rules,
        )

    def apply(self, value: Any, path: str, problems: Problems) -> None:
        """Prunes and defaults `value` in place, and notes what is wrong with it."""
        if value is None and self.nullable:
            return
        if self.type and not _TYPES[self.type](value):
            problems.invalid(path, value, blocking=True)
            return
        if self.opaque:
            return
        if isinstance(value, dict):
            self._object(value, path, problems)
        elif isinstance(value, list):
            self._array(value, path, problems)
        for check in self.checks:
            if not check.holds(value):
                problems.invalid(path, value, blocking=check.blocking)

    def apply_sections(self, value: dict[str, Any], sections: Set[str], problems: Problems) -> None:
        """`apply` to a whole object of which only some parts, named by their top-level fields, are new."""
        self._object(value, "", problems, sections)

    def _object(self, value: dict[str, Any], path: str, problems: Problems, only: Set[str] | None = None) -> None:
        for name in list(value):
            node = self.properties.get(name) or self.additional
            if node is not None:
                # A null where none is allowed counts as absent, so that its default is used.
                if value[name] is None and not node.nullable:
                    if node.default is not _ABSENT or name in self.properties:
                        del value[name]
                    continue
            elif not self.open:
                del value[name]
        for name in self.defaulted:
            if name not in value:
                value[name] = msgspec.to_builtins(self.properties[name].default)
        for name in self.required:
            if name not in value:
                problems.required(_join(path, name))
        for name, child in value.items():
            if only is not None and name not in only:
                continue
            if (known := self.properties.get(name)) is not None:
                known.apply(child, _join(path, name), problems)
            elif self.additional is not None:
                self.additional.apply(child, _join(path, name), problems)

    def _array(self, value: list[Any], path: str, problems: Problems) -> None:
        if self.items is not None:
            for index, item in enumerate(value):
                self.items.apply(item, f"{path}[{index}]", problems)
        if self.unique_by is not None:
            seen: set[str] = set()
            for index, item in enumerate(value):
                key: Any = item
                if self.unique_by:
                    key = {name: item.get(name) for name in self.unique_by} if isinstance(item, dict) else item
                text = json.dumps(key, sort_keys=True, separators=(",", ":"))
                if text in seen:
                    problems.invalid(f"{path}[{index}]", key)
                seen.add(text)

    def check_rules(self, value: Any, old: Any, path: str, problems: Problems) -> None:
        """Notes which rules a value that satisfies the rest of the schema breaks; `old` is its earlier version or None.

        Rules about a change hold for values that were there before, and for items of lists not at all: which item was
        which is not known.
        """
        for rule in self.rules:
            if rule.is_transition and old is None:
                continue
            if not rule.holds(value, old):
                problems.invalid(path, value)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, child in value.items():
                node = self.properties.get(name) or self.additional
                if node is not None and node.has_rules:
                    known = name in self.properties
                    node.check_rules(
                        child, before.get(name), _join(path, name) if known else f"{path}[{name}]", problems
                    )
        elif isinstance(value, list) and self.items is not None and self.items.has_rules:
            for index, item in enumerate(value):
                self.items.check_rules(item, None, f"{path}[{index}]", problems)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _unique_by(source: Mapping[str, Any]) -> tuple[str, ...] | None:
    match source.get("x-kubernetes-list-type"):
        case "map":
            return tuple(source["x-kubernetes-list-map-keys"])
        case "set":
            return ()
        case _:
            return None


def _is_int_or_string(value: Any) -> bool:
    return _TYPES["string"](value) or _TYPES["integer"](value)


def _checks(source: Mapping[str, Any]) -> Iterator[Check]:
    """The limits of one node."""
    if source.get("x-kubernetes-int-or-string"):
        yield Check(_is_int_or_string)
    if "enum" in source:
        yield Check(lambda value: any(same(value, each) for each in source["enum"]), blocking=True)
    for name, kind in (("maxLength", str), ("maxItems", list), ("maxProperties", dict)):
        if name in source:
            yield Check(_at_most(kind, source[name]), blocking=True)
    for name, kind in (("minLength", str), ("minItems", list)):
        if name in source:
            yield Check(_at_least(kind, source[name]))
    if "pattern" in source:
        pattern = re.compile(source["pattern"])
        yield Check(lambda value: not isinstance(value, str) or pattern.search(value) is not None)
    if "minimum" in source:
        yield Check(lambda value: not _TYPES["number"](value) or value >= source["minimum"])
    if "maximum" in source:
        yield Check(lambda value: not _TYPES["number"](value) or value <= source["maximum"])
    if (bits := _BITS.get(source.get("format", ""))) is not None:
        yield Check(lambda value: not _TYPES["number"](value) or -(1 << bits) <= value < 1 << bits)
    if source.get("format") == "date-time":
        yield Check(lambda value: not isinstance(value, str) or _is_time(value))


def _at_most(kind: type[Any], most: int) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, kind) or len(value) <= most


def _at_least(kind: type[Any], least: int) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, kind) or len(value) >= least


def _is_time(text: str) -> bool:
    try:
        return msgspec.convert(text, datetime).tzinfo is not None
    except msgspec.ValidationError:
        return False
