"""Everything the decision knows: the model, quota, queues and workloads, and the few ways a workload moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        self.accounts = Accounts()
        self.flavors: Mapping[str, ResourceFlavor] = self.world.flavors
        self.topologies: Mapping[str, Topology] = self.world.topologies
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.cluster_queues: dict[str, ClusterQueueState] = {}
        self.local_queues: dict[Key, LocalQueueState] = {}
        self.cohorts: dict[str, CohortState] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        #: workloads that hold quota and need another look: a place, a better one, the end of their checks
        self.second: dict[Key, None] = {}
        #: of those, the ones for which there were no nodes: they are looked at again when nodes change
        self.second_waits: dict[Key, None] = {}
        #: (when, who): workloads that are not to be looked at before; and the time of the last cycle
        self.backing_off: list[tuple[datetime, Key]] = []
        self.now: datetime | None = None
        #: workloads that wait in the middle of the scan of their flavors
        self.scanning: dict[Key, None] = {}
        #: workloads whose victims have all gone
        self.promised: dict[Key, None] = {}
        #: of those, the ones in whose places pods of their victims still are
        self.promise_waits: dict[Key, None] = {}
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
        #: ClusterQueues in which somebody may be looked at
        self.awake: dict[str, None] = {}
        #: tree of cohorts → ClusterQueues in which somebody waits for quota; and trees in which some was given back
        self.short_of_quota: dict[str, dict[str, None]] = {}
        self.quota_stirred: dict[str, None] = {}
        #: trees of cohorts in which somebody was admitted on borrowed quota: who may reclaim it may preempt more now
        self.quota_lent: dict[str, None] = {}
        #: trees of cohorts in which a ClusterQueue came, went or changed: what could never fit in them may do so now
        self.trees_changed: dict[str, None] = {}
        #: ClusterQueues in which somebody waits for nodes, and whether nodes have changed since
        self.short_of_nodes: dict[str, None] = {}
        self.nodes_stirred = False
        #: held workloads whose places are not all there: what is missing; and whether anything was added since
        self.incomplete: dict[Key, list[str]] = {}
        self.places_changed = False
        #: trees of cohorts in which what is said of Cohorts may have changed; and those in which quota has
        self.changed_trees: dict[str, None] = {}
        self.requoted_trees: dict[str, None] = {}
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

    def stir_nodes(self) -> None:
        """Nodes, pods or placements have changed."""
        self.nodes_stirred = bool(self.short_of_nodes)
        self.second.update(self.second_waits)
        self.second_waits.clear()
        self.promised.update(self.promise_waits)
        self.promise_waits.clear()
        self.places_changed = bool(self.incomplete)

    def complete(self) -> None:
        """Charges again what workloads hold on places that were not there before."""
        if self.places_changed:
            self.places_changed = False
            for key in list(self.incomplete):
                reservation = self.workloads[key].reservation
                assert reservation is not None
                self._note(key, self.world.hold(key, reservation.placements, reservation.pod_sets))
            self.journal.commit()

    def stir_quota(self, cluster_queue: str) -> None:
        """Usage was given back in a ClusterQueue: that may help everyone in its tree of cohorts."""
        tree = self.ledger.tree_of(cluster_queue)
        if tree in self.short_of_quota:
            self.quota_stirred[tree] = None

    def lend(self, cluster_queue: str, usage: Mapping[FlavorResource, int]) -> None:
        """Somebody in a ClusterQueue was admitted with this."""
        node = self.ledger.queue(cluster_queue)
        if node.parent is not None and any(node.exceeds(fr) for fr in usage):
            self.quota_lent[self.ledger.tree_of(cluster_queue)] = None

    def wait_for_quota(self, cluster_queue: str) -> None:
        """Somebody in this ClusterQueue waits for quota."""
        self.short_of_quota.setdefault(self.ledger.tree_of(cluster_queue), {})[cluster_queue] = None

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
        self.restart_scan(record)
        queue = self.cluster_queues[cluster_queue]
        queue.pending.add(record.info.order, record.info.equivalence_class)
        queue.unreported[record.info.order] = None
        self.awake[cluster_queue] = None
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
            self.incomplete.pop(victim, None)
        self.ledger.charge(promise.cluster_queue, promise.usage)
        if promise.placements:
            self.world.hold(key, promise.placements, promise.pod_sets, promised=True)
        self.journal.commit()
        record.promise = promise
        if not promise.awaited:
            self.promised[key] = None
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
        self.incomplete.pop(record.info.key, None)

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
        self.promised.pop(record.info.key, None)
        self.promise_waits.pop(record.info.key, None)
        self.stir_quota(promise.cluster_queue)
        self.stir_nodes()

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
            self.awake[queue.name] = None
        self.ledger.charge(record.reservation.cluster_queue, record.reservation.usage)
        places = (*record.reservation.placements, *record.leaves)
        if places:
            self._note(record.info.key, self.world.hold(record.info.key, places, record.reservation.pod_sets))
        self.journal.commit()

    def _gone(self, record: Record) -> None:
        """A victim has given back what it held."""
        preemptor = self.workloads.get(record.preempted_by) if record.preempted_by is not None else None
        record.preempted_by = None
        if preemptor is not None and preemptor.promise is not None:
            preemptor.promise.awaited.discard(record.info.key)
            if not preemptor.promise.awaited:
                self.promised[preemptor.info.key] = None

    def restart_scan(self, record: Record) -> None:
        """Its flavors are to be looked at from the first one on."""
        record.start, record.so_far = {}, None
        self.scanning.pop(record.info.key, None)

    def leave(self, record: Record) -> None:
        """It stops waiting; its next place is set by another move."""
        self.end_promise(record)
        self.restart_scan(record)
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
            self.awake[queue.name] = None
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
        key = record.info.key
        self.ledger.charge(reservation.cluster_queue, reservation.usage)
        if reservation.placements:
            self._note(key, self.world.hold(key, reservation.placements, reservation.pod_sets))
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
        self.incomplete.pop(key, None)
        self.second.pop(key, None)
        self.second_waits.pop(key, None)
        self._uncount(record)
        record.place, record.reservation, record.evicting, record.admitting = "aside", None, False, False
        record.leaves, record.previous = (), None
        self._gone(record)
        self._wake_successors(record)
        self.stir_quota(reservation.cluster_queue)
        if reservation.placements:
            self.stir_nodes()

    def _wake_successors(self, record: Record) -> None:
        for key in self.successors.get(record.info.key, ()):
            name = self.workloads[key].cluster_queue
            self.cluster_queues[name].pending.wake_all()
            self.awake[name] = None

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
            self._note(record.info.key, self.world.hold(record.info.key, places, reservation.pod_sets))
        else:
            self.world.release(record.info.key)
        self.journal.commit()
        self.stir_nodes()

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

    def _note(self, key: Key, missing: list[str]) -> None:
        if missing:
            self.incomplete[key] = missing
        else:
            self.incomplete.pop(key, None)

    def wait(self, record: Record) -> None:
        """It waits for its LocalQueue, there or not; where, is set by another move."""
        self.waiting.setdefault(record.info.queue, {})[record.info.key] = None
        self._touch_waiting(record.info.queue)

    def _touch_waiting(self, local_queue: Key) -> None:
        self.accounts.touch(local_queue)
        state = self.local_queues.get(local_queue)
        if state is not None:
            self.accounts.touch(("", state.spec.cluster_queue))
