"""What is left of a demo when it is over: one document for scripts, and the same as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serried.cli import demo_story as story
from serried.cli.demo_record import Chronicle, JobRecord, Phase
from serried.cli.demo_stage import Clock
from serried.cli.live_view import WaitingJob, badge, cluster_map, hours, time_of_day

#: complete: nothing runs and nothing more can; interrupted: by a signal; time: by --seconds, or for good measure
Ending = Literal["complete", "interrupted", "time"]


class JobSummary(msgspec.Struct, rename="camel"):
    """One Job. Times are real seconds since the demo began, null: it did not come to that."""

    name: str
    team: str
    pods: int
    gpus_per_pod: int
    #: "required rack", "preferred rack", "required block" or ""
    topology: str
    priority: str
    state: Phase
    submitted: float
    admitted: float | None
    #: its last pod was made, its last pod was bound
    assembled: float | None
    bound: float | None
    #: all its pods are ready
    running: float | None
    finished: float | None
    #: the smallest domain that holds all its pods, and its nodes
    domain: str
    nodes: Sequence[str]
    #: why it waits; "" when it does not
    layer: str
    reason: str


class GangSummary(msgspec.Struct, rename="camel"):
    name: str
    pods: int
    domain: str
    #: from its last pod's creation to its last pod's binding
    bind_seconds: float


class StillWaiting(msgspec.Struct):
    """A Job that waits at the end; when the day is complete, it can never run."""

    name: str
    team: str
    layer: str
    reason: str


class Summary(msgspec.Struct, rename="camel"):
    ended: Ending
    #: real seconds it took, and how many times faster than that its day went by
    seconds: float
    pace: float
    submitted: int
    finished: int
    failed: int
    #: admitted, and not over
    active: int
    waiting: int
    #: in hours of the day: from submission to admission, of those admitted
    mean_wait_hours: float
    longest_wait_hours: float
    #: in hours of the day; pods hold their GPUs from their binding to their end
    gpu_hours: float
    #: GPU hours, as a share of those that the cluster had
    utilisation: float
    peak_gpus: int
    largest_gang: GangSummary | None
    still_waiting: Sequence[StillWaiting]


class DemoReport(msgspec.Struct):
    """What `serried demo --output json` prints."""

    summary: Summary
    jobs: Sequence[JobSummary]


def sum_up(day: Chronicle, waits: Sequence[WaitingJob], clock: Clock, ended: Ending) -> DemoReport:
    """Everything, as of now."""
    records = list(day.records.values())
    phases = [r.phase for r in records]
    why = {id(w.record): w for w in waits}
    to_hours = clock.pace / 3600
    waited = [(r.admitted - r.submitted) * to_hours for r in records if r.admitted is not None]
    gangs = [(r.training.pods, seconds, r) for r in records if (seconds := r.bind_seconds) is not None]
    largest = max(gangs, key=lambda gang: gang[:2], default=None)
    gpu_hours = day.gpu_seconds * to_hours
    had = story.TOTAL_GPUS * clock.seconds * to_hours
    summary = Summary(
        ended=ended,
        seconds=round(clock.seconds, 3),
        pace=clock.pace,
        submitted=len(records),
        finished=phases.count("finished"),
        failed=phases.count("failed"),
        active=len(day.active),
        waiting=phases.count("waiting"),
        mean_wait_hours=round(sum(waited) / len(waited), 3) if waited else 0.0,
        longest_wait_hours=round(max(waited, default=0.0), 3),
        gpu_hours=round(gpu_hours, 1),
        utilisation=round(gpu_hours / had, 4) if had else 0.0,
        peak_gpus=day.peak,
        largest_gang=GangSummary(largest[2].training.name, largest[0], largest[2].domain, round(largest[1], 4))
        if largest is not None
        else None,
        still_waiting=[StillWaiting(w.record.training.name, w.record.training.team, w.layer, w.reason) for w in waits],
    )
    return DemoReport(summary, [_job(r, why.get(id(r))) for r in records])


def _job(record: JobRecord, why: WaitingJob | None) -> JobSummary:
    training = record.training
    return JobSummary(
        name=training.name,
        team=training.team,
        pods=training.pods,
        gpus_per_pod=training.gpus,
        topology=training.topology,
        priority=training.priority,
        state=record.phase,
        submitted=round(record.submitted, 3),
        admitted=_rounded(record.admitted),
        assembled=_rounded(record.assembled),
        bound=_rounded(record.bound),
        running=_rounded(record.started),
        finished=_rounded(record.finished),
        domain=record.domain,
        nodes=record.planned,
        layer=why.layer if why is not None else "",
        reason=why.reason if why is not None else "",
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def show(console: Console, day: Chronicle, found: DemoReport, clock: Clock) -> None:
    """The summary for people, with the map at its fullest."""
    summary = found.summary
    if day.peak:
        when = time_of_day(day.peak_at, clock)
        console.print(Text(f"The map at {when}, the fullest moment: {day.peak} of {story.TOTAL_GPUS} GPUs", "bold"))
        for line in cluster_map(day.peak_cells, day, console.width):
            console.print(line, no_wrap=True, overflow="crop")
        console.print()
    ending = {"complete": "The day is over", "interrupted": "Interrupted", "time": "Time is up"}[summary.ended]
    console.print(
        Text.assemble(
            (ending, "bold"), f" after {hours(clock.seconds * clock.pace)}, played in {summary.seconds:.1f} s."
        )
    )
    table = Table.grid(padding=(0, 2))
    for name, text in _facts(summary):
        table.add_row(Text(name, "dim"), Text(text))
    console.print(table)
    for wait in summary.still_waiting:
        record = day.records[wait.team, wait.name]
        console.print(
            Text.assemble(
                "\n",
                badge(record),
                (f" {wait.name}", "bold"),
                f" ({wait.team}) waits in layer ",
                (wait.layer, "yellow"),
                ":",
            )
        )
        console.print(Text(f"  {wait.reason}"))


def _facts(summary: Summary) -> list[tuple[str, str]]:
    """What is worth knowing, by name."""
    jobs = f"{summary.submitted} submitted: {summary.finished} finished, {summary.failed} failed"
    jobs += f", {summary.active} on their nodes" if summary.active else ""
    wait = f"{hours(summary.mean_wait_hours * 3600)} on average, {hours(summary.longest_wait_hours * 3600)} at most"
    gpus = f"{summary.gpu_hours:,.0f} GPU-hours, {summary.utilisation:.0%} of the cluster"
    gpus += f"; {summary.peak_gpus} of {story.TOTAL_GPUS} GPUs at the fullest moment"
    facts = [("Jobs", f"{jobs}, {summary.waiting} waiting"), ("Wait", wait), ("Use", gpus)]
    if (gang := summary.largest_gang) is not None:
        bound = f"all bound {gang.bind_seconds * 1000:.0f} ms after the last of them was made"
        facts.append(("Largest gang", f"{gang.name}: {gang.pods} pods in {gang.domain}, {bound}"))
    return facts
