"""Writes what a cycle has decided: admissions, evictions, ends. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

import msgspec

from serried.api.kueue import Workload
from serried.api.meta import Key, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import WORKLOADS
from serried.cluster.protocol import ApiError, Cluster, Invalid, NotFound
from serried.control.events import Recorder
from serried.control.executor import Observe
from serried.lifecycle import conditions
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.types.decisions import Admit, Evict

log = logging.getLogger(__name__)

#: The versions of a Workload before and after a write; None: nothing was written.
Told = asyncio.Future[tuple[str, str] | None]

RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries of a write that failed


class DecisionWriter:
    """Carries out the decisions of cycles, each in a task of its own; `wake` asks for another cycle."""

    def __init__(
        self,
        cluster: Cluster,
        state: ClusterState,
        recorder: Recorder,
        observe: Observe,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._recorder = recorder
        self._observe = observe
        self._clock = clock
        self._wake = wake
        #: admissions that are being written
        self.admitting: dict[Key, asyncio.Task[None]] = {}
        self._refusals: dict[Key, int] = {}  # how often a Workload's admission was refused in a row

    async def admit(self, admit: Admit, *, after: Told | None = None) -> None:
        """Writes a reservation or an admission; a refused one is taken back in the engine.

        `after`: a write of our own that is on its way. What was decided for the version before it holds after it.
        """
        try:
            if after is not None:
                await asyncio.wait({after})
                if (versions := after.result()) is not None and versions[0] == admit.resource_version:
                    admit = msgspec.structs.replace(admit, resource_version=versions[1])
            await self._write_admission(admit)
        finally:
            if self._is_latest(admit.key):
                del self.admitting[admit.key]

    def _is_latest(self, key: Key) -> bool:
        """Whether the task that asks writes the latest admission of this Workload."""
        return self.admitting.get(key) is asyncio.current_task()

    async def _write_admission(self, admit: Admit) -> None:
        workload = self._state.workloads.get(admit.key)
        if workload is None or workload.metadata.uid != admit.uid:
            return  # deleted meanwhile: the engine has let go of it
        if condition_is(workload.status.conditions, WorkloadCondition.FINISHED):
            return  # over meanwhile: the same
        queue = admit.admission.cluster_queue
        changes = []
        if admit.kind == "new":
            changes += [conditions.reserved(queue, admit.waited, admit.note), *conditions.requeued(workload)]
        if admit.admitted:
            changes.append(conditions.admitted(queue))
        # A check that has answered already keeps what it has said.
        said = {(c.name, c.state): c for c in workload.status.admission_checks}
        checks = [said.get((c.name, c.state), c) for c in admit.checks]
        patch = conditions.status_patch(workload, changes, self._clock(), admission=admit.admission, checks=checks)
        # It was decided for this version: if anything has changed since, it has to be decided anew.
        patch["metadata"]["resourceVersion"] = admit.resource_version
        if admit.kind in ("new", "replacement"):  # of its places, none is on a node that was lost before
            patch["status"]["unhealthyNodes"] = None
        try:
            written: Workload = await self._cluster.patch(
                WORKLOADS, admit.key[1], admit.key[0], patch=patch, subresource="status"
            )
        except ApiError as error:
            log.info("admission of %s/%s refused: %s", *admit.key, error)
            if isinstance(error, Invalid):
                message = f"the API server refuses the admission: {error.message}"
                self._recorder.event(WORKLOADS, workload, "Pending", message, warning=True)
            await self._withdraw(admit)
            return
        self._refusals.pop(admit.key, None)
        self._observe(WORKLOADS, written)
        for change in changes:
            if change.status == "True" and not condition_is(workload.status.conditions, change.type):
                self._recorder.event(WORKLOADS, written, change.reason, change.message)

    async def evict(self, evict: Evict) -> None:
        """Writes that a workload has to go. What follows from that, the reconciler does when it is seen."""
        if (writing := self.admitting.get(evict.key)) is not None:  # what is not written yet cannot be taken back
            await asyncio.wait({writing})
        if evict.deactivate:
            await self._write(evict.key, evict.uid, lambda w: ({"spec": {"active": False}}, ""))

        since = _reserved_since(self._state.workloads.get(evict.key))

        def patch(workload: Workload) -> tuple[dict[str, Any], Literal["", "status"]] | None:
            if workload.status.admission is None or _reserved_since(workload) != since:
                return None  # it has gone by itself, and may be back
            changes = [conditions.evicted(evict.reason, evict.message)]
            if evict.preempted:
                changes.append(conditions.preempted(evict.preempted, evict.message))
            return conditions.status_patch(workload, changes, self._clock()), "status"

        written = await self._write(evict.key, evict.uid, patch)
        if written is not None:
            self._recorder.event(WORKLOADS, written, f"EvictedDueTo{evict.reason}", evict.message)
            if evict.preempted:
                self._recorder.event(WORKLOADS, written, "Preempted", evict.message)

    async def _write(
        self,
        key: Key,
        uid: str,
        patch: Callable[[Workload], tuple[dict[str, Any], Literal["", "status"]] | None],
    ) -> Workload | None:
        """Writes a decision that must not be lost, as often as it takes; None: it has become pointless."""
        delay = RETRY_FIRST
        while True:
            workload = self._state.workloads.get(key)
            if workload is None or workload.metadata.uid != uid:
                return None
            if condition_is(workload.status.conditions, WorkloadCondition.FINISHED):
                return None
            change = patch(workload)
            if change is None:
                return None
            try:
                written: Workload = await self._cluster.patch(
                    WORKLOADS, key[1], key[0], patch=change[0], subresource=change[1]
                )
            except NotFound:
                return None
            except ApiError as error:
                log.info("Workload %s/%s: %s", *key, error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, RETRY_MOST)
                continue
            self._observe(WORKLOADS, written)
            return written

    async def _withdraw(self, admit: Admit) -> None:
        """Takes a refused admission back in the engine, after a pause that doubles each time, unless it went through.

        A write without an answer may have been carried out; what it takes is nobody else's until that is known.
        """
        times = self._refusals[admit.key] = self._refusals.get(admit.key, 0) + 1
        pause = min(RETRY_MOST, RETRY_FIRST * 2.0 ** (times - 2))
        while True:
            await asyncio.sleep(pause)
            try:
                self._observe(WORKLOADS, await self._cluster.get(WORKLOADS, admit.key[1], admit.key[0]))
                break
            except NotFound:
                self._refusals.pop(admit.key, None)
                break
            except ApiError as error:
                log.info("whether %s/%s is admitted is not known yet: %s", *admit.key, error)
                pause = min(RETRY_MOST, 2 * pause)
        workload = self._state.workloads.get(admit.key)
        if workload is not None and workload.metadata.uid == admit.uid and self._is_latest(admit.key):
            self._state.engine.withdraw(admit.key)
            self._wake()


def _reserved_since(workload: Workload | None) -> datetime | None:
    found = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED) if workload else None
    return found.last_transition_time if found is not None else None
