"""A work queue: keys to look at, one call at a time for each, with timers and back-off, as in client-go."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from serried.cluster.protocol import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: Seconds until a key is handled that the API server refused: the first after one failure, doubling up to the second.
FIRST_DELAY, LONGEST_DELAY = 0.2, 10.0
#: Seconds after an exception that is a fault of ours: it must neither leave a key for ever nor fill the log.
FAULT_DELAY = 30.0

#: Says after an exception of a handler in how many seconds its key is handled again; None: not before it is added.
#: It is given the key, the exception, and how many calls for the key have now failed in a row.
Retry = Callable[[K, Exception, int], float | None]


def back_off(failures: int, first: float = FIRST_DELAY, longest: float = LONGEST_DELAY) -> float:
    """Seconds to wait after so many failures in a row (1 or more): `first`, doubled each time, `longest` at most."""
    return min(longest, first * 2.0 ** min(failures - 1, 30))


def retry_later(key: Hashable, error: Exception, failures: int) -> float:
    """The usual `Retry`: a growing delay for what the API server refuses; half a minute, and a trace, for a fault."""
    if isinstance(error, ApiError):
        delay = back_off(failures)
        level = logging.DEBUG if isinstance(error, NotFound | Conflict) else logging.INFO
        log.log(level, "%s: again in %.1f s: %s", key, delay, error)
        return delay
    log.error("%s: unexpected; again in %.0f s", key, FAULT_DELAY, exc_info=error)
    return FAULT_DELAY


class WorkQueue(Generic[K]):
    """Calls `handle(key)` for each key that was added: soon, different keys at the same time, the same key one call
    after the other. However often a key is added before its call begins, it is called once; added during the call,
    it is called once more after it.

    A handler returns in how many seconds its key is to be looked at again, or None. What it raises is given to `retry`.
    At most `parallelism` calls run at a time (None: no limit); keys take their turns in the order they were added.

    Keys added before `start` wait for it. Use it on one loop only.
    """

    def __init__(
        self,
        handle: Callable[[K], Awaitable[float | None]],
        *,
        parallelism: int | None = None,
        retry: Retry[K] = retry_later,
    ) -> None:
        self._handle = handle
        self._parallelism = parallelism
        self._retry = retry
        self._started = False
        self._waiting: OrderedDict[K, None] = OrderedDict()  # in order of their turns
        self._running: dict[K, asyncio.Task[None]] = {}
        self._again: set[K] = set()  # added while they run
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def start(self) -> None:
        """Begins to call the handler."""
        self._started = True
        self._fill()

    async def stop(self) -> None:
        """Forgets all keys and cancels all calls; none runs when it returns. `start` begins anew."""
        self._started = False
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for keys in (self._waiting, self._again, self._timers, self._failures):
            keys.clear()

    def add(self, key: K) -> None:
        """The key wants a look now, also if it waits for a later one."""
        if key in self._running:
            self._again.add(key)
        else:
            self._waiting.setdefault(key)
            self._fill()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key so many seconds from now; the earliest time wins if that is asked for more than once."""
        when = asyncio.get_running_loop().time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(when, self._due, key)

    def forget(self, key: K) -> None:
        """Drops all that is to come for a key, and its failures. A call that runs goes on to its end."""
        self._waiting.pop(key, None)
        self._again.discard(key)
        self._failures.pop(key, None)
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    @property
    def is_quiet(self) -> bool:
        """Whether no call runs, no key waits for its turn, and none that failed is to be handled again."""
        return not (self._running or self._waiting or self._failures)

    async def done(self, key: K) -> None:
        """Waits until no call for this key runs or waits for its turn. Timers do not count."""
        while self._running and (key in self._running or key in self._waiting):
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)

    async def idle(self) -> None:
        """Waits until no call runs and no key waits for its turn. Timers do not count."""
        while self._running:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _fill(self) -> None:
        """Begins as many calls as may run."""
        if not self._started:
            return
        while self._waiting and (self._parallelism is None or len(self._running) < self._parallelism):
            key, _ = self._waiting.popitem(last=False)
            self._running[key] = asyncio.get_running_loop().create_task(self._run(key))

    async def _run(self, key: K) -> None:
        self._again.discard(key)  # added since its turn came, and not yet seen by anybody
        try:
            await self._call(key)
        finally:
            del self._running[key]
            if key in self._again:
                self._again.discard(key)
                self._waiting[key] = None
            self._fill()

    async def _call(self, key: K) -> None:
        try:
            look_again = await self._handle(key)
        except Exception as error:  # noqa: BLE001 what to do about it is for `retry` to say
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            look_again = self._retry(key, error, failures)
            if look_again is None:
                del self._failures[key]
        else:
            self._failures.pop(key, None)
        if look_again is not None:
            self.add_after(key, look_again)
