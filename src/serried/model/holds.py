"""What a workload's placement takes from the nodes, from its admission until its release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from serried.api.meta import Key
from serried.api.names import HOSTNAME
from serried.model.capacity import Bools, Ints, Vector, fits
from serried.model.placement import Placement
from serried.model.pod_index import NO_KIND, PodKind
from serried.model.requests import PodSetRequest


@dataclass(eq=False)
class PodSetHold:
    """What the pods of one pod set hold, domain by domain.

    Everything is charged to rows (nodes). In a domain that is one host, that is clear. In a larger one kube-scheduler
    chooses the nodes: until a pod is seen on one, it is estimated where it would fit, and when it lands somewhere else
    in its domain, its charge moves there. So the domain's total is right at any time, and no node is promised twice.
    """

    workload: Key
    pod_set: str
    vector: Vector
    #: others must leave first: until they have, what is theirs is there beside it
    promised: bool = False
    #: labels that name a domain: kubernetes.io/hostname, or those of the topology's levels
    levels: tuple[str, ...] = ()
    #: labels that all nodes of these domains have: those of the flavor
    node_labels: Mapping[str, str] = field(default_factory=dict)
    #: values of these labels → index into `expected`
    domains: dict[tuple[str, ...], int] = field(default_factory=dict)
    #: per domain: row → pods charged there that have not been seen
    expected: list[dict[int, int]] = field(default_factory=list)
    #: pod → (its domain, its row)
    bound: dict[Key, tuple[int, int]] = field(default_factory=dict)
    #: row → pods charged there, seen or not
    charged: dict[int, int] = field(default_factory=dict)
    #: what others see of its pods
    kind: PodKind = NO_KIND
    #: row → entry in the index of pods for those expected there, while it is charged
    entries: dict[int, int] = field(default_factory=dict)

    def awaited(self) -> dict[int, int]:
        """Row → pods expected there, over all domains."""
        found: Counter[int] = Counter()
        for expected in self.expected:
            found.update(expected)
        return found

    def expect(self, values: tuple[str, ...], pods: dict[int, int]) -> None:
        """Adds a domain, or more pods in one, by row."""
        domain = self.domains.get(values)
        if domain is None:
            self.domains[values] = len(self.expected)
            self.expected.append(pods)
        else:
            for row, count in pods.items():
                self.expected[domain][row] = self.expected[domain].get(row, 0) + count
        for row, count in pods.items():
            self.charged[row] = self.charged.get(row, 0) + count

    def rows_and_counts(self) -> tuple[Ints, Ints]:
        size = len(self.charged)
        rows = np.fromiter(self.charged.keys(), dtype=np.int64, count=size)
        return rows, np.fromiter(self.charged.values(), dtype=np.int64, count=size)

    @property
    def wide(self) -> bool:
        """Whether its domains are larger than a host."""
        return bool(self.levels) and self.levels != (HOSTNAME,)

    @property
    def indexed(self) -> bool:
        """Whether it holds something on nodes that no pod of it is sure to take; see `HoldIndex`."""
        return self.promised or self.wide

    def estimated_on(self, row: int) -> int:
        """How many pods were promised on a row, or are only estimated there, somewhere in a larger domain."""
        if self.promised:
            return self.charged.get(row, 0)
        return sum(expected.get(row, 0) for expected in self.expected) if self.wide else 0

    def bind_seen(self, pod: Key, domain: int, row: int) -> int:
        """A pod was seen on a node of a domain in which pods are expected. Returns the row where it was charged."""
        expected = self.expected[domain]
        source = row if row in expected else next(reversed(expected))
        expected[source] -= 1
        if not expected[source]:
            del expected[source]
        self.bound[pod] = (domain, row)
        return source

    def leave(self, pod: Key) -> int:
        """A pod that was seen is gone: its place is expected to be filled again. Returns its domain."""
        domain, row = self.bound.pop(pod)
        self.expected[domain][row] = self.expected[domain].get(row, 0) + 1
        return domain


@dataclass(eq=False)
class Hold:
    """What one workload holds."""

    placements: tuple[Placement, ...]
    pod_sets: tuple[PodSetRequest, ...]
    parts: tuple[PodSetHold, ...]
    #: requests of a pod, and row → how many such pods: what it takes at any time
    takes: tuple[tuple[Vector, Mapping[int, int]], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.takes = tuple((part.vector, part.charged) for part in self.parts)


def short_rows(parts: Iterable[PodSetHold], free: Ints) -> set[int]:
    """The rows on which there is less than nothing of what parts take there."""
    found: set[int] = set()
    for part in parts:
        rows, _ = part.rows_and_counts()
        found.update(rows[(free[part.vector.index[:, None], rows[None, :]] < 0).any(axis=0)].tolist())
    return found


def estimate(array: Ints, usable: Bools, vector: Vector, rows: Ints, count: int) -> Ints:
    """How many of `count` pods to estimate at each of the rows of one domain.

    As many as fit, from the first row on. What then is left over (the domain is only large enough as a whole) goes
    to the first usable row.
    """
    here = usable[rows]
    room = np.where(here, fits(lambda line: array[line].take(rows), vector, len(rows)), 0)
    taken: Ints = np.clip(count - (np.cumsum(room) - room), 0, room)
    rest = count - int(taken.sum())
    if rest:
        taken[int(np.argmax(here))] += rest
    return taken


def by_name(pod_sets: Sequence[PodSetRequest]) -> dict[str, PodSetRequest]:
    return {pod_set.name: pod_set for pod_set in pod_sets}
