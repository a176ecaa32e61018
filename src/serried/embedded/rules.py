"""The CEL rules of custom resource definitions (`x-kubernetes-validations`), in the part of the language they use.

Understood: `self` and `oldSelf`; fields and indexes; text, whole numbers, true, false, null; ! && || == != < <= > >=
+ -; has(), size(), and on lists all(), exists(), exists_one(). Anything else is an error when the rule is read.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from serried.embedded.patch import same

#: What the names in a rule stand for.
Scope = Mapping[str, Any]
_Expression = Callable[[Scope], Any]


class RuleError(ValueError):
    """A rule is not understood."""


_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<text>'[^'\\]*'|\"[^\"\\]*\")|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[!=<>]=|[-+!<>.,()\[\]]))"
)
_LITERALS: Final = {"true": True, "false": False, "null": None}
_LEVELS: Final[tuple[dict[str, Callable[[Any, Any], Any]], ...]] = (
    {"==": same, "!=": lambda left, right: not same(left, right)},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
)


class Rule:
    """One rule, ready to be asked. `is_transition` rules compare with the earlier version of the value."""

    def __init__(self, rule: str) -> None:
        """Raises `RuleError` when the rule is not understood."""
        parser = _Parser(rule)
        self._holds = parser.whole()
        self.is_transition = "oldSelf" in parser.names

    def holds(self, value: Any, old: Any = None) -> bool:
        """Whether the value satisfies the rule. One that asks for a field that is not there counts as not satisfied."""
        try:
            return self._holds({"self": value, "oldSelf": old}) is True
        except (TypeError, KeyError, IndexError):
            return False


class _Parser:
    """Reads a rule into nested functions, by recursive descent."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._tokens: list[tuple[str, str]] = []
        self.names: set[str] = set()
        end = 0
        rule = rule.rstrip()
        while end < len(rule):
            match = _TOKEN.match(rule, end)
            if match is None:
                raise RuleError(f"{rule!r} is not understood from {rule[end:]!r} on")
            kind = str(match.lastgroup)
            self._tokens.append((kind, match[kind]))
            end = match.end()
        self._tokens.append(("end", ""))
        self._next = 0

    def whole(self) -> _Expression:
        found = self._either()
        if self._tokens[self._next][0] != "end":
            raise self._unexpected()
        return found

    def _unexpected(self) -> RuleError:
        return RuleError(f"{self._rule!r} is not understood at {self._tokens[self._next][1]!r}")

    def _take(self, *signs: str) -> str:
        """The next token if it is one of these signs, else ""."""
        kind, text = self._tokens[self._next]
        if kind == "sign" and text in signs:
            self._next += 1
            return text
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected()

    def _name(self) -> str:
        kind, text = self._tokens[self._next]
        if kind != "name":
            raise self._unexpected()
        self._next += 1
        return text

    # In CEL, a side that decides an && or || does so even if the other side is an error. Ours look at the left side
    # first, which is the same for rules that put has() there.

    def _either(self) -> _Expression:
        left = self._both()
        while self._take("||"):
            left = _or(left, self._both())
        return left

    def _both(self) -> _Expression:
        left = self._level(0)
        while self._take("&&"):
            left = _and(left, self._level(0))
        return left

    def _level(self, level: int) -> _Expression:
        if level == len(_LEVELS):
            return self._negated()
        left = self._level(level + 1)
        while sign := self._take(*_LEVELS[level]):
            left = _binary(_LEVELS[level][sign], left, self._level(level + 1))
        return left

    def _negated(self) -> _Expression:
        if self._take("!"):
            inner = self._negated()
            return lambda scope: not _bool(inner(scope))
        return self._path(self._atom())

    def _atom(self) -> _Expression:
        kind, text = self._tokens[self._next]
        if self._take("("):
            inner = self._either()
            self._expect(")")
            return inner
        if kind == "number":
            self._next += 1
            return lambda scope: int(text)
        if kind == "text":
            self._next += 1
            return lambda scope: text[1:-1]
        name = self._name()
        if name in _LITERALS:
            return lambda scope: _LITERALS[name]
        if name == "has":
            return self._has()
        if name == "size" and self._take("("):
            inner = self._either()
            self._expect(")")
            return lambda scope: len(inner(scope))
        self.names.add(name)
        return lambda scope: scope[name]

    def _has(self) -> _Expression:
        """has(a.b): whether a has a field b."""
        self._expect("(")
        owner: _Expression = self._atom()
        field = ""
        while self._take("."):
            if field:
                owner = _field(owner, field)
            field = self._name()
        self._expect(")")
        if not field:
            raise self._unexpected()
        return lambda scope: field in owner(scope)

    def _path(self, owner: _Expression) -> _Expression:
        while True:
            if self._take("."):
                name = self._name()
                owner = self._call(owner, name) if self._take("(") else _field(owner, name)
            elif self._take("["):
                owner = _index(owner, self._either())
                self._expect("]")
            else:
                return owner

    def _call(self, owner: _Expression, name: str) -> _Expression:
        if name == "size":
            self._expect(")")
            return lambda scope: len(owner(scope))
        if name not in ("all", "exists", "exists_one"):
            raise self._unexpected()
        variable = self._name()
        self._expect(",")
        inner = self._either()
        self._expect(")")

        def answers(scope: Scope) -> list[bool]:
            return [_bool(inner({**scope, variable: item})) for item in owner(scope)]

        match name:
            case "all":
                return lambda scope: all(answers(scope))
            case "exists":
                return lambda scope: any(answers(scope))
            case _:
                return lambda scope: sum(answers(scope)) == 1


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _or(left: _Expression, right: _Expression) -> _Expression:
    return lambda scope: _bool(left(scope)) or _bool(right(scope))


def _and(left: _Expression, right: _Expression) -> _Expression:
    return lambda scope: _bool(left(scope)) and _bool(right(scope))


def _binary(act: Callable[[Any, Any], Any], left: _Expression, right: _Expression) -> _Expression:
    return lambda scope: act(left(scope), right(scope))


def _field(owner: _Expression, name: str) -> _Expression:
    return lambda scope: owner(scope)[name]


def _index(owner: _Expression, index: _Expression) -> _Expression:
    return lambda scope: owner(scope)[index(scope)]
