"""The pending workloads of one ClusterQueue: in order, in equivalence classes, each active or unschedulable.

Workloads of one class fit or do not fit alike, so only the first of a class is ever looked at. When it does not fit,
the class is unschedulable, for a reason, until something changes that it is blocked on. A cycle thus costs in
proportion to the classes that may fit, not to the workloads that wait.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from serried.schedule.state.sweep import Sweep
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """Why a class does not fit now."""

    reason: Reason
    #: what has to change before it is looked at again
    blocked_on: Changed
    #: whether it can never fit as it is written, on the quota and nodes there are
    never: bool

    def and_then(self, later: Unschedulable) -> Unschedulable:
        """Both, of two parts of the flavors: it is blocked on either, and the reason is that of one that may fit some
        day."""
        reason = later.reason if self.never and not later.never else self.reason
        return Unschedulable(reason, self.blocked_on | later.blocked_on, self.never and later.never)


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan of flavors that has stopped half way."""

    #: where to go on: (pod set, resource) → index of the flavor
    start: Mapping[tuple[int, str], int]
    #: what it has come to so far
    so_far: Unschedulable


#: (first member of a class, the class)
_Place = tuple[Order, bytes]


@dataclass(slots=True)
class _Class:
    #: sorted, never empty
    members: list[Order] = field(default_factory=list)
    unschedulable: Unschedulable | None = None
    #: the code of the reason it was unschedulable for last
    last_code: str = ""
    #: the sweep in which it was found unschedulable last
    looked_at: int = 0


