"""How many pods of a kind there is room for at each row, worked out anew only where something has changed since."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from serried.model.capacity import UNLIMITED, Capacity, Ints, Vector, fits, fits_beside

#: Kinds of pods that are remembered, at most, and so many bytes of them (8 for each row, 24 beside another pod).
_KINDS: Final = 1024
_BYTES: Final = 2**25
#: Amounts that are worked out all at once; of more, one resource after the other, to need less memory.
_FEW: Final = 16_384

_Key = tuple[bool, bytes, bytes, bytes, bytes]


@dataclass(eq=False)
class _Remembered:
    #: by row: pods that fit; the same beside the other pod; whether that fits (the last two as the first
    #: without one)
    pods: Ints
    beside: Ints
    welcome: Ints
    #: how many changes it has seen
    seen: int


class FitCache:
    """Remembers what fits, for the kinds of pods asked for last. Trials and their undoing are changes like others."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[_Key, _Remembered] = OrderedDict()
        #: how many changes there were, and which was the last one of each row
        self._changes = 0
        self._changed: Ints = np.zeros(capacity.rows, dtype=np.int64)

    def touch(self, rows: Ints) -> None:
        """What is free at these rows is not what it was."""
        if len(self._changed) != self._capacity.rows:
            self._changed = np.resize(self._changed, self._capacity.rows)
        self._changes += 1
        self._changed[rows] = self._changes

    def of(self, vector: Vector, *, assume_empty: bool) -> Ints:
        """How many pods of this kind each row has room for; with `assume_empty`, if every workload were gone.

        The array (rows,) is not to be changed.
        """
        return self._entry(vector, None, assume_empty=assume_empty).pods

    def beside(self, vector: Vector, other: Vector, *, assume_empty: bool) -> tuple[Ints, Ints, Ints]:
        """The same; beside one other pod; and 1 where that other pod fits."""
        entry = self._entry(vector, other, assume_empty=assume_empty)
        return entry.pods, entry.beside, entry.welcome

    def _entry(self, vector: Vector, other: Vector | None, *, assume_empty: bool) -> _Remembered:
        array = self._capacity.unheld if assume_empty else self._capacity.free
        rows = self._capacity.rows
        key = (assume_empty, *_bytes(vector), *_bytes(other))
        entry = self._entries.get(key)
        if entry is None or len(entry.pods) != rows:
            entry = self._entries[key] = _Remembered(*_work_out(array, vector, other, np.arange(rows)), self._changes)
            if len(self._entries) > min(_KINDS, max(4, _BYTES // (8 * rows))):
                self._entries.popitem(last=False)
        elif entry.seen < self._changes:
            some = np.flatnonzero(self._changed > entry.seen)
            pods, beside, welcome = _work_out(array, vector, other, some)
            entry.pods[some] = pods
            if other is not None:
                entry.beside[some], entry.welcome[some] = beside, welcome
            entry.seen = self._changes
        self._entries.move_to_end(key)
        return entry


def _bytes(vector: Vector | None) -> tuple[bytes, bytes]:
    """Vectors that are equal here have room alike; what no node has ever had has no line, and is marked."""
    if vector is None:
        return b"", b""
    return vector.index.tobytes() + b"?" * bool(vector.missing), vector.value.tobytes()


def _work_out(array: Ints, vector: Vector, other: Vector | None, rows: Ints) -> tuple[Ints, Ints, Ints]:
    def free(line: int) -> Ints:
        found: Ints = array[line].take(rows)
        return found

    if other is not None:
        pods, beside, welcome = fits_beside(free, vector, other, len(rows))
        return pods, beside, welcome.astype(np.int64)
    if len(rows) * len(vector.index) <= _FEW and not vector.missing:
        shares: Ints = array[vector.index[:, None], rows[None, :]] // vector.value[:, None]
        pods = np.clip(shares.min(axis=0, initial=UNLIMITED), 0, None)
    else:
        pods = fits(free, vector, len(rows))
    return pods, pods, pods
