"""The one writer of Workloads' status: decisions of cycles, actions of reconciles, and why Workloads wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from serried.api.kueue import Workload
from serried.api.meta import Key
from serried.api.resources import WORKLOADS
from serried.cluster.protocol import ApiError, Conflict, Forbidden, Invalid, NotFound
from serried.cluster.work_queue import Retry, WorkQueue, back_off
from serried.control.events import Recorder
from serried.control.executor import Observe
from serried.control.gate import Gate
from serried.control.intent import Intent, Write
from serried.control.pace import LANES, rest
from serried.lifecycle.actions import PatchWorkload
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.types.decisions import Admit, Cycle

log = logging.getLogger(__name__)


class DecisionWriter:
    """Writes to each Workload the latest of what is intended for it, one patch at a time.

    Decisions are written at once, as often as it takes; only an admission that is refused is taken back in the engine,
    after a pause that grows each time. Reasons of waits are written behind them, a few at a time (`serried.control.
    pace`): who has been let in by then needs none.

    `wake` asks for another cycle, `retry` is that of a `WorkQueue`.
    """

    def __init__(
        self,
        gate: Gate,
        state: ClusterState,
        recorder: Recorder,
        observe: Observe,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
        retry: Retry[Key],
    ) -> None:
        self._gate = gate
        self._state = state
        self._recorder = recorder
        self._observe = observe
        self._clock = clock
        self._wake = wake
        self._intents: dict[Key, Intent] = {}
        self._refusals: dict[Key, int] = {}  # how often a Workload's admission was refused in a row
        self._queue: WorkQueue[Key] = WorkQueue(self._write, retry=retry)
        self._reasons: WorkQueue[Key] = WorkQueue(self._tell, parallelism=LANES, retry=retry)

    def start(self) -> None:
        self._queue.start()
        self._reasons.start()

    async def stop(self) -> None:
        await self._reasons.stop()
        await self._queue.stop()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to be written."""
        return self._queue.is_quiet and self._reasons.is_quiet

    def decide(self, cycle: Cycle) -> None:
        """Takes what a cycle has decided."""
        for wait in cycle.waits:
            self._intent(wait.key).reason = wait.reason
            self._reasons.add(wait.key)
        for admit in cycle.decisions:
            intent = self._intent(admit.key)
            intent.admit, intent.reason = admit, None
            self._reasons.forget(admit.key)
            self._queue.add(admit.key)
        for evict in cycle.evictions:
            self._intent(evict.key).take_eviction(evict, self._state.workloads.get(evict.key))
            self._queue.add(evict.key)

    def step(self, step: PatchWorkload) -> None:
        """Takes what a reconcile has found to be due. If it was decided on a version that is no longer the latest, it
        is dropped: the reconcile that follows each change decides anew."""
        self._intent(step.workload.key).step = step
        self._queue.add(step.workload.key)

    def _intent(self, key: Key) -> Intent:
        return self._intents.setdefault(key, Intent())

    async def _tell(self, key: Key) -> None:
        """Gives the reason of this Workload's wait its turn."""
        intent = self._intents.get(key)
        if intent is None or intent.reason is None:
            return
        intent.tell = True
        started = time.monotonic()
        self._queue.add(key)
        await self._queue.done(key)
        await asyncio.sleep(rest(time.monotonic() - started))

    async def _write(self, key: Key) -> float | None:
        """All that is due for one Workload. Raises the `ApiError` of a write that has to be tried again."""
        intent = self._intents.get(key)
        if intent is None:
            return None
        if intent.doubtful is not None:
            await self._find_out(key, intent, intent.doubtful)
        requests = partial(self._state.engine.resource_requests, key)
        while (workload := self._state.workloads.get(key)) is not None:
            write = intent.next_write(workload, requests, self._clock())
            if write is None:
                break
            try:
                written = await self._patch(workload, write)
            except ApiError as error:
                if isinstance(write.of, Admit):
                    intent.done(write)
                    intent.doubtful = write.of
                    return self._doubt(workload, error)
                self._complain(workload, write, error)
                if not _is_pointless(write, error):
                    raise
                intent.done(write)
                continue
            intent.done(write)
            if write.sort == "reason":
                intent.told = (workload.metadata.resource_version, written.metadata.resource_version)
        if workload is None or intent.is_empty:
            del self._intents[key]
        return None

    async def _patch(self, workload: Workload, write: Write) -> Workload:
        """The one place where a Workload is patched."""
        meta = workload.metadata
        written = await self._gate.patch(
            WORKLOADS, meta.name, meta.namespace, patch=write.patch, subresource=write.subresource
        )
        if isinstance(write.of, Admit):
            self._refusals.pop(workload.key, None)
        self._observe(WORKLOADS, written)
        for event in write.events:
            self._recorder.event(WORKLOADS, written, event.reason, event.message, warning=event.warning)
        return written

    def _complain(self, workload: Workload, write: Write, error: ApiError) -> None:
        """Says on the Workload what its author can do something about."""
        if write.sort == "step" and isinstance(error, Invalid | Forbidden):
            reason = "Forbidden" if isinstance(error, Forbidden) else "Misconfigured"
            log.warning("Workload %s/%s: the API server refuses a write: %s", *workload.key, error)
            self._recorder.event(WORKLOADS, workload, reason, error.message, warning=True)

    def _doubt(self, workload: Workload, error: ApiError) -> float:
        """An admission was refused. Returns after how many seconds it is taken back, if it did not go through: what a
        write without an answer may have taken is nobody else's until that is known."""
        key = workload.key
        log.info("admission of %s/%s refused: %s", *key, error)
        if isinstance(error, Invalid):
            message = f"the API server refuses the admission: {error.message}"
            self._recorder.event(WORKLOADS, workload, "Pending", message, warning=True)
        self._refusals[key] = self._refusals.get(key, 0) + 1
        return back_off(self._refusals[key])

    async def _find_out(self, key: Key, intent: Intent, doubtful: Admit) -> None:
        """Takes a refused admission back in the engine, unless it went through, or a newer one has been decided on."""
        try:
            self._observe(WORKLOADS, await self._gate.get(WORKLOADS, key[1], key[0]))
        except NotFound:
            self._refusals.pop(key, None)
        intent.doubtful = None
        workload = self._state.workloads.get(key)
        if intent.admit is None and workload is not None and workload.metadata.uid == doubtful.uid:
            self._state.engine.withdraw(key)
            self._wake()


def _is_pointless(write: Write, error: ApiError) -> bool:
    """Whether a write that failed need not be tried again."""
    if isinstance(error, NotFound):
        return True
    # Whatever has overtaken a step brings another reconcile; what the server will never take is as good as told.
    return write.sort == "step" and isinstance(error, Conflict | Invalid)
