"""The moment of a decision: the time, and what was found out about the model since it last changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


class Moment:
    """The time at which the model is asked, and answers that hold until it changes.

    One per cycle or question. Whoever changes the model, if only for a trial that others ask in, needs `moved` or a
    moment of its own.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        #: how often quota or places were given or taken
        self.moves = 0
        self._known: dict[Hashable, Any] = {}

    def once(self, question: Hashable, find: Callable[[], T]) -> T:
        """The answer to a question, found when it is asked for the first time. It is not to be changed."""
        if question not in self._known:
            self._known[question] = find()
        answer: T = self._known[question]
        return answer

    def moved(self) -> None:
        """Something was given or taken."""
        self.moves += 1
        self._known.clear()
