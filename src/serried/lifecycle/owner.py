"""What a Workload belongs to: an object of a job kind, or nobody that Serried knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from serried.api import names
from serried.api.kueue import PodSet, PriorityClassRef, Workload, WorkloadSpec
from serried.api.meta import Object
from serried.api.problem import Problem
from serried.api.resources import PRIORITY_CLASSES, WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from serried.gang.membership import Gang
from serried.jobs.kind import JobKind, NotYet, Outcome, Patch, queue_name
from serried.jobs.podset import PodSetStart, workload_name
from serried.lifecycle.actions import Action, PatchObject, Subject
from serried.lifecycle.cluster_view import ClusterView


class Owner(Protocol):
    """Whose pods run on an admission, and how they are held back, started and ended."""

    @property
    def subject(self) -> Subject:
        """The object on which events are recorded, and that the Workload names as its controller."""

    @property
    def workload_name(self) -> str:
        """The name of its Workload."""

    @property
    def is_managed(self) -> bool:
        """Whether it is to be queued."""

    @property
    def is_suspended(self) -> bool:
        """Whether it makes no pods for now, so that a start has to come."""

    @property
    def ends_pods(self) -> bool:
        """Whether, once stopped, it ends its pods, so that those of one run are gone before the next one."""

    @property
    def unplanned_pods(self) -> int:
        """How many live pods it has that no start of ours made: they are in nobody's plan."""

    @property
    def pod_sets(self) -> Sequence[PodSet]:
        """Its pods as its author wants them now."""

    def owns(self, workload: Workload) -> bool:
        """Whether the Workload is its own, and not one of somebody else or of a predecessor of the same name."""

    def desired(self, cluster: ClusterView) -> WorkloadSpec | list[Problem]:
        """What its Workload should say, or why it cannot have one."""

    def stop(self, why: str, reason: str = "Stopped") -> list[Action]:
        """Holds it back; nothing once it is suspended. `reason` is that of the event."""

    def before_start(self, now: datetime) -> list[Action] | NotYet:
        """What has to be written, or awaited, before its start; []: it can start."""

    def start(self, workload: Workload, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> list[Action]:
        """Starts it with what its pod sets get: pod set → additions to its pods, and number of pods."""

    def outcome(self, gang: Gang) -> Outcome | None:
        """How it has ended; None: it has not."""


@dataclass(frozen=True)
class JobOwner:
    """An object of a job kind."""

    kind: JobKind[Any]
    job: Object
    is_managed: bool
    unplanned_pods: int

    @property
    def subject(self) -> Subject:
        return Subject(self.kind.resource, self.job)

    @property
    def workload_name(self) -> str:
        return workload_name(self.kind.resource.kind, self.job.metadata.name, self.job.metadata.uid)

    @property
    def is_suspended(self) -> bool:
        return self.kind.is_suspended(self.job)

    @property
    def ends_pods(self) -> bool:
        return True

    @property
    def pod_sets(self) -> Sequence[PodSet]:
        return self._pod_sets[0]

    @property
    def problems(self) -> Sequence[Problem]:
        """What in its pod sets cannot be used."""
        return self._pod_sets[1]

    @cached_property
    def _pod_sets(self) -> tuple[list[PodSet], list[Problem]]:
        return self.kind.pod_sets(self.job)

    def owns(self, workload: Workload) -> bool:
        owner = workload.metadata.controller
        return owner is not None and owner.uid == self.job.metadata.uid

    def desired(self, cluster: ClusterView) -> WorkloadSpec | list[Problem]:
        pod_sets, problems = self._pod_sets
        found = self._priority(cluster)
        if isinstance(found, Problem):
            problems = [*problems, found]
        if problems or isinstance(found, Problem):
            return problems
        priority, reference = found
        return WorkloadSpec(
            pod_sets=tuple(pod_sets), queue_name=queue_name(self.job), priority=priority, priority_class_ref=reference
        )

    def _priority(self, cluster: ClusterView) -> tuple[int, PriorityClassRef | None] | Problem:
        """That of its WorkloadPriorityClass, then of its pods' PriorityClass, then of the default for pods, then 0."""
        if name := self.job.metadata.labels.get(names.PRIORITY_CLASS):
            resource, found = WORKLOAD_PRIORITY_CLASSES, cluster.workload_priority_class(name)
            if found is None:
                field = f"metadata.labels[{names.PRIORITY_CLASS}]"
                return Problem(field, repr(name), "the name of a WorkloadPriorityClass that exists")
            return found.value, PriorityClassRef(group=resource.group, kind=resource.kind, name=name)
        field, name = self.kind.priority_class(self.job)
        pod_class = cluster.priority_class(name)
        if pod_class is None:
            return Problem(field, repr(name), "the name of a PriorityClass that exists") if name else (0, None)
        return pod_class.value, PriorityClassRef(
            group=PRIORITY_CLASSES.group, kind=PRIORITY_CLASSES.kind, name=pod_class.metadata.name
        )

    def stop(self, why: str, reason: str = "Stopped") -> list[Action]:
        return [] if self.is_suspended else [self._patch(self.kind.suspend(self.job), event=(reason, why))]

    def before_start(self, now: datetime) -> list[Action] | NotYet:
        if self.unplanned_pods:
            return NotYet()  # pods of an earlier run are still going away
        match self.kind.before_start(self.job, now):
            case NotYet() as wait:
                return wait
            case Patch() as first:
                return [self._patch(first)]
            case None:
                return []

    def start(self, workload: Workload, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> list[Action]:
        admission = workload.status.admission
        queue = admission.cluster_queue if admission is not None else ""
        event = ("Started", f"Admitted by ClusterQueue {queue}")
        return [self._patch(self.kind.start(self.job, starts, counts), starts=workload, event=event)]

    def outcome(self, gang: Gang) -> Outcome | None:
        return self.kind.outcome(self.job, gang)

    def _patch(
        self, patch: Patch, *, starts: Workload | None = None, event: tuple[str, str] | None = None
    ) -> PatchObject:
        return PatchObject(self.subject, patch.body, status=patch.status, starts=starts, event=event)


@dataclass(frozen=True)
class Nobody:
    """The owner of a Workload that no object of a job kind owns.

    The pods name it in the annotation kueue.x-k8s.io/workload, and their pod set in the label kueue.x-k8s.io/podset.
    Whoever made it creates and deletes them, and sets the condition Finished.
    """

    workload: Workload

    is_managed = True
    is_suspended = False
    ends_pods = False
    unplanned_pods = 0

    @property
    def subject(self) -> Subject:
        return Subject(WORKLOADS, self.workload)

    @property
    def workload_name(self) -> str:
        return self.workload.metadata.name

    @property
    def pod_sets(self) -> Sequence[PodSet]:
        return self.workload.spec.pod_sets

    def owns(self, workload: Workload) -> bool:
        return True

    def desired(self, cluster: ClusterView) -> WorkloadSpec | list[Problem]:
        return self.workload.spec

    def stop(self, why: str, reason: str = "Stopped") -> list[Action]:
        return []

    def before_start(self, now: datetime) -> list[Action] | NotYet:
        return []

    def start(self, workload: Workload, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> list[Action]:
        return []

    def outcome(self, gang: Gang) -> Outcome | None:
        return None