class PendingQueue:
    """Who waits in one ClusterQueue and who is to be looked at next.

    StrictFIFO: what does not fit now holds back everything behind it, but what can never fit steps aside: it is bad
    input and costs nobody else anything. BestEffortFIFO: nothing holds back anything.
    """

    def __init__(self, sweep: Sweep, *, strict: bool) -> None:
        self.strict = strict
        self._sweep = sweep
        self._number = sweep.number
        self._order: list[Order] = []
        self._classes: dict[bytes, _Class] = {}
        self._class_of: dict[Order, bytes] = {}
        #: heaps of (first member, class): of classes that are active, that are active but were looked at in this sweep
        #: already, and that hold back others; an entry counts as long as its class belongs there and starts so
        self._active: list[_Place] = []
        self._later: list[_Place] = []
        self._holding: list[_Place] = []
        #: kind of change → the classes that are blocked on it
        self._blocked: dict[Changed, dict[bytes, None]] = {}
        #: members of active classes whose scan of flavors goes on in the next cycle
        self._scans: dict[Order, Scan] = {}

    def set_strict(self, strict: bool) -> None:
        """Whether what does not fit holds back everything behind it."""
        self.strict = strict
        for heap in (self._active, self._later, self._holding):
            heap.clear()
        for name, found in self._classes.items():
            self._first_changed(name, found)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, order: Order) -> bool:
        return order in self._class_of

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
        """Why its class is unschedulable; None: it is to be looked at."""
        return self._classes[self._class_of[order]].unschedulable

    def scan(self, order: Order) -> Scan | None:
        """Where its scan of flavors goes on; None: at the first flavor."""
        return self._scans.get(order)

    # --- coming and going

    def add(self, order: Order, equivalence_class: bytes) -> None:
        """A workload starts to wait. If others of its class are unschedulable, so is it."""
        insort(self._order, order)
        self._class_of[order] = equivalence_class
        found = self._classes.setdefault(equivalence_class, _Class())
        insort(found.members, order)
        if found.members[0] == order:
            self._first_changed(equivalence_class, found)

    def remove(self, order: Order) -> None:
        """A workload stops waiting: it was admitted, changed, or is gone."""
        del self._order[bisect_left(self._order, order)]
        self._scans.pop(order, None)
        name = self._class_of.pop(order)
        found = self._classes[name]
        was_first = found.members[0] == order
        del found.members[bisect_left(found.members, order)]
        if not found.members:
            self._unblock(name)
            del self._classes[name]
        elif was_first:
            self._first_changed(name, found)

    # --- who is next

    def head(self, before: Callable[[Order], float] | None = None) -> Order | None:
        """The next workload to look at; None: nobody until something changes. Who is due in this sweep comes before
        who is not, unless what does not fit holds back others.

        `before`: what counts before the order, less first.
        """
        if before is not None:
            return self._head_by(before)
        self._keep_up()
        first = self._top(self._active) or self._top(self._later)
        if first is None:
            return None
        holder = self.holder()
        return None if holder is not None and holder < first else first

    def _head_by(self, before: Callable[[Order], float]) -> Order | None:
        active = [found for found in self._classes.values() if found.unschedulable is None]
        if self.strict:
            active += [c for c in self._classes.values() if self._heap_of(c) is self._holding]
        else:
            active = [c for c in active if c.looked_at != self._sweep.number] or active
        orders = (member for found in active for member in found.members)
        first = min(orders, key=lambda order: (before(order), order), default=None)
        return first if first is not None and self.unschedulable(first) is None else None

    def is_due(self, order: Order) -> bool:
        """Whether nobody of its class was looked at in this sweep before it was woken."""
        return self._classes[self._class_of[order]].looked_at != self._sweep.number

    def woken(self) -> Order | None:
        """The first of those who were looked at in this sweep and may be looked at again."""
        self._keep_up()
        first = self._top(self._active if self.strict else self._later)
        return first if first is not None and not self.is_due(first) else None

    def holder(self) -> Order | None:
        """Under StrictFIFO: the workload that holds back everything behind it."""
        return self._top(self._holding)

    # --- what does not fit

    def pause(self, order: Order, scan: Scan) -> None:
        """The scan of its flavors goes on in the next cycle, unless something changes before."""
        self._scans[order] = scan

    def block(self, order: Order, unschedulable: Unschedulable) -> list[Order]:
        """The class that starts with this workload does not fit.

        Returns those whose reason is a new one: for a change of numbers alone, the first only, else all of the class.
        """
        self._scans.pop(order, None)
        name = self._class_of[order]
        found = self._classes[name]
        new = found.last_code != unschedulable.reason.code
        found.unschedulable, found.last_code = unschedulable, unschedulable.reason.code
        found.looked_at = self._sweep.number
        self._unblock(name)
        for kind in unschedulable.blocked_on:
            self._blocked.setdefault(kind, {})[name] = None
        self._first_changed(name, found)
        return list(found.members) if new else [order]

    def separate(self, order: Order) -> None:
        """A workload does not fit for a reason that others of its class need not have: it is a class by itself."""
        name = self._class_of[order]
        if len(self._classes[name].members) > 1:
            self.remove(order)
            self.add(order, b"%s alone %s" % (name, "/".join(order[-2:]).encode()))

    def changed(self, what: Changed) -> None:
        """Something changed: whoever is blocked on it is to be looked at again, and scans of flavors begin anew."""
        self._scans.clear()
        for kind in what:
            for name in list(self._blocked.get(kind, ())):
                self._unblock(name)
                self._classes[name].unschedulable = None
                self._first_changed(name, self._classes[name])

    def _unblock(self, name: bytes) -> None:
        for names in self._blocked.values():
            names.pop(name, None)

    # --- the heaps

    def _heap_of(self, found: _Class) -> list[_Place] | None:
        """Where a class belongs; None: nowhere."""
        if found.unschedulable is not None:
            return self._holding if self.strict and not found.unschedulable.never else None
        # What holds back others comes in order, whatever was looked at.
        return self._active if self.strict or found.looked_at != self._number else self._later

    def _first_changed(self, name: bytes, found: _Class) -> None:
        self._keep_up()
        heap = self._heap_of(found)
        if heap is not None:
            self._push(heap, (found.members[0], name))

    def _keep_up(self) -> None:
        """In a new sweep everyone who is active is due."""
        if self._number != self._sweep.number:
            self._number = self._sweep.number
            later, self._later = self._later, []
            for entry in later:
                self._push(self._active, entry)

    def _push(self, heap: list[_Place], entry: _Place) -> None:
        if len(heap) > 2 * len(self._classes) + 64:
            # Entries that no longer count are dropped only when they come to the top; they must not pile up below it.
            classes = self._classes.items()
            heap[:] = sorted((c.members[0], name) for name, c in classes if self._heap_of(c) is heap)
        else:
            heapq.heappush(heap, entry)

    def _top(self, heap: list[_Place]) -> Order | None:
        while heap:
            order, name = heap[0]
            found = self._classes.get(name)
            if found is not None and found.members[0] == order and self._heap_of(found) is heap:
                return order
            heapq.heappop(heap)
        return None
