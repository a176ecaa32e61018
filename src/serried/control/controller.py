"""The running controller: watches feed the engine, cycles decide, others write (`serried.control.session`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from serried.cluster.protocol import Cluster
from serried.cluster.work_queue import back_off
from serried.control.config import Configuration
from serried.control.events import Recorder
from serried.control.quarantine import Quarantine
from serried.control.session import Broken, Session
from serried.jobs import KINDS
from serried.jobs.kind import JobKind
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine

log = logging.getLogger(__name__)

#: Seconds after which a failure of the model is not taken for a consequence of the one before.
_LONG_ENOUGH = 60.0


def utc_now() -> datetime:
    return datetime.now(UTC)


class Controller:
    """Schedules what is on `cluster`. `run` goes on until cancelled; `ready` is set once everything has been listed.

    When a fault of ours breaks the model, the session with its engine ends, and a new one begins as at the start: with
    a list of everything, which also says what has become of writes that had begun. It begins in this process, because
    only who has seen both failures knows that it was the same object twice; such an object is held back.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: Configuration | None = None,
        *,
        kinds: Sequence[JobKind[Any]] = KINDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.config = config or Configuration()
        self._kinds = kinds
        self.ready = asyncio.Event()
        self._cluster = cluster
        self._clock = clock
        self._recorder = Recorder(cluster, clock)
        self._quarantine = Quarantine()
        self._session = self._begin()

    def _begin(self) -> Session:
        return Session(self._cluster, self.config, self._kinds, self._clock, self._recorder, self._quarantine)

    @property
    def engine(self) -> Engine:
        return self._session.engine

    @property
    def state(self) -> ClusterState:
        return self._session.state

    def now(self) -> datetime:
        return self._clock()

    async def run(self) -> None:
        """Lists, then watches, decides and writes until cancelled; all tasks it started end with it."""
        self._recorder.start()
        loop = asyncio.get_running_loop()
        failures = 0  # one soon after the other
        try:
            while True:
                started = loop.time()
                self._hold_back(await self._session.run(self.ready.set))
                failures = failures + 1 if loop.time() < started + _LONG_ENOUGH else 1
                await asyncio.sleep(back_off(failures))
                self._session = self._begin()
        finally:
            await self._recorder.stop()

    def _hold_back(self, broken: Broken) -> None:
        """An object over which engines have failed twice is not shown to the next one."""
        resource, obj = broken.resource, broken.object
        if resource is not None and obj is not None and self._quarantine.failed_over(resource, obj, broken.error):
            message = (
                f"Serried fails over it ({broken.error!r}) and leaves it out until it is changed; please report this"
            )
            log.error("%s %s/%s is held back", resource.kind, *obj.key)
            self._recorder.event(resource, obj, "Misconfigured", message, warning=True)

    async def idle(self) -> None:
        """Waits until there is nothing left to do: all that the API server held when this was called has been seen,
        and what follows from it is decided and written, status and events included.

        What is due later (a time-out, the end of a back-off) does not count, what has failed and will be tried again
        does. It lists everything, so it is for tests.
        """
        await self.ready.wait()
        while not await self._session.idle():  # noqa: ASYNC110 its model is broken, a new one is on its way
            await asyncio.sleep(0.002)
