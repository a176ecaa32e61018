"""Everything the decision knows: the model, quota, queues and workloads, and the few ways a workload moves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from functools import cache
from typing import NamedTuple

from serried.api.kueue import (
    AdmissionCheck,
    ResourceFlavor,
    Topology,
)
from serried.api.meta import Key
from serried.model.departures import Departures
from serried.model.journal import Journal
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.quota.ledger import Ledger
from serried.schedule.state.fair_usage import FairUsage
from serried.schedule.state.queue_usage import Accounts
from serried.schedule.state.records import (
    ClusterQueueState,
    CohortState,
    Finished,
    LocalQueueState,
    Record,
)
from serried.schedule.state.requeue import Requeue
from serried.schedule.state.stale_statuses import StaleStatuses
from serried.schedule.state.sweep import Sweep
from serried.schedule.state.workload_index import WorkloadIndex
from serried.schedule.types.changed import Changed
from serried.schedule.types.options import DEFAULT_OPTIONS, FairSharing, Options
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, key_of


class Event(NamedTuple):
    """One call through the engine's door: the name of its handler, and of what object it tells; of a cycle, none."""

    name: str
    kind: str
    key: Key | None


class State:
    """The data of one engine. Whoever changes it leaves the journal empty; trials roll back before they return."""

    def __init__(self, place_options: PlaceOptions = DEFAULT, options: Options = DEFAULT_OPTIONS) -> None:
        self.place_options = place_options
        self.options = options
        self.journal = Journal()
        self.world = World(self.journal)
        self.ledger = Ledger(self.journal)
        self.requeue = Requeue()
        self.sweep = Sweep()
        #: what nodes would gain without some of those who hold quota, with the number of changes in the model of nodes
        #: when that was found out; forgotten when anyone's hold on quota changes
        self.departures: dict[Hashable, tuple[int, Departures]] = {}
        self.stale = StaleStatuses(shares=options.fair_sharing is not None)
        self.accounts = Accounts(self.stale)
        self.flavors: Mapping[str, ResourceFlavor] = self.world.flavors
        self.topologies: Mapping[str, Topology] = self.world.topologies
        self.namespaces = self.world.namespaces
        self.cluster_queues: dict[str, ClusterQueueState] = {}
        self.local_queues: dict[Key, LocalQueueState] = {}
        self.cohorts: dict[str, CohortState] = {}
        self.fair_usage = FairUsage(options.admission_fair_sharing, self.cluster_queues, self.local_queues)
        self.checks: dict[str, AdmissionCheck] = {}
        #: the time of the last cycle
        self.now: datetime | None = None
        #: workloads that have not ended
        self.workloads: dict[Key, Record] = {}
        #: workloads that have ended
        self.finished: dict[Key, Finished] = {}
        #: workloads that cannot be read at all
        self.malformed: dict[Key, Reason] = {}
        self.index = WorkloadIndex()
        #: ClusterQueue (there or not) → the LocalQueues that lead to it
        self.leads_to: dict[str, dict[Key, None]] = {}
        #: the event that is being handled
        self.event = Event("", "", None)
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

    def released(self, cluster_queue: str) -> None:
        """Usage was given back in a ClusterQueue: that may help everyone in its tree of cohorts."""
        self.requeue.changed(Changed.RELEASED, self.ledger.tree_of(cluster_queue))

    def line(self, cluster_queue: str) -> list[Order]:
        """Everyone who waits in a ClusterQueue, first to last; by the usage of LocalQueues where that counts."""
        orders = self.cluster_queues[cluster_queue].pending.orders()
        before = self.before_order(cluster_queue)
        return orders if before is None else sorted(orders, key=lambda order: (before(order), order))

    def stale_queues_of(self, local_queue: Key) -> None:
        """How many wait for a LocalQueue has changed."""
        self.stale.queue(local_queue)
        found = self.local_queues.get(local_queue)
        if found is not None:
            self.stale.queue(("", found.spec.cluster_queue))

    def event_of(self, workload: Key) -> str:
        """The event that is being handled, as the story of a workload tells it; "": the workload's own."""
        if self.event.key is None:
            return "by a cycle"
        if self.event.key == workload and self.event.kind == "Workload":
            return "" if self.event.name == "set_workload" else f"by {self.event.name}"
        return f"by {self.event.name} {'/'.join(filter(None, self.event.key))}"

    @property
    def fair_sharing(self) -> FairSharing | None:
        return self.options.fair_sharing

    def head(self, queue: ClusterQueueState) -> Order | None:
        """Who in a ClusterQueue is to be looked at next; None: nobody until something changes."""
        return queue.pending.head(self.before_order(queue.name))

    def before_order(self, cluster_queue: str) -> Callable[[Order], float] | None:
        """What counts before the order of those who wait in a ClusterQueue, less first; None: nothing does."""
        if not self.fair_usage.orders(cluster_queue):
            return None
        usage = cache(self.fair_usage.of)
        return lambda order: usage(self.workloads[key_of(order)].info.queue)
