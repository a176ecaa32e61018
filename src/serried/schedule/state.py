"""Everything the decision knows: the model, quota, queues and workloads, and the few ways a workload moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serried.api.kueue import Admission, ClusterQueueSpec, LocalQueueSpec, ResourceFlavor, Topology, WorkloadSpec
from serried.api.meta import Key
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.quota.ledger import Ledger
from serried.quota.limits import Cell, Limits, QueueProblem
from serried.schedule.accounts import Accounts
from serried.schedule.queues import Help, PendingQueue
from serried.schedule.reasons import Reason
from serried.schedule.workload import Order, WorkloadInfo


@dataclass(frozen=True)
class Activity:
    """Whether a queue admits: its condition Active. `reason` is one of `api.names.QueueReason`."""

    active: bool
    reason: str
    message: str


@dataclass
class ClusterQueueState:
    """A ClusterQueue as it was last read, and who waits in it."""

    name: str
    spec: ClusterQueueSpec
    generation: int
    limits: Limits
    #: what is wrong with the spec itself
    problems: list[QueueProblem]
    terminating: bool
    pending: PendingQueue
    activity: Activity
    #: per group of `limits`: the label keys of its flavors
    label_keys: tuple[frozenset[str], ...] = ()
    #: every flavor names a topology: workloads without a wish are placed, too
    topology_only: bool = False
    #: what has changed since its parked workloads were last woken
    stirred: Help = Help.NOTHING
    #: arrivals that have not been told yet why they wait
    untold: dict[Order, None] = field(default_factory=dict)


@dataclass
class LocalQueueState:
    """A LocalQueue as it was last read."""

    spec: LocalQueueSpec
    generation: int
    terminating: bool
    activity: Activity


@dataclass(frozen=True)
class Holding:
    """What an admitted workload holds."""

    cluster_queue: str
    local_queue: Key
    usage: Mapping[Cell, int]
    placements: tuple[Placement, ...]
    #: the pod sets with the counts they were admitted with
    pod_sets: tuple[PodSetRequest, ...]
    admission: Admission
    admitted: bool
    #: the API server has it; until then it is only assumed
    confirmed: bool
    #: what of the admission cannot be read
    problems: tuple[str, ...] = ()


@dataclass
class Record:
    """One workload that is known, and the one place where it is.

    aside: it waits, but in no ClusterQueue, for the reason told. queued: in ClusterQueue `cluster_queue`.
    held: it has quota and places. finished: it has ended.
    """

    info: WorkloadInfo
    spec: WorkloadSpec
    resource_version: str
    place: Literal["aside", "queued", "held", "finished"] = "aside"
    cluster_queue: str = ""
    holding: Holding | None = None
    #: the reason last told
    told: Reason | None = None


class State:
    """The data of one engine. Whoever changes it leaves the journal empty; trials roll back before they return."""

    def __init__(self, place_options: PlaceOptions = DEFAULT) -> None:
        self.place_options = place_options
        self.journal = Journal()
        self.world = World(self.journal)
        self.ledger = Ledger(self.journal)
        self.accounts = Accounts()
        self.flavors: Mapping[str, ResourceFlavor] = self.world.flavors
        self.topologies: Mapping[str, Topology] = self.world.topologies
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.cluster_queues: dict[str, ClusterQueueState] = {}
        self.local_queues: dict[Key, LocalQueueState] = {}
        self.workloads: dict[Key, Record] = {}
        #: workloads that cannot be read at all
        self.malformed: dict[Key, Reason] = {}
        #: LocalQueue (there or not) → the active workloads that wait for it, queued or aside
        self.waiting: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue (there or not) → the LocalQueues that lead to it
        self.leads_to: dict[str, dict[Key, None]] = {}
        #: ClusterQueue → the workloads that hold its quota
        self.holders: dict[str, dict[Key, None]] = {}
        #: who holds most of a cell, in words, until that changes; see `flavors`
        self.top_holders: dict[str, dict[Cell, str]] = {}
        #: ClusterQueues in which somebody may be looked at
        self.awake: dict[str, None] = {}
        #: ClusterQueues in which somebody waits for nodes, and whether nodes have changed since
        self.short_of_nodes: dict[str, None] = {}
        self.nodes_stirred = False
        #: held workloads whose places are not all there: what is missing; and whether anything was added since
        self.incomplete: dict[Key, list[str]] = {}
        self.places_changed = False
        #: reasons that have not been handed out yet
        self.outbox: dict[Key, Reason] = {}

    def tell(self, key: Key, reason: Reason) -> None:
        """Lets the workload know why it waits, unless it has been told the same."""
        record = self.workloads[key]
        if record.told is None or (record.told.code, record.told.message) != (reason.code, reason.message):
            self.outbox[key] = reason
        record.told = reason

    def stir_nodes(self) -> None:
        """Nodes, pods or placements have changed."""
        self.nodes_stirred = bool(self.short_of_nodes)
        self.places_changed = bool(self.incomplete)

    def complete(self) -> None:
        """Charges again what workloads hold on places that were not there before."""
        if self.places_changed:
            self.places_changed = False
            for key in list(self.incomplete):
                holding = self.workloads[key].holding
                assert holding is not None
                self._note(key, self.world.hold(key, holding.placements, holding.pod_sets))
            self.journal.commit()

    def stir_quota(self, cluster_queue: str) -> None:
        """Usage was given back in a ClusterQueue."""
        queue = self.cluster_queues.get(cluster_queue)
        if queue is not None and queue.pending.waits_for(Help.QUOTA):
            queue.stirred |= Help.QUOTA
            self.awake[cluster_queue] = None

    # --- moves: each takes a record from one place to another

    def set_aside(self, record: Record, reason: Reason) -> None:
        """It waits in no ClusterQueue until it, or the queue it names, changes."""
        if record.info.active:
            self.wait(record)
        record.place = "aside"
        self.tell(record.info.key, reason)

    def enqueue(self, record: Record, cluster_queue: str) -> None:
        self.wait(record)
        record.place, record.cluster_queue = "queued", cluster_queue
        queue = self.cluster_queues[cluster_queue]
        queue.pending.add(record.info.order, record.info.shape)
        queue.untold[record.info.order] = None
        self.awake[cluster_queue] = None

    def leave(self, record: Record) -> None:
        """It stops waiting; its next place is set by another move."""
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
            queue.untold.pop(record.info.order, None)
            # Under StrictFIFO whoever it held back may be next.
            self.awake[queue.name] = None
        record.place, record.cluster_queue = "aside", ""
        if self.outbox.pop(key, None) is not None:
            record.told = None

    def take(self, record: Record, holding: Holding) -> None:
        """It has quota and places by its status: they are charged, whether they fit or not."""
        key = record.info.key
        self.ledger.charge(holding.cluster_queue, holding.usage)
        if holding.placements:
            self._note(key, self.world.hold(key, holding.placements, holding.pod_sets))
        self.journal.commit()
        self.hold(record, holding)

    def hold(self, record: Record, holding: Holding) -> None:
        """It has its quota and places; they are charged already."""
        record.place, record.holding, record.told = "held", holding, None
        self.holders.setdefault(holding.cluster_queue, {})[record.info.key] = None
        self.top_holders.pop(holding.cluster_queue, None)
        for queue in (("", holding.cluster_queue), holding.local_queue):
            self.accounts.reserve(queue, holding.usage, 1)
            if holding.admitted:
                self.accounts.admit(queue, holding.usage, 1)

    def release(self, record: Record) -> None:
        """It gives back quota and places; its next place is set by another move."""
        holding, key = record.holding, record.info.key
        assert holding is not None
        self.ledger.refund(holding.cluster_queue, holding.usage)
        self.world.release(key)
        self.journal.commit()
        self.incomplete.pop(key, None)
        self.top_holders.pop(holding.cluster_queue, None)
        holders = self.holders[holding.cluster_queue]
        del holders[key]
        if not holders:
            del self.holders[holding.cluster_queue]
        for queue in (("", holding.cluster_queue), holding.local_queue):
            if holding.admitted:
                self.accounts.admit(queue, holding.usage, -1)
            self.accounts.reserve(queue, holding.usage, -1)
        record.place, record.holding = "aside", None
        self.stir_quota(holding.cluster_queue)
        if holding.placements:
            self.stir_nodes()

    def confirm(self, record: Record, holding: Holding) -> None:
        """The API server has what the workload holds; it may be admitted only now, or not any more."""
        before = record.holding
        assert before is not None
        for sign, counted in ((-1, before.admitted), (1, holding.admitted)):
            if counted and before.admitted != holding.admitted:
                for queue in (("", holding.cluster_queue), holding.local_queue):
                    self.accounts.admit(queue, holding.usage, sign)
        record.holding = holding

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
