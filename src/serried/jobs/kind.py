"""What Serried asks of a kind of job. Each kind answers in a module of its own; `jobs.KINDS` names them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from serried.api import names
from serried.api.core import Pod
from serried.api.kueue import PodSet
from serried.api.meta import Object
from serried.api.problem import Problem
from serried.api.resources import Resource
from serried.gang.membership import Gang
from serried.jobs.podset import PodSetStart

J = TypeVar("J", bound=Object)

#: An object as it is on the wire.
Json = dict[str, Any]


@dataclass(frozen=True)
class Patch:
    """A merge patch of a job or, with `status`, of its status. It carries the resourceVersion it was computed from
    where another change meanwhile would make it wrong."""

    body: Mapping[str, Any]
    status: bool = False


@dataclass(frozen=True)
class NotYet:
    """It has to wait: look again when something about the job has changed or, where it is given, at this time."""

    until: datetime | None = None


class Outcome(NamedTuple):
    """How a job has ended."""

    succeeded: bool
    #: the job's own words
    message: str = ""


class Membership(NamedTuple):
    """Whose a pod is."""

    #: name of the job, in the pod's namespace
    job: str
    #: index within its pod set, None where pods have none
    rank: int | None


class Addition(NamedTuple):
    """A field of an object on the wire that is set: names of fields, and numbers in lists, down to it."""

    path: tuple[str | int, ...]
    value: Any


class JobKind(Protocol[J]):
    """A kind of job: how its objects become pod sets, are held back, started and ended, and which pods are theirs.

    Nothing is read or written here: a kind translates between its own fields and those of Kueue's Workload. A queue is
    named in the same label by all kinds (`queue_name`), and the pod sets of pods in the label kueue.x-k8s.io/podset,
    which comes with a start.
    """

    #: how its objects are reached; where its definition may be missing from a cluster, an optional one
    resource: Resource[J]

    def is_managed(self, job: J) -> bool:
        """Whether it is ours to queue: it names a queue and no other controller runs it."""

    def priority_class(self, job: J) -> tuple[str, str]:
        """(path of the field, name) of its pods' PriorityClass; the name is "" where there is none."""

    def pod_sets(self, job: J) -> tuple[list[PodSet], list[Problem]]:
        """Its pods as its author wrote them, without what a start has added, and what in them cannot be used."""

    def is_suspended(self, job: J) -> bool:
        """Whether it makes no pods for now."""

    def suspend(self, job: J) -> Patch:
        """Holds it back, or stops it: its own controller then ends its pods."""

    def before_start(self, job: J, now: datetime) -> Patch | NotYet | None:
        """What has to be written or awaited before a suspended one is started; None: nothing."""

    def start(self, job: J, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> Patch:
        """Starts a suspended one, in one patch: what `starts` adds to each pod set, and as many pods as were admitted.

        `counts`: pod set → pods admitted, which may be fewer than it asked for.
        """

    def outcome(self, job: J, gang: Gang) -> Outcome | None:
        """How it has ended; None: it has not. Pods may say so before its own controller does."""

    def member(self, pod: Pod) -> Membership | None:
        """Whose the pod is and which rank it has; None: it belongs to no job of this kind."""

    def admit(self, raw: Json, *, bind: bool) -> list[Addition]:
        """What the webhook sets in one at its creation: at least, that it starts suspended.

        With `bind`, pods that would go to the default scheduler are Serried's to bind. `raw` has not been checked.
        """


def queue_name(job: Object) -> str:
    """The LocalQueue that a job of any kind names, or ""."""
    return job.metadata.labels.get(names.QUEUE_NAME, "")
