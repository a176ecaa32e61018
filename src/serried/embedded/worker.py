"""Work that is marked by key and done soon, for the controllers in this room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from serried.cluster.protocol import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: Seconds after which work that the API server refused is tried again.
RETRY_SECONDS = 10.0


class Worker(Generic[K]):
    """Calls `handle(key)` for each key that is marked: soon, different keys at the same time, the same key one call
    after the other. A mark during the call leads to another call.

    A `NotFound` or `Conflict` of the handler means that what it looked at is history: the change itself will mark the
    key. After any other `ApiError` the key is handled again `retry_seconds` later.
    """

    def __init__(self, handle: Callable[[K], Awaitable[None]], retry_seconds: float = RETRY_SECONDS) -> None:
        self._handle = handle
        self._retry_seconds = retry_seconds
        self._running: dict[K, asyncio.Task[None]] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def mark(self, key: K) -> None:
        if key in self._running:
            self._again.add(key)
        else:
            task = asyncio.get_running_loop().create_task(self._run(key))
            self._running[key] = task

    def mark_at(self, key: K, when: float) -> None:
        """Marks a key at a time of the loop's clock; the earlier one if that was asked twice."""
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(when, self._due, key)

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.mark(key)

    async def _run(self, key: K) -> None:
        try:
            while True:
                self._again.discard(key)
                await self._attempt(key)
                if key not in self._again:
                    return
        finally:
            del self._running[key]

    async def _attempt(self, key: K) -> None:
        try:
            await self._handle(key)
        except (NotFound, Conflict) as error:
            log.debug("%s: overtaken: %s", key, error)
        except ApiError as error:
            log.warning("%s: will try again in %g s: %s", key, self._retry_seconds, error)
            self.mark_at(key, asyncio.get_running_loop().time() + self._retry_seconds)
        except Exception:
            log.exception("%s: unexpected; left alone until it changes", key)

    async def stop(self) -> None:
        """Nothing is called after this."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
