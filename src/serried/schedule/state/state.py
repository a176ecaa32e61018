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
from serried.quota.quotas import FlavorResource
from serried.schedule.state.queue_usage import Accounts
from serried.schedule.state.records import (
    ClusterQueueState,
    CohortState,
    Finished,
    LocalQueueState,
    LocalUsage,
    Record,
)
from serried.schedule.state.requeue import Requeue
from serried.schedule.state.stale_statuses import StaleStatuses
from serried.schedule.state.sweep import Sweep
from serried.schedule.types.changed import Changed
from serried.schedule.types.options import DEFAULT_OPTIONS, FairSharing, Options
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, key_of, read_weight


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
        #: workloads that have not ended
        self.workloads: dict[Key, Record] = {}
        #: workloads that have ended
        self.finished: dict[Key, Finished] = {}
        #: workloads that cannot be read at all
        self.malformed: dict[Key, Reason] = {}
        #: LocalQueue (there or not) → the active workloads that wait for it, pending or inadmissible
        self.waiting: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue (there or not) → the LocalQueues that lead to it
        self.leads_to: dict[str, dict[Key, None]] = {}
        #: workload → those in queues that are to replace it: what they may get depends on whether it holds something
        self.successors: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue → the workloads that hold its quota
        self.holders: dict[str, dict[Key, None]] = {}
        #: who holds most of a flavor's resource, in words, until that changes; see `flavors`
        self.top_holders: dict[str, dict[FlavorResource, str]] = {}
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

    def set_holder(self, cluster_queue: str, key: Key, *, holds: bool) -> None:
        """Whether a workload holds quota of a ClusterQueue."""
        self.top_holders.pop(cluster_queue, None)
        holders = self.holders.setdefault(cluster_queue, {})
        if holds:
            holders[key] = None
        else:
            del holders[key]
            if not holders:
                del self.holders[cluster_queue]

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
        return lambda order: usage(self.workloads[key_of(order)].info.queue)
