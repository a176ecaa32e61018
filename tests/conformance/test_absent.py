"""Absent fields mean empty, and no case ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance import cycle, preempt, tas
from tests.conformance.__main__ import main

HOST = "kubernetes.io/hostname"
NODE = {"name": "a", "labels": {HOST: "a"}, "allocatable": {"pods": "2"}}
NO_DOMAINS = f"no topology domains at level: {HOST}"
PLACED = {"assignment": {"levels": [HOST], "domains": [{"values": ["a"], "count": 2}]}}


@pytest.mark.parametrize(
    "record",
    [
        {"levels": [HOST], "nodes": [NODE], "podSets": [{"count": 2}], "expected": [PLACED]},
        {"levels": [HOST], "nodes": [NODE], "podSets": [{"count": 2, "requests": None}], "expected": [PLACED]},
        {
            "levels": [HOST],
            "podSets": [{"count": 1}],
            "expected": [{"reason": NO_DOMAINS}],
        },
        {},
    ],
)
def test_of_placement(record: dict[str, Any]) -> None:
    assert tas.difference(record) == ""
    assert not record or tas.shortfall(record) == ""


EMPTY = (
    *("available", "borrowing", "candorder", "cqusage", "drs", "fairpreempt", "flavorusage", "policy", "preempt"),
    *("priority", "quotaops", "quotatree", "reduce"),
)
QUEUE = {
    "metadata": {"name": "cq"},
    "spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "f"}]}]},
}


@pytest.mark.parametrize(
    "case",
    [
        *({"suite": suite} for suite in EMPTY),
        # A LocalQueue whose ClusterQueue is not there, or that is not there itself.
        {"suite": "lqusage", "targetLocalQueue": "ns/lq", "expected": {"admitted": []}},
        {
            "suite": "lqusage",
            "targetLocalQueue": "ns/lq",
            "localQueues": [{"metadata": {"namespace": "ns", "name": "lq"}, "spec": {"clusterQueue": "gone"}}],
            "expected": {"admitted": [], "admittedWorkloads": 0},
        },
        # A pod set without requests, in a flavor with a topology.
        {
            "suite": "flavortas",
            "topologies": [{"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": HOST}]}}],
            "resourceFlavors": [{"metadata": {"name": "f"}, "spec": {"topologyName": "t"}}],
            "clusterQueues": [QUEUE],
            "targetClusterQueue": "cq",
            "incoming": {"spec": {"podSets": [{"name": "main", "count": 1}]}},
            "expected": {"mode": "NoFit", "noFitReason": "TopologyPlacementFailed"},
        },
    ],
)
def test_of_quota_and_preemption(case: dict[str, Any]) -> None:
    found = preempt._SUITES[case["suite"]]({**preempt._ABSENT, **case})
    for key, value in case.get("expected", {}).items():
        assert (found.get(key) or None) == (value or None)


def test_of_a_cycle() -> None:
    assert cycle.difference({}) == ""


def test_a_case_that_fails_is_one_line_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"id": "wrong", "podSets": 3},
        {"id": "right", "levels": [HOST], "nodes": [NODE], "podSets": [{"count": 2}], "expected": [PLACED]},
    ]
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, records)))
    assert main(["tas", str(file)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("wrong: raised ValidationError: Expected `array`, got `int` - at `$.podSets` (")
    assert last == "1 passed, 1 failed"
