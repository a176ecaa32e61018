"""A Workload is read once; whatever is wrong with it is named with field, found and allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.kueue import Workload
from serried.api.names import PendingReason
from serried.schedule.types.wording import misconfigured
from serried.schedule.types.workload import read_workload, total_requests
from tests.unit.schedule.objects import GPU, NS, RACK, at, pod_set, workload


def test_requests_are_per_pod_and_totals_count_the_pods() -> None:
    info = read_workload(workload("w", pod_set(3, gpu=8, cpu="1500m", ours=True), pod_set(1, "driver", cpu=1)))
    assert info.problems == ()
    main, driver = info.pod_sets
    assert (dict(main.requests), main.count, main.bound_by_us) == ({GPU: 8, "cpu": 1500}, 3, True)
    assert total_requests(main) == {GPU: 24, "cpu": 4500, "pods": 3}
    assert driver.bound_by_us is False


def test_totals_are_held_at_the_largest_quantity() -> None:
    info = read_workload(workload("w", pod_set(1000, memory="8Ei")))
    assert total_requests(info.pod_sets[0])["memory"] == 2**63 - 1


def test_the_order_is_priority_then_creation_then_name() -> None:
    given = [
        workload("late", created=5),
        workload("first", created=1),
        workload("important", created=9, priority=1),
        workload("twin-b", created=3, uid="same"),
        workload("twin-a", created=3, uid="same"),
    ]
    ordered = sorted(read_workload(w).order for w in given)
    assert [o[4] for o in ordered] == ["important", "first", "twin-a", "twin-b", "late"]


def test_without_a_creation_time_it_counts_as_older_than_all() -> None:
    given = workload("w")
    given.metadata.creation_timestamp = None
    assert read_workload(given).order < read_workload(workload("v", created=-1e9)).order


CONTAINER = "spec.podSets[0].template.spec.containers[0].resources"


@pytest.mark.parametrize(
    ("pod", "field", "found"),
    [
        ({"containers": [{"resources": {"requests": {"cpu": "two"}}}]}, f"{CONTAINER}.requests[cpu]", "'two'"),
        ({"containers": [{"resources": {"requests": {"cpu": "-2"}}}]}, f"{CONTAINER}.requests[cpu]", "-2"),
        ({"containers": [{"resources": {"limits": {"memory": "1GB"}}}]}, f"{CONTAINER}.limits[memory]", "'1GB'"),
        (
            {"containers": [{"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}}]},
            f"{CONTAINER}.requests[cpu]",
            "2",
        ),
        (
            {"containers": [], "initContainers": [{"resources": {"requests": {"cpu": ""}}}]},
            "spec.podSets[0].template.spec.initContainers[0].resources.requests[cpu]",
            "''",
        ),
        ({"containers": [], "overhead": {"cpu": "x"}}, "spec.podSets[0].template.spec.overhead[cpu]", "'x'"),
        (
            {"containers": [], "resources": {"requests": {"cpu": "x"}}},
            "spec.podSets[0].template.spec.resources.requests[cpu]",
            "'x'",
        ),
    ],
)
def test_a_bad_quantity_is_named(pod: dict[str, Any], field: str, found: str) -> None:
    (problem,) = read_workload(workload("w", pod_set(1, pod=pod))).problems
    reason = misconfigured(problem)
    assert (reason.layer, reason.code) == ("input", PendingReason.MISCONFIGURED)
    assert (reason.field, reason.found) == (field, found)
    assert reason.allowed
    assert all(part in reason.message for part in (field, found, reason.allowed))


def test_a_negative_count_and_two_pod_sets_of_one_name_are_named() -> None:
    info = read_workload(workload("w", pod_set(-1), pod_set(1)))
    assert [(r.field, r.found) for r in info.problems] == [
        ("spec.podSets[0].count", "-1"),
        ("spec.podSets[].name", "main (2 times)"),
    ]


def test_workloads_that_differ_only_in_name_and_time_are_of_one_class() -> None:
    sets = [pod_set(2, gpu=8, required=RACK), pod_set(1, "driver", cpu=1)]
    base = read_workload(workload("a", *sets))
    assert read_workload(workload("b", *sets, created=7)).equivalence_class == base.equivalence_class
    for other in (
        [pod_set(3, gpu=8, required=RACK), sets[1]],
        [pod_set(2, gpu=4, required=RACK), sets[1]],
        [pod_set(2, gpu=8), sets[1]],
        [pod_set(2, gpu=8, required=RACK, ours=True), sets[1]],
        [pod_set(2, gpu=8, required=RACK, pod={"nodeSelector": {"a": "b"}}), sets[1]],
        [pod_set(2, gpu=8, required=RACK, pod={"tolerations": [{"key": "a"}]}), sets[1]],
        sets[:1],
    ):
        assert read_workload(workload("a", *other)).equivalence_class != base.equivalence_class


def test_reading_never_raises_on_an_empty_object() -> None:
    info = read_workload(msgspec.convert({"metadata": {"name": "w", "namespace": NS}}, Workload))
    assert (info.pod_sets, info.queue, info.priority, info.active) == ((), (NS, ""), 0, True)
    assert info.order[1] == at(0).timestamp() - at(0).timestamp()
