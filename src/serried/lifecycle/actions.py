"""What can be written for an owner, its Workload and its gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from serried.api.coscheduling import CoschedulingPodGroup
from serried.api.kueue import Workload
from serried.api.meta import Object
from serried.api.resources import Resource
from serried.gang.membership import Gang
from serried.gang.plan import Move


@dataclass(frozen=True)
class Subject:
    """An object together with the kind it is of: what something is written to, or said about."""

    resource: Resource[Any]
    object: Object


@dataclass(frozen=True)
class PatchObject:
    """A merge patch of an owner's object, to suspend, prepare or start it."""

    subject: Subject
    patch: Mapping[str, Any]
    status: bool = False
    #: the Workload whose admission this starts
    starts: Workload | None = None
    #: event on the object once it is done: (reason, message)
    event: tuple[str, str] | None = None


@dataclass(frozen=True)
class CreateWorkload:
    owner: Subject
    workload: Workload
    #: another event on the owner: (reason, message)
    event: tuple[str, str] | None = None


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
    """Pods that are bound, or released to kube-scheduler, all at the same time."""

    workload: Workload
    gang: Gang
    moves: Sequence[Move]


@dataclass(frozen=True)
class Warn:
    """A warning event about bad input, on an owner's object or on a Workload."""

    about: Subject
    reason: str
    message: str


Action = PatchObject | CreateWorkload | PatchWorkload | DeleteWorkload | CreatePodGroup | Place | Warn


@dataclass(frozen=True)
class Next:
    """What is due now, in order, and when to look again if nothing happens: the earliest of all time-outs."""

    actions: Sequence[Action] = field(default_factory=list)
    look_again: datetime | None = None
