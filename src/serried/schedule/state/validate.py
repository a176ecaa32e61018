"""The laws the engine's state obeys after every event, checked from scratch."""

from __future__ import annotations

from collections import Counter

from serried.api.meta import Key
from serried.model.validate import validate as validate_world
from serried.quota.quotas import FlavorResource
from serried.schedule.state.queue_usage import Account
from serried.schedule.state.records import HOLDS, WAITS, Record, WorkloadState
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.workload import key_of


def validate(state: State) -> None:
    """Raises AssertionError, with what contradicts what."""
    validate_world(state.world)
    _states(state)
    _quota(state)
    for key, record in state.workloads.items():
        assert not record.missing or state.requeue.waits(key, Changed.NODES) or key in state.requeue.workloads, (
            f"{key} lacks {record.missing}, and nobody waits for that"
        )
    for key in state.requeue.workloads:
        assert key in state.workloads, f"{key} is to be looked at and not known"
    held = {
        key
        for key, record in state.workloads.items()
        if (record.reservation and record.reservation.placements and record.preempted_by is None)
        or (record.promise and record.promise.placements)
    }
    assert set(state.world.holds) == held, f"the model has holds of {set(state.world.holds) ^ held}, or lacks them"


def _states(state: State) -> None:
    """What a workload has is what its state says, and every index knows it."""
    queued: Counter[Key] = Counter()
    for name, queue in state.cluster_queues.items():
        orders = queue.pending.orders()
        assert orders == sorted(orders), f"ClusterQueue {name} is out of order"
        for order in orders:
            key = key_of(order)
            record = state.workloads.get(key)
            assert record is not None, f"{key} waits in {name}, but is not known"
            assert record.state is WorkloadState.PENDING, f"{key} waits in {name} and is {record}"
            assert record.cluster_queue == name, f"{key} waits in {name} and is {record}"
            assert record.info.order == order, f"{key} waits in {name} at {order} instead of {record.info.order}"
            queued[key] += 1
        assert state.head(queue) is None or name in state.requeue.queues, f"nobody looks at the candidates of {name}"
        assert set(queue.unreported) <= set(orders), f"{name} means to tell some who are not in it"
    assert not state.workloads.keys() & state.finished.keys(), "some have ended, and have not"
    for key, record in state.workloads.items():
        assert record.info.key == key
        assert queued[key] == (record.state is WorkloadState.PENDING), (
            f"{key} is {record.state}, but waits in {queued[key]} queues"
        )
        _fields(record)
        waits = record.state in WAITS and record.info.active
        listed = key in state.index.waiting.get(record.info.queue, {})
        assert waits == listed, f"{key} is {record.state}, but among those that wait: {listed}"
        if record.state is WorkloadState.INADMISSIBLE:
            assert record.last_reason is not None, f"{key} waits and has not been told why"
    assert all(state.index.waiting.values()), "an empty list of waiting workloads was kept"
    total = sum(len(keys) for keys in state.index.waiting.values())
    expected = sum(r.state in WAITS and r.info.active for r in state.workloads.values())
    assert total == expected, f"{total} workloads are listed as waiting, {expected} wait"


def _fields(record: Record) -> None:
    """A record has what its state says, and nothing else."""
    pending, holds = record.state is WorkloadState.PENDING, record.state in HOLDS
    assert record.state is not WorkloadState.NEW, f"nothing has become of {record}"
    assert bool(record.cluster_queue) == pending, f"{record} waits in {record.cluster_queue!r}"
    assert (record.reservation is not None) == holds, f"{record} holds {record.reservation}"
    assert record.in_flight is None or holds, f"{record} waits to hear of {record.in_flight}"
    assert record.promise is None or pending, f"{record} was promised {record.promise}"
    assert not record.missing or holds, f"{record} lacks {record.missing}, but holds nothing"
    if record.reservation is not None:
        evicting = record.in_flight is not None and record.in_flight.what == "eviction"
        leaving = record.info.evicted or evicting or record.preempted_by is not None
        assert leaving == record.is_leaving, f"{record} is to go: {leaving}"
        assert leaving or record.reservation.admitted == (record.state is WorkloadState.ADMITTED), f"{record}"
    assert record.story[-1].after is record.state, f"the story of {record} ends otherwise"


def _quota(state: State) -> None:
    """Usage is the sum over what is held: in the ledger, and in the accounts of both kinds of queue."""
    usage: dict[str, dict[FlavorResource, int]] = {}
    accounts: dict[Key, Account] = {}
    holders: dict[str, set[Key]] = {}
    for key, record in state.workloads.items():
        reservation, promise = record.reservation, record.promise
        if promise is not None:
            _promised(state, key)
            amounts = usage.setdefault(promise.cluster_queue, {})
            for fr, amount in promise.usage.items():
                amounts[fr] = amounts.get(fr, 0) + amount
        if reservation is None:
            assert record.preempted_by is None, f"{key} holds nothing, but is to leave"
            continue
        holders.setdefault(reservation.cluster_queue, set()).add(key)
        amounts = usage.setdefault(reservation.cluster_queue, {})
        for fr, amount in reservation.usage.items() if record.preempted_by is None else ():
            amounts[fr] = amounts.get(fr, 0) + amount
        for queue in (("", reservation.cluster_queue), reservation.local_queue):
            account = accounts.setdefault(queue, Account())
            account.count(reservation.usage, 1, admitted=reservation.admitted)
    for name in usage.keys() | state.cluster_queues.keys():
        expected = {fr: amount for fr, amount in usage.get(name, {}).items() if amount}
        assert state.ledger.usage(name) == expected, f"usage of {name} is {state.ledger.usage(name)}, not {expected}"
    for node in state.ledger.cohorts():
        borrowers = {fr: dict(children) for fr, children in node.borrowers.items() if children}
        assert borrowers == node.borrowing_children(), f"cohort {node.name} has other borrowers than it knows of"
    assert dict(state.accounts.items()) == accounts, "the accounts of the queues are not the sum over what is held"
    assert {name: set(keys) for name, keys in state.index.holders.items()} == holders, "holders are not those who hold"


def _promised(state: State, key: Key) -> None:
    """Who was promised something waits, and those it waits for are on their way out."""
    record = state.workloads[key]
    assert record.promise is not None
    assert record.state is WorkloadState.PENDING, f"{key} was promised something and is {record.state}"
    unschedulable = state.cluster_queues[record.cluster_queue].pending.unschedulable(record.info.order)
    blocked_on = unschedulable.blocked_on if unschedulable is not None else Changed.NOTHING
    assert Changed.VICTIMS in blocked_on, f"{key} was promised something and looks for more"
    for victim in record.promise.awaited:
        assert state.workloads[victim].preempted_by == key, f"{key} waits for {victim}, which does not leave for it"
    looked_at = key in state.requeue.workloads or state.requeue.waits(key, Changed.NODES)
    assert bool(record.promise.awaited) != looked_at, f"{key} waits for nobody, but is not looked at"
