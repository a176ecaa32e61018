"""What is written behind the decisions, folded: status of queues, cohorts and PodGroups, and why Workloads wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from serried.api.coscheduling import CoschedulingPodGroupStatus
from serried.api.kueue import (
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    LocalQueue,
    LocalQueueStatus,
)
from serried.api.meta import Key, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import CLUSTER_QUEUES, COHORTS, COSCHEDULING_POD_GROUPS, LOCAL_QUEUES, WORKLOADS, Resource
from serried.cluster.protocol import ApiError, Cluster, Conflict, NotFound, Unavailable
from serried.control.config import Configuration
from serried.control.decision_writer import Told
from serried.control.events import Recorder
from serried.control.executor import Observe
from serried.gang import coscheduling
from serried.gang.membership import Gang
from serried.lifecycle import conditions
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.types.reasons import Reason

log = logging.getLogger(__name__)

_AT_ONCE = 4  # background writes in flight; the rest of the client's room is for decisions
_ROUND = 50  # reasons of waits written in one round; who has been let in by the next one needs none
# A slow API server is left alone for longer: so many times as long as a round took, but at most so many seconds.
_PAUSE, _LONGEST_PAUSE = 9.0, 5.0


class StatusWriter:
    """Writes status that people read, at most once per interval for each object and only what has changed."""

    def __init__(
        self,
        cluster: Cluster,
        state: ClusterState,
        recorder: Recorder,
        observe: Observe,
        stored: Callable[[Resource[Any], Key], Any],
        clock: Callable[[], datetime],
        config: Configuration,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._recorder = recorder
        self._observe = observe
        self._stored = stored
        self._clock = clock
        self._interval = config.status_interval
        self._waits: dict[Key, Reason] = {}
        self._due: dict[Key, Reason] = {}  # those of them that this round writes
        self._telling: dict[Key, Told] = {}  # … and is writing
        self._queues: set[Key] = set()
        self._cohorts: set[str] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something has gathered: it is written now or, right after other writes, an interval later."""
        self._wake.set()

    def waits(self, key: Key, reason: Reason) -> None:
        """Why this Workload waits, as of now."""
        self._waits[key] = reason
        self.wake()

    def admitted(self, key: Key) -> Told | None:
        """It waits no longer: what was to be said of its wait is not said any more.

        Returns what comes of a write of it that is on its way: an admission written beside it would be refused.
        """
        self._waits.pop(key, None)
        self._due.pop(key, None)
        return self._telling.get(key)

    def queues(self, changed: Iterable[Key]) -> None:
        """Queues whose numbers have changed."""
        self._queues.update(changed)
        if self._queues:
            self.wake()

    async def run(self) -> None:
        """Writes what has gathered, at most once every interval, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._queues.update(self._state.engine.queues_changed())
            self._cohorts.update(self._state.engine.cohorts_changed())
            self._due = dict(islice(self._waits.items(), _ROUND))
            for key in self._due:
                del self._waits[key]
            queues, self._queues = self._queues, set()
            cohorts, self._cohorts = self._cohorts, set()
            gangs, self._state.changed_gangs = self._state.changed_gangs, set()
            started = time.monotonic()
            await asyncio.gather(
                *(self._bounded(partial(self._write_queue, k), self._queues.add, k) for k in sorted(queues)),
                *(self._bounded(partial(self._write_cohort, n), self._cohorts.add, n) for n in sorted(cohorts)),
                *(
                    self._bounded(partial(self._write_pod_group, k), self._state.changed_gangs.add, k)
                    for k in sorted(gangs)
                ),
                *(self._bounded(partial(self._tell, k), self._waits.setdefault, k, r) for k, r in self._due.items()),
            )
            if self._waits:
                self._wake.set()
            took = time.monotonic() - started
            await asyncio.sleep(max(self._interval, min(_LONGEST_PAUSE, _PAUSE * took)))

    async def _bounded(
        self, write: Callable[[], Coroutine[Any, Any, None]], again: Callable[..., object], *what: object
    ) -> None:
        """One write. Whether it was overtaken or not answered: it is due `again`, at the next interval."""
        async with self._slots:
            try:
                await write()
            except NotFound as error:
                log.debug("status write overtaken: %s", error)
            except (Conflict, Unavailable) as error:
                log.debug("status write has to wait: %s", error)
                again(*what)
                self.wake()
            except ApiError as error:
                log.warning("status write failed: %s", error)

    async def _tell(self, key: Key) -> None:
        """Why this Workload waits, unless it has been let in since the round began."""
        reason = self._due.pop(key, None)
        if reason is None:
            return
        told = self._telling[key] = asyncio.get_running_loop().create_future()
        versions = None
        try:
            versions = await self._write_wait(key, reason)
        finally:
            told.set_result(versions)
            del self._telling[key]

    async def _write_wait(self, key: Key, reason: Reason) -> tuple[str, str] | None:
        """Returns the versions before and after it, if anything had to be written."""
        workload = self._state.workloads.get(key)
        if workload is None or workload.status.admission is not None:
            return None
        if condition_is(workload.status.conditions, WorkloadCondition.FINISHED):
            return None
        if self._state.engine.holds(key):
            return None  # let in since: if that is taken back, there will be another reason
        change = conditions.pending(reason.code, reason.message)
        asks = self._state.engine.resource_requests(key)
        if conditions.same(workload.status.conditions, change) and asks == workload.status.resource_requests:
            return None
        old = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED)
        patch = conditions.status_patch(workload, [change], self._clock())
        if asks != workload.status.resource_requests:
            patch["status"]["resourceRequests"] = msgspec.to_builtins(asks)
        written = await self._cluster.patch(WORKLOADS, key[1], key[0], patch=patch, subresource="status")
        self._observe(WORKLOADS, written)
        if old is None or old.reason != change.reason:
            self._recorder.event(WORKLOADS, written, "Pending", change.message, warning=reason.layer == "input")
        return workload.metadata.resource_version, written.metadata.resource_version

    async def _write_queue(self, key: Key) -> None:
        """Numbers and the condition Active of one queue: ClusterQueue ("", name) or LocalQueue (namespace, name)."""
        await self._write_status(LOCAL_QUEUES if key[0] else CLUSTER_QUEUES, key, self._state.engine.status(key))

    async def _write_cohort(self, name: str) -> None:
        await self._write_status(COHORTS, ("", name), self._state.engine.cohort_status(name))

    async def _write_status(
        self, resource: Resource[Any], key: Key, status: ClusterQueueStatus | LocalQueueStatus | CohortStatus | None
    ) -> None:
        if status is None:
            return
        before: ClusterQueue | LocalQueue | Cohort | None = self._stored(resource, key)
        have = before.status.conditions if before is not None else []
        status.conditions = conditions.merged(have, status.conditions, self._clock())
        if before is not None and before.status == status:
            return
        patch = {"status": msgspec.to_builtins(status)}
        written = await self._cluster.patch(resource, key[1], key[0], patch=patch, subresource="status")
        self._observe(resource, written)

    async def _write_pod_group(self, key: Key) -> None:
        group = self._state.pod_groups.get(key)
        workload = self._state.workloads.get(key)
        if group is None or workload is None:
            return
        gang = self._state.gangs.get(key) or Gang()
        started = group.status.schedule_start_time
        if started is None and gang.members:
            started = self._clock().replace(microsecond=0)
        owner = workload.metadata.controller
        occupied_by = f"{workload.metadata.namespace}/{owner.name}" if owner is not None else ""
        status = coscheduling.status(gang, group.spec.min_member, occupied_by=occupied_by, started=started)
        if status == group.status or _is_over(group.status):
            return
        patch = {"status": msgspec.to_builtins(status)}
        written = await self._cluster.patch(COSCHEDULING_POD_GROUPS, key[1], key[0], patch=patch, subresource="status")
        self._observe(COSCHEDULING_POD_GROUPS, written)


def _is_over(status: CoschedulingPodGroupStatus) -> bool:
    """A finished gang's pods may be cleaned up; what its PodGroup says stays."""
    return status.phase == "Finished"
