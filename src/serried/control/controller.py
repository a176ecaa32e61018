"""The running controller: watches feed the engine, cycles decide, others write.

Everything runs on one asyncio loop. Three things go on side by side: informers that keep `ClusterState` and the engine
up to date; cycles that admit Workloads, whenever the engine says one could help; and one reconcile at a time for each
job that something happened to, and for each Workload with pods that no job owns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from serried.api.meta import Key
from serried.api.resources import NODES, PODS, WORKLOADS, Resource
from serried.cluster.informer import Informer
from serried.cluster.protocol import ApiError, Cluster, Forbidden, Invalid, Malformed, NotFound
from serried.control.config import Configuration
from serried.control.decision_writer import RETRY_FIRST, RETRY_MOST, DecisionWriter
from serried.control.events import Recorder
from serried.control.executor import Executor
from serried.control.status_writer import StatusWriter
from serried.jobs import KINDS
from serried.jobs.kind import JobKind
from serried.lifecycle import reconcile
from serried.lifecycle.actions import Action, Next, PatchObject
from serried.lifecycle.cluster_state import ClusterState, OwnerKey, kept
from serried.schedule.engine import Engine

log = logging.getLogger(__name__)

_AFTER_A_FAULT = 30.0  # seconds
_PAUSE, _LONGEST_PAUSE = 4.0, 0.1  # between cycles: times what the last one took, and seconds
_LOOK_AT_CLOCK = 1.0  # seconds between looks at the clock while somebody backs off


def utc_now() -> datetime:
    return datetime.now(UTC)


class Controller:
    """Schedules what is on `cluster`. `run` goes on until cancelled; `ready` is set once everything has been listed."""

    def __init__(
        self,
        cluster: Cluster,
        config: Configuration | None = None,
        *,
        kinds: Sequence[JobKind[Any]] = KINDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.config = config or Configuration()
        self.engine = Engine(self.config.place_options(), self.config.options())
        self.state = ClusterState(self.engine, self._mark, kinds)
        self.ready = asyncio.Event()
        self._cluster = cluster
        self._clock = clock
        self._recorder = Recorder(cluster, clock)
        self._informers: dict[Resource[Any], Informer[Any]] = {}
        self._executor = Executor(cluster, self._recorder, self._observe, self.engine.world.node_of)
        self._status = StatusWriter(
            cluster, self.state, self._recorder, self._observe, self._stored, clock, self.config
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._decided = DecisionWriter(cluster, self.state, self._recorder, self._observe, clock, self._wake.set)
        self._running: set[OwnerKey] = set()  # being reconciled
        self._again: set[OwnerKey] = set()  # … and those of them that want another look
        self._marked_early: set[OwnerKey] = set()  # marked before all was listed

    async def run(self) -> None:
        """Lists, then watches, decides and writes until cancelled; all tasks it started end with it."""
        try:
            # In order: queues and nodes before the Workloads that hold something in them.
            for resource, change in self.state.feeds():
                informer = Informer(
                    self._cluster,
                    resource,
                    on_change=self._feed(change),
                    on_malformed=self._malformed(resource),
                    keep=kept if resource is WORKLOADS else None,
                )
                self._informers[resource] = informer
                informer.start()
                await informer.synced()
            log.info("listed %s", ", ".join(f"{len(i.store)} {r.plural}" for r, i in self._informers.items()))
            self.ready.set()
            self._wake.set()
            for owner in self._marked_early:
                self._mark(owner)
            self._marked_early.clear()
            await asyncio.gather(self._cycles(), self._recorder.run(), self._status.run())
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(i.stop() for i in self._informers.values()), return_exceptions=True)

    def now(self) -> datetime:
        return self._clock()

    # --- watches in

    def _feed(self, change: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def on_change(old: Any, new: Any) -> None:
            change(old, new)
            if self.engine.dirty:
                self._wake.set()
            if self.state.changed_gangs or self.engine.has_news:
                self._status.wake()

        return on_change

    def _malformed(self, resource: Resource[Any]) -> Callable[[Malformed], None]:
        def on_malformed(obj: Malformed) -> None:
            log.warning("%s %s/%s cannot be read: %s", resource.kind, *obj.key, obj.error)
            self.engine.set_malformed(resource.kind, obj.key, obj.error)
            self._wake.set()
            if resource not in (NODES, PODS) and obj.metadata.uid:
                self._recorder.event(resource, obj, "Misconfigured", f"cannot be read: {obj.error}", warning=True)

        return on_malformed

    def _stored(self, resource: Resource[Any], key: Key) -> Any:
        informer = self._informers.get(resource)
        return informer.store.get(key) if informer is not None else None

    def _observe(self, resource: Resource[Any], obj: Any) -> None:
        informer = self._informers.get(resource)
        if informer is not None:
            informer.observe(obj)

    # --- decisions

    async def _cycles(self) -> None:
        """Runs a cycle whenever the engine could do something; events that come together share one.

        The next one is put off for four times the time that the last one took: in a storm of events cycles become
        fewer, each serves more of them, and reading and writing get most of the loop.
        """
        due = 0.0
        while True:
            await self._woken()
            # If 0: whatever else is ready on the loop belongs to the same cycle.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._wake.clear()
            started = time.monotonic()
            cycle = self.engine.cycle(self._clock())
            ended = time.monotonic()
            due = ended + min(_PAUSE * (ended - started), _LONGEST_PAUSE)
            for wait in cycle.waits:
                self._status.waits(wait.key, wait.reason)
            for admit in cycle.decisions:
                telling = self._status.admitted(admit.key)
                self._decided.admitting[admit.key] = self._spawn(self._decided.admit(admit, after=telling))
            for evict in cycle.evictions:
                self._spawn(self._decided.evict(evict))
            self._status.queues(self.engine.queues_changed())
            if cycle.more or self.engine.dirty:
                self._wake.set()

    async def _woken(self) -> None:
        """Waits until something has happened, or somebody's time to back off is over."""
        while not self._wake.is_set():
            due = self.engine.wake_at
            if due is not None and due <= self._clock():
                return
            with suppress(TimeoutError):
                # Our clock need not go at the pace of the loop's.
                await asyncio.wait_for(self._wake.wait(), None if due is None else _LOOK_AT_CLOCK)

    # --- owners: jobs, and Workloads that none owns

    def _mark(self, subject: OwnerKey) -> None:
        """This one wants a look. One look at a time for each; what happens meanwhile asks for another."""
        if not self.ready.is_set():
            self._marked_early.add(subject)
        elif subject in self._running:
            self._again.add(subject)
        else:
            self._running.add(subject)
            self._spawn(self._reconcile(subject))

    async def _reconcile(self, subject: OwnerKey) -> None:
        delay = RETRY_FIRST
        what = f"{subject[0].kind} {'/'.join(subject[1])}"
        try:
            while True:
                self._again.discard(subject)
                try:
                    following = await self._next_steps(subject)
                    for action in following.actions:
                        await self._do(subject, action)
                    if following.look_again is not None:
                        wait = (following.look_again - self._clock()).total_seconds()
                        asyncio.get_running_loop().call_later(max(0.0, wait), self._mark, subject)
                    delay = RETRY_FIRST
                except ApiError as error:
                    log.info("%s: %s", what, error)
                    if isinstance(error, Forbidden):
                        self._refused(subject, error)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, RETRY_MOST)
                    continue
                except Exception:
                    # A fault of ours must not leave this one standing for ever, nor fill the log.
                    log.exception("%s: it is looked at again in %.1f s", what, _AFTER_A_FAULT)
                    await asyncio.sleep(_AFTER_A_FAULT)
                    continue
                if subject not in self._again:
                    return
        finally:
            self._running.discard(subject)
            self._again.discard(subject)

    async def _next_steps(self, subject: OwnerKey) -> Next:
        if subject in self.state.possibly_deleted and not await self._is_there(subject):
            return Next()  # the watch will bring its end
        return self.state.next_steps(subject, self._clock())

    async def _is_there(self, subject: OwnerKey) -> bool:
        """Asks for a job of which it is not certain: a Workload made for one that is gone would be deleted again."""
        resource, (namespace, name) = subject
        try:
            self._observe(resource, await self._cluster.get(resource, name, namespace))
        except NotFound:
            return False
        self.state.possibly_deleted.discard(subject)
        return True

    async def _do(self, subject: OwnerKey, action: Action) -> None:
        try:
            await self._executor.do(action)
        except Invalid as error:
            # It can never succeed as it stands; the next change of the owner brings another look.
            self._refused(subject, error)
            if isinstance(action, PatchObject) and action.starts is not None:
                await self._executor.do(reconcile.failed_to_start(action.starts, error.message, self._clock()))

    def _refused(self, subject: OwnerKey, error: ApiError) -> None:
        resource, key = subject
        log.warning("%s %s/%s: the API server refuses a write: %s", resource.kind, *key, error)
        found = self._stored(resource, key)
        if found is not None:
            reason = "Forbidden" if isinstance(error, Forbidden) else "Misconfigured"
            self._recorder.event(resource, found, reason, error.message, warning=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task failed", exc_info=error)
