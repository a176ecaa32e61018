"""Label and field selectors in the form of `kubectl -l` and `--field-selector`, read into predicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

#: Whether an object, in its JSON form, is selected.
Predicate = Callable[[Mapping[str, Any]], bool]

#: A field selector, term by term: dotted path, whether it must equal (or must not), value.
Terms = list[tuple[str, bool, str]]

_WORD = r"[^\s,=!<>()]+"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_WORD})"
    rf"|(?P<key>{_WORD})(?:\s*(?P<operator>==?|!=)\s*(?P<value>{_WORD})?"
    rf"|\s+(?P<set>in|notin)\s*\(\s*(?P<values>{_WORD}(?:\s*,\s*{_WORD})*)\s*\))?)\s*(?:,(?=.)|$)"
)


class SelectorError(ValueError):
    """A selector does not parse, or names a field that cannot be selected by."""


def labels(selector: str) -> Predicate | None:
    """What a label selector selects; None when it is empty and so selects everything.

    Raises:
        SelectorError: it does not parse.
    """
    requirements: list[Callable[[Mapping[str, str]], bool]] = []
    position, selector = 0, selector.strip()
    while position < len(selector):
        match = _REQUIREMENT.match(selector, position)
        if match is None:
            raise SelectorError(f"label selector {selector!r} does not parse from {selector[position:]!r} on")
        requirements.append(_requirement(match))
        position = match.end()
    if not requirements:
        return None

    def selected(obj: Mapping[str, Any]) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(holds(found) for holds in requirements)

    return selected


def _requirement(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if absent := match["absent"]:
        return lambda found: absent not in found
    key, operator = match["key"], match["operator"] or match["set"]
    if not operator:
        return lambda found: key in found
    values = set(re.split(r"\s*,\s*", match["values"])) if match["set"] else {match["value"] or ""}
    if operator in ("!=", "notin"):
        return lambda found: found.get(key) not in values
    return lambda found: key in found and found[key] in values


def fields(selector: str, selectable: frozenset[str]) -> Terms:
    """The terms of a field selector: path, whether it must equal, value.

    Raises:
        SelectorError: a term is not path=value or path!=value, or the path is not in `selectable`.
    """
    terms: Terms = []
    for term in filter(None, selector.split(",")):
        path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1) if "=" in term else (term, "", "")
        if not operator or path not in selectable:
            raise SelectorError(f"field selector term {term!r} is not path=value or path!=value of a known path")
        terms.append((path, operator != "!=", value))
    return terms


def field_value(obj: Mapping[str, Any], path: str) -> str:
    """What an object holds at a dotted path, as field selectors compare it: "" for nothing, "true" and "false"."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def by_fields(terms: Terms) -> Predicate | None:
    """What these terms select together; None when there are none."""
    if not terms:
        return None
    return lambda obj: all((field_value(obj, path) == value) is equal for path, equal, value in terms)
