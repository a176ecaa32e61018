"""One engine, with all that feeds it and all that writes what it decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from serried.api.meta import Key, Object
from serried.api.resources import CLUSTER_QUEUES, COHORTS, NODES, PODS, WORKLOADS, Resource
from serried.cluster.informer import Informer
from serried.cluster.protocol import ApiError, Cluster, Forbidden, Invalid, Malformed, NotFound
from serried.cluster.work_queue import WorkQueue, retry_later
from serried.control.config import Configuration
from serried.control.decision_writer import DecisionWriter
from serried.control.events import Recorder
from serried.control.executor import Executor
from serried.control.gate import Gate
from serried.control.quarantine import Quarantine
from serried.control.status_writer import StatusWriter
from serried.jobs.kind import JobKind
from serried.lifecycle import reconcile
from serried.lifecycle.actions import Action, CreateWorkload, PatchObject
from serried.lifecycle.cluster_state import ClusterState, OwnerKey, kept
from serried.schedule.engine import Engine, EngineBroken

log = logging.getLogger(__name__)

#: Names an object of a kind.
Item = tuple[Resource[Any], Key]

_CYCLE = 0.05  # seconds after which a cycle leaves the rest to the next one
_PAUSE, _LONGEST_PAUSE = 4.0, 0.1  # between cycles: times what the last one took, and seconds
_LOOK_AT_CLOCK = 1.0  # seconds between looks at the clock while somebody backs off


@dataclass(frozen=True)
class Broken:
    """Why a session is over: a fault of ours, and the object over which it happened, if it was one."""

    error: BaseException
    resource: Resource[Any] | None = None
    object: Object | None = None

    def __str__(self) -> str:
        if self.resource is None or self.object is None:
            return f"{self.error!r}"
        return f"{self.error!r} over {self.resource.kind} {'/'.join(filter(None, self.object.key))}"


class Session:
    """What goes on side by side on one loop: informers that keep `ClusterState` and the engine up to date; cycles that
    decide, whenever the engine says one could help; reconciles of each owner that something happened to; and writers.

    It is over when the model is broken: whatever failed in the middle of a change may have left half of it, and
    nothing more is decided on that, nor written.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: Configuration,
        kinds: Sequence[JobKind[Any]],
        clock: Callable[[], datetime],
        recorder: Recorder,
        quarantine: Quarantine,
    ) -> None:
        self.engine = Engine(config.place_options(), config.options())
        self.state = ClusterState(self.engine, self._mark, kinds)
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._quarantine = quarantine
        self._informers: dict[Resource[Any], Informer[Any]] = {}
        #: objects that are there, but not in the state: malformed, or held back
        self._missing: set[Item] = set()
        self._listed = False
        self._changes = 0  # seen so far
        self._broken: Broken | None = None
        self._over = asyncio.Event()
        self._wake = asyncio.Event()  # a cycle could do something
        self._gate = Gate(cluster)
        self._reconciles: WorkQueue[OwnerKey] = WorkQueue(self._reconcile, retry=self._retry_reconcile)
        self._decisions = DecisionWriter(
            self._gate, self.state, recorder, self._observe, clock, self._wake.set, self._retry
        )
        self._status = StatusWriter(
            self._gate, self.state, self._observe, self._stored, clock, config.status_interval, self._retry
        )
        self._executor = Executor(self._gate, recorder, self._observe, self._node_of, self._decisions.step)

    async def run(self, when_listed: Callable[[], None]) -> Broken:
        """Lists, then watches, decides and writes until cancelled, or until the model is broken; returns why.

        All tasks it started end with it, and all writes, if it was not cancelled, have come to their end.
        """
        working = asyncio.create_task(self._work(when_listed))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
            if self._broken is None:
                working.result()
            await self._gate.drained()
        finally:
            for task in (working, over):
                task.cancel()
            await asyncio.gather(working, over, return_exceptions=True)
            for queue in (self._reconciles, self._decisions):
                await queue.stop()
            await asyncio.gather(*(i.stop() for i in self._informers.values()), return_exceptions=True)
        assert self._broken is not None
        return self._broken

    async def _work(self, when_listed: Callable[[], None]) -> None:
        try:
            await self._list()
            self._listed = True
            when_listed()
            self._wake.set()
            self._reconciles.start()
            self._decisions.start()
            await asyncio.gather(self._cycles(), self._status.run())
        except EngineBroken as error:
            self._break(error)

    async def _list(self) -> None:
        # In order: queues and nodes before the Workloads that hold something in them.
        for resource, change in self.state.feeds():
            informer = self._informers[resource] = Informer(
                self._cluster,
                resource,
                on_change=partial(self._changed, resource, change),
                on_malformed=partial(self._malformed, resource),
                keep=kept if resource is WORKLOADS else None,
            )
            informer.start()
            await informer.synced()
        log.info("listed %s", ", ".join(f"{len(i.store)} {r.plural}" for r, i in self._informers.items()))

    # --- the door

    def _break(self, error: Exception, resource: Resource[Any] | None = None, obj: Object | None = None) -> None:
        """Ends the session: nothing more is decided, and no write begins."""
        if self._broken is not None:
            return
        self._gate.shut()
        cause: BaseException = error
        if isinstance(error, EngineBroken):
            cause = error.__cause__ or error
            resource = next((r for r in self._informers if r.kind == error.kind), resource)
            if error.key is not None and resource is not None:
                obj = self._stored(resource, error.key) or obj
        self._broken = Broken(cause, resource, obj)
        log.error("the model is broken and is built anew: %s", self._broken, exc_info=cause)
        self._over.set()

    def _retry(self, key: Hashable, error: Exception, failures: int) -> float | None:
        if isinstance(error, EngineBroken):
            self._break(error)
            return None
        return retry_later(key, error, failures)

    # --- watches in

    def _changed(
        self, resource: Resource[Any], change: Callable[[Any, Any], None], old: Object | None, new: Object | None
    ) -> None:
        if self._broken is not None:
            return
        self._changes += 1
        try:
            self._feed(resource, change, old, new)
            if self.engine.dirty:
                self._wake.set()
            self._status.look()
        except Exception as error:  # noqa: BLE001 whatever it is, the model missed a change
            self._break(error, resource, new or old)

    def _feed(
        self, resource: Resource[Any], change: Callable[[Any, Any], None], old: Object | None, new: Object | None
    ) -> None:
        item = (resource, _key(old, new))
        if new is not None and (fault := self._quarantine.holds(resource, new)) is not None:
            self._missing.add(item)
            if not self._quarantine.is_unspeakable(resource, new.key):
                self.engine.set_malformed(resource.kind, new.key, fault)
        elif item not in self._missing:
            change(old, new)
        else:
            self._missing.discard(item)
            if new is not None:
                change(None, new)
            elif resource is WORKLOADS:
                self.engine.delete_workload(item[1])
            elif resource in (CLUSTER_QUEUES, COHORTS):
                change(old, None)

    def _malformed(self, resource: Resource[Any], obj: Malformed) -> None:
        if self._broken is not None:
            return
        log.warning("%s %s/%s cannot be read: %s", resource.kind, *obj.key, obj.error)
        if self._stored(resource, obj.key) is None:
            self._missing.add((resource, obj.key))
        try:
            self.engine.set_malformed(resource.kind, obj.key, obj.error)
        except Exception as error:  # noqa: BLE001 whatever it is, the model missed a change
            self._break(error, resource, obj)
        self._wake.set()
        if resource not in (NODES, PODS) and obj.metadata.uid:
            self._recorder.event(resource, obj, "Misconfigured", f"cannot be read: {obj.error}", warning=True)

    def _node_of(self, host: str) -> str | None:
        return self.engine.world.node_of(host)

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
            cycle = self.engine.cycle(self._clock(), spent=lambda: time.monotonic() > started + _CYCLE)  # noqa: B023
            ended = time.monotonic()
            due = ended + min(_PAUSE * (ended - started), _LONGEST_PAUSE)
            self._decisions.decide(cycle)
            self._status.look()
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

    def _mark(self, owner: OwnerKey) -> None:
        """This one wants a look."""
        self._reconciles.add(owner)

    async def _reconcile(self, owner: OwnerKey) -> float | None:
        """Carries out what is due for this owner. Returns in how many seconds it is looked at again."""
        if owner in self._missing:
            return None
        if owner in self.state.possibly_deleted and not await self._is_there(owner):
            return None  # the watch will bring its end
        following = self.state.next_steps(owner, self._clock())
        for action in following.actions:
            await self._do(owner, action)
        if following.look_again is None:
            return None
        return max(0.0, (following.look_again - self._clock()).total_seconds())

    def _retry_reconcile(self, owner: OwnerKey, error: Exception, failures: int) -> float | None:
        if isinstance(error, Forbidden):
            self._refused(owner, error)
        return self._retry(f"{owner[0].kind} {'/'.join(owner[1])}", error, failures)

    async def _is_there(self, owner: OwnerKey) -> bool:
        """Asks for a job of which it is not certain: a Workload made for one that is gone would be deleted again."""
        resource, (namespace, name) = owner
        try:
            self._observe(resource, await self._gate.get(resource, name, namespace))
        except NotFound:
            return False
        self.state.possibly_deleted.discard(owner)
        return True

    async def _do(self, owner: OwnerKey, action: Action) -> None:
        if isinstance(action, CreateWorkload) and (WORKLOADS, action.workload.key) in self._missing:
            return  # there is one, which says what is wrong with it
        try:
            await self._executor.do(action)
        except Invalid as error:
            # It can never succeed as it stands; the next change of the owner brings another look.
            self._refused(owner, error)
            if isinstance(action, PatchObject) and action.starts is not None:
                await self._executor.do(reconcile.failed_to_start(action.starts, error.message, self._clock()))

    def _refused(self, owner: OwnerKey, error: ApiError) -> None:
        resource, key = owner
        log.warning("%s %s/%s: the API server refuses a write: %s", resource.kind, *key, error)
        if (found := self._stored(resource, key)) is not None:
            reason = "Forbidden" if isinstance(error, Forbidden) else "Misconfigured"
            self._recorder.event(resource, found, reason, error.message, warning=True)

    # --- for those who wait

    async def idle(self) -> bool:
        """See `Controller.idle`. False: the model is broken."""
        while self._broken is None:
            if not self._is_quiet:
                await asyncio.sleep(0.002)
                continue
            before = self._changes
            for informer in self._informers.values():
                await informer.caught_up()
            if self._changes == before and self._is_quiet:
                return True
        return False

    @property
    def _is_quiet(self) -> bool:
        """Whether all that is known has been acted on."""
        if (
            self._broken is not None
            or not self._listed
            or self._wake.is_set()
            or self._gate.writes
            or self.engine.dirty
        ):
            return False
        due = self.engine.wake_at
        queues = (self._reconciles, self._decisions, self._status, self._recorder)
        return (due is None or due > self._clock()) and all(queue.is_quiet for queue in queues)


def _key(old: Object | None, new: Object | None) -> Key:
    found = new or old
    assert found is not None
    return found.key
