"""A loop on a thread of its own."""

import asyncio
import threading

import pytest

from serried.cluster.loop_thread import LoopThread


async def test_results_and_errors_come_back() -> None:
    async def where() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("no")

    async with LoopThread("elsewhere") as thread:
        assert await thread.call(where()) == "elsewhere"
        with pytest.raises(ValueError, match="no"):
            await thread.call(fail())


async def test_who_is_cancelled_here_is_cancelled_there() -> None:
    began, ended = threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with LoopThread("elsewhere") as thread:
        waiting = asyncio.create_task(thread.call(forever()))
        await asyncio.to_thread(began.wait)
        waiting.cancel()
        await asyncio.to_thread(ended.wait)
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_what_runs_at_the_end_is_cancelled() -> None:
    ended = threading.Event()

    async def leave_behind() -> asyncio.Task[None]:
        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        return task

    async with LoopThread("elsewhere") as thread:
        task = await thread.call(leave_behind())
    assert ended.is_set()
    assert task.cancelled()
