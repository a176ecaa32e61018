"""`serried demo`: a day of training jobs on an embedded cluster of 64 nodes, with the real controller, in a minute."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from serried.api.names import PendingReason
from serried.api.resources import JOBS
from serried.cli import demo_story as story
from serried.cli.common import Failure, Output
from serried.cli.connect import complete
from serried.cli.demo_record import Chronicle
from serried.cli.demo_stage import Clock, RunningDemo, staged
from serried.cli.demo_summary import Ending, show, sum_up
from serried.cli.live_view import WaitingJob, cluster_map, draw, header, time_of_day
from serried.jobs.job import POD_SET_NAME
from serried.observe.report import report
from serried.schedule.cycle.explain import Explanation
from serried.schedule.types.wording import opening, short_level

#: Real seconds between two looks, between two looks at who waits and why, and between two lines of progress.
_LOOK, _EXPLAIN, _PROGRESS = 0.1, 0.5, 5.0
#: The day ends when nothing has happened for so many real seconds, nothing runs and nothing more will be submitted.
_QUIET = 0.5
#: Columns of output that goes to no terminal.
_PLAIN_WIDTH = 100
#: Real seconds at speed 1 after which it ends in any case.
_LONGEST = 180.0


@dataclass
class Play:
    """A demo that is going on, as its audience sees it."""

    day: Chronicle
    clock: Clock
    waits: Sequence[WaitingJob] = ()


Audience = Callable[[Play], None]


def run_demo(speed: float, jobs: int | None, seconds: float | None, output: Output, *, headless: bool) -> None:
    """Plays the day to its end, then prints what came of it. Raises `Failure`."""
    day = story.DAY[:jobs]
    most = seconds if seconds is not None else max(20.0, _LONGEST / speed)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    warnings: Counter[str] = Counter()
    with kept_logs(warnings):
        if headless or output is Output.json:
            play, ending = complete(lambda: perform(day, speed, most, _Progress()))
        elif console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:

                def redraw(play: Play) -> None:
                    width, height = console.size
                    live.update(draw(play.day, play.waits, play.clock, width, height), refresh=True)

                play, ending = complete(lambda: perform(day, speed, most, redraw))
        else:
            play, ending = complete(lambda: perform(day, speed, most, _Lines(console)))
    for warning, times in warnings.items():
        typer.echo(f"serried: {warning}" + (f" ({times} times)" if times > 1 else ""), err=True)
    found = sum_up(play.day, play.waits, play.clock, ending)
    if output is Output.json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        show(console, play.day, found, play.clock)


async def perform(day: Sequence[story.Training], speed: float, most: float, audience: Audience) -> tuple[Play, Ending]:
    """Plays a day, `most` real seconds at most; `audience` is shown every moment of it. Raises `Failure`."""
    with _signals() as stop:
        async with staged(speed) as stage:
            play = Play(Chronicle(day, lambda: stage.clock.seconds), stage.clock)
            async with play.day.follow(stage.cluster):
                submitting = asyncio.create_task(stage.play(day))
                try:
                    ending = await _watch(stage, play, submitting, stop, most, audience)
                finally:
                    submitting.cancel()
                    await asyncio.wait([submitting])
                stage.clock.stop()
                play.waits = _waits(stage, play.day)
            return play, ending


async def _watch(
    stage: RunningDemo, play: Play, submitting: asyncio.Task[None], stop: asyncio.Event, most: float, audience: Audience
) -> Ending:
    """Looks on until the day is over. Raises what the controller or the submission failed with."""
    explained = -_EXPLAIN
    while True:
        if stage.running.done():
            stage.running.result()
            raise Failure("the controller has ended by itself")
        if submitting.done():
            submitting.result()
        now = stage.clock.seconds
        if now - explained >= _EXPLAIN:
            explained = now
            play.waits = _waits(stage, play.day)
        else:
            play.waits = [wait for wait in play.waits if wait.record.phase == "waiting"]
        audience(play)
        if stop.is_set():
            return "interrupted"
        if now >= most:
            return "time"
        if submitting.done() and now - play.day.last_change > _QUIET and not play.day.active:
            return "complete"
        try:
            await asyncio.wait_for(stop.wait(), _LOOK)
        except TimeoutError:
            pass


# --- Who waits, and why


def _waits(stage: RunningDemo, day: Chronicle) -> list[WaitingJob]:
    """The Jobs that wait, queue by queue, in the order in which they are looked at."""
    state, now = stage.controller.state, stage.clock.now()
    found: list[tuple[tuple[str, int], WaitingJob]] = []
    for key, record in day.records.items():
        if record.phase != "waiting":
            continue
        why = state.engine.explain(record.workload, now) if record.workload is not None else None
        workload = state.workloads.get(record.workload) if record.workload is not None else None
        reason = why.reason if why is not None else None
        told = report(state.job_owner((JOBS, key)), workload, None, reason)
        short = in_short(why) if why is not None and why.reason is not None else "has not been looked at yet"
        order = (why.cluster_queue, why.ahead) if why is not None else ("", 0)
        found.append((order, WaitingJob(record, told.layer, short, told.summary)))
    return [wait for _, wait in sorted(found, key=lambda pair: pair[0])]


def in_short(why: Explanation) -> str:
    """The reason in a few words, with the numbers that matter."""
    reason = why.reason
    if reason is None:
        return ""
    what = "GPUs" if reason.what == story.GPU else reason.what
    if reason.layer == "queue" and why.ahead:
        return f"{why.ahead} ahead of it in {why.cluster_queue} (StrictFIFO)"
    if reason.code == PendingReason.EXCEEDS_MAX_QUOTA:
        return f"{reason.needed} {what} wanted of {reason.available}: never fits"
    if reason.code == PendingReason.WAITING_FOR_QUOTA:
        return f"{reason.needed} {what} wanted, {reason.available} unused: {reason.missing} missing"
    if reason.code == PendingReason.TOPOLOGY_PLACEMENT_FAILED and reason.frees:
        return f"{reason.where} has room for {reason.available} of {reason.needed} {what}"
    if reason.code == PendingReason.TOPOLOGY_PLACEMENT_FAILED:
        within = reason.constraint.removeprefix("all within one ")
        domain = reason.where if within == reason.constraint else f"a {short_level(within)}"
        return f"{domain} holds {reason.available} of {reason.needed} {what}: never fits"
    return reason.message.removeprefix(opening(POD_SET_NAME)).partition(". ")[0]


# --- Audiences other than the live view


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = 2.0

    def __call__(self, play: Play) -> None:
        if play.clock.seconds < self._next:
            return
        self._next = play.clock.seconds + _PROGRESS
        typer.echo(f"{play.clock.seconds:5.1f} s  {header(play.day, play.clock, 0).plain.strip()}", err=True)


class _Lines:
    """For output that is no terminal: what happens, line by line, and the map every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._next = _PROGRESS

    def __call__(self, play: Play) -> None:
        new, self._told = play.day.happenings - self._told, play.day.happenings
        for each in list(play.day.log)[len(play.day.log) - new :]:
            self._print(
                f"{time_of_day(each.at, play.clock)} {each.record.letter} {each.record.training.name} {each.text}"
            )
        if play.clock.seconds >= self._next:
            self._next += _PROGRESS
            lines = [header(play.day, play.clock, _PLAIN_WIDTH), *cluster_map(play.day.cells, play.day, _PLAIN_WIDTH)]
            waits = [f"{w.record.letter} {w.record.training.name} waits: {w.layer}: {w.short}" for w in play.waits]
            self._print("\n".join(["", *(line.plain for line in lines), "", *waits, ""]))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


# --- What a command must leave as it was


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C and SIGTERM set, once: a second one ends the process as it always does."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def heard() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class _Kept(logging.Handler):
    def __init__(self, warnings: Counter[str]) -> None:
        super().__init__(logging.WARNING)
        self._warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings[self.format(record)] += 1


@contextmanager
def kept_logs(warnings: Counter[str]) -> Iterator[None]:
    """Keeps warnings for later, so that they do not run into the picture."""
    handler = _Kept(warnings)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
