"""Steps: what can be written for a Job, its Workload and its gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serried.api.batch import Job
from serried.api.coscheduling import CoschedulingPodGroup
from serried.api.kueue import Workload
from serried.gang.membership import Gang
from serried.gang.plan import Move


@dataclass(frozen=True)
class PatchJob:
    """One change of the Job: suspend it, clear its start time, or start it."""

    job: Job
    patch: Mapping[str, Any]
    status: bool = False
    #: the Workload whose admission this starts
    starts: Workload | None = None
    #: event on the Job and the Workload once it is done: (reason, message)
    event: tuple[str, str] | None = None


@dataclass(frozen=True)
class CreateWorkload:
    job: Job
    workload: Workload


@dataclass(frozen=True)
class PatchWorkload:
    """A change of the Workload's spec (`status=False`) or of its conditions."""

    workload: Workload
    patch: Mapping[str, Any]
    status: bool = True
    event: tuple[str, str] | None = None


@dataclass(frozen=True)
class DeleteWorkload:
    workload: Workload
    why: str


@dataclass(frozen=True)
class CreatePodGroup:
    pod_group: CoschedulingPodGroup


@dataclass(frozen=True)
class Place:
    """Pods that take their places, all of them now."""

    workload: Workload
    gang: Gang
    moves: Sequence[Move]


@dataclass(frozen=True)
class Warn:
    """Bad input on a Job, or on a Workload without one, told as an event."""

    about: Job | Workload
    reason: str
    message: str


Step = PatchJob | CreateWorkload | PatchWorkload | DeleteWorkload | CreatePodGroup | Place | Warn
