"""Who is to be looked at again, and what has changed to bring that about."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from datetime import datetime

from serried.api.meta import Key
from serried.schedule.types.changed import Changed

#: Who waits: a ClusterQueue by its name, for the equivalence classes in it, or a workload that holds quota or was
#: promised some.
Waiter = str | Key
#: What is waited for: one kind of change, in one tree of cohorts ("" for nodes).
_Topic = tuple[Changed, str]


class Requeue:
    """What woke whom.

    Whoever cannot go on says what it waits for (`wait`); whatever changes is reported here (`changed`) and costs
    nothing when nobody waits for it. The next cycle asks who may go on (`take_changes`, `workloads`, `queues`).
    """

    def __init__(self) -> None:
        #: ClusterQueues in which somebody may be looked at
        self.queues: dict[str, None] = {}
        #: workloads that hold quota, or were promised some, and are to be looked at
        self.workloads: dict[Key, None] = {}
        self._waiting: dict[_Topic, dict[Waiter, None]] = {}
        #: topics in which something has changed since the last cycle; somebody waits for each
        self._changes: dict[_Topic, None] = {}
        #: workloads that back off: until when, and in that order
        self._not_before: dict[Key, datetime] = {}
        self._backing_off: list[tuple[datetime, Key]] = []

    def __bool__(self) -> bool:
        """Whether the next cycle has anybody to look at."""
        return bool(self.queues or self.workloads or self._changes)

    # --- waiting

    def wait(self, waiter: Waiter, on: Changed, tree: str = "") -> None:
        """It cannot go on before something of this changes. `tree`: of cohorts, for all kinds but NODES."""
        for topic in _topics(on, tree):
            self._waiting.setdefault(topic, {})[waiter] = None

    def waits(self, waiter: Waiter, on: Changed, tree: str = "") -> bool:
        return any(waiter in self._waiting.get(topic, ()) for topic in _topics(on, tree))

    def forget(self, key: Key) -> None:
        """This workload waits for nothing more, and need not be looked at."""
        self.workloads.pop(key, None)
        self._waiting.get((Changed.NODES, ""), {}).pop(key, None)

    # --- waking

    def changed(self, what: Changed, tree: str = "") -> None:
        """Something of this has changed. `tree`: of cohorts, for all kinds but NODES."""
        for topic in _topics(what, tree):
            if self._waiting.get(topic):
                self._changes[topic] = None

    def activate(self, cluster_queue: str) -> None:
        """Somebody in this ClusterQueue may be looked at."""
        self.queues[cluster_queue] = None

    def look_at(self, key: Key) -> None:
        """This workload, which holds quota or was promised some, is to be looked at."""
        self.workloads[key] = None

    def take_changes(self) -> Mapping[str, Changed]:
        """ClusterQueue → what has changed for it since this was last asked. Workloads that waited are to be looked at
        from now on."""
        found: dict[str, Changed] = {}
        for topic in self._changes:
            for waiter in self._waiting.pop(topic):
                if isinstance(waiter, str):
                    found[waiter] = found.get(waiter, Changed.NOTHING) | topic[0]
                else:
                    self.look_at(waiter)
        self._changes.clear()
        return found

    # --- time

    def wait_until(self, key: Key, time: datetime) -> None:
        """A workload is not to be looked at before this time."""
        if self._not_before.get(key) != time:
            self._not_before[key] = time
            heapq.heappush(self._backing_off, (time, key))

    @property
    def next_time(self) -> datetime | None:
        """When the first of those who back off is to be looked at again."""
        return self._backing_off[0][0] if self._backing_off else None

    def end_backoff(self, now: datetime) -> list[Key]:
        """Those whose time is over."""
        found = []
        while self._backing_off and self._backing_off[0][0] <= now:
            time, key = heapq.heappop(self._backing_off)
            if self._not_before.get(key) == time:
                del self._not_before[key]
                found.append(key)
        return found


def _topics(kinds: Changed, tree: str) -> list[_Topic]:
    return [(kind, "" if kind is Changed.NODES else tree) for kind in kinds]
