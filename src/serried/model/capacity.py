"""What nodes have and what is left of it: one int64 column per resource, one row per node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_ROWS: Final[Ints] = np.zeros(0, dtype=np.int64)

PODS: Final = "pods"
#: What one charge or one node can count for. Real amounts are far below (70 TB); held there, the sum over 100,000 pods
#: of a node does not leave int64.
CHARGE_LIMIT: Final = 2**46
#: "As many as you like": what fits of a pod that asks for nothing. Kubernetes counts pods in 32 bits.
UNLIMITED: Final = 2**31 - 1


class Vector:
    """One pod's requests against the columns: `index` and `value` (int64), the pod itself (`pods`: 1) included.

    `missing` are resources asked for that no node has ever had, with the amounts: they have no column, and nothing of
    them is free.
    """

    __slots__ = ("index", "missing", "names", "value")

    def __init__(self, index: list[int], value: list[int], names: list[str], missing: Mapping[str, int]) -> None:
        self.index = np.array(index, dtype=np.int64)
        self.value = np.array(value, dtype=np.int64)
        self.names = names
        self.missing = missing


class Capacity:
    """The capacity arrays. All are (resources, rows) int64; cpu in millicores, everything else in units.

    `free` may go below zero: a node can shrink under its pods.
    """

    def __init__(self) -> None:
        #: resource → its line in the arrays
        self.lines: dict[str, int] = {PODS: 0}
        self.allocatable: Ints = np.zeros((4, 64), dtype=np.int64)
        #: allocatable - holds - pods that no hold accounts for
        self.free: Ints = np.zeros((4, 64), dtype=np.int64)
        #: allocatable - pods of no workload: what would be free if every workload were gone, and its pods with it
        self.unheld: Ints = np.zeros((4, 64), dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self.free.shape[1])

    def grow(self) -> None:
        """Doubles the number of rows."""
        self._resize(self.free.shape[0], self.rows * 2)

    def _line(self, resource: str) -> int:
        """The line of a resource, made if it is new."""
        line = self.lines.get(resource)
        if line is None:
            line = len(self.lines)
            if line == self.free.shape[0]:
                self._resize(line * 2, self.rows)
            self.lines[resource] = line
        return line

    def _resize(self, resources: int, rows: int) -> None:
        for name in ("allocatable", "free", "unheld"):
            old: Ints = getattr(self, name)
            new = np.zeros((resources, rows), dtype=np.int64)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)

    def vector(self, requests: Mapping[str, int]) -> Vector:
        """One pod's requests; zeros are left out, since nothing of a resource is needed to give nothing."""
        index: list[int] = []
        value: list[int] = []
        names: list[str] = []
        missing: dict[str, int] = {}
        for name in sorted({*requests, PODS}):
            amount = min(max(requests.get(name, 0), 0) + (name == PODS), CHARGE_LIMIT + 1)
            if amount <= 0:
                continue
            line = self.lines.get(name)
            if line is None:
                missing[name] = amount
            else:
                index.append(line)
                value.append(amount)
                names.append(name)
        return Vector(index, value, names, missing)

    def set_allocatable(self, row: int, amounts: Mapping[str, int]) -> set[str]:
        """What the node of this row has; what is not named it has none of. Returns the resources that no node had."""
        fresh = {name for name in amounts if name not in self.lines}
        new = np.zeros(self.free.shape[0], dtype=np.int64)
        for name, amount in amounts.items():
            line = self._line(name)
            if line >= len(new):
                new = np.concatenate([new, np.zeros(self.free.shape[0] - len(new), dtype=np.int64)])
            new[line] = min(max(amount, 0), CHARGE_LIMIT)
        change = new - self.allocatable[:, row]
        self.free[:, row] += change
        self.unheld[:, row] += change
        self.allocatable[:, row] = new
        return fresh


def amounts(vector: Vector, counts: Ints) -> Ints:
    """What `counts[j]` pods take at place j: (resources of the vector, places), each held at CHARGE_LIMIT."""
    if len(counts) == 0 or len(vector.value) == 0:
        return np.zeros((len(vector.value), len(counts)), dtype=np.int64)
    if int(vector.value.max()) * int(counts.max()) <= CHARGE_LIMIT:
        product: Ints = vector.value[:, None] * counts[None, :]
        return product
    exact = vector.value[:, None].astype(object) * counts[None, :].astype(object)
    held: Ints = np.minimum(exact, CHARGE_LIMIT).astype(np.int64)
    return held


def add(array: Ints, vector: Vector, rows: Ints, amount: Ints, sign: int) -> None:
    """Adds (sign 1) or takes (sign -1) amounts at rows, which must be distinct."""
    where = (vector.index[:, None], rows[None, :])
    if sign > 0:
        array[where] += amount
    else:
        array[where] -= amount


#: What is free of the resource of a line, at each of a number of places; an array of its own.
Free = Callable[[int], Ints]


def fits(free: Free, vector: Vector, places: int) -> Ints:
    """How many pods of this kind each place has room for: the least of free // request, not below 0."""
    if vector.missing:
        return np.zeros(places, dtype=np.int64)
    result = _least(free, zip(vector.index.tolist(), vector.value.tolist(), strict=True), places)
    return np.maximum(result, 0, out=result)


def fits_beside(free: Free, vector: Vector, other: Vector, places: int) -> tuple[Ints, Ints, Bools]:
    """As `fits`; the same beside one other pod; and whether that other pod fits at all."""
    takes = dict(zip(other.index.tolist(), other.value.tolist(), strict=True))
    wants = dict(zip(vector.index.tolist(), vector.value.tolist(), strict=True))
    # What the other pod does not ask for is the same with and without it.
    alone = _least(free, [(line, value) for line, value in wants.items() if line not in takes], places)
    beside = alone.copy()
    welcome = np.full(places, not other.missing)
    for line, taken in takes.items():
        here = free(line)
        welcome &= here >= taken
        if line in wants:
            np.minimum(beside, (here - taken) // wants[line], out=beside)
            np.minimum(alone, here // wants[line], out=alone)
    if vector.missing:
        return np.zeros_like(alone), np.zeros_like(beside), welcome
    return np.maximum(alone, 0, out=alone), np.maximum(beside, 0, out=beside), welcome


def _least(free: Free, wants: Iterable[tuple[int, int]], places: int) -> Ints:
    result: Ints = np.full(places, UNLIMITED, dtype=np.int64)
    for line, value in wants:
        count = free(line)
        if value > 1:
            np.floor_divide(count, value, out=count)
        np.minimum(result, count, out=result)
    return result


def limiting(free: Free, vector: Vector, places: int) -> tuple[Ints, list[str]]:
    """Which resource is the first to run out: (index into the names, per place), the names in alphabetical order.

    Of several resources that run out together it is the alphabetically first.
    """
    names = sorted([*vector.names, *vector.missing])
    known = dict(zip(vector.names, zip(vector.index.tolist(), vector.value.tolist(), strict=True), strict=True))
    least = np.full(places, np.iinfo(np.int64).max, dtype=np.int64)
    which = np.zeros(places, dtype=np.int64)
    for i, name in enumerate(names):
        if name in known:
            line, value = known[name]
            count = free(line) // value
        else:
            count = np.zeros(places, dtype=np.int64)
        less = count < least
        least[less] = count[less]
        which[less] = i
    return which, names
