"""What-if of many workloads at once: what nodes would gain if these left, with their pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from serried.api.meta import Key
from serried.model.capacity import CHARGE_LIMIT, Bools, Capacity, Ints, Vector
from serried.model.fit_cache import FitCache
from serried.model.pod_index import PodIndex

#: What a workload takes by pods of one kind: the requests of a pod, and row → how many pods.
Takes = tuple[Vector, Mapping[int, int]]


class Departures:
    """What each of some workloads would give back to nodes, as flat arrays: one entry per (workload, node, resource),
    in the order of the workloads.

    It is a picture of the moment it was made in. To let workloads leave for a trial is one addition, however many
    they are; see `World.leaving`.
    """

    def __init__(self, workloads: Iterable[tuple[Key, Iterable[Takes], Sequence[int]]]) -> None:
        """Of each workload what it takes, and its entries in the index of pods."""
        self.keys: list[Key] = []
        entries: list[int] = []
        entry_sizes: list[int] = []
        vectors: dict[int, Vector] = {}
        #: kind of pods → index into `vectors`
        codes: dict[int, int] = {}
        rows: list[int] = []
        counts: list[int] = []
        #: of each item of `workloads`: its workload, its kind of pods, its number of rows
        owners: list[int] = []
        kinds: list[int] = []
        sizes: list[int] = []
        for owner, (key, takes, own) in enumerate(workloads):
            self.keys.append(key)
            entries += own
            entry_sizes.append(len(own))
            for vector, at in takes:
                kind = codes.get(id(vector))
                if kind is None:
                    kind = codes[id(vector)] = len(codes)
                    vectors[kind] = vector
                owners.append(owner)
                kinds.append(kind)
                sizes.append(len(at))
                rows += at
                counts += at.values()
        #: entries of the index of pods, those of one workload after those of another, and how many each has
        self.entries: Ints = np.array(entries, dtype=np.int64)
        self.entry_sizes: Ints = np.array(entry_sizes, dtype=np.int64)
        #: of each entry: line and row of the capacity arrays, and the amount that comes free there
        self.lines: Ints
        self.rows: Ints
        self.amounts: Ints
        #: entries of each workload
        self.sizes: Ints
        self._expand(
            list(vectors.values()),
            np.repeat(np.array(owners, dtype=np.int64), sizes),
            np.repeat(np.array(kinds, dtype=np.int64), sizes),
            np.array(rows, dtype=np.int64),
            np.array(counts, dtype=np.int64),
            len(self.keys),
        )

    def _expand(
        self, vectors: Sequence[Vector], owner: Ints, kind: Ints, row: Ints, count: Ints, workloads: int
    ) -> None:
        """From one item per (workload, row) to one per resource of each."""
        lengths = np.array([len(v.index) for v in vectors], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        index = np.concatenate([v.index for v in vectors]) if vectors else np.zeros(0, dtype=np.int64)
        value = np.concatenate([v.value for v in vectors]) if vectors else np.zeros(0, dtype=np.int64)
        length = lengths[kind]
        item = np.repeat(np.arange(len(row)), length)
        within = np.arange(len(item)) - np.repeat(np.cumsum(length) - length, length)
        at = starts[kind][item] + within
        # As `capacity.amounts` charges them: each held at the limit, so the product must not leave 64 bits either.
        each = value[at]
        most = CHARGE_LIMIT // np.maximum(each, 1) + 1
        self.lines = index[at]
        self.rows = row[item]
        self.amounts = np.minimum(each * np.minimum(count[item], most), CHARGE_LIMIT)
        self.sizes = np.bincount(owner[item], minlength=workloads)

    def __len__(self) -> int:
        return len(self.sizes)

    def of(self, keys: Sequence[Key]) -> Departures:
        """Those of some of the workloads, in the order given."""
        at = np.array([self._index[key] for key in keys], dtype=np.int64)
        part = copy(self)
        part.keys, part.sizes, part.entry_sizes = list(keys), self.sizes[at], self.entry_sizes[at]
        entries = _runs(self.sizes, at)
        part.lines, part.rows, part.amounts = self.lines[entries], self.rows[entries], self.amounts[entries]
        part.entries = self.entries[_runs(self.entry_sizes, at)]
        part.__dict__.pop("_index", None)
        return part

    @cached_property
    def _index(self) -> dict[Key, int]:
        return {key: i for i, key in enumerate(self.keys)}

    def touching(self, rows: Ints, total: int) -> Bools:
        """Which of the workloads give back something on one of these rows, of `total`."""
        inside = np.zeros(total, dtype=np.bool_)
        inside[rows] = True
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        found: Bools = np.bincount(owner[inside[self.rows]], minlength=len(self.sizes)) > 0
        return found


def _runs(sizes: Ints, at: Ints) -> Ints:
    """Of runs of these sizes, one after the other, the indices of some."""
    starts, own = (np.cumsum(sizes) - sizes)[at], sizes[at]
    found: Ints = np.arange(int(own.sum())) + np.repeat(starts - (np.cumsum(own) - own), own)
    return found


class Leaving:
    """A trial in which some of the workloads of `Departures` have left; which ones can be changed at will."""

    def __init__(self, capacity: Capacity, fit_cache: FitCache, index: PodIndex, departures: Departures) -> None:
        self._capacity = capacity
        self._index = index
        self._counts = index.counts[departures.entries]
        self._fit_cache = fit_cache
        self.departures = departures
        #: which of the workloads have left
        self.left: Bools = np.zeros(len(departures), dtype=np.bool_)

    def set(self, left: Bools) -> None:
        """Just these have left."""
        departures = self.departures
        self._index.counts[departures.entries] = np.where(np.repeat(left, departures.entry_sizes), 0, self._counts)
        changed = np.repeat(left != self.left, departures.sizes)
        if changed.any():
            lines, rows, amounts = departures.lines[changed], departures.rows[changed], departures.amounts[changed]
            free = self._capacity.free
            sign = np.where(np.repeat(left, departures.sizes)[changed], 1, -1)
            np.add.at(free.reshape(-1), lines * free.shape[1] + rows, amounts * sign)
            self._fit_cache.touch(rows)
        self.left = left.copy()

    def first(self, count: int) -> None:
        """The first `count` have left, and nobody else."""
        self.set(np.arange(len(self.left)) < count)

    def none(self) -> None:
        self.first(0)
