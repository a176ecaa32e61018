"""Label selectors: whether labels meet one, in an object's form and in the form of `kubectl -l`.

Node affinity is written in the same requirements, with the operators Gt and Lt besides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from serried.api.meta import LabelSelector, LabelSelectorRequirement

#: What a requirement says of its label's value; None: the label is not there.
Test = Callable[[str | None], bool]

_TOKENS = re.compile(r"\s*(?:(?P<word>[^\s,=!<>()]+)|(?P<operator>==|!=|[=!,()<>]))\s*")
_OPERATORS = ("==", "!=", "=", "!", ",", "(", ")", "<", ">")
#: No label value is longer.
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")


class SelectorError(ValueError):
    """A selector does not parse, or names something that cannot be selected by."""


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels: None selects nothing, an empty one everything."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        holds(requirement, labels) for requirement in selector.match_expressions
    )


def holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether one requirement of a label or node selector holds."""
    return test_of(requirement)(labels.get(requirement.key))


def test_of(requirement: LabelSelectorRequirement) -> Test:
    """The test of one requirement. One that is not legal (an operator nobody knows, values that it may not have, no
    number to compare with) never holds."""
    values = frozenset(requirement.values)
    match requirement.operator:
        case "In" if values:
            return lambda found: found in values
        case "NotIn" if values:
            return lambda found: found not in values
        case "Exists" if not values:
            return lambda found: found is not None
        case "DoesNotExist" if not values:
            return lambda found: found is None
        case "Gt" | "Lt" if len(requirement.values) == 1:
            return _comparison(requirement.operator, _integer(requirement.values[0]))
    return _never


def _never(_: str | None) -> bool:
    return False


def _comparison(operator: str, bound: int | None) -> Test:
    """Gt or Lt: both sides are integers of 64 bits, as Kubernetes compares them."""
    if bound is None:
        return _never

    def compare(found: str | None) -> bool:
        number = None if found is None else _integer(found)
        if number is None:
            return False
        return number > bound if operator == "Gt" else number < bound

    return compare


def _integer(text: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


# --- as text


def parse(text: str) -> LabelSelector:
    """The selector that `kubectl -l` writes so: a=1, a!=1, a in (1,2), a notin (1,2), a, !a, joined by commas.

    Raises:
        SelectorError: it does not parse.
    """
    tokens = _tokens(text)
    found: list[LabelSelectorRequirement] = []
    position = 0
    while position < len(tokens):
        if found:
            position = _expect(tokens, position, ",", text)
        requirement, position = _requirement(tokens, position, text)
        found.append(requirement)
    return LabelSelector(match_expressions=tuple(found))


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    end = 0
    while end < len(text):
        match = _TOKENS.match(text, end)
        if match is None:
            if not text[end:].strip():
                break
            raise SelectorError(f"unable to parse requirement: {text!r} from character {end}")
        found.append(match["word"] or match["operator"])
        end = match.end()
    return found


def _expect(tokens: list[str], position: int, wanted: str, text: str) -> int:
    if position >= len(tokens) or tokens[position] != wanted:
        found = tokens[position] if position < len(tokens) else ""
        raise SelectorError(f"unable to parse requirement: found {found!r}, expected {wanted!r} in {text!r}")
    return position + 1


def _word(tokens: list[str], position: int, text: str) -> str:
    if position >= len(tokens) or tokens[position] in _OPERATORS:
        found = tokens[position] if position < len(tokens) else ""
        raise SelectorError(f"unable to parse requirement: found {found!r}, expected: identifier in {text!r}")
    return tokens[position]


def _requirement(tokens: list[str], position: int, text: str) -> tuple[LabelSelectorRequirement, int]:
    if position < len(tokens) and tokens[position] == "!":
        return LabelSelectorRequirement(_word(tokens, position + 1, text), "DoesNotExist"), position + 2
    key = _word(tokens, position, text)
    position += 1
    if _at_end(tokens, position):
        return LabelSelectorRequirement(key, "Exists"), position
    match tokens[position]:
        case "=" | "==" | "!=" as operator:
            empty = _at_end(tokens, position + 1)
            value = "" if empty else _word(tokens, position + 1, text)
            requirement = LabelSelectorRequirement(key, "NotIn" if operator == "!=" else "In", (value,))
            return requirement, position + (1 if empty else 2)
        case "in" | "notin" as operator:
            position = _expect(tokens, position + 1, "(", text)
            values: list[str] = []
            while True:
                values.append(_word(tokens, position, text))
                position += 1
                if position < len(tokens) and tokens[position] == ",":
                    position += 1
                    continue
                requirement = LabelSelectorRequirement(key, "In" if operator == "in" else "NotIn", tuple(values))
                return requirement, _expect(tokens, position, ")", text)
        case other:
            raise SelectorError(f"unable to parse requirement: {other!r} is not an operator in {text!r}")


def _at_end(tokens: list[str], position: int) -> bool:
    return position == len(tokens) or tokens[position] == ","
