"""`serried demo` itself: the real controller on the embedded cluster, on the first jobs of the day, played fast."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from serried.api.problem import Problem
from serried.cli import demo_story as story
from serried.cli.common import Failure
from serried.cli.demo import Play, in_short, kept_logs, perform
from serried.cli.live_view import MIN_HEIGHT, draw
from serried.cli.main import app
from serried.place.result import NoPlacement
from serried.quota.ledger import Shortage
from serried.schedule.cycle.explain import Explanation
from serried.schedule.state.records import WorkloadState
from serried.schedule.types.reasons import Reason
from serried.schedule.types.wording import bad_request, behind, lacks_quota, no_place

#: The first 16 jobs, the one that can never fit among them, take two seconds like this.
JOBS, SPEED = 16, 16


def serried(*args: str) -> Result:
    result = CliRunner().invoke(app, ["demo", "--speed", str(SPEED), *args])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What scripts get of a short day that ends by itself."""
    found: dict[str, Any] = json.loads(serried("--headless", "--output", "json", "--jobs", str(JOBS)).stdout)
    return found


def test_the_numbers_add_up(document: dict[str, Any]) -> None:
    summary, jobs = document["summary"], document["jobs"]
    assert summary["ended"] == "complete"
    assert [job["name"] for job in jobs] == [t.name for t in story.DAY[:JOBS]]
    assert summary["submitted"] == JOBS == summary["finished"] + summary["failed"] + summary["waiting"]
    assert (summary["active"], summary["failed"], summary["waiting"]) == (0, 0, 1)
    states = [job["state"] for job in jobs]
    assert (states.count("finished"), states.count("waiting")) == (summary["finished"], summary["waiting"])
    assert 0 < summary["utilisation"] < 1
    assert 0 < summary["peakGpus"] <= story.TOTAL_GPUS
    # Nobody had GPUs for less time than his training took.
    least = sum(t.pods * t.gpus * t.minutes / 60 for t in story.DAY[:JOBS] if t.name != "ring-attention")
    assert least <= summary["gpuHours"] < 3 * least
    assert summary["largestGang"]["pods"] == 16
    assert 0 <= summary["largestGang"]["bindSeconds"] < summary["seconds"]


def test_every_job_passes_its_stages_in_order(document: dict[str, Any]) -> None:
    for job in document["jobs"]:
        if job["state"] == "finished":
            stages = ["submitted", "admitted", "assembled", "bound", "running", "finished"]
            times = [job[stage] for stage in stages]
            assert times == sorted(times), job["name"]
            assert job["layer"] == job["reason"] == ""


def test_gangs_keep_to_the_topology_they_require(document: dict[str, Any]) -> None:
    home = {p.node: p for p in story.PLACES}
    spread: dict[str, list[int]] = {"required rack": [], "required block": []}
    for job in document["jobs"]:
        nodes = [home[node] for node in job["nodes"]]
        if job["topology"] in spread and nodes:
            level = {(n.block, n.rack) if job["topology"] == "required rack" else n.block for n in nodes}
            spread[job["topology"]].append(len(level))
            assert len(nodes) == job["pods"] * job["gpusPerPod"] / story.GPUS
    assert spread == {"required rack": [1] * 4, "required block": [1]}


def test_the_job_that_can_never_fit_has_its_reason(document: dict[str, Any]) -> None:
    (never,) = document["summary"]["stillWaiting"]
    assert (never["name"], never["team"], never["layer"]) == ("ring-attention", "research", "topology")
    assert "8 of 9 pods" in never["reason"]
    (job,) = [job for job in document["jobs"] if job["name"] == "ring-attention"]
    assert (job["state"], job["admitted"], job["nodes"], job["reason"]) == ("waiting", None, [], never["reason"])


