"""The tree of cohorts: what each node has, lends, uses and may still use.

A node is a ClusterQueue (a leaf) or a Cohort. Of what a node has, the part beyond its lending limit stays its own
(`guaranteed`); the rest, and what it uses beyond its own part, counts in its parent. The rules are Kueue's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, total_ordering

from serried.api.quantity import LIMIT
from serried.quota.quotas import FlavorResource, Quotas

_NONE: Mapping[FlavorResource, int] = {}


def plus(a: int, b: int) -> int:
    """A sum of amounts >= 0; what is unlimited (`LIMIT`) stays so."""
    return LIMIT if a >= LIMIT or b >= LIMIT else min(LIMIT, a + b)


def minus(a: int, b: int) -> int:
    """A difference of amounts; what is unlimited stays so."""
    return LIMIT if a >= LIMIT else a - b


@dataclass(eq=False)
class QuotaNode:
    """A ClusterQueue or a Cohort in the tree. Amounts: cpu in millicores, everything else in units."""

    name: str
    is_queue: bool
    quotas: Quotas
    #: of fair sharing, >= 0
    weight: Fraction = Fraction(1)
    parent: QuotaNode | None = None
    children: list[QuotaNode] = field(default_factory=list)
    #: quota of the node and of what its children lend
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    #: the part of it that nobody else may use; only amounts > 0
    guaranteed: dict[FlavorResource, int] = field(default_factory=dict)
    #: what is used of `subtree`, by its children beyond their own part, too; only amounts other than 0
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    #: flavor and resource → those children that use more of it than their quota
    borrowers: dict[FlavorResource, dict[QuotaNode, None]] = field(default_factory=dict)
    #: how often usage here or below was changed; what was rolled back does not count
    changes: int = 0
    #: 0 for a ClusterQueue, 1 for a Cohort of nothing but those, and so on
    height: int = 0
    #: what its children can get at most, summed over flavors; worked out when first asked for
    _lendable: dict[str, int] | None = None

    # --- the shape of the tree

    def path(self) -> Iterator[QuotaNode]:
        """The node, its parent, and so on up to the root."""
        node: QuotaNode | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def root(self) -> QuotaNode:
        *_, root = self.path()
        return root

    def queues(self) -> Iterator[QuotaNode]:
        """All ClusterQueues at or below the node."""
        found = [self]
        for node in found:
            if node.is_queue:
                yield node
            found += node.children

    @property
    def path_name(self) -> str:
        """As messages show it: /top/cohort/queue."""
        return "/" + "/".join(reversed([node.name for node in self.path()]))

    # --- what there is

    def recompute(self) -> None:
        """Works out quota, usage and height from the children, which are up to date already."""
        self._lendable = None
        self.subtree = dict(self.quotas.nominal)
        if not self.is_queue:
            self.height = 1 + max((child.height for child in self.children if not child.is_queue), default=0)
            self.usage = {}
        for child in self.children:
            for fr, amount in child.subtree.items():
                lent = min(amount, child.quotas.lending.get(fr, amount))
                self.subtree[fr] = plus(self.subtree.get(fr, 0), lent)
            for fr, amount in child.usage.items():
                if passed := _passed(child, fr, amount):
                    self.usage[fr] = self.usage.get(fr, 0) + passed
        self.borrowers = self.borrowing_children()
        self.guaranteed = {}
        if self.parent is not None:
            for fr, limit in self.quotas.lending.items():
                if (own := minus(self.subtree.get(fr, 0), limit)) > 0:
                    self.guaranteed[fr] = own

    def borrowing_children(self) -> dict[FlavorResource, dict[QuotaNode, None]]:
        """What `borrowers` has to be."""
        found: dict[FlavorResource, dict[QuotaNode, None]] = {}
        for child in self.children:
            for fr in child.usage:
                if child.exceeds(fr):
                    found.setdefault(fr, {})[child] = None
        return found

    def available(self, fr: FlavorResource) -> int:
        """What may still be used; below zero when more is used than there is."""
        value = LIMIT
        for node in reversed(list(self.path())):
            used, has = node.usage.get(fr, 0), node.subtree.get(fr, 0)
            if node.parent is None:
                value = minus(has, used)
                continue
            borrowing = node.quotas.borrowing.get(fr)
            if borrowing is not None:
                own = node.guaranteed.get(fr, 0)
                value = min(value, plus_signed(minus(has, own) - max(0, used - own), borrowing))
            value = plus_signed(node.local_available(fr), value)
        return value

    def local_available(self, fr: FlavorResource) -> int:
        """What is left of the part that nobody else may use."""
        return max(0, minus(self.guaranteed.get(fr, 0), self.usage.get(fr, 0)))

    def potential(self, fr: FlavorResource) -> int:
        """The most there can be when nobody uses anything."""
        value = 0
        for node in reversed(list(self.path())):
            has = node.subtree.get(fr, 0)
            if node.parent is None:
                value = has
                continue
            value = plus(node.guaranteed.get(fr, 0), value)
            borrowing = node.quotas.borrowing.get(fr)
            if borrowing is not None:
                value = min(value, plus(has, borrowing))
        return value

    def exceeds(self, fr: FlavorResource, more: int = 0) -> bool:
        """Whether what is used, and `more`, is beyond the quota of the node: it borrows."""
        return self.usage.get(fr, 0) + more > self.subtree.get(fr, 0)

    def lowest_fit(self, fr: FlavorResource, amount: int) -> tuple[int, bool]:
        """The height of the smallest subtree around this queue that holds `amount` more, and whether it is only a part
        of the tree (so that others outside of it could not be asked for more). A queue without cohort is the whole."""
        if self.parent is None or not self.exceeds(fr, amount):
            return 0, self.parent is not None
        rest = amount - self.local_available(fr)
        node = self.parent
        while True:
            if not node.exceeds(fr, rest):
                return node.height, node.parent is not None
            if node.parent is None:
                return node.height, False
            rest -= node.local_available(fr)
            node = node.parent

    def add(self, fr: FlavorResource, amount: int) -> None:
        """Changes the usage, here and as far up as it is passed on."""
        node: QuotaNode | None = self
        while node is not None and amount:
            before = node.usage.get(fr, 0)
            after = before + amount
            amount = _passed(node, fr, after) - _passed(node, fr, before)
            if after:
                node.usage[fr] = after
            else:
                node.usage.pop(fr, None)
            quota = node.subtree.get(fr, 0)
            if node.parent is not None and (before > quota) != (after > quota):
                if after > quota:
                    node.parent.borrowers.setdefault(fr, {})[node] = None
                else:
                    del node.parent.borrowers[fr][node]
            node = node.parent

    # --- fair sharing

    @property
    def lendable(self) -> Mapping[str, int]:
        """By resource: what the children can get at most, over all flavors."""
        if self._lendable is None:
            self._lendable = {}
            for fr in self.root.subtree:
                resource = fr[1]
                self._lendable[resource] = plus(self._lendable.get(resource, 0), self.potential(fr))
        return self._lendable

    def share(self, extra: Mapping[FlavorResource, int] = _NONE) -> DominantShare:
        """The dominant resource share, with `extra` on top of the usage."""
        if self.parent is None:
            return DominantShare(Fraction(0), self.weight, "", borrowing=False)
        borrowed: dict[str, int] = {}
        for fr, quota in self.subtree.items():
            over = self.usage.get(fr, 0) + extra.get(fr, 0) - quota
            if over > 0:
                borrowed[fr[1]] = borrowed.get(fr[1], 0) + over
        ratio, dominant = Fraction(0), ""
        for resource in sorted(borrowed):
            lendable = self.parent.lendable.get(resource, 0)
            if lendable > 0 and (here := Fraction(borrowed[resource] * 1000, lendable)) > ratio:
                ratio, dominant = here, resource
        return DominantShare(ratio, self.weight, dominant, borrowing=bool(borrowed))


@total_ordering
@dataclass(frozen=True, eq=False)
class DominantShare:
    """How much a node borrows, by the resource of which it borrows the largest part. Ordered: less is first."""

    #: thousandths of what could be lent to it
    ratio: Fraction
    weight: Fraction
    resource: str
    borrowing: bool

    @cached_property
    def key(self) -> tuple[int, Fraction]:
        """Two shares compare like their keys: with a weight of nothing, any use is infinite."""
        if self.weight == 0:
            return (0, Fraction(0)) if self.ratio == 0 else (1, self.ratio)
        return (0, self.ratio / self.weight)

    @property
    def rounded(self) -> int:
        """As statuses show it: rounded up; the largest integer for infinite."""
        infinite, value = self.key
        return LIMIT if infinite else -(-value.numerator // value.denominator)

    def __lt__(self, other: DominantShare) -> bool:
        return self.key < other.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DominantShare) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def plus_signed(a: int, b: int) -> int:
    """A sum in which one side may be below zero; what is unlimited stays so."""
    return LIMIT if a >= LIMIT or b >= LIMIT else a + b


def _passed(node: QuotaNode, fr: FlavorResource, usage: int) -> int:
    """How much of a usage of the node counts in its parent."""
    return max(0, usage - node.guaranteed.get(fr, 0))
