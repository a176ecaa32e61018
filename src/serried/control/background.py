"""What is written behind the decisions, folded: queue and PodGroup status, and why Workloads wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from serried.api.kueue import ClusterQueue, LocalQueue
from serried.api.meta import Key, find_condition
from serried.api.names import WorkloadCondition
from serried.api.podgroup import PodGroupStatus
from serried.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES, POD_GROUPS, WORKLOADS, Resource
from serried.cluster.protocol import ApiError, Cluster, Conflict, NotFound, Unavailable
from serried.control import conditions
from serried.control.config import Configuration
from serried.control.events import Recorder
from serried.control.executor import Observe
from serried.control.state import State
from serried.gang import podgroup
from serried.gang.membership import Gang
from serried.schedule.reasons import Reason

log = logging.getLogger(__name__)

_AT_ONCE = 8  # background writes in flight; the rest of the client's room is for decisions


class StatusWriter:
    """Writes status that people read, at most once per interval for each object and only what has changed."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
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
        self._queues: set[Key] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something has gathered: it is written now or, right after other writes, an interval later."""
        self._wake.set()

    def waits(self, key: Key, reason: Reason) -> None:
        """Why this Workload waits, as of now."""
        self._waits[key] = reason
        self.wake()

    def admitted(self, key: Key) -> None:
        """It waits no longer: what was to be said of its wait is not said any more."""
        self._waits.pop(key, None)

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
            waits, self._waits = self._waits, {}
            queues, self._queues = self._queues, set()
            gangs, self._state.changed_gangs = self._state.changed_gangs, set()
            await asyncio.gather(
                *(
                    self._bounded(partial(self._write_wait, k, r), self._waits.setdefault, k, r)
                    for k, r in waits.items()
                ),
                *(self._bounded(partial(self._write_queue, k), self._queues.add, k) for k in sorted(queues)),
                *(
                    self._bounded(partial(self._write_pod_group, k), self._state.changed_gangs.add, k)
                    for k in sorted(gangs)
                ),
            )
            await asyncio.sleep(self._interval)

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

    async def _write_wait(self, key: Key, reason: Reason) -> None:
        workload = self._state.workloads.get(key)
        if workload is None or workload.status.admission is not None:
            return
        change = conditions.pending(reason.code, reason.message)
        if conditions.same(workload.status.conditions, change):
            return
        old = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED)
        patch = conditions.status_patch(workload, [change], self._clock())
        written = await self._cluster.patch(WORKLOADS, key[1], key[0], patch=patch, subresource="status")
        self._observe(WORKLOADS, written)
        if old is None or old.reason != change.reason:
            self._recorder.event(WORKLOADS, written, "Pending", change.message, warning=reason.layer == "input")

    async def _write_queue(self, key: Key) -> None:
        """Numbers and the condition Active of one queue: ClusterQueue ("", name) or LocalQueue (namespace, name)."""
        status = self._state.engine.status(key)
        if status is None:
            return
        resource: Resource[Any] = LOCAL_QUEUES if key[0] else CLUSTER_QUEUES
        before: ClusterQueue | LocalQueue | None = self._stored(resource, key)
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
        status = podgroup.status(gang, group.spec.min_member, occupied_by=occupied_by, started=started)
        if status == group.status or _is_over(group.status):
            return
        patch = {"status": msgspec.to_builtins(status)}
        written = await self._cluster.patch(POD_GROUPS, key[1], key[0], patch=patch, subresource="status")
        self._observe(POD_GROUPS, written)


def _is_over(status: PodGroupStatus) -> bool:
    """A finished gang's pods may be cleaned up; what its PodGroup says stays."""
    return status.phase == "Finished"
