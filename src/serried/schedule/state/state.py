"""Everything the decision knows: the model, quota, queues and workloads, and the few ways a workload moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache

from serried.api.kueue import (
    AdmissionCheck,
    ResourceFlavor,
    Topology,
)
from serried.api.meta import Key
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.quota.ledger import Ledger
from serried.quota.quotas import FlavorResource
from serried.schedule.state.queue_usage import Accounts
from serried.schedule.state.records import (
    ClusterQueueState,
    CohortState,
    LocalQueueState,
    LocalUsage,
    Promise,
    Record,
    Reservation,
)
from serried.schedule.state.requeue import Requeue
from serried.schedule.state.stale_statuses import StaleStatuses
from serried.schedule.types.changed import Changed
from serried.schedule.types.options import DEFAULT_OPTIONS, FairSharing, Options
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, read_weight


class State:
    """The data of one engine. Whoever changes it leaves the journal empty; trials roll back before they return."""

    def __init__(self, place_options: PlaceOptions = DEFAULT, options: Options = DEFAULT_OPTIONS) -> None:
        self.place_options = place_options
        self.options = options
        self.journal = Journal()
        self.world = World(self.journal)
        self.ledger = Ledger(self.journal)
        self.requeue = Requeue()
        self.stale = StaleStatuses(shares=options.fair_sharing is not None)
        self.accounts = Accounts(self.stale)
        self.flavors: Mapping[str, ResourceFlavor] = self.world.flavors
        self.topologies: Mapping[str, Topology] = self.world.topologies
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.cluster_queues: dict[str, ClusterQueueState] = {}
        self.local_queues: dict[Key, LocalQueueState] = {}
        self.cohorts: dict[str, CohortState] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        #: the time of the last cycle
        self.now: datetime | None = None
        #: when usage of LocalQueues was last counted
        self.sampled_at: datetime | None = None
        #: LocalQueue → what it has used lately
        self.local_usage: dict[Key, LocalUsage] = {}
        self.workloads: dict[Key, Record] = {}
        #: workloads that cannot be read at all
        self.malformed: dict[Key, Reason] = {}
        #: LocalQueue (there or not) → the active workloads that wait for it, queued or aside
        self.waiting: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue (there or not) → the LocalQueues that lead to it
        self.leads_to: dict[str, dict[Key, None]] = {}
        #: workload → those in queues that are to replace it: what they may get depends on whether it holds something
        self.successors: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue → the workloads that hold its quota
        self.holders: dict[str, dict[Key, None]] = {}
        #: who holds most of a flavor's resource, in words, until that changes; see `flavors`
        self.top_holders: dict[str, dict[FlavorResource, str]] = {}
        #: the workload that the cycle is deciding on: a fault is put down to it
        self.looked_at: Key | None = None
        #: reasons that have not been handed out yet
        self.outbox: dict[Key, Reason] = {}

    def report(self, key: Key, reason: Reason) -> None:
        """Lets the workload know why it waits, unless it has been told the same."""
        record = self.workloads[key]
        if record.last_reason is None or (record.last_reason.code, record.last_reason.message) != (
            reason.code,
            reason.message,
        ):
            self.outbox[key] = reason
        record.last_reason = reason

    def account_for_missing(self) -> None:
        """Charges again what workloads hold on places that were not there before."""
        for key in self.requeue.workloads:
            record = self.workloads[key]
            if record.missing:
                assert record.reservation is not None
                self._hold(record, record.reservation.placements)
                self.journal.commit()

    def released(self, cluster_queue: str) -> None:
        """Usage was given back in a ClusterQueue: that may help everyone in its tree of cohorts."""
        self.requeue.changed(Changed.RELEASED, self.ledger.tree_of(cluster_queue))

    def borrowed(self, cluster_queue: str, usage: Mapping[FlavorResource, int]) -> None:
        """Somebody in a ClusterQueue was admitted with this."""
        node = self.ledger.queue(cluster_queue)
        if node.parent is not None and any(node.exceeds(fr) for fr in usage):
            self.requeue.changed(Changed.BORROWED, self.ledger.tree_of(cluster_queue))

    @property
    def fair_sharing(self) -> FairSharing | None:
        return self.options.fair_sharing

    def usage_ordered(self, cluster_queue: str) -> bool:
        """Whether the workloads of a ClusterQueue are ordered by what their LocalQueues have used lately."""
        queue = self.cluster_queues.get(cluster_queue)
        scope = queue.spec.admission_scope if queue is not None else None
        return (
            self.options.admission_fair_sharing is not None
            and scope is not None
            and scope.admission_mode == "UsageBasedAdmissionFairSharing"
        )

    def usage_of(self, local_queue: Key) -> float:
        """What a LocalQueue has used lately, resources by their weights, divided by the weight of its own."""
        config = self.options.admission_fair_sharing
        usage = self.local_usage.get(local_queue)
        used = config.weigh(usage.amounts) if config is not None and usage is not None else 0.0
        queue = self.local_queues.get(local_queue)
        fair = queue.spec.fair_sharing if queue is not None else None
        weight = read_weight(fair.weight if fair is not None else 1)
        if not weight:
            return float("inf")
        return used / float(weight)

    def head(self, queue: ClusterQueueState) -> Order | None:
        """Who in a ClusterQueue is to be looked at next; None: nobody until something changes."""
        return queue.pending.head(self.before_order(queue.name))

    def before_order(self, cluster_queue: str) -> Callable[[Order], float] | None:
        """What counts before the order of those who wait in a ClusterQueue, less first; None: nothing does."""
        if not self.usage_ordered(cluster_queue):
            return None
        usage = cache(self.usage_of)
        return lambda order: usage(self.workloads[order[3], order[4]].info.queue)

    # --- moves: each takes a record from one place to another

    def set_aside(self, record: Record, reason: Reason) -> None:
        """It waits in no ClusterQueue until it, or the queue it names, changes."""
        if record.info.active:
            self.wait(record)
        record.place = "aside"
        self.report(record.info.key, reason)

    def enqueue(self, record: Record, cluster_queue: str) -> None:
        self.wait(record)
        record.place, record.cluster_queue = "queued", cluster_queue
        queue = self.cluster_queues[cluster_queue]
        queue.pending.add(record.info.order, record.info.equivalence_class)
        queue.unreported[record.info.order] = None
        self.requeue.activate(cluster_queue)
        if record.info.replaces is not None:
            self.successors.setdefault(record.info.replaces, {})[record.info.key] = None

    # --- promises

    def promise(self, record: Record, promise: Promise) -> None:
        """Others are preempted for this workload: what they hold is theirs no more, and what it needs is its own."""
        key = record.info.key
        for victim in promise.victims:
            other = self.workloads[victim]
            assert other.reservation is not None
            other.preempted_by = key
            self.ledger.refund(other.reservation.cluster_queue, other.reservation.usage)
            self.world.release(victim)
            other.missing = ()
        self.ledger.charge(promise.cluster_queue, promise.usage)
        if promise.placements:
            self.world.hold(key, promise.placements, promise.pod_sets, promised=True)
        self.journal.commit()
        record.promise = promise
        if not promise.awaited:
            self.requeue.look_at(key)
        pending = self.cluster_queues[record.cluster_queue].pending
        pending.remove(record.info.order)
        pending.add(record.info.order, b"promise " + "/".join(key).encode())

    def give_way(self, record: Record, successor: Record) -> None:
        """What it holds is its successor's from now on."""
        assert record.reservation is not None
        record.preempted_by = successor.info.key
        self.ledger.refund(record.reservation.cluster_queue, record.reservation.usage)
        self.world.release(record.info.key)
        self.journal.commit()
        record.missing = ()

    def lift_promise(self, record: Record) -> None:
        """For a trial, or for good: what it was promised is free again. Journalled."""
        promise = record.promise
        assert promise is not None
        self.ledger.refund(promise.cluster_queue, promise.usage)
        if promise.placements:
            self.world.release(record.info.key)

    def end_promise(self, record: Record) -> None:
        """The promise is kept by an admission, or given up. Those who leave for it go on leaving."""
        promise = record.promise
        if promise is None:
            return
        self.lift_promise(record)
        self.journal.commit()
        record.promise = None
        self.requeue.forget(record.info.key)
        self.released(promise.cluster_queue)
        self.requeue.changed(Changed.NODES)

    def stay(self, record: Record) -> None:
        """A preemption was refused by the API: the victim holds again what it held, and its preemptor nothing."""
        assert record.reservation is not None
        assert record.preempted_by is not None
        preemptor = self.workloads.get(record.preempted_by)
        record.preempted_by = None
        if preemptor is not None and preemptor.promise is not None:
            self.end_promise(preemptor)
            queue = self.cluster_queues[preemptor.cluster_queue]
            queue.pending.remove(preemptor.info.order)
            queue.pending.add(preemptor.info.order, preemptor.info.equivalence_class)
            self.requeue.activate(queue.name)
        self.ledger.charge(record.reservation.cluster_queue, record.reservation.usage)
        places = (*record.reservation.placements, *record.leaves)
        if places:
            self._hold(record, places)
        self.journal.commit()

    def _gone(self, record: Record) -> None:
        """A victim has given back what it held."""
        preemptor = self.workloads.get(record.preempted_by) if record.preempted_by is not None else None
        record.preempted_by = None
        if preemptor is not None and preemptor.promise is not None:
            preemptor.promise.awaited.discard(record.info.key)
            if not preemptor.promise.awaited:
                self.requeue.look_at(preemptor.info.key)

    def leave(self, record: Record) -> None:
        """It stops waiting; its next place is set by another move."""
        self.end_promise(record)
        key, local_queue = record.info.key, record.info.queue
        waiting = self.waiting.get(local_queue, {})
        if key in waiting:
            del waiting[key]
            if not waiting:
                del self.waiting[local_queue]
            self._touch_waiting(local_queue)
        if record.place == "queued":
            queue = self.cluster_queues[record.cluster_queue]
            queue.pending.remove(record.info.order)
            queue.unreported.pop(record.info.order, None)
            # Under StrictFIFO whoever it held back may be next.
            self.requeue.activate(queue.name)
            if record.info.replaces is not None:
                successors = self.successors[record.info.replaces]
                del successors[key]
                if not successors:
                    del self.successors[record.info.replaces]
        record.place, record.cluster_queue = "aside", ""
        if self.outbox.pop(key, None) is not None:
            record.last_reason = None

    def take(self, record: Record, reservation: Reservation) -> None:
        """It has quota and places by its status: they are charged, whether they fit or not."""
        self.ledger.charge(reservation.cluster_queue, reservation.usage)
        if reservation.placements:
            record.reservation = reservation
            self._hold(record, reservation.placements)
        self.journal.commit()
        self.hold(record, reservation)

    def hold(self, record: Record, reservation: Reservation) -> None:
        """It has its quota and places; they are charged already."""
        record.place, record.reservation, record.last_reason = "held", reservation, None
        self.holders.setdefault(reservation.cluster_queue, {})[record.info.key] = None
        self.top_holders.pop(reservation.cluster_queue, None)
        self._wake_successors(record)
        for queue in (("", reservation.cluster_queue), reservation.local_queue):
            self.accounts.reserve(queue, reservation.usage, 1)
            if reservation.admitted:
                self.accounts.admit(queue, reservation.usage, 1)

    def change(self, record: Record, reservation: Reservation) -> None:
        """Of the same reservation it holds more or less than before. If it is on its way out, it goes on leaving."""
        leaving, evicting = record.preempted_by, record.evicting
        if leaving is None:
            self.release(record)
            self.take(record, reservation)
        else:
            self._uncount(record)
            self.hold(record, reservation)
        record.evicting = evicting

    def release(self, record: Record) -> None:
        """It gives back quota and places; its next place is set by another move."""
        reservation, key = record.reservation, record.info.key
        assert reservation is not None
        if record.preempted_by is None:
            self.ledger.refund(reservation.cluster_queue, reservation.usage)
            self.world.release(key)
            self.journal.commit()
        self.requeue.forget(key)
        self._uncount(record)
        record.place, record.reservation, record.evicting, record.admitting = "aside", None, False, False
        record.leaves, record.previous, record.missing = (), None, ()
        self._gone(record)
        self._wake_successors(record)
        self.released(reservation.cluster_queue)
        if reservation.placements:
            self.requeue.changed(Changed.NODES)

    def _wake_successors(self, record: Record) -> None:
        for key in self.successors.get(record.info.key, ()):
            name = self.workloads[key].cluster_queue
            self.cluster_queues[name].pending.changed(Changed.QUOTAS)
            self.requeue.activate(name)

    def _uncount(self, record: Record) -> None:
        reservation, key = record.reservation, record.info.key
        assert reservation is not None
        self.top_holders.pop(reservation.cluster_queue, None)
        holders = self.holders[reservation.cluster_queue]
        del holders[key]
        if not holders:
            del self.holders[reservation.cluster_queue]
        for queue in (("", reservation.cluster_queue), reservation.local_queue):
            if reservation.admitted:
                self.accounts.admit(queue, reservation.usage, -1)
            self.accounts.reserve(queue, reservation.usage, -1)

    def rehold(self, record: Record, reservation: Reservation, leaves: tuple[Placement, ...] = ()) -> None:
        """It holds the same quota, but other places, and until that is confirmed also those that it leaves."""
        before = record.reservation
        self.confirm(record, reservation)
        record.leaves, record.previous = leaves, None if reservation.confirmed else before
        places = (*reservation.placements, *leaves)
        if places:
            self._hold(record, places)
        else:
            self.world.release(record.info.key)
        self.journal.commit()
        self.requeue.changed(Changed.NODES)

    def confirm(self, record: Record, reservation: Reservation) -> None:
        """The API server has what the workload holds; it may be admitted only now, or not any more."""
        before = record.reservation
        assert before is not None
        for sign, counted in ((-1, before.admitted), (1, reservation.admitted)):
            if counted and before.admitted != reservation.admitted:
                for queue in (("", reservation.cluster_queue), reservation.local_queue):
                    self.accounts.admit(queue, reservation.usage, sign)
        record.reservation = reservation
        if reservation.confirmed:
            left, record.leaves, record.previous = record.leaves, (), None
            if left and record.preempted_by is None:
                self.rehold(record, reservation)

    def _hold(self, record: Record, places: Sequence[Placement]) -> None:
        """Charges these places of a workload; those that are not there when nodes change."""
        assert record.reservation is not None
        record.missing = tuple(self.world.hold(record.info.key, places, record.reservation.pod_sets))
        if record.missing:
            self.requeue.wait(record.info.key, Changed.NODES)

    def wait(self, record: Record) -> None:
        """It waits for its LocalQueue, there or not; where, is set by another move."""
        self.waiting.setdefault(record.info.queue, {})[record.info.key] = None
        self._touch_waiting(record.info.queue)

    def _touch_waiting(self, local_queue: Key) -> None:
        self.stale.queue(local_queue)
        state = self.local_queues.get(local_queue)
        if state is not None:
            self.stale.queue(("", state.spec.cluster_queue))
