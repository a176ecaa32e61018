"""Who uses how much of what: the usage of each ClusterQueue in the tree of cohorts, and whether more fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from serried.model.journal import Journal
from serried.quota.quotas import FlavorResource, Quotas
from serried.quota.tree import QuotaNode

_ONE = Fraction(1)


@dataclass(frozen=True)
class Shortage:
    """A flavor has less of a resource than is asked for. Amounts are in the units of `Quotas.nominal`."""

    fr: FlavorResource
    #: what the pod set asks for, and what earlier pod sets of the same workload take of the same
    requested: int
    before: int
    #: what is left now (below zero after quota was cut), and what there can be at most
    available: int
    maximum: int

    @property
    def missing(self) -> int:
        return self.before + self.requested - self.available

    @property
    def never(self) -> bool:
        """Whether this cannot fit even when nobody else uses anything."""
        return self.before + self.requested > self.maximum


class Ledger:
    """Usage per (ClusterQueue, flavor, resource) in the tree of cohorts, against the quotas of all of its nodes.

    Charging and refunding go through the journal. Quotas are the administrator's: an edit may leave usage above them,
    and then nothing more fits until enough is refunded. Usage outlives its queue, so that a ClusterQueue that is
    deleted and comes back still knows its running workloads.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: queue → quotas, name of its cohort ("": none), weight
        self._queues: dict[str, tuple[Quotas, str, Fraction]] = {}
        #: cohort → quotas, name of its parent ("": none), weight
        self._cohorts: dict[str, tuple[Quotas, str, Fraction]] = {}
        #: queue → what is in use: values > 0
        self._usage: dict[str, dict[FlavorResource, int]] = {}
        self._nodes: dict[tuple[bool, str], QuotaNode] = {}
        #: definitions have changed since the tree was built
        self._stale = False

    # --- what administrators say

    def set_quotas(self, queue: str, quotas: Quotas, cohort: str = "", weight: Fraction = _ONE) -> None:
        self._stale |= self._queues.get(queue) != (quotas, cohort, weight)
        self._queues[queue] = (quotas, cohort, weight)

    def remove_quotas(self, queue: str) -> None:
        self._stale |= self._queues.pop(queue, None) is not None

    def set_cohort(self, name: str, quotas: Quotas, parent: str = "", weight: Fraction = _ONE) -> None:
        self._stale |= self._cohorts.get(name) != (quotas, parent, weight)
        self._cohorts[name] = (quotas, parent, weight)

    def remove_cohort(self, name: str) -> None:
        """As long as anything names it, it still exists: without quota, and without a parent."""
        self._stale |= self._cohorts.pop(name, None) is not None

    def cycle_above(self, cohort: str) -> list[str]:
        """The cohorts that are each other's ancestors in a circle at or above this one; [] when there is none."""
        chain = self.ancestors(cohort)
        if not chain or chain[-1] not in self._cohorts:
            return []
        above = self._cohorts[chain[-1]][1]
        return chain[chain.index(above) :] if above else []

    def ancestors(self, cohort: str) -> list[str]:
        """A cohort and those above it, nearest first; [] for ""."""
        seen: dict[str, None] = {}
        while cohort and cohort not in seen:
            seen[cohort] = None
            cohort = self._cohorts[cohort][1] if cohort in self._cohorts else ""
        return list(seen)

    # --- the tree

    def queue(self, name: str) -> QuotaNode:
        """The node of a ClusterQueue; of one that is not there, one without quota."""
        self._recompute()
        return self._nodes.get((True, name)) or QuotaNode(name, True, Quotas())

    def cohort(self, name: str) -> QuotaNode | None:
        """The node of a Cohort, if it is defined or anything names it."""
        self._recompute()
        return self._nodes.get((False, name))

    def cohorts(self) -> list[QuotaNode]:
        self._recompute()
        return [node for node in self._nodes.values() if not node.is_queue]

    def tree_of(self, queue: str) -> str:
        """A name that is the same for all ClusterQueues that can lend to each other."""
        cohort = self._queues[queue][1] if queue in self._queues else ""
        return self.tree_above(cohort) if cohort else f"queue {queue}"

    def tree_above(self, cohort: str) -> str:
        """`tree_of` the queues of a cohort. A circle, in which nothing is above anything, goes by one member."""
        circle = self.cycle_above(cohort)
        return f"cohort {min(circle) if circle else self.ancestors(cohort)[-1]}"

    def _circles(self) -> set[str]:
        """All cohorts that are their own ancestors."""
        found: set[str] = set()
        seen: set[str] = set()
        for start in self._cohorts:
            chain: dict[str, None] = {}
            name = start
            while name in self._cohorts and name not in seen and name not in chain:
                chain[name] = None
                name = self._cohorts[name][1]
            if name in chain:
                members = list(chain)
                found.update(members[members.index(name) :])
            seen.update(chain)
        return found

    def _recompute(self) -> None:
        if not self._stale:
            return
        self._stale = False
        nodes: dict[tuple[bool, str], QuotaNode] = {}
        circles = self._circles()
        for name, (quotas, _, weight) in self._cohorts.items():
            nodes[False, name] = QuotaNode(name, False, quotas, weight)
        for name, (quotas, _, weight) in self._queues.items():
            nodes[True, name] = QuotaNode(name, True, quotas, weight, usage=self._usage.setdefault(name, {}))
        for is_queue, definitions in ((False, self._cohorts), (True, self._queues)):
            for name, (_, above, _) in definitions.items():
                if not above or (not is_queue and name in circles):
                    # In a circle nothing is above anything: its queues are told, and admit nothing.
                    continue
                parent = nodes.setdefault((False, above), QuotaNode(above, False, Quotas()))
                nodes[is_queue, name].parent = parent
                parent.children.append(nodes[is_queue, name])
        for name, usage in self._usage.items():
            if (True, name) not in nodes:
                nodes[True, name] = QuotaNode(name, True, Quotas(), usage=usage)
        self._nodes = nodes
        for node in list(nodes.values()):
            if node.parent is None:
                _recompute_below(node)

    # --- usage

    def usage(self, queue: str) -> Mapping[FlavorResource, int]:
        """What is in use, also of what the queue no longer declares."""
        return self._usage.get(queue, {})

    def maximum(self, queue: str, fr: FlavorResource) -> int:
        """The most there can be when nobody else uses anything."""
        return self.queue(queue).potential(fr)

    def available(self, queue: str, fr: FlavorResource) -> int:
        """What may still be charged; below zero if usage exceeds the quotas."""
        return self.queue(queue).available(fr)

    def fits(self, queue: str, amounts: Mapping[FlavorResource, int]) -> bool:
        """Whether all of it may be charged. Nothing asked for always fits."""
        node = self.queue(queue)
        return all(amount <= 0 or amount <= node.available(fr) for fr, amount in amounts.items())

    def charge(self, queue: str, amounts: Mapping[FlavorResource, int]) -> None:
        """Adds to the usage, whether it fits or not (what runs, runs)."""
        self._add(queue, amounts, 1)

    def refund(self, queue: str, amounts: Mapping[FlavorResource, int]) -> None:
        """Takes back what was charged with the same amounts."""
        self._add(queue, amounts, -1)

    def _add(self, queue: str, amounts: Mapping[FlavorResource, int], sign: int) -> None:
        node = self.queue(queue)
        if node.name not in self._usage:
            # It is not there, or not any more: its usage outlives it.
            node.usage = self._usage[queue] = {}
            self._nodes[True, queue] = node
        self._journal.record(lambda: _add(node, amounts, -sign, -1))
        _add(node, amounts, sign, 1)


def _add(node: QuotaNode, amounts: Mapping[FlavorResource, int], sign: int, change: int) -> None:
    for fr, amount in amounts.items():
        node.add(fr, sign * amount)
    for above in node.path():
        above.changes += change


def _recompute_below(node: QuotaNode) -> None:
    """Recomputes a node after everything below it, however deep."""
    order = [node]
    for found in order:
        order += found.children
    for found in reversed(order):
        found.recompute()
