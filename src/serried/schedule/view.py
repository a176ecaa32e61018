"""The engine's model, to read: for the command line, displays and tests. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Literal

import msgspec

from serried.api.meta import Key
from serried.model.world import World
from serried.quota.quotas import FlavorResource
from serried.schedule.state.records import Activity, Record, Reservation, Transition, WorkloadState
from serried.schedule.state.state import State
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, key_of


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one workload stands, and why, as far as that was worked out already."""

    key: Key
    #: unreadable: the object cannot be decoded
    state: WorkloadState | Literal["unreadable"]
    local_queue: str = ""
    #: in which it waits or holds quota; of one that is inadmissible, to which its LocalQueue leads
    cluster_queue: str = ""
    priority: int = 0
    queued_at: datetime | None = None
    #: why it waits, as it was last told; None: nobody has looked at it yet
    reason: Reason | None = None
    #: PENDING: how many are ahead of it, and who holds it back (StrictFIFO)
    ahead: int = 0
    held_back_by: Key | None = None
    #: what is decided and not heard of yet: admission, places, checks or eviction
    in_flight: str = ""
    #: LEAVING: for this workload; PENDING: who has to go before it gets what is kept for it
    preempted_by: Key | None = None
    awaited: Sequence[Key] = ()
    #: what of its admission cannot be read or is not there
    problems: Sequence[str] = ()


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A ClusterQueue, and who waits in it."""

    name: str
    activity: Activity
    #: first to last
    pending: Sequence[Key]
    #: what is reserved of its quota, without what its preempted workloads have given up
    usage: Mapping[FlavorResource, int]


class EngineView:
    """The model of an engine at one moment: made at no cost, and to be thrown away before the next event."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def world(self) -> World:
        """The nodes and what stands on them."""
        return self._state.world

    # --- workloads

    def workloads(self) -> Iterator[WorkloadView]:
        """All that are known, also those that cannot be read."""
        for key in (*self._state.malformed, *self._state.workloads, *self._state.finished):
            found = self.workload(key)
            assert found is not None
            yield found

    def workload(self, key: Key) -> WorkloadView | None:
        state = self._state
        if key in state.malformed:
            return WorkloadView(key=key, state="unreadable", reason=state.malformed[key])
        if key in state.finished:
            return WorkloadView(key=key, state=WorkloadState.FINISHED, local_queue=state.finished[key].local_queue)
        record = state.workloads.get(key)
        if record is None:
            return None
        info, reservation = record.info, record.reservation
        pending = record.state is WorkloadState.PENDING
        return WorkloadView(
            key=key,
            state=record.state,
            local_queue=info.queue[1],
            cluster_queue=self._cluster_queue(record),
            priority=info.priority,
            queued_at=info.queued_at,
            reason=record.last_reason,
            ahead=self._position(record.cluster_queue, info.order) if pending else 0,
            held_back_by=self._holder(record) if pending else None,
            in_flight=record.in_flight.what if record.in_flight is not None else "",
            preempted_by=record.preempted_by,
            awaited=sorted(record.promise.awaited) if record.promise is not None else (),
            problems=(*reservation.problems, *record.missing) if reservation is not None else (),
        )

    def reservation(self, key: Key) -> Reservation | None:
        """What a workload holds."""
        record = self._state.workloads.get(key)
        return record.reservation if record is not None else None

    def story(self, key: Key) -> Sequence[Transition]:
        """How a workload came to where it stands: its last transitions, oldest first."""
        record = self._state.workloads.get(key)
        return record.story if record is not None else ()

    def _cluster_queue(self, record: Record) -> str:
        if record.reservation is not None:
            return record.reservation.cluster_queue
        local = self._state.local_queues.get(record.info.queue)
        return record.cluster_queue or (local.spec.cluster_queue if local is not None else "")

    def _holder(self, record: Record) -> Key | None:
        holder = self._state.cluster_queues[record.cluster_queue].pending.holder()
        return key_of(holder) if holder is not None and holder < record.info.order else None

    def _position(self, cluster_queue: str, order: Order) -> int:
        if self._state.fair_usage.orders(cluster_queue):
            return self._positions[cluster_queue][order]
        return self._state.cluster_queues[cluster_queue].pending.position(order)

    @cached_property
    def _positions(self) -> dict[str, dict[Order, int]]:
        """Of ClusterQueues that are ordered by usage."""
        names = filter(self._state.fair_usage.orders, self._state.cluster_queues)
        return {name: {order: i for i, order in enumerate(self._state.line(name))} for name in names}

    # --- queues

    def queue(self, name: str) -> QueueView | None:
        found = self._state.cluster_queues.get(name)
        if found is None:
            return None
        pending = [key_of(order) for order in self._state.line(name)]
        return QueueView(name=name, activity=found.activity, pending=pending, usage=self.usage(name))

    def queues(self) -> list[str]:
        """The names of all ClusterQueues."""
        return list(self._state.cluster_queues)

    def usage(self, cluster_queue: str) -> Mapping[FlavorResource, int]:
        """What is charged to a ClusterQueue, there or not. cpu in millicores, everything else in units."""
        return dict(self._state.ledger.usage(cluster_queue))

    def available(self, cluster_queue: str, fr: FlavorResource) -> int:
        """What may still be charged of a flavor's resource; below zero if usage exceeds the quotas."""
        return self._state.ledger.available(cluster_queue, fr)

    def cohort_usage(self) -> dict[str, Mapping[FlavorResource, int]]:
        """Cohort → what its ClusterQueues use of what it has."""
        return {node.name: dict(node.usage) for node in self._state.ledger.cohorts()}

    def local_usage(self, local_queue: Key) -> Mapping[str, float]:
        """What a LocalQueue has used lately, in base units by resource; see `fair_usage`."""
        found = self._state.fair_usage.used.get(local_queue)
        return dict(found.amounts) if found is not None else {}
