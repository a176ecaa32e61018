"""The work queue: how often, when and how many at a time a handler is called."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from serried.cluster.protocol import Conflict, Unavailable
from serried.cluster.work_queue import FAULT_DELAY, FIRST_DELAY, LONGEST_DELAY, WorkQueue, back_off, retry_later
from tests.patience import patience

BUSY = Unavailable(503, "ServiceUnavailable", "busy")


class Handler:
    """Notes its calls. Those for a key in `gates` do not end before that is set; `answers` are returned or raised."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.answers: dict[str, list[float | Exception | None]] = {}
        self.running = self.most_running = 0

    async def __call__(self, key: str) -> float | None:
        self.calls.append(key)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if key in self.gates:
                await self.gates[key].wait()
        finally:
            self.running -= 1
        answer = self.answers[key].pop(0) if self.answers.get(key) else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, calls: int) -> None:
        async with patience():
            while len(self.calls) < calls:
                await asyncio.sleep(0)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def queue(handler: Handler) -> AsyncIterator[WorkQueue[str]]:
    made = WorkQueue(handler)
    made.start()
    yield made
    await made.stop()


async def test_a_key_added_often_is_handled_once(queue: WorkQueue[str], handler: Handler) -> None:
    for key in "abaab":
        queue.add(key)
    await queue.idle()
    assert handler.calls == ["a", "b"]


async def test_a_key_added_while_it_is_handled_is_handled_once_more(queue: WorkQueue[str], handler: Handler) -> None:
    handler.gates["a"] = asyncio.Event()
    queue.add("a")
    await handler.until(1)
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    await handler.until(2)
    assert handler.calls == ["a", "b"]
    assert handler.running == 1
    handler.gates["a"].set()
    await queue.idle()
    assert handler.calls == ["a", "b", "a"]


async def test_keys_wait_for_start(handler: Handler) -> None:
    queue = WorkQueue(handler)
    queue.add("a")
    queue.add_after("b", 0)
    await asyncio.sleep(0.01)
    assert handler.calls == []
    queue.start()
    await queue.idle()
    assert handler.calls == ["a", "b"]
    await queue.stop()


async def test_no_more_calls_at_a_time_than_asked_and_in_order(handler: Handler) -> None:
    queue = WorkQueue(handler, parallelism=2)
    queue.start()
    for key in "abcd":
        handler.gates[key] = asyncio.Event()
        queue.add(key)
    await handler.until(2)
    await asyncio.sleep(0)
    assert handler.calls == ["a", "b"]
    handler.gates["b"].set()
    await handler.until(3)
    assert handler.calls == ["a", "b", "c"]
    queue.add("a")  # while it runs: its turn comes after d's
    for gate in handler.gates.values():
        gate.set()
    await queue.idle()
    assert handler.calls == ["a", "b", "c", "d", "a"]
    assert handler.most_running == 2
    await queue.stop()


async def test_a_handler_says_when_to_look_again(queue: WorkQueue[str], handler: Handler) -> None:
    handler.answers["a"] = [0.01, None]
    queue.add("a")
    await queue.idle()
    assert handler.calls == ["a"]
    await handler.until(2)
    await queue.idle()
    assert not queue._timers


async def test_the_earliest_of_several_times_wins(queue: WorkQueue[str], handler: Handler) -> None:
    queue.add_after("a", 600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 300)
    await handler.until(1)
    await queue.idle()
    assert not queue._timers


async def test_what_fails_is_tried_again_and_later_each_time() -> None:
    delays: list[float] = []

    async def handle(key: str) -> None:
        if len(delays) < 3:
            raise BUSY

    def retry(key: str, error: Exception, failures: int) -> float:
        assert (key, error) == ("a", BUSY)
        delays.append(retry_later(key, error, failures))
        return 0

    queue = WorkQueue(handle, retry=retry)
    queue.start()
    queue.add("a")
    async with patience():
        while len(delays) < 3 or queue._timers or queue._running:
            await asyncio.sleep(0)
    assert delays == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert not queue._failures
    await queue.stop()


async def test_an_added_key_does_not_wait_for_its_back_off(queue: WorkQueue[str], handler: Handler) -> None:
    handler.answers["a"] = [BUSY]
    queue.add("a")
    await queue.idle()
    queue.add("a")
    await queue.idle()
    assert handler.calls == ["a", "a"]


async def test_without_a_time_to_retry_a_key_is_left_until_it_is_added(handler: Handler) -> None:
    queue = WorkQueue(handler, retry=lambda key, error, failures: None)
    queue.start()
    handler.answers["a"] = [ValueError("a fault"), None]
    queue.add("a")
    await queue.idle()
    assert not queue._timers
    queue.add("a")
    await queue.idle()
    assert handler.calls == ["a", "a"]
    await queue.stop()


@pytest.mark.parametrize("drop", [WorkQueue.forget, lambda queue, key: queue.stop()], ids=["forget", "stop"])
async def test_nothing_comes_of_a_key_that_is_forgotten(
    drop: Callable[[WorkQueue[str], str], Awaitable[None] | None], handler: Handler
) -> None:
    queue = WorkQueue(handler, parallelism=1)
    queue.start()
    handler.gates["running"] = asyncio.Event()
    handler.answers["late"] = [BUSY]
    queue.add("late")
    await queue.idle()
    queue.add("running")
    queue.add("waiting")
    await handler.until(2)
    queue.add("running")
    for key in ("late", "waiting", "running"):
        dropped = drop(queue, key)
        if dropped is not None:
            await dropped
    handler.gates["running"].set()
    await queue.idle()
    assert handler.calls == ["late", "running"]
    assert not queue._timers
    assert not queue._failures
    await queue.stop()


async def test_stop_ends_the_calls_that_run(queue: WorkQueue[str], handler: Handler) -> None:
    handler.gates["a"] = asyncio.Event()
    queue.add("a")
    await handler.until(1)
    await queue.stop()
    assert handler.running == 0
    queue.add("b")
    await asyncio.sleep(0.01)
    assert handler.calls == ["a"]
    queue.start()
    await queue.idle()
    assert handler.calls == ["a", "b"]


def test_back_off_doubles_up_to_a_limit() -> None:
    assert [back_off(n, 1, 60) for n in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]


def test_a_fault_is_reported_and_an_overtaken_write_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert retry_later("k", Conflict(409, "Conflict", "changed"), 20) == LONGEST_DELAY
        assert caplog.text == ""
        assert retry_later("k", BUSY, 1) == FIRST_DELAY
        assert "k: again in 0.2 s: 503" in caplog.text
        assert retry_later("k", ValueError("a fault"), 1) == FAULT_DELAY
        assert "ValueError: a fault" in caplog.text
