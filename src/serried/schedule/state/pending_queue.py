"""The pending workloads of one ClusterQueue: in order, in groups of equal shape, each group ready or parked.

Workloads of one shape fit or do not fit alike, so only the first of a group is ever looked at. When it does not fit,
the group is parked with the reason, until something changes that could help it. A cycle thus costs in proportion to
the shapes that may fit, not to the workloads that wait.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order


@dataclass(frozen=True)
class Unschedulable:
    """Why a group does not fit now."""

    reason: Reason
    blocked_on: Changed
    #: whether it can never fit as it is written, on the quota and nodes there are
    never: bool

    def and_then(self, later: Unschedulable) -> Unschedulable:
        """Both, of two parts of the flavors: what helps one of them helps, and the reason is that of one that
        may fit some day."""
        reason = later.reason if self.never and not later.never else self.reason
        return Unschedulable(reason, self.blocked_on | later.blocked_on, self.never and later.never)


@dataclass
class _Group:
    #: sorted, never empty
    members: list[Order] = field(default_factory=list)
    parked: Unschedulable | None = None
    #: the code of the reason it was parked with last
    last_code: str = ""


class PendingQueue:
    """Who waits in one ClusterQueue and who is to be looked at next.

    StrictFIFO: what does not fit now holds back everything behind it, but what can never fit steps aside: it is bad
    input and costs nobody else anything. BestEffortFIFO: nothing holds back anything.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self._order: list[Order] = []
        self._groups: dict[bytes, _Group] = {}
        self._shapes: dict[Order, bytes] = {}
        #: heaps of (first member, shape); an entry counts as long as its group is ready (or holds back) and starts so
        self._ready: list[tuple[Order, bytes]] = []
        self._holding: list[tuple[Order, bytes]] = []
        #: shapes of the groups that each kind of help could wake
        self._helped: dict[Changed, dict[bytes, None]] = {Changed.RELEASED: {}, Changed.NODES: {}}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, order: Order) -> bool:
        return order in self._shapes

    def orders(self) -> list[Order]:
        """Everyone who waits, first to last."""
        return list(self._order)

    def position(self, order: Order) -> int:
        """How many are ahead of it."""
        return bisect_left(self._order, order)

    def ahead(self, order: Order, limit: int) -> list[Order]:
        """Those directly ahead of it, first to last, at most `limit`."""
        position = self.position(order)
        return self._order[max(0, position - limit) : position]

    def unschedulable(self, order: Order) -> Unschedulable | None:
        """Why its group is parked; None: it is ready to be looked at."""
        return self._groups[self._shapes[order]].parked

    def add(self, order: Order, shape: bytes) -> None:
        """A workload starts to wait. If others of its shape are parked, it is parked with them."""
        insort(self._order, order)
        self._shapes[order] = shape
        group = self._groups.setdefault(shape, _Group())
        insort(group.members, order)
        if group.members[0] == order:
            self._first_changed(shape, group)

    def remove(self, order: Order) -> None:
        """A workload stops waiting: it was admitted, changed, or is gone."""
        del self._order[bisect_left(self._order, order)]
        shape = self._shapes.pop(order)
        group = self._groups[shape]
        was_first = group.members[0] == order
        del group.members[bisect_left(group.members, order)]
        if not group.members:
            self._forget_help(shape)
            del self._groups[shape]
        elif was_first:
            self._first_changed(shape, group)

    def head(self, before: Callable[[Order], float] | None = None) -> Order | None:
        """The next workload to look at; None: nobody until something changes.

        `before`: what counts before the order, less first.
        """
        if before is not None:
            holds_back = [g for g in self._groups.values() if self.strict and self._counts(g, holding=True)]
            ready = [group for group in self._groups.values() if group.parked is None]
            orders = (member for group in (*ready, *holds_back) for member in group.members)
            first = min(orders, key=lambda order: (before(order), order), default=None)
            return first if first is not None and self.unschedulable(first) is None else None
        first = self._top(self._ready, holding=False)
        if first is None:
            return None
        holder = self.holder()
        return None if holder is not None and holder < first else first

    def holder(self) -> Order | None:
        """Under StrictFIFO: the workload that holds back everything behind it."""
        return self._top(self._holding, holding=True)

    def park(self, order: Order, parked: Unschedulable) -> list[Order]:
        """The group that starts with this workload does not fit.

        Returns those whose reason is a new one: for a change of numbers alone, the first only, else all of the group.
        """
        shape = self._shapes[order]
        group = self._groups[shape]
        new = group.last_code != parked.reason.code
        group.parked, group.last_code = parked, parked.reason.code
        for help_, shapes in self._helped.items():
            if help_ in parked.blocked_on:
                shapes[shape] = None
        self._first_changed(shape, group)
        return list(group.members) if new else [order]

    def wake(self, help_: Changed) -> None:
        """Something changed: whoever it could help is to be looked at again."""
        for kind, shapes in self._helped.items():
            if kind in help_:
                for shape in list(shapes):
                    self._unpark(shape)

    def wake_all(self) -> None:
        """Limits or flavors changed: everyone is to be looked at again, but those who were promised something."""
        for shape, group in self._groups.items():
            if group.parked is not None and Changed.VICTIMS not in group.parked.blocked_on:
                self._unpark(shape)

    def waits_for(self, help_: Changed) -> bool:
        """Whether this kind of help could wake anyone."""
        return any(shapes for kind, shapes in self._helped.items() if kind in help_)

    def _unpark(self, shape: bytes) -> None:
        group = self._groups[shape]
        self._forget_help(shape)
        group.parked = None
        self._first_changed(shape, group)

    def _forget_help(self, shape: bytes) -> None:
        for shapes in self._helped.values():
            shapes.pop(shape, None)

    def _first_changed(self, shape: bytes, group: _Group) -> None:
        entry = (group.members[0], shape)
        if group.parked is None:
            self._push(self._ready, entry, holding=False)
        elif self.strict and not group.parked.never:
            self._push(self._holding, entry, holding=True)

    def _push(self, heap: list[tuple[Order, bytes]], entry: tuple[Order, bytes], *, holding: bool) -> None:
        if len(heap) > 2 * len(self._groups) + 64:
            # Entries that no longer count are dropped only when they come to the top; they must not pile up below it.
            groups = self._groups.items()
            heap[:] = sorted((g.members[0], shape) for shape, g in groups if self._counts(g, holding=holding))
        else:
            heapq.heappush(heap, entry)

    def _top(self, heap: list[tuple[Order, bytes]], *, holding: bool) -> Order | None:
        while heap:
            order, shape = heap[0]
            group = self._groups.get(shape)
            if group is not None and group.members[0] == order and self._counts(group, holding=holding):
                return order
            heapq.heappop(heap)
        return None

    def _counts(self, group: _Group, *, holding: bool) -> bool:
        if holding:
            return group.parked is not None and not group.parked.never
        return group.parked is None