def test_without_a_terminal_it_is_told_in_plain_lines() -> None:
    output = serried("--jobs", "3").stdout
    assert "\x1b" not in output
    assert re.search(r"^08:\d\d a llama-pretrain admitted: 16 pods planned in block-\d$", output, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d b vision-pretrain bound: 8 pods at once", output, re.MULTILINE)
    assert "c notebook-ana finished" in output
    assert "block-1  rack-0" in output
    assert "3 submitted: 3 finished, 0 failed, 0 waiting" in output


def test_headless_says_on_stderr_that_it_goes_on() -> None:
    result = serried("--headless", "--jobs", "1", "--speed", "6")  # llama-pretrain runs for nearly three seconds
    assert re.search(r"^ +[2-9]\.\d s  serried demo", result.stderr)
    assert "admitted" not in result.stdout
    assert "1 submitted: 1 finished" in result.stdout


def test_a_failed_job_is_told_apart() -> None:
    fails = [t for t in story.DAY if t.fails]
    play, ending = asyncio.run(perform(_at_once(fails), 50, 20, lambda play: None))
    assert ending == "complete"
    (record,) = play.day.records.values()
    assert record.phase == "failed"
    assert play.day.log[-1].text.startswith("failed: ")


def test_time_can_be_up_before_the_day_is_over() -> None:
    summary = json.loads(serried("--output", "json", "--seconds", "0.5").stdout)["summary"]
    assert summary["ended"] == "time"
    assert summary["active"] > 0
    assert summary["seconds"] >= 0.5


def test_ctrl_c_ends_it_with_what_there_is_so_far() -> None:
    sent: list[int] = []

    def interrupt(play: Play) -> None:
        if play.day.active and not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    play, ending = asyncio.run(perform(story.DAY, SPEED, 20, interrupt))
    assert ending == "interrupted"
    assert play.day.active
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_its_audience_raises_ends_everything() -> None:
    def fail(play: Play) -> None:
        raise Failure("seen enough")

    async def play() -> int:
        with pytest.raises(Failure, match="seen enough"):
            await perform(story.DAY, SPEED, 20, fail)
        return len(asyncio.all_tasks())

    assert asyncio.run(play()) == 1  # nothing but the test itself


def test_the_map_shows_at_every_moment_what_is_bound() -> None:
    """The whole day, played very fast: as many cells as bound GPUs, never more than there are, and a picture that
    fits."""
    seen: set[str] = set()

    def look(play: Play) -> None:
        cells = [letter for row in play.day.cells.values() for letter in row if letter]
        assert len(cells) == play.day.busy <= story.TOTAL_GPUS
        width = 80 + 30 * (len(seen) % 5)
        lines = draw(play.day, play.waits, play.clock, width, 30).plain.split("\n")
        assert len(lines) == 30 >= MIN_HEIGHT
        assert max(map(len, lines)) <= width
        seen.update(wait.layer for wait in play.waits)

    play, ending = asyncio.run(perform(story.DAY, 30, 30, look))
    assert ending == "complete"
    assert play.day.busy == 0
    waiting = [r.training.name for r in play.day.records.values() if r.phase == "waiting"]
    assert waiting == ["ring-attention", "foundation-70b"]
    assert {"quota", "topology"} <= seen


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_terminal_gets_the_live_view_and_is_left_as_it_was(interrupted: bool) -> None:
    """The picture is drawn on the alternate screen, which is left again, with the cursor shown and a summary below."""
    leader, follower = pty.openpty()
    speed = ["--speed", "40", "--jobs", "3"] if not interrupted else []
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "serried.cli.main", "demo", *speed]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        screen = b""
        while chunk := _read(leader):
            screen += chunk
            if interrupted and b"/16 pods, waits for" in screen:
                process.send_signal(signal.SIGINT)
                interrupted = False
    os.close(leader)
    assert process.returncode == 0, screen
    before, alternate, after = re.split(rb"\x1b\[\?1049[hl]", screen)
    assert b"GANGS" not in before
    assert b"GANGS" in alternate
    assert b"llama-pretrain" in alternate
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    assert b"GANGS" not in after
    assert (b"Interrupted" if not speed else b"The day is over") in after


def _no_placement(fits: int, fits_empty: int) -> NoPlacement:
    """8 pods in one rack, of which `fits` fit now and `fits_empty` when nothing else runs."""
    where = ("block-1", "rack-0")
    return NoPlacement(
        "main",
        "m",
        level=story.RACK,
        needed=8,
        fits=fits,
        best_domain=where if fits else (),
        fits_when_empty=fits_empty == 8,
        fits_empty=fits_empty,
        best_domain_empty=where,
    )


def _shortage(maximum: int) -> Shortage:
    """64 GPUs wanted where 24 are unused."""
    return Shortage(fr=("h100", story.GPU), requested=64, before=0, available=24, maximum=maximum)


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (no_place("h100", _no_placement(6, 8)), "block-1/rack-0 has room for 6 of 8 pods"),
        (no_place("h100", _no_placement(0, 8)), "flavor h100 has room for 0 of 8 pods"),
        (no_place("h100", _no_placement(6, 7)), "a rack holds 7 of 8 pods: never fits"),
        (lacks_quota("main", "vision", _shortage(160), ""), "64 GPUs wanted, 24 unused: 40 missing"),
        (lacks_quota("main", "vision", _shortage(48), ""), "64 GPUs wanted of 48: never fits"),
        (behind("vision", "vision/job-a", 2), "2 ahead of it in vision (StrictFIFO)"),
        (bad_request("main", "h100", Problem("f", "x", "y")), "for flavor h100, f: found x, allowed: y"),
    ],
)
def test_reasons_in_short(reason: Reason, short: str) -> None:
    why = Explanation(workload="w", state=WorkloadState.PENDING, cluster_queue="vision", ahead=2, reason=reason)
    assert in_short(why) == short


def test_warnings_wait_until_the_picture_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    """What is logged meanwhile would run into the picture, so it is kept."""
    kept: Counter[str] = Counter()
    with kept_logs(kept):
        for _ in range(3):
            logging.getLogger("serried.anything").warning("something is %s", "odd")
        logging.getLogger("serried.anything").info("nothing of interest")
    assert kept == {"something is odd": 3}
    assert capfd.readouterr().err == ""


def _at_once(day: Sequence[story.Training]) -> list[story.Training]:
    """These jobs, all submitted when the day begins."""
    return [story.Training(0, t.name, t.team, t.pods, t.gpus, t.minutes, t.topology, t.priority, t.fails) for t in day]


def _read(terminal: int) -> bytes:
    """What the program has written; nothing when it has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""
