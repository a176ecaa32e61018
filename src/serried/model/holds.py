"""What a workload's placement takes from the nodes, from its admission until its release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from serried.api.meta import Key
from serried.api.names import HOSTNAME
from serried.model.capacity import Bools, Ints, Vector, fits
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest


@dataclass(eq=False)
class PodSetHold:
    """What the pods of one pod set hold, domain by domain.

    Everything is charged to rows (nodes). In a domain that is one host, that is clear. In a larger one kube-scheduler
    chooses the nodes: until a pod is seen on one, it is reckoned where it would fit, and when it lands somewhere else
    in its domain, its charge moves there. So the domain's total is right at any time, and no node is promised twice.
    """

    pod_set: str
    vector: Vector
    #: labels that name a domain: kubernetes.io/hostname, or those of the topology's levels
    levels: tuple[str, ...] = ()
    #: labels that all nodes of these domains have: those of the flavor
    node_labels: Mapping[str, str] = field(default_factory=dict)
    #: values of these labels → index into `expected`
    domains: dict[tuple[str, ...], int] = field(default_factory=dict)
    #: per domain: row → pods charged there that have not been seen
    expected: list[dict[int, int]] = field(default_factory=list)
    #: pod → (its domain, its row)
    landed: dict[Key, tuple[int, int]] = field(default_factory=dict)
    #: row → pods charged there, seen or not
    charged: dict[int, int] = field(default_factory=dict)

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

    def bind_seen(self, pod: Key, domain: int, row: int) -> int:
        """A pod was seen on a node of a domain in which pods are expected. Returns the row where it was charged."""
        expected = self.expected[domain]
        source = row if row in expected else next(reversed(expected))
        expected[source] -= 1
        if not expected[source]:
            del expected[source]
        self.landed[pod] = (domain, row)
        return source

    def leave(self, pod: Key) -> int:
        """A pod that had landed is gone: its place is expected to be filled again. Returns its domain."""
        domain, row = self.landed.pop(pod)
        self.expected[domain][row] = self.expected[domain].get(row, 0) + 1
        return domain


@dataclass(eq=False)
class Hold:
    """What one workload holds."""

    placements: tuple[Placement, ...]
    pod_sets: tuple[PodSetRequest, ...]
    shares: tuple[PodSetHold, ...]
    #: it is for a workload that waits until others have left: what is theirs is still there beside it
    promised: bool = False
    #: some of its domains are larger than a host
    wide: bool = field(init=False)

    def __post_init__(self) -> None:
        self.wide = any(share.wide for share in self.shares)

    def not_yet(self) -> Iterator[tuple[Vector, int, int]]:
        """What no pod of this workload is sure to take on a node: (pod, row, how many) that it was promised there, or
        that are only reckoned there, somewhere in a larger domain."""
        for share in self.shares:
            for charged in [share.charged] if self.promised else share.expected if share.wide else []:
                for row, count in charged.items():
                    yield share.vector, row, count


def short_rows(shares: Iterable[PodSetHold], free: Ints) -> set[int]:
    """The rows on which there is less than nothing of what shares take there."""
    found: set[int] = set()
    for share in shares:
        rows, _ = share.rows_and_counts()
        found.update(rows[(free[share.vector.index[:, None], rows[None, :]] < 0).any(axis=0)].tolist())
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
