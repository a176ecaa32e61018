"""The demo's chronicle and its picture, from the objects that a watch would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from serried.api import names
from serried.api.assignment import encode
from serried.api.batch import Job
from serried.api.core import Pod, PodSpec, PodStatus
from serried.api.kueue import Admission, PodSetAssignment, Workload, WorkloadStatus
from serried.api.meta import Condition, ObjectMeta, OwnerReference
from serried.cli import demo_story as story
from serried.cli.demo_record import Chronicle, JobRecord, domain_of
from serried.cli.demo_stage import Clock
from serried.cli.demo_story import Training
from serried.cli.demo_summary import sum_up
from serried.cli.live_view import MIN_HEIGHT, MIN_WIDTH, WaitingJob, cluster_map, draw, gang_lines, hours

SFT = Training(0, "llama-sft", "language", 16, 8, 60, "required block")
NOTEBOOK = Training(0, "notebook", "language", 1, 1, 60)


class Now:
    """A clock that a test sets by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Still(Clock):
    """A demo's clock that shows what a test has set."""

    def __init__(self, now: Now) -> None:
        super().__init__(story.PACE)
        self._now = now

    @property
    def seconds(self) -> float:
        return self._now.seconds


@dataclass
class Scene:
    """A chronicle with words to tell it what happens."""

    now: Now
    day: Chronicle
    clock: Clock

    def submit(self, training: Training) -> JobRecord:
        self.day.on_job(None, Job(metadata=ObjectMeta(name=training.name, namespace=training.team)))
        return self.day.records[training.team, training.name]

    def workload(self, training: Training, nodes: list[str], *reasons: tuple[str, str]) -> None:
        """Its Workload with these conditions (type, reason) and, if there are nodes, a plan."""
        owner = OwnerReference(api_version="batch/v1", kind="Job", name=training.name, uid="u", controller=True)
        assignment = encode([names.HOSTNAME], [((node,), training.pods // len(nodes)) for node in nodes])
        admission = Admission(
            cluster_queue=training.team, pod_set_assignments=(PodSetAssignment(topology_assignment=assignment),)
        )
        found = [Condition(type=type, status="True", reason=reason, message="why") for type, reason in reasons]
        meta = ObjectMeta(name=f"job-{training.name}", namespace=training.team, owner_references=(owner,))
        status = WorkloadStatus(conditions=tuple(found), admission=admission if nodes else None)
        self.day.on_workload(None, Workload(metadata=meta, status=status))

    def pod(self, training: Training, i: int, *states: tuple[str, str]) -> None:
        """Pod `i` goes through these states (node, phase)."""
        old: Pod | None = None
        for node, phase in states:
            labels = {names.JOB_NAME: training.name}
            meta = ObjectMeta(name=f"{training.name}-{i}", namespace=training.team, labels=labels)
            new = Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase=phase))
            self.day.on_pod(old, new)
            old = new


@pytest.fixture
def scene() -> Scene:
    now = Now()
    return Scene(now, Chronicle([SFT, NOTEBOOK], now), Still(now))


NODES = [f"node-{i:02d}" for i in range(16)]


def text(lines: list[Any]) -> str:
    return "\n".join(line.plain for line in lines)


def test_a_gang_assembles_is_bound_and_runs(scene: Scene) -> None:
    """Each step has its phase, its time and its line in the picture."""
    record = scene.submit(SFT)
    assert record.phase == "waiting"
    scene.now.seconds = 1.0
    scene.workload(SFT, NODES, ("QuotaReserved", "x"), ("Admitted", "x"))
    assert (record.phase, record.admitted, record.domain) == ("assembling", 1.0, "block-0")
    for i in range(13):
        scene.pod(SFT, i, ("", "Pending"))
    assert "13/16 pods, waits for 3" in text(gang_lines(scene.day, scene.clock, 60)[0])
    scene.now.seconds = 2.0
    for i in range(13, 16):
        scene.pod(SFT, i, ("", "Pending"))
    assert (record.phase, record.assembled) == ("binding", 2.0)
    assert "16/16 pods, binding" in text(gang_lines(scene.day, scene.clock, 60)[0])
    scene.now.seconds = 2.25
    for i, node in enumerate(NODES):
        scene.pod(SFT, i, (node, "Pending"))
    assert (record.phase, record.bound, record.bind_seconds) == ("starting", 2.25, 0.25)
    assert (scene.day.busy, scene.day.peak) == (128, 128)
    assert scene.day.cells["node-15"] == [record.letter] * 8
    for i, node in enumerate(NODES):
        scene.pod(SFT, i, (node, "Running"))
    assert (record.phase, record.started) == ("running", 2.25)
    scene.now.seconds = 2.25 + 30 * 60 / story.PACE  # half its hour
    line = text(gang_lines(scene.day, scene.clock, 60)[0])
    assert "block-0" in line
    assert 0 < line.count("━") == line.count("┄") or abs(line.count("━") - line.count("┄")) == 1
    assert [h.text.split(":")[0] for h in scene.day.log] == ["admitted", "bound"]


def test_gpus_are_given_back_and_their_time_is_counted(scene: Scene) -> None:
    """One GPU for 4 seconds, then another on the same node for 2: each frees just its own cell."""
    scene.submit(SFT)
    scene.submit(NOTEBOOK)
    scene.pod(NOTEBOOK, 0, ("node-03", "Running"))
    scene.now.seconds = 4.0
    scene.pod(SFT, 0, ("node-03", "Running"))  # 8 GPUs where 7 are free: the map has no room for the eighth
    assert scene.day.cells["node-03"] == ["b", *"a" * 7]
    scene.day.on_pod(
        Pod(
            metadata=ObjectMeta(name="notebook-0", namespace="language", labels={names.JOB_NAME: "notebook"}),
            spec=PodSpec(node_name="node-03"),
            status=PodStatus(phase="Running"),
        ),
        None,
    )
    assert scene.day.cells["node-03"] == ["", *"a" * 7]
    scene.now.seconds = 6.0
    assert scene.day.gpu_seconds == 1 * 4 + 8 * 2


@pytest.mark.parametrize(("reason", "phase"), [("Succeeded", "finished"), ("Failed", "failed")])
def test_how_a_job_ends(scene: Scene, reason: str, phase: str) -> None:
    record = scene.submit(NOTEBOOK)
    scene.workload(NOTEBOOK, ["node-00"], ("Admitted", "x"))
    scene.workload(NOTEBOOK, ["node-00"], ("Admitted", "x"), ("Finished", reason))
    assert record.phase == phase
    assert not record.is_active
    summary = sum_up(scene.day, [], scene.clock, "complete").summary
    assert (summary.finished, summary.failed, summary.submitted) == (phase == "finished", phase == "failed", 1)


def test_jobs_that_run_together_have_colours_of_their_own(scene: Scene) -> None:
    for training in (SFT, NOTEBOOK):
        scene.submit(training)
        scene.workload(training, NODES if training is SFT else ["node-20"], ("Admitted", "x"))
    assert [r.colour for r in scene.day.records.values()] == [0, 1]
    scene.workload(SFT, NODES, ("Admitted", "x"), ("Finished", "Succeeded"))
    assert scene.day.records["language", "llama-sft"].colour == 0  # its last moments on the map look the same


def test_domains() -> None:
    assert domain_of(["node-00", "node-07"]) == "block-0/rack-0"
    assert domain_of(["node-00", "node-08"]) == "block-0"
    assert domain_of(["node-00", "node-32"]) == "block-0 and block-1"
    assert domain_of([]) == ""


def test_jobs_of_others_are_no_part_of_the_day(scene: Scene) -> None:
    scene.day.on_job(None, Job(metadata=ObjectMeta(name="stranger", namespace="language")))
    scene.pod(Training(0, "stranger", "language", 1, 1, 1), 0, ("node-00", "Running"))
    assert (scene.day.records, scene.day.busy) == ({}, 0)


@pytest.mark.parametrize("width", [40, MIN_WIDTH, 100, 120, 152, 153, 200, 300])
@pytest.mark.parametrize("height", [10, MIN_HEIGHT, 30, 60])
def test_the_picture_fits_and_shows_everything(scene: Scene, width: int, height: int) -> None:
    """With nothing going on, and with a gang on the map and a Job that waits."""
    empty = draw(scene.day, [], scene.clock, width, height).plain
    waits = [WaitingJob(scene.submit(NOTEBOOK), "topology", "no room at all", "couldn't find room at all")]
    waiting = draw(scene.day, waits, scene.clock, width, height).plain
    for picture in (empty, waiting):
        lines = picture.split("\n")
        assert len(lines) == max(height, MIN_HEIGHT)
        assert max(map(len, lines)) <= max(width, MIN_WIDTH)
        assert picture.count("·") == story.TOTAL_GPUS - scene.day.busy
        assert "0 on nodes" in picture
    assert "notebook" in waiting
    assert "topology no room at all" in waiting
    scene.submit(SFT)
    scene.workload(SFT, NODES, ("Admitted", "x"))
    for i, node in enumerate(NODES):
        scene.pod(SFT, i, ("", "Pending"), (node, "Running"))
    letter = scene.day.records["language", "llama-sft"].letter
    rows = "\n".join(line.plain for line in cluster_map(scene.day.cells, scene.day, max(width, MIN_WIDTH)))
    assert rows.count(letter * 8) == len(NODES)
    assert "llama-sft" in draw(scene.day, [], scene.clock, width, height).plain


def test_a_long_list_says_how_many_it_leaves_out(scene: Scene) -> None:
    waits = [WaitingJob(scene.submit(NOTEBOOK), "quota", "8 GPUs wanted", "…")] * 40
    picture = draw(scene.day, waits, scene.clock, 100, 30).plain
    shown = picture.count("8 GPUs wanted")
    assert shown >= 4
    assert f"… and {40 - shown} more" in picture


def test_spans_of_the_day() -> None:
    assert [hours(seconds) for seconds in (0, 59 * 60, 3600, 7500)] == ["0m", "59m", "1h00m", "2h05m"]
