"""These tests run on a loop whose time passes only when nobody has anything to do: then at once to the next timer."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from serried.embedded.server import EmbeddedCluster


class _Skipping(selectors.DefaultSelector):
    """Does not wait: says that the time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing will ever happen again")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


def now() -> datetime:
    """The time of day in virtual time."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    made = EmbeddedCluster(now=now)
    yield made
    await made.close()
