"""A ClusterQueue's spec is read into integers, and whatever is wrong with it is named."""

from __future__ import annotations

import msgspec
import pytest

from serried.api.kueue import ClusterQueueSpec, ResourceFlavor
from serried.quota.quotas import Group, missing_flavors, missing_topologies, read_quotas


def spec(*groups: dict[str, object]) -> ClusterQueueSpec:
    return msgspec.convert({"resourceGroups": groups}, ClusterQueueSpec)


def group(resources: list[str], **flavors: dict[str, object]) -> dict[str, object]:
    return {
        "coveredResources": resources,
        "flavors": [
            {"name": name, "resources": [{"name": r, "nominalQuota": q} for r, q in quotas.items()]}
            for name, quotas in flavors.items()
        ],
    }


def flavor(name: str, topology: str = "") -> ResourceFlavor:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"topologyName": topology}}, ResourceFlavor)


def test_quota_is_read_in_millicores_and_base_units() -> None:
    limits, problems = read_quotas(
        spec(
            group(["cpu", "memory"], spot={"cpu": "1500m", "memory": "2Gi"}, demand={"cpu": 4, "memory": "1k"}),
            group(["nvidia.com/gpu"], h100={"nvidia.com/gpu": "64"}),
        )
    )
    assert problems == []
    assert dict(limits.nominal) == {
        ("spot", "cpu"): 1500,
        ("spot", "memory"): 2 * 2**30,
        ("demand", "cpu"): 4000,
        ("demand", "memory"): 1000,
        ("h100", "nvidia.com/gpu"): 64,
    }
    assert limits.groups == (Group(("cpu", "memory"), ("spot", "demand")), Group(("nvidia.com/gpu",), ("h100",)))
    assert limits.group_of("memory") == limits.groups[0]
    assert limits.group_of("pods") is None
    assert limits.flavors == ("spot", "demand", "h100")


@pytest.mark.parametrize(
    ("groups", "field", "found"),
    [
        ([group(["cpu"], a={"cpu": "ten"})], "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "ten"),
        ([group(["cpu"], a={"cpu": "-1"})], "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "-1"),
        (
            [group(["cpu"], a={"cpu": 1}), group(["cpu"], b={"cpu": 1})],
            "spec.resourceGroups[1].coveredResources[0]",
            "cpu",
        ),
        ([group(["cpu", "cpu"], a={"cpu": 1})], "spec.resourceGroups[0].coveredResources[1]", "cpu"),
        ([group(["cpu"], a={"cpu": 1}), group(["gpu"], a={"gpu": 1})], "spec.resourceGroups[1].flavors[0].name", "a"),
        ([group(["cpu"], a={"cpu": 1, "gpu": 1})], "spec.resourceGroups[0].flavors[0].resources[1].name", "gpu"),
        ([group(["cpu", "gpu"], a={"cpu": 1})], "spec.resourceGroups[0].flavors[0].resources", "cpu"),
    ],
)
def test_a_bad_spec_is_answered_with_field_found_and_allowed(
    groups: list[dict[str, object]], field: str, found: str
) -> None:
    _, problems = read_quotas(spec(*groups))
    assert [(p.field, p.found) for p in problems] == [(field, found)]
    assert problems[0].allowed


def test_every_problem_is_named_not_only_the_first() -> None:
    _, problems = read_quotas(spec(group(["cpu", "gpu"], a={"cpu": "x", "gpu": "-2"})))
    assert [p.found for p in problems] == ["x", "-2"]


def test_huge_quota_is_held_at_the_largest_quantity() -> None:
    limits, problems = read_quotas(spec(group(["cpu"], a={"cpu": "9E"})))
    assert problems == []
    assert limits.nominal["a", "cpu"] == 2**63 - 1


def test_missing_flavors_and_topologies_are_named_with_those_that_exist() -> None:
    limits, _ = read_quotas(spec(group(["cpu"], a={"cpu": 1}, b={"cpu": 1}, c={"cpu": 1})))
    flavors = {"a": flavor("a"), "c": flavor("c", topology="racks")}
    (problem,) = missing_flavors(limits, flavors)
    assert problem == (
        "spec.resourceGroups[0].flavors[1].name",
        "b",
        "a ResourceFlavor that exists (there is: a, c)",
    )
    (problem,) = missing_topologies(limits, flavors, ["blocks"])
    assert problem == ("spec.topologyName of ResourceFlavor c", "racks", "a Topology that exists (there is: blocks)")
    assert missing_flavors(limits, flavors | {"b": flavor("b")}) == []
    assert missing_topologies(limits, flavors, ["racks"]) == []
