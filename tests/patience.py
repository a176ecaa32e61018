"""How long tests wait for what has to come: seconds of an idle machine, which pass more slowly on a busy one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

#: Seconds of an idle machine after which something that should have happened is taken not to happen.
PATIENCE = 60.0


def slowness() -> float:
    """How many tasks share a core at the moment, by the load average; 1 on a machine that is not busy."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Deadline:
    """Passes when so many seconds of an idle machine are over. It is to be asked more than once a second."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._left = seconds
        self._asked = time.monotonic()

    def passed(self) -> bool:
        now = time.monotonic()
        self._left -= (now - self._asked) / slowness()
        self._asked = now
        return self._left < 0


@asynccontextmanager
async def patience(seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, by a `Deadline`: raises `TimeoutError` in what it surrounds."""
    deadline = Deadline(seconds)
    async with asyncio.timeout(None) as timeout:

        async def watch() -> None:
            while not deadline.passed():
                await asyncio.sleep(0.2)
            timeout.reschedule(asyncio.get_running_loop().time())

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


async def until(condition: Callable[[], Awaitable[T]], *, seconds: float = PATIENCE, hint: str = "") -> T:
    """Waits until the condition's value is true, and returns it; fails with its last value."""
    deadline = Deadline(seconds)
    while not (value := await condition()):
        assert not deadline.passed(), f"not within {seconds} s: {hint or condition} (last: {value!r})"
        await asyncio.sleep(0.02)
    return value
