"""Label and field selectors in the form of `kubectl -l` and `--field-selector`, as predicates on stored objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from serried.api import label_selector
from serried.api.label_selector import SelectorError

#: Whether an object, in its JSON form, is selected.
Predicate = Callable[[Mapping[str, Any]], bool]

#: A field selector, term by term: dotted path, whether it must equal (or must not), value.
Terms = list[tuple[str, bool, str]]


def labels(selector: str) -> Predicate | None:
    """What a label selector selects; None when it is empty and so selects everything.

    Raises:
        SelectorError: it does not parse.
    """
    parsed = label_selector.parse(selector)
    if not parsed.match_expressions:
        return None
    return lambda obj: label_selector.selects(parsed, obj["metadata"].get("labels") or {})


def fields(selector: str, selectable: frozenset[str]) -> Terms:
    """The terms of a field selector: path, whether it must equal, value.

    Raises:
        SelectorError: a term is not path=value or path!=value, or the path is not in `selectable`.
    """
    terms: Terms = []
    for term in filter(None, selector.split(",")):
        path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1) if "=" in term else (term, "", "")
        if not operator:
            raise SelectorError(f"invalid field selector: {term!r}; can't understand {selector!r}")
        if path not in selectable:
            raise SelectorError(f"field label not supported: {path}")
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
