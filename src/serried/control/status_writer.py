"""What is written behind the decisions, folded: status of queues, cohorts and PodGroups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from serried.api.coscheduling import CoschedulingPodGroupStatus
from serried.api.kueue import ClusterQueueStatus, CohortStatus, LocalQueueStatus
from serried.api.meta import Key
from serried.api.resources import CLUSTER_QUEUES, COHORTS, COSCHEDULING_POD_GROUPS, LOCAL_QUEUES, Resource
from serried.cluster.protocol import Forbidden, Invalid, NotFound
from serried.cluster.work_queue import Retry, WorkQueue
from serried.control.executor import Observe
from serried.control.gate import Gate
from serried.control.pace import LANES, rest
from serried.gang import coscheduling
from serried.gang.membership import Gang
from serried.lifecycle import conditions
from serried.lifecycle.cluster_state import ClusterState

log = logging.getLogger(__name__)

#: An object whose status is written.
Item = tuple[Resource[Any], Key]


class StatusWriter:
    """Writes status that people read: at most once per interval for each object, and only what has changed."""

    def __init__(
        self,
        gate: Gate,
        state: ClusterState,
        observe: Observe,
        stored: Callable[[Resource[Any], Key], Any],
        clock: Callable[[], datetime],
        interval: float,
        retry: Retry[Item],
    ) -> None:
        self._gate = gate
        self._state = state
        self._observe = observe
        self._stored = stored
        self._clock = clock
        self._interval = interval
        self._news = asyncio.Event()
        self._queue: WorkQueue[Item] = WorkQueue(self._write, parallelism=LANES, retry=retry)

    def look(self) -> None:
        """Something may have changed."""
        if self._state.engine.has_news or self._state.changed_gangs:
            self._news.set()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to be written."""
        return not self._news.is_set() and self._queue.is_quiet

    async def run(self) -> None:
        """Gathers what has changed, once an interval, until cancelled."""
        self._queue.start()
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                self._gather()
                await asyncio.sleep(self._interval)
        finally:
            await self._queue.stop()

    def _gather(self) -> None:
        engine = self._state.engine
        queues, cohorts = engine.queues_changed(), engine.cohorts_changed()
        gangs, self._state.changed_gangs = self._state.changed_gangs, set()
        for key in sorted(queues):
            self._queue.add((LOCAL_QUEUES if key[0] else CLUSTER_QUEUES, key))
        for name in sorted(cohorts):
            self._queue.add((COHORTS, ("", name)))
        for key in sorted(gangs):
            self._queue.add((COSCHEDULING_POD_GROUPS, key))

    async def _write(self, item: Item) -> None:
        """The status of one object, if it has changed. Then its lane rests."""
        resource, key = item
        status = self._pod_group(key) if resource is COSCHEDULING_POD_GROUPS else self._counted(resource, key)
        before = self._stored(resource, key)
        if status is None or (before is not None and before.status == status):
            return
        started = time.monotonic()
        patch = {"status": msgspec.to_builtins(status)}
        try:
            written = await self._gate.patch(resource, key[1], key[0], patch=patch, subresource="status")
        except (NotFound, Invalid, Forbidden) as error:
            log.log(logging.DEBUG if isinstance(error, NotFound) else logging.WARNING, "status not written: %s", error)
            return
        self._observe(resource, written)
        await asyncio.sleep(rest(time.monotonic() - started))

    def _counted(
        self, resource: Resource[Any], key: Key
    ) -> ClusterQueueStatus | LocalQueueStatus | CohortStatus | None:
        """Numbers and the condition Active of a ClusterQueue, LocalQueue or Cohort."""
        engine, before = self._state.engine, self._stored(resource, key)
        status = engine.cohort_status(key[1]) if resource is COHORTS else engine.status(key)
        if status is not None and before is not None:
            status.conditions = conditions.merged(before.status.conditions, status.conditions, self._clock())
        return status

    def _pod_group(self, key: Key) -> CoschedulingPodGroupStatus | None:
        group = self._state.pod_groups.get(key)
        workload = self._state.workloads.get(key)
        if group is None or workload is None:
            return None
        if group.status.phase == "Finished":
            return None  # its pods may be cleaned up; what it says stays
        gang = self._state.gangs.get(key) or Gang()
        started = group.status.schedule_start_time
        if started is None and gang.members:
            started = self._clock().replace(microsecond=0)
        owner = workload.metadata.controller
        occupied_by = f"{workload.metadata.namespace}/{owner.name}" if owner is not None else ""
        return coscheduling.status(gang, group.spec.min_member, occupied_by=occupied_by, started=started)
