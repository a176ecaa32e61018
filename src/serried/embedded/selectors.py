"""Label and field selectors in the form of `kubectl -l` and `--field-selector`, read into predicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Whether an object, in its JSON form, is selected.
Predicate = Callable[[Mapping[str, Any]], bool]

#: A field selector, term by term: dotted path, whether it must equal (or must not), value.
Terms = list[tuple[str, bool, str]]


class SelectorError(ValueError):
    """A selector does not parse, or names a field that cannot be selected by."""


_TOKENS = re.compile(r"\s*(?:(?P<word>[^\s,=!<>()]+)|(?P<operator>==|!=|[=!,()<>]))\s*")


@dataclass(frozen=True)
class _Requirement:
    key: str
    #: in, notin, exists, absent
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "in":
                return self.key in labels and labels[self.key] in self.values
            case "notin":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case _:
                return self.key not in labels


def labels(selector: str) -> Predicate | None:
    """What a label selector selects; None when it is empty and so selects everything.

    Raises:
        SelectorError: it does not parse.
    """
    requirements = _parse(selector)
    if not requirements:
        return None

    def selected(obj: Mapping[str, Any]) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(requirement.holds(found) for requirement in requirements)

    return selected


def _parse(selector: str) -> list[_Requirement]:
    tokens = _tokens(selector)
    requirements: list[_Requirement] = []
    position = 0
    while position < len(tokens):
        if requirements:
            position = _expect(tokens, position, ",", selector)
        requirement, position = _requirement(tokens, position, selector)
        requirements.append(requirement)
    return requirements


def _tokens(selector: str) -> list[str]:
    found: list[str] = []
    end = 0
    while end < len(selector):
        match = _TOKENS.match(selector, end)
        if match is None:
            if not selector[end:].strip():
                break
            raise SelectorError(f"unable to parse requirement: {selector!r} from character {end}")
        found.append(match["word"] or match["operator"])
        end = match.end()
    return found


def _expect(tokens: list[str], position: int, wanted: str, selector: str) -> int:
    if position >= len(tokens) or tokens[position] != wanted:
        found = tokens[position] if position < len(tokens) else ""
        raise SelectorError(f"unable to parse requirement: found {found!r}, expected {wanted!r} in {selector!r}")
    return position + 1


def _word(tokens: list[str], position: int, selector: str) -> str:
    if position >= len(tokens) or tokens[position] in ("==", "!=", "=", "!", ",", "(", ")", "<", ">"):
        found = tokens[position] if position < len(tokens) else ""
        raise SelectorError(f"unable to parse requirement: found {found!r}, expected: identifier in {selector!r}")
    return tokens[position]


def _requirement(tokens: list[str], position: int, selector: str) -> tuple[_Requirement, int]:
    if position < len(tokens) and tokens[position] == "!":
        return _Requirement(_word(tokens, position + 1, selector), "absent"), position + 2
    key = _word(tokens, position, selector)
    position += 1
    if position == len(tokens) or tokens[position] == ",":
        return _Requirement(key, "exists"), position
    match tokens[position]:
        case "=" | "==" | "!=" as operator:
            wanted = "" if _at_end(tokens, position + 1) else _word(tokens, position + 1, selector)
            step = 1 if _at_end(tokens, position + 1) else 2
            return _Requirement(key, "notin" if operator == "!=" else "in", frozenset({wanted})), position + step
        case "in" | "notin" as operator:
            position = _expect(tokens, position + 1, "(", selector)
            values: set[str] = set()
            while True:
                values.add(_word(tokens, position, selector))
                position += 1
                if position < len(tokens) and tokens[position] == ",":
                    position += 1
                    continue
                return _Requirement(key, operator, frozenset(values)), _expect(tokens, position, ")", selector)
        case other:
            raise SelectorError(f"unable to parse requirement: {other!r} is not an operator in {selector!r}")


def _at_end(tokens: list[str], position: int) -> bool:
    return position == len(tokens) or tokens[position] == ","


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
