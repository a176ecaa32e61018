"""Who is on which node: pods that run there and pods that are planned there, in a form that is matched all at once.

An entry is one pod, or all pods of one kind that are planned on one node. Labels are encoded as those of nodes are,
each from when it is first asked for; a label that no pod has costs nothing.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from serried.model.capacity import Bools, Ints
from serried.model.filters import matches
from serried.model.nodes import Codes, Column
from serried.model.pod_constraints import NO_CONSTRAINTS, Constraints, HostPort, PodTerm, Selector

T = TypeVar("T", bound=Hashable)

#: Labels of pods that are kept encoded, at most.
_COLUMNS: Final = 256

#: Where a term of anti-affinity is looked up: (namespace, label, value) of the pods it selects; None: any.
_Handle = tuple[str | None, str | None, str | None]


@dataclass(frozen=True)
class PodKind:
    """What the filters know of a pod, or of pods that are alike."""

    namespace: str
    labels: Mapping[str, str]
    constraints: Constraints = NO_CONSTRAINTS

    @property
    def labels_asked_for(self) -> Mapping[str, str]:
        """Those of its labels that its own constraints are about."""
        asked = self.constraints.label_keys()
        return {key: value for key, value in self.labels.items() if key in asked}


#: Pods of which nothing is known.
NO_KIND: Final = PodKind("", {})


class PodIndex:
    """The entries, in arrays of which the first `size` are in use or free again (with a count of 0)."""

    def __init__(self) -> None:
        self.size = 0
        self.rows: Ints = np.zeros(64, dtype=np.int64)
        #: pods of the entry; 0: it is free
        self.counts: Ints = np.zeros(64, dtype=np.int64)
        #: pods that are being deleted: topology spread does not count them
        self.leaving: Bools = np.zeros(64, dtype=np.bool_)
        #: pods of workloads, and pods planned for them
        self.held: Bools = np.zeros(64, dtype=np.bool_)
        self.anti_affinity = _Values[tuple[PodTerm, ...]](64, ())
        self.ports = _Values[tuple[HostPort, ...]](64, ())
        self._labels: NDArray[Any] = np.empty(64, dtype=object)
        self._namespaces = Column(64)
        self._columns: OrderedDict[str, Column] = OrderedDict()
        #: label → entries that have it
        self._uses: Counter[str] = Counter()
        self._free: list[int] = []
        #: what may match a pod → codes of `anti_affinity` in which it is
        self._terms: dict[_Handle, set[int]] = {}
        #: (protocol, port) → codes of `ports`
        self._ports: dict[tuple[str, int], set[int]] = {}

    # --- changes

    def add(self, kind: PodKind, rows: Ints, counts: Ints, *, leaving: bool = False, held: bool = False) -> Ints:
        """Adds pods of one kind, so many at each row. Returns their entries."""
        entries = self._claim(len(rows))
        if not len(rows):
            return entries
        self.rows[entries], self.counts[entries] = rows, counts
        self.leaving[entries], self.held[entries] = leaving, held
        self._labels[entries] = kind.labels
        _encode(self._namespaces, entries, kind.namespace)
        for key in kind.labels:
            self._uses[key] += len(entries)
        for key, column in self._columns.items():
            _encode(column, entries, kind.labels.get(key))
        constraints = kind.constraints
        if constraints is not NO_CONSTRAINTS:
            self._set(self.anti_affinity, self._terms, entries, constraints.anti_affinity, _handles)
            self._set(self.ports, self._ports, entries, constraints.ports, _port_handles)
        return entries

    def set_counts(self, entries: Sequence[int], counts: Ints | int) -> None:
        """How many pods entries stand for; none at all for a while, in a trial."""
        self.counts[entries] = counts

    def remove(self, entries: Ints) -> None:
        if not len(entries):
            return
        for key in self._labels[int(entries[0])]:
            self._uses[key] -= len(entries)
            if self._uses[key] <= 0:
                del self._uses[key]
                self._columns.pop(key, None)
        self.counts[entries] = 0
        self._labels[entries] = None
        self._clear(self.anti_affinity, self._terms, entries, _handles)
        self._clear(self.ports, self._ports, entries, _port_handles)
        self._free.extend(entries.tolist())

    def _set(
        self,
        values: _Values[T],
        index: dict[Any, set[int]],
        entries: Ints,
        value: T,
        handles: Callable[[T], Iterable[Hashable]],
    ) -> None:
        code = values.set(entries, value)
        if code is not None:
            for handle in handles(value):
                index.setdefault(handle, set()).add(code)

    def _clear(
        self,
        values: _Values[T],
        index: dict[Any, set[int]],
        entries: Ints,
        handles: Callable[[T], Iterable[Hashable]],
    ) -> None:
        for code, value in values.clear(entries):
            for handle in set(handles(value)):
                index[handle].discard(code)
                if not index[handle]:
                    del index[handle]

    def _claim(self, number: int) -> Ints:
        """So many free entries."""
        while len(self._free) < number:
            while self.size + number > len(self.rows):
                self._grow()
            self._free.extend(range(self.size + number - 1, self.size - 1, -1))
            self.size += number
        found = np.array(self._free[len(self._free) - number :], dtype=np.int64)
        del self._free[len(self._free) - number :]
        return found

    def _grow(self) -> None:
        old = len(self.rows)
        self.rows = np.concatenate([self.rows, np.zeros(old, dtype=np.int64)])
        self.counts = np.concatenate([self.counts, np.zeros(old, dtype=np.int64)])
        self.leaving = np.concatenate([self.leaving, np.zeros(old, dtype=np.bool_)])
        self.held = np.concatenate([self.held, np.zeros(old, dtype=np.bool_)])
        self._labels = np.concatenate([self._labels, np.empty(old, dtype=object)])
        for column in (self._namespaces, *self._columns.values()):
            column.codes = np.concatenate([column.codes, np.full(old, -1, dtype=np.int32)])
        for values in (self.anti_affinity, self.ports):
            values.codes = np.concatenate([values.codes, np.zeros(old, dtype=np.int32)])

    # --- questions

    def without_workloads(self) -> PodIndex:
        """What it would be if every workload were gone, and its pods with it; to be asked only, and before changes."""
        found = copy.copy(self)
        found.counts = np.where(self.held, 0, self.counts)
        return found

    def repels(self) -> bool:
        """Whether any pod has anti-affinity."""
        return bool(self._terms)

    def selected(self, selector: Selector | None, namespaces: Collection[str] | None) -> Bools:
        """Which entries are pods that a selector selects, in some namespaces (None: in all)."""
        found: Bools = self.counts[: self.size] > 0
        if selector is None:
            found[:] = False
            return found
        if namespaces is not None:
            found &= self._namespaces.among(namespaces)[: self.size]
        for requirement in selector.requirements:
            column = self._column(requirement.key)
            if column is not None:
                found &= matches(column, requirement.wire)[: self.size]
            elif requirement.operator not in ("NotIn", "DoesNotExist"):
                found[:] = False
        return found

    def by_row(self, entries: Bools, rows: int) -> Ints:
        """How many pods each of the first `rows` rows has in some entries."""
        at = np.flatnonzero(entries)
        counted: Ints = np.bincount(self.rows[at], self.counts[at], minlength=rows).astype(np.int64)
        return counted

    def repelled(self, kind: PodKind, namespace_labels: Mapping[str, str]) -> Iterator[tuple[str, Ints]]:
        """Whose anti-affinity keeps a pod off: (node label, rows of the pods that have a term which selects it)."""
        if not self._terms:
            return
        found: dict[str, set[int]] = {}
        for code in set().union(*(self._terms.get(handle, ()) for handle in _handles_of_pod(kind))):
            for term in self.anti_affinity.values[code] or ():
                if term.selects(kind.namespace, namespace_labels, kind.labels):
                    found.setdefault(term.key, set()).add(code)
        for key, codes in found.items():
            yield key, self._rows_of(self.anti_affinity, codes)

    def in_use(self, ports: Iterable[HostPort]) -> Ints:
        """The rows of the pods that have one of these host ports."""
        codes = {
            code
            for port in ports
            for code in self._ports.get((port.protocol, port.port), ())
            if any(port.conflicts(other) for other in self.ports.values[code] or ())
        }
        return self._rows_of(self.ports, codes)

    def _rows_of(self, values: _Values[T], codes: Collection[int]) -> Ints:
        if not codes:
            return self.rows[:0]
        table = np.zeros(len(values.values), dtype=np.bool_)
        table[list(codes)] = True
        return self.rows[: self.size][table[values.codes[: self.size]] & (self.counts[: self.size] > 0)]

    def _column(self, key: str) -> Column | None:
        """A label over all entries; None where no pod has it."""
        column = self._columns.get(key)
        if column is not None and len(column.values) > 2 * len(self.rows) + 1024:  # values of pods long gone
            column = None
        if column is None:
            if key not in self._uses:
                return None
            if len(self._columns) >= _COLUMNS:
                self._columns.popitem(last=False)
            column = self._columns[key] = Column(len(self.rows))
            for entry in np.flatnonzero(self.counts[: self.size]).tolist():
                column.set(entry, self._labels[entry].get(key))
        self._columns.move_to_end(key)
        return column


class _Values(Generic[T]):
    """A value for each entry, dictionary-encoded and counted: `codes[entry]` is an index into `values`, 0 for none."""

    def __init__(self, entries: int, nothing: T) -> None:
        self.codes: Codes = np.zeros(entries, dtype=np.int32)
        #: None: the code is free
        self.values: list[T | None] = [nothing]
        self._index: dict[T, int] = {nothing: 0}
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def set(self, entries: Ints, value: T) -> int | None:
        """Gives entries without one a value. Returns its code if it is a new one."""
        code = self._index.get(value)
        if code == 0:
            return None
        new = code is None
        if code is None:
            if not self._free:
                self._free.append(len(self.values))
                self.values.append(None)
                self._uses.append(0)
            code = self._index[value] = self._free.pop()
            self.values[code] = value
        self._uses[code] += len(entries)
        self.codes[entries] = code
        return code if new else None

    def clear(self, entries: Ints) -> list[tuple[int, T]]:
        """Takes the value, which is the same, from entries. Returns (code, value) if nothing has it any more."""
        code = int(self.codes[int(entries[0])])
        value = self.values[code]
        if not code or value is None:
            return []
        self.codes[entries] = 0
        self._uses[code] -= len(entries)
        if self._uses[code]:
            return []
        self.values[code] = None
        del self._index[value]
        self._free.append(code)
        return [(code, value)]


def _encode(column: Column, entries: Ints, value: str | None) -> None:
    """Gives several entries the same value."""
    column.set(int(entries[0]), value)
    column.codes[entries] = column.codes[int(entries[0])]


def _handles(terms: tuple[PodTerm, ...]) -> Iterator[_Handle]:
    """Where terms are looked up: each pod that one of them selects has one of these handles."""
    for term in terms:
        if term.selector is None:
            continue
        required = [r for r in term.selector.requirements if r.operator in ("In", "Exists")]
        best = min(required, key=lambda r: r.operator == "Exists", default=None)
        for namespace in term.namespaces if term.namespace_selector is None else (None,):
            if best is None:
                yield namespace, None, None
            elif best.operator == "Exists":
                yield namespace, best.key, None
            else:
                for value in best.values:
                    yield namespace, best.key, value


def _handles_of_pod(kind: PodKind) -> Iterator[_Handle]:
    for namespace in (kind.namespace, None):
        yield namespace, None, None
        for key, value in kind.labels.items():
            yield namespace, key, value
            yield namespace, key, None


def _port_handles(ports: tuple[HostPort, ...]) -> Iterator[tuple[str, int]]:
    for port in ports:
        yield port.protocol, port.port
