"""What is to be written to one Workload, and which patch comes next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec

from serried.api.kueue import PodSetResources, Workload
from serried.api.meta import Condition, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.lifecycle import conditions
from serried.lifecycle.actions import PatchWorkload
from serried.schedule.types.decisions import Admit, Evict
from serried.schedule.types.reasons import Reason

#: A field of `Intent`.
Sort = Literal["step", "evict", "admit", "reason"]


@dataclass(frozen=True)
class EventText:
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Write:
    """One patch of a Workload, and the events that are told once it is done."""

    sort: Sort
    #: what is intended
    of: object
    patch: Mapping[str, Any]
    subresource: Literal["", "status"] = "status"
    events: Sequence[EventText] = ()
    #: whether nothing more has to be written for it afterwards
    is_last: bool = True


@dataclass
class Intent:
    """The latest of each sort that has not been written yet. A decision takes the place of the reason of the wait."""

    step: PatchWorkload | None = None
    evict: Evict | None = None
    #: since when the Workload has had the quota that `evict` is about; None: its admission is not written yet
    reserved_since: datetime | None = None
    admit: Admit | None = None
    #: an admission that was refused, or not answered: what became of it has to be asked before anything else is written
    doubtful: Admit | None = None
    reason: Reason | None = None
    #: whether it is time to write the reason
    tell: bool = False
    #: versions of the Workload before and after the reason was written: what was decided on the one holds for the other
    told: tuple[str, str] = field(default=("", ""))

    @property
    def is_empty(self) -> bool:
        return not (self.step or self.evict or self.admit or self.doubtful or self.reason)

    def take_eviction(self, evict: Evict, workload: Workload | None) -> None:
        self.evict = evict
        is_written = self.admit is None and self.doubtful is None
        self.reserved_since = _reserved_since(workload) if is_written else None

    def done(self, write: Write) -> None:
        """It is written, or never will be."""
        if write.is_last and getattr(self, write.sort) is write.of:  # and no newer one has come meanwhile
            setattr(self, write.sort, None)

    def next_write(
        self, workload: Workload | None, requests: Callable[[], Sequence[PodSetResources]], now: datetime
    ) -> Write | None:
        """The next patch, the most final first; what has become pointless is dropped.

        `requests` says what the Workload asks for, as quota counts it.
        """
        if workload is None or condition_is(workload.status.conditions, WorkloadCondition.FINISHED):
            self.step = self.evict = self.admit = self.reason = None
            return None
        if (step := self.step) is not None:
            if step.workload.metadata.resource_version == workload.metadata.resource_version:
                events = [EventText(*step.event)] if step.event is not None else []
                return Write("step", step, step.patch, "status" if step.status else "", events)
            self.step = None  # it was decided on an older version, and is again, if it still has to be
        uid = workload.metadata.uid
        # What is not written yet cannot be taken back.
        if self.admit is not None:
            if self.admit.uid == uid:
                return _admit(self.admit, workload, self.told, now)
            self.admit = None
        if self.evict is not None:
            self.reserved_since = self.reserved_since or _reserved_since(workload)
            if self.evict.uid == uid and (write := _evict(self.evict, self.reserved_since, workload, now)) is not None:
                return write
            self.evict = None
        if self.reason is not None and self.tell:
            if (write := _reason(self.reason, workload, requests(), now)) is not None:
                return write
            self.reason = None
        return None


def _admit(admit: Admit, workload: Workload, told: tuple[str, str], now: datetime) -> Write:
    queue = admit.admission.cluster_queue
    changes: list[Condition] = []
    if admit.kind == "new":
        changes += [conditions.reserved(queue, admit.waited, admit.note), *conditions.requeued(workload)]
    if admit.admitted:
        changes.append(conditions.admitted(queue))
    # A check that has answered already keeps what it has said.
    said = {(c.name, c.state): c for c in workload.status.admission_checks}
    checks = [said.get((c.name, c.state), c) for c in admit.checks]
    patch = conditions.status_patch(workload, changes, now, admission=admit.admission, checks=checks)
    # It was decided for this version: if anything but its reason has changed since, it has to be decided anew.
    before, after = told
    patch["metadata"]["resourceVersion"] = after if admit.resource_version == before else admit.resource_version
    if admit.kind in ("new", "replacement"):  # of its places, none is on a node that was lost before
        patch["status"]["unhealthyNodes"] = None
    have = workload.status.conditions
    events = [EventText(c.reason, c.message) for c in changes if c.status == "True" and not condition_is(have, c.type)]
    return Write("admit", admit, patch, events=events)


def _evict(evict: Evict, since: datetime | None, workload: Workload, now: datetime) -> Write | None:
    if evict.deactivate and workload.spec.active:
        return Write("evict", evict, {"spec": {"active": False}}, "", is_last=False)
    if workload.status.admission is None or _reserved_since(workload) != since:
        return None  # it has gone by itself, and may be back
    changes = [conditions.evicted(evict.reason, evict.message)]
    events = [EventText(f"EvictedDueTo{evict.reason}", evict.message)]
    if evict.preempted:
        changes.append(conditions.preempted(evict.preempted, evict.message))
        events.append(EventText("Preempted", evict.message))
    if all(conditions.same(workload.status.conditions, change) for change in changes):
        return None
    return Write("evict", evict, conditions.status_patch(workload, changes, now), events=events)


def _reason(reason: Reason, workload: Workload, requests: Sequence[PodSetResources], now: datetime) -> Write | None:
    if workload.status.admission is not None:
        return None
    change = conditions.pending(reason.code, reason.message)
    asks_anew = tuple(requests) != workload.status.resource_requests
    if conditions.same(workload.status.conditions, change) and not asks_anew:
        return None
    old = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED)
    patch = conditions.status_patch(workload, [change], now)
    if asks_anew:
        patch["status"]["resourceRequests"] = msgspec.to_builtins(requests)
    events = []
    if old is None or old.reason != change.reason:
        events.append(EventText("Pending", change.message, warning=reason.layer == "input"))
    return Write("reason", reason, patch, events=events)


def _reserved_since(workload: Workload | None) -> datetime | None:
    """When the Workload was given its quota, or lost it."""
    found = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED) if workload else None
    return found.last_transition_time if found is not None else None
