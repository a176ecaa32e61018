"""The picture of a running demo: a map of the cluster, the gangs, the queue and the last events. Pure.

Every line is made to measure, so that what is drawn fits the terminal and reads without colours, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.text import Text

from serried.cli import demo_story as story
from serried.cli.demo_record import COLOURS, Chronicle, JobRecord
from serried.cli.demo_stage import Clock

#: The smallest terminal that everything fits into.
MIN_WIDTH, MIN_HEIGHT = 80, 24

#: Backgrounds that can be told apart, also from their neighbours here.
_HUES = (
    "#5b8ff9", "#f6a04d", "#5ad8a6", "#e8684a", "#9a7fd1", "#f6cf4d", "#6dc8ec", "#ff99c3",
    "#7ba05b", "#c08a63", "#4fb3bf", "#d16d9e", "#b4c94e", "#8d9fb8",
)  # fmt: skip
assert len(_HUES) == COLOURS

_NODE = story.GPUS
_RACK = story.NODES * (_NODE + 1) - 1  # columns of a rack: its nodes, a blank between two
_ABREAST = 8 + story.BLOCKS * (_RACK + 3)  # columns that it takes to show the blocks side by side
_GAP = "  "
_LOG = 12  # lines of the log at most
_NAME = 24  # columns of a Job's name at most


@dataclass(frozen=True)
class WaitingJob:
    """A Job that waits, and why."""

    record: JobRecord
    layer: str
    #: in a few words, and in full
    short: str
    reason: str


def draw(day: Chronicle, waits: Sequence[WaitingJob], clock: Clock, width: int, height: int) -> Text:
    """The whole picture, `height` lines of at most `width` columns."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    top = [header(day, clock, width), Text(), *cluster_map(day.cells, day, width), Text()]
    log_room = 4 if height < 36 else 6
    room = max(3, height - len(top) - log_room - 1)
    left = (width - len(_GAP)) * 51 // 100
    gangs = _section("GANGS", gang_lines(day, clock, left), room, lines_each=1)
    queue = _section("QUEUE", wait_lines(waits, clock, width - left - len(_GAP)), room, lines_each=2)
    beside = [_beside(a, b, left) for a, b in zip_longest(gangs, queue, fillvalue=Text())]
    # The last line stays at the bottom; the log reaches up as far as the lists leave room.
    log_room = max(1, height - len(top) - len(beside) - 1)
    log = [_log_line(h.at, h.record, h.text, clock) for h in list(day.log)[-min(log_room, _LOG) :]]
    lines = [*top, *beside, *[Text()] * (height - len(top) - len(beside) - len(log)), *log][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


# --- The header


def header(day: Chronicle, clock: Clock, width: int) -> Text:
    """The time of day, how much of the cluster is in use, and how many Jobs are where."""
    phases = [r.phase for r in day.records.values()]
    done = phases.count("finished") + phases.count("failed")
    share = day.busy / story.TOTAL_GPUS
    rest = Text.assemble(
        f" {share:4.0%} of {story.TOTAL_GPUS} GPUs  ",
        (f"{len(day.active)} on nodes", "green"),
        "  ",
        (f"{phases.count('waiting')} waiting", "yellow"),
        f"  {done} over",
    )
    when = "%a %H:%M" if width >= 90 else "%H:%M"
    line = Text.assemble((" serried demo ", "bold reverse"), (f"  {clock.now():{when}}  ", "bold"))
    bar = max(4, min(40, width - len(line) - len(rest)))
    return line.append_text(_bar(share, bar, "green")).append_text(rest)


# --- The map


def cluster_map(cells: Mapping[str, Sequence[str]], day: Chronicle, width: int) -> list[Text]:
    """A row for each rack, a group of cells for each node, a cell for each GPU: the letter of its Job, or a dot."""
    styles = {r.letter: style_of(r) for r in day.records.values() if r.colour >= 0}
    gap = "  " if 17 + _RACK + story.NODES <= width < _ABREAST else " "
    racks: dict[str, dict[str, Text]] = {}
    for place in story.PLACES:
        row = racks.setdefault(place.block, {}).setdefault(place.rack, Text())
        row.append(gap if row else "")
        for letter in cells[place.node]:
            row.append(letter or "·", styles.get(letter, "dim"))
    if width >= _ABREAST:
        title = Text(" " * 8 + "   ".join(f"{block:<{_RACK}}" for block in racks), "bold")
        names = list(next(iter(racks.values())))
        rows = [Text("   ").join(block[name] for block in racks.values()) for name in names]
        return [title, *(Text.assemble((f"{name:<8}", "bold"), row) for name, row in zip(names, rows, strict=True))]
    lines: list[Text] = []
    for block, found in racks.items():
        lines += [Text()] if lines else []
        for i, (rack, row) in enumerate(found.items()):
            label = f"{block if i == 0 else '':<9}{rack:<8}" if width >= 17 + _RACK else f"{block[-1]}/{rack[-1]}   "
            lines.append(Text.assemble((label, "bold"), row))
    return lines


def style_of(record: JobRecord) -> str:
    return f"#101418 on {_HUES[record.colour]}" if record.colour >= 0 else ""


# --- Gangs


def gang_lines(day: Chronicle, clock: Clock, width: int) -> list[list[Text]]:
    """A line for each Job that is admitted: those that assemble first, then the latest."""
    active = sorted(day.active, key=lambda r: (r.phase == "running", -(r.admitted or 0.0)))
    return [[_gang_line(r, clock, width)] for r in active]


def _gang_line(record: JobRecord, clock: Clock, width: int) -> Text:
    training = record.training
    there, size = len(record.pods), training.pods
    name = min(_NAME, max(10, width - 32))
    bar = min(24, max(3, width - name - 24))
    line = Text.assemble(badge(record), " ", _fixed(training.name, name), " ")
    if record.phase == "running":
        line.append(f"{size:>2}×{training.gpus}  ").append_text(_fixed(record.domain, 14)).append(" ")
        return line.append_text(_bar(_progress(record, clock), bar, _HUES[record.colour]))
    text = "bound, starts" if record.phase == "starting" else f"{size}/{size} pods, binding"
    if record.phase == "assembling":
        text = f"{there}/{size} pods, waits for {size - there}"
    return line.append_text(_bar(there / size, bar - 3, "yellow")).append(" ").append_text(_fixed(text, 23, "yellow"))


def _progress(record: JobRecord, clock: Clock) -> float:
    """How much of its training a running Job has done, 0 to 1."""
    if record.started is None:
        return 0.0
    return min(1.0, (clock.seconds - record.started) * clock.pace / (record.training.minutes * 60))


# --- The queue


def wait_lines(waits: Sequence[WaitingJob], clock: Clock, width: int) -> list[list[Text]]:
    """Two lines for each Job that waits: who and for how long, and why."""
    result = []
    for wait in waits:
        training = wait.record.training
        age = hours((clock.seconds - wait.record.submitted) * clock.pace)
        size = f"{training.pods:>2}×{training.gpus}"
        name = _fixed(training.name, min(_NAME, width - 28))
        who = Text.assemble(badge(wait.record), " ", name, f" {size}  ", _fixed(training.team, 10), f" {age:>6}")
        why = Text.assemble("  ", (wait.layer, "yellow"), " ", wait.short)
        why.truncate(width, overflow="ellipsis")
        result.append([who, why])
    return result


# --- Parts


def badge(record: JobRecord) -> Text:
    """The letter of a Job in its colour."""
    return Text(record.letter, style_of(record) or "bold")


def hours(seconds: float) -> str:
    """A span of the day: "45m", "2h05m"."""
    minutes = max(0, round(seconds / 60))
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def time_of_day(at: float, clock: Clock) -> str:
    """When something was that happened `at` real seconds after the start."""
    minutes = story.MORNING.hour * 60 + at * clock.pace / 60
    return f"{int(minutes) // 60 % 24:02d}:{int(minutes) % 60:02d}"


def _log_line(at: float, record: JobRecord, text: str, clock: Clock) -> Text:
    return Text.assemble((f"{time_of_day(at, clock)} ", "dim"), badge(record), f" {record.training.name} {text}")


def _bar(share: float, width: int, style: str) -> Text:
    full = round(max(0.0, min(1.0, share)) * width)
    return Text.assemble(("━" * full, style), ("┄" * (width - full), "dim"))


def _fixed(text: str, width: int, style: str = "") -> Text:
    """Exactly `width` columns."""
    fixed = Text(text, style)
    fixed.truncate(width, overflow="ellipsis", pad=True)
    return fixed


def _section(title: str, items: Sequence[list[Text]], room: int, *, lines_each: int) -> list[Text]:
    """A title and as many items as there is room for; the last line says how many are left out."""
    fit = room // lines_each
    if len(items) > fit:
        fit = (room - 1) // lines_each
    lines = [Text(f"{title} {len(items)}", "bold"), *(line for item in items[:fit] for line in item)]
    if len(items) > fit:
        lines.append(Text(f"  … and {len(items) - fit} more", "dim"))
    return lines


def _beside(left: Text, right: Text, width: int) -> Text:
    line = left.copy()
    line.truncate(width, overflow="ellipsis", pad=True)
    return line.append(_GAP).append_text(right)
