"""Those who do not fit: unschedulable with a reason, told, and woken when something changes that could help them."""

from __future__ import annotations

from serried.schedule.state.pending_queue import Unschedulable
from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.state import State
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order

#: So many at the front of a queue are told when only the numbers of their reason have changed. Of the others the reason
#: told last stays as it is (each new one is a write to the API); `explain` always has the numbers of the moment.
_KEPT_CURRENT = 16


def wake(state: State) -> None:
    """Those whom a change since the last cycle could help become candidates again."""
    for tree in list(state.quota_stirred):
        for name in state.short_of_quota.pop(tree, {}):
            queue = state.cluster_queues.get(name)
            if queue is not None:
                queue.stirred |= Changed.RELEASED
                state.awake[name] = None
    state.quota_stirred.clear()
    if state.trees_changed or state.quota_lent:
        for name, queue in state.cluster_queues.items():
            if not len(queue.pending):
                continue
            tree = state.ledger.tree_of(name)
            if tree in state.trees_changed:
                queue.stirred |= Changed.RELEASED
                queue.pending.wake_all()
                state.awake[name] = None
            elif tree in state.quota_lent and queue.spec.preemption.reclaim_within_cohort != "Never":
                # By quota alone nobody gains from what others borrow, unless shares count.
                helped = Changed.NODES if state.fair_sharing is None else Changed.RELEASED | Changed.NODES
                if queue.pending.waits_for(helped):
                    queue.stirred |= helped
                    state.awake[name] = None
        state.trees_changed.clear()
        state.quota_lent.clear()
    if state.nodes_stirred:
        for name in state.short_of_nodes:
            queue = state.cluster_queues.get(name)
            if queue is not None:
                queue.stirred |= Changed.NODES
                state.awake[name] = None
        state.short_of_nodes.clear()
        state.nodes_stirred = False
    for name in state.awake:
        queue = state.cluster_queues.get(name)
        if queue is not None and queue.stirred:
            queue.pending.wake(queue.stirred)
    for key in list(state.scanning):
        record = state.workloads[key]
        if state.cluster_queues[record.cluster_queue].stirred:
            state.restart_scan(record)
    for name in state.awake:
        if name in state.cluster_queues:
            state.cluster_queues[name].stirred = Changed.NOTHING


def park(state: State, queue: ClusterQueueState, order: Order, unschedulable: Unschedulable) -> None:
    if Changed.NODES in unschedulable.blocked_on:
        state.short_of_nodes[queue.name] = None
    if Changed.RELEASED in unschedulable.blocked_on:
        state.wait_for_quota(queue.name)
    for member in queue.pending.park(order, unschedulable):
        if _held_back(queue, member):
            continue
        queue.unreported.pop(member, None)
        key = (member[3], member[4])
        told = state.workloads[key].last_reason
        if told is None or told.code != unschedulable.reason.code or queue.pending.position(member) < _KEPT_CURRENT:
            state.report(key, unschedulable.reason)


def report_arrivals(state: State, queue: ClusterQueueState) -> None:
    """Arrivals that were not looked at themselves: others of their shape were, or they are held back."""
    for order in queue.unreported:
        unschedulable = queue.pending.unschedulable(order)
        if unschedulable is not None and not _held_back(queue, order):
            state.report((order[3], order[4]), unschedulable.reason)
        else:
            state.report((order[3], order[4]), _behind(queue, order))
    queue.unreported.clear()


def _held_back(queue: ClusterQueueState, order: Order) -> bool:
    holder = queue.pending.holder()
    return holder is not None and holder < order


def _behind(queue: ClusterQueueState, order: Order) -> Reason:
    """Why a workload that a StrictFIFO queue holds back waits."""
    holder = queue.pending.holder()
    name = f"{holder[3]}/{holder[4]}" if holder is not None else "nobody"
    return wording.behind(queue.name, name, queue.pending.position(order))
