"""One scheduling cycle: candidates in order, each seeing what those before it took."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import datetime

import msgspec

from serried.api.assignment import AssignmentError
from serried.api.kueue import Admission
from serried.api.meta import Key
from serried.schedule import wording
from serried.schedule.admission import to_holding
from serried.schedule.flavors import NoFit, choose
from serried.schedule.queues import Help, Parked
from serried.schedule.reasons import Reason
from serried.schedule.state import ClusterQueueState, Holding, State
from serried.schedule.workload import Order, misconfigured

#: So many at the front of a queue are told when only the numbers of their reason have changed. Of the others the reason
#: told last stays as it is (each new one is a write to the API); `explain` always has the numbers of the moment.
_KEPT_CURRENT = 16


class Admit(msgspec.Struct, frozen=True):
    """Write this admission to the Workload's status. The engine takes it for granted until it hears otherwise."""

    key: Key
    uid: str
    #: of the Workload that was decided on
    resource_version: str
    admission: Admission
    #: seconds between queueing and this decision
    waited: float
    #: what its owner should know of the decision, in whole sentences; "" for nothing
    note: str = ""


class Wait(msgspec.Struct, frozen=True):
    """Tell this workload why it waits."""

    key: Key
    reason: Reason


class Cycle(msgspec.Struct, frozen=True):
    """What one cycle decided. `more`: it stopped at its limit, and the next cycle goes on."""

    decisions: Sequence[Admit]
    waits: Sequence[Wait]
    more: bool


def run_cycle(state: State, now: datetime, limit: int) -> Cycle:
    """Looks at up to `limit` candidates.

    The order over all ClusterQueues is that of their next candidates: higher priority first, then who queued
    earlier, then by uid and name. Within a ClusterQueue it is the same, and one that does not fit is followed by the
    next (BestEffortFIFO) or holds back the rest (StrictFIFO).
    """
    state.complete()
    _wake(state)
    heads: list[tuple[Order, str]] = []
    for name in state.awake:
        _push(heads, state.cluster_queues.get(name))
    heapq.heapify(heads)
    decisions: list[Admit] = []
    looked = 0
    while heads and looked < limit:
        order, name = heapq.heappop(heads)
        queue = state.cluster_queues[name]
        admit = _try(state, queue, order, now)
        if admit is not None:
            decisions.append(admit)
        looked += 1
        head = queue.pending.head()
        if head is not None:
            heapq.heappush(heads, (head, name))
    for name in list(state.awake):
        queue_state = state.cluster_queues.get(name)
        if queue_state is None or queue_state.pending.head() is None:
            del state.awake[name]
            if queue_state is not None:
                _tell_arrivals(state, queue_state)
    waits = [Wait(key, reason) for key, reason in state.outbox.items()]
    state.outbox.clear()
    return Cycle(decisions, waits, more=bool(state.awake))


def _wake(state: State) -> None:
    """Those whom a change since the last cycle could help become candidates again."""
    if state.nodes_stirred:
        for name in state.short_of_nodes:
            queue = state.cluster_queues.get(name)
            if queue is not None:
                queue.stirred |= Help.NODES
                state.awake[name] = None
        state.short_of_nodes.clear()
        state.nodes_stirred = False
    for name in state.awake:
        queue = state.cluster_queues.get(name)
        if queue is not None and queue.stirred:
            queue.pending.wake(queue.stirred)
            queue.stirred = Help.NOTHING


def _push(heads: list[tuple[Order, str]], queue: ClusterQueueState | None) -> None:
    head = queue.pending.head() if queue is not None else None
    if queue is not None and head is not None:
        heads.append((head, queue.name))


def _try(state: State, queue: ClusterQueueState, order: Order, now: datetime) -> Admit | None:
    """Admits the candidate, or parks it, and all of its shape, with the reason."""
    record = state.workloads[order[3], order[4]]
    info = record.info
    outcome = choose(state, queue, info)
    if isinstance(outcome, NoFit):
        _park(state, queue, order, Parked(outcome.reason, outcome.helped_by, outcome.never))
        return None
    try:
        holding: Holding = to_holding(info, queue.name, outcome)
    except AssignmentError as error:
        state.journal.rollback(0)
        reason = misconfigured("spec.podSets", f"placed as {error}", "a placement that a topologyAssignment can hold")
        _park(state, queue, order, Parked(reason, Help.NODES, never=True))
        return None
    state.journal.commit()
    state.leave(record)
    state.hold(record, holding)
    waited = max(0.0, (now - info.queued_at).total_seconds())
    note = wording.not_optimal(outcome.placements)
    return Admit(info.key, info.uid, record.resource_version, holding.admission, waited, note)


def _park(state: State, queue: ClusterQueueState, order: Order, parked: Parked) -> None:
    if Help.NODES in parked.helped_by:
        state.short_of_nodes[queue.name] = None
    for member in queue.pending.park(order, parked):
        if _held_back(queue, member):
            continue
        queue.untold.pop(member, None)
        key = (member[3], member[4])
        told = state.workloads[key].told
        if told is None or told.code != parked.reason.code or queue.pending.position(member) < _KEPT_CURRENT:
            state.tell(key, parked.reason)


def _tell_arrivals(state: State, queue: ClusterQueueState) -> None:
    """Arrivals that were not looked at themselves: others of their shape were, or they are held back."""
    for order in queue.untold:
        parked = queue.pending.parked(order)
        if parked is not None and not _held_back(queue, order):
            state.tell((order[3], order[4]), parked.reason)
        else:
            state.tell((order[3], order[4]), _behind(queue, order))
    queue.untold.clear()


def _held_back(queue: ClusterQueueState, order: Order) -> bool:
    holder = queue.pending.holder()
    return holder is not None and holder < order


def _behind(queue: ClusterQueueState, order: Order) -> Reason:
    """Why a workload that a StrictFIFO queue holds back waits."""
    holder = queue.pending.holder()
    name = f"{holder[3]}/{holder[4]}" if holder is not None else "nobody"
    return wording.behind(queue.name, name, queue.pending.position(order))
