"""Those who do not fit: what they are blocked on, what they are told, and when they are looked at again."""

from __future__ import annotations

from dataclasses import replace

from serried.schedule.state.pending_queue import Scan, Unschedulable
from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.state import State
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, key_of

#: So many at the front of a queue are told when only the numbers of their reason have changed. Of the others the last
#: reason stays as it is (each new one is a write to the API); `explain` always has the numbers of the moment.
_KEPT_CURRENT = 16


def take_changes(state: State) -> None:
    """Whoever is blocked on what has changed since the last cycle is to be looked at again."""
    for name, what in state.requeue.take_changes().items():
        queue = state.cluster_queues.get(name)
        if queue is not None:
            queue.pending.changed(what)
            state.requeue.activate(name)


def block(state: State, queue: ClusterQueueState, order: Order, unschedulable: Unschedulable) -> None:
    """The class that starts with this workload does not fit, and its members are told so."""
    if any(state.world.repels(pod_set.kind) for pod_set in state.workloads[key_of(order)].info.pod_sets):
        # Its labels are not those of others of its class.
        queue.pending.separate(order)
    unschedulable = replace(unschedulable, blocked_on=_blocked_on(state, queue, unschedulable.blocked_on))
    state.requeue.wait(queue.name, unschedulable.blocked_on & ~Changed.VICTIMS, state.ledger.tree_of(queue.name))
    for member in queue.pending.block(order, unschedulable):
        if _held_back(queue, member):
            continue
        queue.unreported.pop(member, None)
        key = key_of(member)
        last = state.workloads[key].last_reason
        if last is None or last.code != unschedulable.reason.code or queue.pending.position(member) < _KEPT_CURRENT:
            state.report(key, unschedulable.reason)


def pause(state: State, queue: ClusterQueueState, order: Order, scan: Scan) -> None:
    """The scan of this workload's flavors goes on in the next cycle; it begins anew if what it saw has changed."""
    state.requeue.wait(queue.name, _blocked_on(state, queue, scan.so_far.blocked_on), state.ledger.tree_of(queue.name))
    queue.pending.pause(order, scan)
    state.report(key_of(order), scan.so_far.reason)


def _blocked_on(state: State, queue: ClusterQueueState, blocked_on: Changed) -> Changed:
    """What else could let in whoever is blocked on this."""
    if Changed.VICTIMS in blocked_on:
        return blocked_on
    blocked_on |= Changed.QUOTAS
    # By quota alone nobody gains from what others borrow, unless shares count.
    gains = Changed.NODES if state.fair_sharing is None else Changed.RELEASED | Changed.NODES
    if blocked_on & gains and queue.spec.preemption.reclaim_within_cohort != "Never":
        blocked_on |= Changed.BORROWED
    return blocked_on


def report_arrivals(state: State, queue: ClusterQueueState) -> None:
    """Arrivals that were not looked at themselves: others of their class were, or they are held back."""
    for order in queue.unreported:
        unschedulable = queue.pending.unschedulable(order)
        if unschedulable is not None and not _held_back(queue, order):
            state.report(key_of(order), unschedulable.reason)
        else:
            state.report(key_of(order), _behind(queue, order))
    queue.unreported.clear()


def _held_back(queue: ClusterQueueState, order: Order) -> bool:
    holder = queue.pending.holder()
    return holder is not None and holder < order


def _behind(queue: ClusterQueueState, order: Order) -> Reason:
    """Why a workload that a StrictFIFO queue holds back waits."""
    holder = queue.pending.holder()
    name = "/".join(key_of(holder)) if holder is not None else "nobody"
    return wording.behind(queue.name, name, queue.pending.position(order))
