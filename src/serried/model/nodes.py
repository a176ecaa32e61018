"""The nodes, one row each, and their labels and taints in a form that is matched for all nodes at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serried.api import names as api_names
from serried.api.core import Node, Taint
from serried.api.quantity import QuantityError, resource_value
from serried.model.capacity import Bools, Ints

Codes = NDArray[np.int32]

#: Stands for the field metadata.name where a label key is expected (a key of Kubernetes cannot start with "/").
NAME_FIELD: Final = "/metadata.name"


class Column:
    """One label over all rows, dictionary-encoded: `codes[row]` is an index into `values`, -1 without the label."""

    __slots__ = ("_ranks", "_sorted", "codes", "index", "values")

    def __init__(self, rows: int) -> None:
        self.codes: Codes = np.full(rows, -1, dtype=np.int32)
        self.values: list[str] = []
        self.index: dict[str, int] = {}
        #: the values in order, and the place of each in it; from when it is first asked for
        self._sorted: list[str] = []
        self._ranks: Ints | None = None

    def set(self, row: int, value: str | None) -> None:
        if value is None:
            self.codes[row] = -1
            return
        code = self.index.get(value)
        if code is None:
            code = self.index[value] = len(self.values)
            self.values.append(value)
            if self._ranks is not None:
                place = bisect_left(self._sorted, value)
                self._sorted.insert(place, value)
                self._ranks[self._ranks >= place] += 1
                self._ranks = np.append(self._ranks, place)
        self.codes[row] = code

    def ranks(self) -> Ints:
        """Per code, a number: they compare as the values do (as bytes of UTF-8, which is as `str` does)."""
        if self._ranks is None:
            order = sorted(range(len(self.values)), key=self.values.__getitem__)
            self._sorted = [self.values[code] for code in order]
            self._ranks = np.empty(len(order), dtype=np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks

    def equals(self, value: str) -> Bools:
        """Where the label has this value."""
        found: Bools = self.codes == self.index.get(value, -2)
        return found

    def among(self, values: Collection[str]) -> Bools:
        """Where the label has one of these values."""
        table = np.zeros(len(self.values) + 1, dtype=np.bool_)
        table[[self.index[value] for value in values if value in self.index]] = True
        found: Bools = table[self.codes]
        return found

    def where(self, test: Callable[[str | None], bool]) -> Bools:
        """Where a test holds, which is asked once per distinct value, and once for None: the label is not there."""
        table = np.array([*map(test, self.values), test(None)], dtype=np.bool_)
        found: Bools = table[self.codes]
        return found


class Nodes:
    """All nodes by row. A row without a node (deleted, or not seen yet) has no labels and is not usable."""

    def __init__(self, rows: int) -> None:
        self.row_of: dict[str, int] = {}
        self.names: list[str] = [""] * rows
        #: the node as it was last seen; None for a row without one
        self.seen: list[Node | None] = [None] * rows
        #: ready and not cordoned
        self.usable: Bools = np.zeros(rows, dtype=np.bool_)
        #: index into `taints`
        self.taint_code: Codes = np.zeros(rows, dtype=np.int32)
        self.taints: list[tuple[Taint, ...]] = [()]
        self._taint_index: dict[tuple[tuple[str, str, str], ...], int] = {(): 0}
        #: value of the label kubernetes.io/hostname → rows, by node name; only the first has the hostname, the others
        #: are shadowed: an assignment could not tell them apart
        self.hosts: dict[str, list[int]] = {}
        self.shadowed: set[int] = set()
        self._columns: dict[str, Column] = {}
        #: label → nodes that have it; and the column of those that none has
        self._uses: Counter[str] = Counter()
        self._nowhere = Column(rows)
        #: pods and holds that refer to the row: it keeps its name while there are any
        self.references: Ints = np.zeros(rows, dtype=np.int64)
        self._free: list[int] = list(range(rows - 1, -1, -1))
        self._without_node: set[int] = set()
        #: row of a node that is gone → the labels it had
        self._labels_before: dict[int, Mapping[str, str]] = {}

    def claim(self, name: str) -> int:
        """A row for a node of this name, which has none yet; `len(names)` doubles when all are taken."""
        if not self._free:
            self._sweep()
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.row_of[name] = row
        self.names[row] = name
        self._without_node.add(row)
        return row

    def _sweep(self) -> None:
        """Takes back the rows of nodes that are gone and that nothing refers to any more."""
        for row in [r for r in self._without_node if self.references[r] == 0]:
            self._without_node.remove(row)
            self._labels_before.pop(row, None)
            del self.row_of[self.names[row]]
            self.names[row] = ""
            self._free.append(row)

    def _grow(self) -> None:
        old = len(self.names)
        self._free.extend(range(2 * old - 1, old - 1, -1))
        self.names.extend([""] * old)
        self.seen.extend([None] * old)
        self.usable = np.concatenate([self.usable, np.zeros(old, dtype=np.bool_)])
        self.taint_code = np.concatenate([self.taint_code, np.zeros(old, dtype=np.int32)])
        self.references = np.concatenate([self.references, np.zeros(old, dtype=np.int64)])
        for column in (self._nowhere, *self._columns.values()):
            column.codes = np.concatenate([column.codes, np.full(old, -1, dtype=np.int32)])

    def labels(self, row: int) -> Mapping[str, str]:
        node = self.seen[row]
        return {} if node is None else node.metadata.labels

    def last_labels(self, row: int) -> Mapping[str, str]:
        """The labels of a node, or those it had before it was gone."""
        node = self.seen[row]
        return self._labels_before.get(row, {}) if node is None else node.metadata.labels

    def put(self, row: int, node: Node | None) -> set[str]:
        """Sets or clears the node of a row. Returns the label keys whose value changed."""
        before = self.labels(row)
        after = {} if node is None else node.metadata.labels
        if before is after or before == after:
            changed: set[str] = set()
        else:
            changed = {k for k, v in before.items() if after.get(k) != v} | (after.keys() - before.keys())
        if (node is None) != (self.seen[row] is None):
            changed.add(NAME_FIELD)
            if node is None:
                self._without_node.add(row)
                self._labels_before[row] = before
            else:
                self._without_node.discard(row)
                self._labels_before.pop(row, None)
        if api_names.HOSTNAME in changed:
            self._set_hostname(row, before.get(api_names.HOSTNAME), after.get(api_names.HOSTNAME))
        self.seen[row] = node
        for key in changed:
            self._count(key, (key in after) - (key in before))
            column = self._columns.get(key)
            if column is not None:
                column.set(row, self._value(row, key))
                if len(column.values) > 2 * len(self.names) + 1024:  # values of nodes long gone: encode anew
                    del self._columns[key]
        self.usable[row] = node is not None and not node.spec.unschedulable and is_ready(node)
        self.taint_code[row] = 0 if node is None else self._taints(node)
        return changed

    def _count(self, key: str, more: int) -> None:
        """A label is on so many nodes more. What no node has is not remembered."""
        if not more:
            return
        self._uses[key] += more
        if not self._uses[key]:
            del self._uses[key]
            self._columns.pop(key, None)

    def _set_hostname(self, row: int, before: str | None, after: str | None) -> None:
        self.shadowed.discard(row)
        if before is not None:
            rows = self.hosts[before]
            rows.remove(row)
            self.shadowed.difference_update(rows[:1])
            if not rows:
                del self.hosts[before]
        if after is not None:
            rows = self.hosts.setdefault(after, [])
            rows.append(row)
            rows.sort(key=self.names.__getitem__)
            self.shadowed.discard(rows[0])
            self.shadowed.update(rows[1:])

    def _taints(self, node: Node) -> int:
        key = tuple((t.key, t.value, t.effect) for t in node.spec.taints)
        code = self._taint_index.get(key)
        if code is None:
            code = self._taint_index[key] = len(self.taints)
            self.taints.append(tuple(node.spec.taints))
        return code

    def _value(self, row: int, key: str) -> str | None:
        node = self.seen[row]
        if node is None:
            return None
        return node.metadata.name if key == NAME_FIELD else node.metadata.labels.get(key)

    def column(self, key: str) -> Column:
        """A label over all rows; encoded when first asked for, then kept up to date."""
        column = self._columns.get(key)
        if column is None:
            if key != NAME_FIELD and key not in self._uses:
                return self._nowhere
            column = Column(len(self.names))
            for row in range(len(self.names)):
                column.set(row, self._value(row, key))
            self._columns[key] = column
        return column


def is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def same_for_placement(a: Node, b: Node) -> bool:
    """Whether two states of a node are the same to placement: a heartbeat changes nothing of this."""
    return (
        a.spec.unschedulable == b.spec.unschedulable
        and is_ready(a) == is_ready(b)
        and a.metadata.labels == b.metadata.labels
        and a.status.allocatable == b.status.allocatable
        and a.spec.taints == b.spec.taints
    )


def allocatable(node: Node) -> dict[str, int]:
    """What a node has; what cannot be read it has none of."""
    found: dict[str, int] = {}
    for name, quantity in node.status.allocatable.items():
        try:
            found[name] = resource_value(name, quantity)
        except QuantityError:
            found[name] = 0
    return found
