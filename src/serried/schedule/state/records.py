"""What the decision knows of each queue and each workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

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
    #: every flavor names a topology: workloads without a wish are placed, too
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


@dataclass
class LocalUsage:
    """What a LocalQueue has used lately, as admission fair sharing counts it; see `usage`."""

    #: when it was worked out; None: not yet
    at: datetime | None = None
    #: resource → amount in base units (cores, bytes, devices)
    amounts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reservation:
    """What an admitted workload holds."""

    cluster_queue: str
    local_queue: Key
    usage: Mapping[FlavorResource, int]
    placements: tuple[Placement, ...]
    #: the pod sets with the counts they were admitted with
    pod_sets: tuple[PodSetRequest, ...]
    admission: Admission
    admitted: bool
    #: the API server has it; until then it is only assumed
    confirmed: bool
    #: what of the admission cannot be read
    problems: tuple[str, ...] = ()
    #: when the quota was reserved, if the status says so
    reserved_at: datetime | None = None
    #: counts of the workload's pod sets when this was worked out: pods that end for good lower them
    counts: tuple[int, ...] = ()


@dataclass
class Promise:
    """What a workload was promised when others were preempted for it. It is charged and held: nobody else takes it."""

    usage: Mapping[FlavorResource, int]
    placements: tuple[Placement, ...]
    pod_sets: tuple[PodSetRequest, ...]
    cluster_queue: str
    #: those that have not gone yet
    awaited: set[Key]
    victims: tuple[Key, ...]


@dataclass
class Record:
    """One workload that is known, and the one place where it is.

    aside: it waits, but in no ClusterQueue, for the reason told. queued: in ClusterQueue `cluster_queue`.
    held: it has quota and places. finished: it has ended.
    """

    info: WorkloadInfo
    #: what `info` was read from
    source: tuple[object, ...]
    resource_version: str
    place: Literal["aside", "queued", "held", "finished"] = "aside"
    cluster_queue: str = ""
    reservation: Reservation | None = None
    #: the reason last told
    last_reason: Reason | None = None
    #: it is being preempted for this workload: what it holds is given to that already
    preempted_by: Key | None = None
    #: its eviction, or that it is admitted after its checks or has to pass others, is decided, and not heard of yet
    evicting: bool = False
    admitting: bool = False
    #: what it waits for after others were preempted for it
    promise: Promise | None = None
    #: admission check → its state
    checks: Mapping[str, str] = field(default_factory=dict)
    #: what it held before it got other places, until that is confirmed
    previous: Reservation | None = None
    #: places that it leaves for others, until that is confirmed
    leaves: tuple[Placement, ...] = ()
    #: nodes of its places that are lost
    unhealthy: tuple[str, ...] = ()
    #: what of its places is not there, in words: it is charged when it comes back
    missing: tuple[str, ...] = ()

    @property
    def is_leaving(self) -> bool:
        """Whether it is on its way out, whoever preempts it or not."""
        return self.info.evicted or self.evicting
