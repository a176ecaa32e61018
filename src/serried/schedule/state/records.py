"""What the decision knows of each queue and each workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto
from typing import Literal, NamedTuple

from serried.api.kueue import Admission, ClusterQueueSpec, CohortSpec, LocalQueueSpec
from serried.api.meta import Key
from serried.api.problem import Problem
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.quota.quotas import FlavorResource, Quotas
from serried.schedule.state.pending_queue import PendingQueue
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import Order, WorkloadInfo


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
    quotas: Quotas
    #: what is wrong with the spec itself
    problems: list[Problem]
    terminating: bool
    pending: PendingQueue
    activity: Activity
    #: every flavor names a topology: workloads without a topology request are placed, too
    topology_only: bool = False
    #: some flavor names a topology that exists
    has_topology: bool = False
    #: arrivals that have not been told yet why they wait
    unreported: dict[Order, None] = field(default_factory=dict)


@dataclass
class LocalQueueState:
    """A LocalQueue as it was last read."""

    spec: LocalQueueSpec
    generation: int
    terminating: bool
    activity: Activity


@dataclass
class CohortState:
    """A Cohort as it was last read."""

    spec: CohortSpec
    generation: int
    quotas: Quotas
    #: what is wrong with the spec itself
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a workload holds."""

    cluster_queue: str
    local_queue: Key
    usage: Mapping[FlavorResource, int]
    placements: tuple[Placement, ...]
    #: the pod sets with the counts they were admitted with
    pod_sets: tuple[PodSetRequest, ...]
    admission: Admission
    admitted: bool
    #: what of the admission cannot be read
    problems: tuple[str, ...] = ()
    #: when the quota was reserved, if the status says so
    reserved_at: datetime | None = None
    #: counts of the workload's pod sets when this was worked out: pods that end for good lower them
    counts: tuple[int, ...] = ()


@dataclass(slots=True)
class Promise:
    """What a workload was promised when others were preempted for it. It is charged and held: nobody else takes it."""

    usage: Mapping[FlavorResource, int]
    placements: tuple[Placement, ...]
    pod_sets: tuple[PodSetRequest, ...]
    cluster_queue: str
    #: those that have not gone yet
    awaited: set[Key]
    victims: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A decision on a workload that has not been heard of yet.

    admission: it reserves quota, where it had none. places: it gets places, or others than before. checks: it is
    admitted, or has to pass other checks. eviction: it has to go, or another one takes its place.
    """

    what: Literal["admission", "places", "checks", "eviction"]
    #: what it holds again if this is refused; None: it waits again
    restore: Reservation | None = None
    #: places that it leaves for others, held until this is heard of
    vacated: tuple[Placement, ...] = ()
    #: of an eviction: what was decided before, and was not heard of either
    behind: InFlight | None = None


class WorkloadState(StrEnum):
    """Where a workload stands. `transitions` has the ways from one state to another."""

    #: its first event is being handled
    NEW = auto()
    #: it waits in no ClusterQueue, for the reason last reported, until it, or the queue it names, changes
    INADMISSIBLE = auto()
    #: it waits in the ClusterQueue `Record.cluster_queue`
    PENDING = auto()
    #: it holds quota, and is not admitted yet
    RESERVING = auto()
    #: it holds quota and places, and may run
    ADMITTED = auto()
    #: it is on its way out. Until it is gone it holds what it held, or its preemptor does (`Record.preempted_by`)
    LEAVING = auto()
    #: it has ended
    FINISHED = auto()


#: The states in which a workload waits, and those in which it has a reservation.
WAITS = frozenset({WorkloadState.INADMISSIBLE, WorkloadState.PENDING})
HOLDS = frozenset({WorkloadState.RESERVING, WorkloadState.ADMITTED, WorkloadState.LEAVING})


class Finished(NamedTuple):
    """What is remembered of a workload that has ended."""

    uid: str
    resource_version: str
    local_queue: str


class Transition(NamedTuple):
    """One entry of a workload's story."""

    before: WorkloadState
    after: WorkloadState
    #: the transition, and what it was about: a queue, the code of a reason, another workload
    what: str
    detail: str
    #: the event in which it happened, "" if that was the workload's own, and the time of the last cycle by then
    event: str
    at: datetime | None

    def __str__(self) -> str:
        detail, event = f" ({self.detail})" if self.detail else "", f" {self.event}" if self.event else ""
        return f"{self.before} → {self.after}: {self.what}{detail}{event}"


@dataclass(slots=True, eq=False)
class Record:
    """One workload that is known. Only `transitions` changes its state and what goes with that."""

    info: WorkloadInfo
    #: what `info` was read from
    source: tuple[object, ...]
    resource_version: str
    state: WorkloadState = WorkloadState.NEW
    #: PENDING: where
    cluster_queue: str = ""
    #: in one of HOLDS: what
    reservation: Reservation | None = None
    in_flight: InFlight | None = None
    #: LEAVING: what it held is this workload's already
    preempted_by: Key | None = None
    #: PENDING: what is kept for it since others were preempted for it
    promise: Promise | None = None
    #: the last reason that was reported to it
    last_reason: Reason | None = None
    #: admission check → its state
    checks: Mapping[str, str] = field(default_factory=dict)
    #: nodes of its places that are lost
    unhealthy: tuple[str, ...] = ()
    #: what of its places is not there, in words: it is charged when it comes back
    missing: tuple[str, ...] = ()
    #: its last transitions
    story: tuple[Transition, ...] = ()

    @property
    def is_leaving(self) -> bool:
        """Whether it is on its way out, whoever wants it so."""
        return self.state is WorkloadState.LEAVING

    @property
    def grant(self) -> InFlight | None:
        """What was given to it and has not been heard of, whatever was decided since."""
        found = self.in_flight
        return found.behind if found is not None and found.what == "eviction" else found

    @property
    def confirmed(self) -> bool:
        """Whether the API server has the quota and the places that it holds; until then they are only assumed."""
        return self.grant is None or self.grant.what == "checks"
