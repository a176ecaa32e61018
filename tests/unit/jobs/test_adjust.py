"""Pod sets as the API server will make their pods, and what would keep these from being created."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import LimitRange, RuntimeClass, Toleration
from serried.api.kueue import PodSet
from serried.jobs.adjust import adjusted
from serried.model.pods import pod_requests


def pod_set(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> PodSet:
    def listed(all: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return [{"name": f"c{i}", "resources": resources} for i, resources in enumerate(all)]

    spec = {"containers": listed(containers), "initContainers": listed(init), **spec}
    return msgspec.convert({"name": "main", "count": 2, "template": {"spec": spec}}, PodSet)


def limit_range(name: str = "l", type: str = "Container", **item: Any) -> LimitRange:
    body = {"metadata": {"name": name}, "spec": {"limits": [{"type": type, **item}]}}
    return msgspec.convert(body, LimitRange)


def requests(given: PodSet, *ranges: LimitRange, **classes: RuntimeClass) -> dict[str, int]:
    (found,), problems = adjusted([given], ranges, classes)
    assert problems == []
    return pod_requests(found.template.spec)


def problems(given: PodSet, *ranges: LimitRange) -> list[str]:
    return [str(problem) for problem in adjusted([given], ranges, {})[1]]


DEFAULTS = limit_range(default={"cpu": "4", "memory": "4Gi"}, defaultRequest={"cpu": "1", "memory": "1Gi"})


def test_a_limit_of_its_own_is_the_request_before_any_default() -> None:
    given = pod_set({"limits": {"cpu": "2"}}, {"requests": {"memory": "3Gi"}})
    assert requests(given, DEFAULTS) == {"cpu": 2000 + 1000, "memory": (1 + 3) * 2**30}


def test_init_containers_have_the_defaults_too() -> None:
    assert requests(pod_set({"requests": {"cpu": "100m"}}, init=({},)), DEFAULTS)["cpu"] == 1000


def test_the_first_of_several_limit_ranges_that_says_something_counts() -> None:
    other = limit_range("m", defaultRequest={"cpu": "3", "example.com/gpu": "8"})
    assert requests(pod_set({}), DEFAULTS, other) == {"cpu": 1000, "memory": 2**30, "example.com/gpu": 8}


def test_nothing_is_copied_where_nothing_is_added() -> None:
    given = pod_set({"requests": {"cpu": "1"}})
    (found,), _ = adjusted([given], [limit_range(max={"cpu": "2"})], {})
    assert found is given


def test_the_overhead_the_nodes_and_the_tolerations_of_a_runtime_class() -> None:
    body = {
        "metadata": {"name": "vm"},
        "handler": "vm",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {
            "nodeSelector": {"vm": "yes", "zone": "b"},
            "tolerations": [{"key": "own", "operator": "Exists"}, {"key": "vm", "operator": "Exists"}],
        },
    }
    vm = msgspec.convert(body, RuntimeClass)
    given = pod_set({"requests": {"cpu": "1"}}, runtimeClassName="vm", nodeSelector={"disk": "a"})
    given.template.spec.tolerations = (Toleration(key="own", operator="Exists"),)
    (found,), _ = adjusted([given], [], {"vm": vm})
    assert pod_requests(found.template.spec) == {"cpu": 1250}
    assert found.template.spec.node_selector == {"vm": "yes", "zone": "b", "disk": "a"}
    assert [t.key for t in found.template.spec.tolerations] == ["own", "vm"]
    same = pod_set({"requests": {"cpu": "1"}}, runtimeClassName="vm", overhead={"cpu": "0.25"})
    assert requests(same, vm=vm) == {"cpu": 1250}


def test_what_contradicts_the_runtime_class_is_told() -> None:
    """The API server would refuse each of the pods."""
    body = {"overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": {"nodeSelector": {"vm": "yes", "zone": "b"}}}
    classes = {"vm": msgspec.convert(body, RuntimeClass), "bare": RuntimeClass()}
    spec, path = {"cpu": "1"}, "spec.podSets[0].template.spec"
    given = pod_set({}, runtimeClassName="vm", overhead=spec, nodeSelector={"zone": "a", "vm": "yes"})
    assert [str(p) for p in adjusted([given], [], classes)[1]] == [
        f"{path}.overhead: found cpu: 1, allowed: cpu: 250m, as in RuntimeClass vm, or nothing",
        f"{path}.nodeSelector[zone]: found a, allowed: b, as in RuntimeClass vm, or nothing",
    ]
    (found,) = adjusted([pod_set({}, runtimeClassName="bare", overhead=spec)], [], classes)[1]
    assert str(found) == f"{path}.overhead: found cpu: 1, allowed: nothing"
    (found,) = adjusted([pod_set({}, overhead=spec)], [], classes)[1]
    assert str(found) == f"{path}.overhead: found cpu: 1, allowed: nothing without a RuntimeClass that says the same"


def test_a_runtime_class_that_is_not_there_is_told() -> None:
    (found,) = problems(pod_set({}, runtimeClassName="vm"))
    assert found.startswith("spec.podSets[0].template.spec.runtimeClassName: found 'vm'")


@pytest.mark.parametrize(
    ("item", "container", "says"),
    [
        ({"max": {"cpu": "2"}}, {"limits": {"cpu": "3"}}, "limits[cpu]: found 3, allowed: at most 2, by LimitRange l"),
        ({"max": {"cpu": "2"}}, {"requests": {"cpu": "1"}}, "limits[cpu]: found not set, allowed: at most 2"),
        ({"min": {"cpu": "2"}}, {"limits": {"cpu": "1"}}, "requests[cpu]: found 1, allowed: at least 2"),
        ({"min": {"cpu": "2"}}, {}, "requests[cpu]: found not set, allowed: at least 2"),
        (
            {"maxLimitRequestRatio": {"cpu": "1.5"}},
            {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}},
            "limits[cpu]: found 2, allowed: set, with a limit of at most 1.5 times the request",
        ),
    ],
)
def test_bounds_of_a_container(item: dict[str, Any], container: dict[str, Any], says: str) -> None:
    (found,) = problems(pod_set(container), limit_range(**item))
    assert found.startswith(f"spec.podSets[0].template.spec.containers[0].resources.{says}")


def test_bounds_that_are_kept() -> None:
    item: dict[str, Any] = {"max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}
    assert problems(pod_set({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}), limit_range(**item)) == []


def test_bounds_of_a_pod_are_for_all_of_its_containers_without_the_overhead() -> None:
    bounds = limit_range(type="Pod", max={"cpu": "4"})
    two = {"limits": {"cpu": "2"}}
    vm = msgspec.convert({"overhead": {"podFixed": {"cpu": "1"}}}, RuntimeClass)
    assert adjusted([pod_set(two, two, runtimeClassName="vm")], [bounds], {"vm": vm})[1] == []
    (found,) = problems(pod_set(two, two, two), bounds)
    assert found == (
        "limits[cpu] of spec.podSets[0].template.spec as a whole: found 6, allowed: at most 4, by LimitRange l"
    )


def test_what_cannot_be_read_is_told_elsewhere() -> None:
    given = pod_set({"limits": {"cpu": "lots"}, "requests": {"memory": "-"}})
    bounds = limit_range(max={"cpu": "2"}, min={"memory": "some"}, maxLimitRequestRatio={"cpu": "x"})
    assert all("ratio" not in p for p in problems(given, bounds))
    adjusted([given], [limit_range(type="Pod", max={"cpu": "2"}), DEFAULTS], {})
