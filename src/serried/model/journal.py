"""One journal for every trial: apply, look, roll back (principle 3 of the architecture)."""

from __future__ import annotations

from collections.abc import Callable


class Journal:
    """Records how to take back each change to the model.

    A trial is `mark = journal.checkpoint()`, then changes, then `journal.rollback(mark)`, or `journal.commit()` to
    keep them.
    Whatever a trial touches, caches and reasons included, records its undo here *before* it changes.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    @property
    def empty(self) -> bool:
        """Whether no trial is under way."""
        return not self._undo

    def checkpoint(self) -> int:
        return len(self._undo)

    def record(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def rollback(self, mark: int) -> None:
        """Takes back everything recorded since `mark`, last change first."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def commit(self) -> None:
        """Keeps everything recorded so far: nothing of it can be rolled back any more."""
        self._undo.clear()
