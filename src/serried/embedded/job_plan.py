"""What the Job controller decides: given a Job and its pods, which pods to create and delete, and the new status.

Pure. The rules are those of kube-controller-manager 1.37 for Jobs with podReplacementPolicy TerminatingOrFailed and
without podFailurePolicy, successPolicy, backoffLimitPerIndex, activeDeadlineSeconds and ttlSecondsAfterFinished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from serried.api.batch import JobStatus
from serried.api.core import Pod
from serried.api.meta import Object, PlainCondition, Wire, condition_is
from serried.api.names import COMPLETION_INDEX

#: Keeps a pod that has ended until the controller has counted it.
TRACKING: Final = "batch.kubernetes.io/job-tracking"


class JobSpec(Wire):
    """As `serried.api.batch.JobSpec`, but with the whole template, since pods are made from it."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    suspend: bool = False
    managed_by: str = ""
    template: dict[str, Any] = {}


class Job(Object):
    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)

    @property
    def indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def ended(self) -> bool:
        """Whether its last condition is written."""
        return condition_is(self.status.conditions, "Complete") or condition_is(self.status.conditions, "Failed")


@dataclass(frozen=True)
class Plan:
    """The pods of one Job that are to come and go.

    `superfluous` pods go without counting as failures, `lost` ones count: their Job has failed.
    """

    #: completion indexes, None for pods of a Job without indexes
    create: tuple[int | None, ...] = ()
    superfluous: tuple[Pod, ...] = ()
    lost: tuple[Pod, ...] = ()


def is_active(pod: Pod) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed") and pod.metadata.deletion_timestamp is None


def has_failed(pod: Pod) -> bool:
    """Whether a pod counts as failed: one that is being deleted will not come to a better end."""
    return pod.status.phase == "Failed" or (pod.status.phase != "Succeeded" and not is_active(pod))


def completion_index(pod: Pod) -> int | None:
    text = pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None


def plan_pods(job: Job, pods: Sequence[Pod], status: JobStatus) -> Plan:
    """The pods to create and delete, when `status` is what `next_status` says of them."""
    active = [pod for pod in pods if is_active(pod)]
    if condition_is(status.conditions, "FailureTarget"):
        return Plan(lost=tuple(active))
    if job.spec.suspend:
        return Plan(superfluous=tuple(active))
    if job.indexed:
        completions = job.spec.completions or 0
        wanted = min(job.spec.parallelism, completions - status.succeeded)
        done = parse_indexes(status.completed_indexes)
        superfluous: list[Pod] = []
        taken: dict[int, Pod] = {}
        for pod in sorted(active, key=_worth, reverse=True):
            index = completion_index(pod)
            if index is None or index >= completions or index in done or index in taken:
                superfluous.append(pod)
            else:
                taken[index] = pod
        kept = sorted(taken.values(), key=_worth)
        excess = max(0, len(kept) - max(0, wanted))
        free = (index for index in range(completions) if index not in done and index not in taken)
        create = [index for index, _ in zip(free, range(max(0, wanted - len(kept))), strict=False)]
        return Plan(create=tuple(create), superfluous=(*superfluous, *kept[:excess]))
    if job.spec.completions is not None:
        wanted = min(job.spec.parallelism, max(0, job.spec.completions - status.succeeded))
    elif status.succeeded:
        # A work queue: one success says that there is no more work; the others are to finish theirs.
        wanted = min(job.spec.parallelism, len(active))
    else:
        wanted = job.spec.parallelism
    excess = max(0, len(active) - wanted)
    return Plan(create=(None,) * max(0, wanted - len(active)), superfluous=tuple(sorted(active, key=_worth)[:excess]))


def _worth(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    """Sorts pods from the first to delete to the last: unbound, pending, not ready, youngest."""
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        pod.status.phase == "Running",
        is_ready(pod),
        -created.timestamp() if created else 0.0,
        pod.metadata.name,
    )


def is_ready(pod: Pod) -> bool:
    return condition_is(pod.status.conditions, "Ready")


def next_status(job: Job, pods: Sequence[Pod], counted: frozenset[str] | set[str], now: datetime) -> JobStatus:
    """The status of a Job with these pods, of which those in `counted` (uids) are in its numbers already."""
    old = job.status
    active = [pod for pod in pods if is_active(pod)]
    new = msgspec.structs.replace(
        old,
        active=len(active),
        ready=sum(is_ready(pod) for pod in active),
        terminating=sum(pod.metadata.deletion_timestamp is not None and _goes_on(pod) for pod in pods),
        conditions=list(old.conditions),
    )
    ended = [pod for pod in pods if TRACKING in pod.metadata.finalizers and pod.metadata.uid not in counted]
    succeeded = [pod for pod in ended if pod.status.phase == "Succeeded"]
    new.failed += sum(map(has_failed, ended))
    if job.indexed:
        done = parse_indexes(old.completed_indexes)
        done |= {index for pod in succeeded if (index := completion_index(pod)) is not None}
        done = {index for index in done if index < (job.spec.completions or 0)}
        new.completed_indexes = format_indexes(done)
        new.succeeded = len(done)
    else:
        new.succeeded += len(succeeded)
    if job.metadata.deletion_timestamp is None:
        _next_conditions(job, new, now)
    return new


def _next_conditions(job: Job, new: JobStatus, now: datetime) -> None:
    if not job.spec.suspend and new.start_time is None:
        new.start_time = now
    if condition_is(new.conditions, "FailureTarget") or new.failed > job.spec.backoff_limit:
        why = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        _set(new, "FailureTarget", "True", *why, now)
        if not new.active and not new.terminating:
            _set(new, "Failed", "True", *why, now)
    elif _is_complete(job, new):
        why = ("CompletionsReached", "Reached expected number of succeeded pods")
        _set(new, "SuccessCriteriaMet", "True", *why, now)
        if not new.terminating:
            _set(new, "Complete", "True", *why, now)
            new.completion_time = now
    elif job.spec.suspend:
        new.start_time = None
        _set(new, "Suspended", "True", "JobSuspended", "Job suspended", now)
    elif condition_is(new.conditions, "Suspended"):
        _set(new, "Suspended", "False", "JobResumed", "Job resumed", now)
        new.start_time = now


def _is_complete(job: Job, status: JobStatus) -> bool:
    if status.active:
        return False
    if job.spec.completions is None:
        return status.succeeded > 0
    return status.succeeded >= job.spec.completions


def _goes_on(pod: Pod) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed")


def _set(status: JobStatus, type: str, value: str, reason: str, message: str, now: datetime) -> None:
    """Sets a condition; one that has this status already stays as it is."""
    if condition_is(status.conditions, type, value):
        return
    new = PlainCondition(type=type, status=value, reason=reason, message=message, last_transition_time=now)
    places = [index for index, each in enumerate(status.conditions) if each.type == type]
    if places:
        status.conditions[places[0]] = new
    else:
        status.conditions.append(new)


def parse_indexes(text: str) -> set[int]:
    """The indexes in a text such as "0,3-5,7"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """A set of indexes as the status of a Job has it: "0,3-5,7,8", with ranges for three or more in a row."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(
        f"{first}-{last}" if last - first > 1 else ",".join(map(str, range(first, last + 1))) for first, last in ranges
    )
