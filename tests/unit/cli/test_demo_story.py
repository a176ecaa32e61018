"""The demo's day is data: the same every time, and worth watching."""

from __future__ import annotations

from string import ascii_letters

from serried.api import names
from serried.cli import demo_story as story


def test_the_teams_share_the_whole_cluster() -> None:
    assert story.TOTAL_GPUS == len(story.PLACES) * story.GPUS == 512
    assert sum(team.nominal_gpus for team in story.TEAMS) == story.TOTAL_GPUS


def test_nodes_are_numbered_through_blocks_and_racks() -> None:
    assert [p.node for p in story.PLACES] == [f"node-{i:02d}" for i in range(64)]
    assert (story.PLACES[0].block, story.PLACES[0].rack) == ("block-0", "rack-0")
    assert (story.PLACES[39].block, story.PLACES[39].rack) == ("block-1", "rack-0")
    assert len({(p.block, p.rack) for p in story.PLACES}) == 8


def test_jobs_come_in_order_each_with_a_name_and_a_letter_of_its_own() -> None:
    times = [t.at for t in story.DAY]
    assert times == sorted(times)
    assert len({(t.team, t.name) for t in story.DAY}) == len({t.name for t in story.DAY}) == len(story.DAY)
    assert len(story.DAY) <= len(ascii_letters)
    assert {t.team for t in story.DAY} == {team.name for team in story.TEAMS}
    assert {t.priority for t in story.DAY} == set(story.PRIORITIES)


def test_the_day_has_every_kind_of_job() -> None:
    shapes = {(t.pods, t.topology) for t in story.DAY}
    assert (1, "") in shapes  # notebooks
    assert (4, "preferred rack") in shapes  # fine-tunes
    assert (8, "required rack") in shapes  # pre-training in one rack
    assert any(pods >= 16 and topology == "required block" for pods, topology in shapes)
    too_wide = [t for t in story.DAY if t.topology == "required rack" and t.pods * t.gpus > story.NODES * story.GPUS]
    quota = {team.name: team.nominal_gpus for team in story.TEAMS}
    too_many = [t for t in story.DAY if t.pods * t.gpus > quota[t.team]]
    assert [t.name for t in too_wide] == ["ring-attention"]
    assert [t.name for t in too_many] == ["foundation-70b"]
    assert [t.name for t in story.DAY if t.fails] == ["audio-tune"]


def test_a_manifest_is_what_a_researcher_would_write() -> None:
    training = story.Training(3, "tune", "vision", 4, 2, 1.5, "preferred rack", fails=True)
    manifest = training.manifest()
    assert manifest == training.manifest()
    assert manifest["metadata"]["labels"] == {names.QUEUE_NAME: story.QUEUE, names.PRIORITY_CLASS: "exploratory"}
    assert (manifest["spec"]["parallelism"], manifest["spec"]["completions"]) == (4, 4)
    template = manifest["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        names.RUN_SECONDS: "90",
        names.RUN_RESULT: "fail",
        names.PREFERRED_TOPOLOGY: story.RACK,
    }
    assert template["spec"]["containers"][0]["resources"]["requests"] == {story.GPU: "2"}
    # Suspension and the scheduler's name are the webhook's business.
    assert "suspend" not in manifest["spec"]
    assert "schedulerName" not in template["spec"]
    assert (
        names.REQUIRED_TOPOLOGY
        in story.Training(0, "x", "vision", 8, 8, 1, "required block").manifest()["spec"]["template"]["metadata"][
            "annotations"
        ]
    )
