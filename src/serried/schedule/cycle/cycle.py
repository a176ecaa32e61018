"""One scheduling cycle: candidates in order, each seeing what those before it took.

Whoever holds quota, or was promised some, and is to be looked at again comes first. Then the candidates of all
ClusterQueues are served in order, each followed by the next one of its queue. When the time is up, the rest is left to
the next cycle, which goes on with it (see `Sweep`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from serried.api.meta import Key
from serried.schedule.cycle.order import Entry, line
from serried.schedule.cycle.turn import Turn
from serried.schedule.state import transitions
from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.routing import end_backoff
from serried.schedule.state.state import State
from serried.schedule.state.unschedulable import report_arrivals, take_changes
from serried.schedule.types.decisions import Admit, Cycle, Evict, Wait
from serried.schedule.types.moment import Moment
from serried.schedule.types.workload import Order, key_of

__all__ = ["Admit", "Cycle", "Evict", "Wait", "run_cycle"]


def run_cycle(state: State, now: datetime, limit: int, spent: Callable[[], bool]) -> Cycle:
    """Looks at up to `limit` candidates, and at no more once the time is `spent`. However little time there is, one is
    looked at of those that hold quota, and one of those that wait."""
    turn = begin(state, now)
    for key in list(state.requeue.workloads):
        look_again(turn, key)
        if spent():
            break
    _Serving(turn, limit, spent).run()
    return end(turn)


def begin(state: State, now: datetime) -> Turn:
    """Takes in what has happened since the last cycle."""
    end_backoff(state, now)
    take_changes(state)
    transitions.account_for_missing(state)
    _sample_usage(state, now)
    return Turn(state, Moment(now))


def _sample_usage(state: State, now: datetime) -> None:
    """Works out what LocalQueues have used lately, if it is time: somebody else may come first then."""
    changed = state.fair_usage.sample(now, state.accounts)
    if changed is None:
        return
    for key in changed:
        state.stale.queue(key)
    for name, queue in state.cluster_queues.items():
        if queue.pending.strict and state.fair_usage.orders(name) and state.head(queue) is not None:
            state.requeue.activate(name)


def look_again(turn: Turn, key: Key) -> None:
    """Looks at a workload that holds quota or was promised some."""
    turn.state.looked_at = key
    del turn.state.requeue.workloads[key]
    turn.look_again(turn.state.workloads[key])


def end(turn: Turn) -> Cycle:
    """The decisions, and the reasons that are new. ClusterQueues without a candidate rest until something changes."""
    state = turn.state
    state.looked_at = None
    for name in list(state.requeue.queues):
        queue = state.cluster_queues.get(name)
        if queue is None or state.head(queue) is None:
            del state.requeue.queues[name]
            if queue is not None:
                report_arrivals(state, queue)
    waits = [Wait(key, reason) for key, reason in state.outbox.items()]
    state.outbox.clear()
    more = bool(state.requeue.queues or state.requeue.workloads)
    return Cycle(turn.admits, waits, more=more, evictions=turn.evictions)


def heads(state: State) -> list[tuple[Order, ClusterQueueState]]:
    """The next candidate of every ClusterQueue that has one, by priority and time."""
    queues = [state.cluster_queues[name] for name in state.requeue.queues if name in state.cluster_queues]
    found = [(head, queue) for queue in queues if (head := state.head(queue)) is not None]
    return sorted(found, key=lambda head: head[0])


class _Serving:
    """Serves the candidates of all ClusterQueues in order, as far as the time goes."""

    def __init__(self, turn: Turn, limit: int, spent: Callable[[], bool]) -> None:
        self.turn, self.state, self.sweep = turn, turn.state, turn.state.sweep
        self.limit, self.spent = limit, spent
        #: how many were looked at
        self.looked = 0
        #: the first of those who were looked at in this sweep and have been woken since
        self.woken = min(
            (o for _, queue in heads(self.state) if (o := queue.pending.woken()) is not None), default=None
        )

    def run(self) -> None:
        while found := heads(self.state):
            due = [head for head in found if head[1].pending.is_due(head[0])]
            if due and not self._serve(due):
                return
            if not due:
                self.sweep.end()
                self.woken = None
        self.sweep.end()

    def _serve(self, due: list[tuple[Order, ClusterQueueState]]) -> bool:
        """Serves these, and who follows them in their queues. False: the time is up."""
        waiting = line(self.state)
        for order, queue in due:
            waiting.add(self._entry(order, queue))
        while (entry := waiting.next(self._nominate)) is not None:
            if entry.found.fits or entry.found.targets:
                if self._is_overtaking(entry):
                    self.sweep.repeat()
                    self.woken = None
                    return True
                self.turn.take(entry)
            else:
                self.turn.refuse(entry)
            self.sweep.seen.pop(entry.order, None)
            head = self.state.head(entry.queue)
            if head is not None and entry.queue.pending.is_due(head):
                waiting.add(self._entry(head, entry.queue))
        return not self._is_over()

    def _entry(self, order: Order, queue: ClusterQueueState) -> Entry:
        entry = Entry(self.state.workloads[key_of(order)], queue)
        if order in self.sweep.seen:
            entry.borrowing, entry.usage = self.sweep.seen[order]
        return entry

    def _nominate(self, entry: Entry) -> bool:
        """Brings a candidate up to date, if there is still time for that."""
        if entry.moves == self.turn.moment.moves:
            return True
        if self._is_over():
            return False
        self.looked += 1
        self.state.looked_at = entry.record.info.key
        self.turn.nominate(entry)
        self.sweep.seen[entry.order] = (entry.borrowing, entry.usage)
        return True

    def _is_over(self) -> bool:
        """Whether what is left is for the next cycle. One candidate is looked at in any case."""
        return self.looked > 0 and (self.looked >= self.limit or self.spent())

    def _is_overtaking(self, entry: Entry) -> bool:
        """Whether a candidate ahead has been woken since it was looked at: it comes first."""
        return self.woken is not None and self.woken < entry.order and not self.sweep.repeated
