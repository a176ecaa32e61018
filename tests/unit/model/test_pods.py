"""What one pod asks for."""

from __future__ import annotations

import pytest

from serried.api.core import Container, PodSpec, ResourceRequirements
from serried.model.pods import RequestError, pod_requests, readable_requests


def container(*, restart: str = "", limits: dict[str, str | int] | None = None, **requests: str | int) -> Container:
    return Container(
        restart_policy=restart, resources=ResourceRequirements(requests=dict(requests), limits=limits or {})
    )


def test_containers_add_up() -> None:
    spec = PodSpec(containers=(container(cpu="500m", memory="1Gi"), container(cpu="1")))
    assert pod_requests(spec) == {"cpu": 1500, "memory": 1 << 30}


def test_a_limit_without_a_request_is_the_request() -> None:
    spec = PodSpec(containers=(container(limits={"example.com/gpu": "8", "cpu": "4"}, cpu="1"),))
    assert pod_requests(spec) == {"example.com/gpu": 8, "cpu": 1000}


def test_an_init_container_needs_its_own_and_what_runs_beside_it() -> None:
    """The sidecar that has started before counts beside the init container; the containers do not run yet."""
    spec = PodSpec(
        init_containers=(
            container(restart="Always", cpu="1"),
            container(cpu="5"),
            container(restart="Always", cpu="1"),
        ),
        containers=(container(cpu="2"),),
    )
    assert pod_requests(spec) == {"cpu": 6000}


def test_sidecars_run_beside_the_containers() -> None:
    spec = PodSpec(
        init_containers=(container(restart="Always", cpu="1"), container(cpu="2")), containers=(container(cpu="2"),)
    )
    assert pod_requests(spec) == {"cpu": 3000}


def test_requests_of_the_pod_replace_the_sum_and_overhead_comes_on_top() -> None:
    spec = PodSpec(
        containers=(container(cpu="2", memory="1Gi"),),
        resources=ResourceRequirements(
            requests={"cpu": "3"}, limits={"cpu": "8", "memory": "4Gi", "hugepages-2Mi": "4Mi"}
        ),
        overhead={"cpu": "250m"},
    )
    assert pod_requests(spec) == {"cpu": 3250, "memory": 1 << 30, "hugepages-2Mi": 4 << 20}


def test_sums_stop_at_the_largest_integer() -> None:
    spec = PodSpec(containers=(container(memory="8Ei"), container(memory="8Ei")))
    assert pod_requests(spec) == {"memory": 2**63 - 1}


@pytest.mark.parametrize(
    ("spec", "field", "found"),
    [
        (PodSpec(containers=(container(cpu="two"),)), "spec.containers[0].resources.requests[cpu]", "two"),
        (
            PodSpec(containers=(container(), container(limits={"memory": "-1Gi"}))),
            "spec.containers[1].resources.limits[memory]",
            "-1Gi",
        ),
        (
            PodSpec(init_containers=(container(cpu="1.5.0"),)),
            "spec.initContainers[0].resources.requests[cpu]",
            "1.5.0",
        ),
        (PodSpec(overhead={"cpu": "x"}), "spec.overhead[cpu]", "x"),
        (PodSpec(resources=ResourceRequirements(requests={"cpu": "-1"})), "spec.resources.requests[cpu]", "-1"),
    ],
)
def test_what_cannot_be_a_request_is_named_by_its_field(spec: PodSpec, field: str, found: str) -> None:
    with pytest.raises(RequestError) as caught:
        pod_requests(spec)
    assert caught.value.field == field
    assert caught.value.found == found
    assert str(caught.value).startswith(f"{field}: ")
    assert found in str(caught.value)


def test_of_a_running_pod_what_can_be_read_counts() -> None:
    spec = PodSpec(containers=(container(cpu="two", memory="1Gi"), container(cpu="-1"), container(cpu="1")))
    assert readable_requests(spec) == {"cpu": 1000, "memory": 1 << 30}
