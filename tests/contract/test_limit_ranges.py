"""LimitRanges and RuntimeClasses: the embedded cluster adds to pods what the real one adds, and refuses the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from serried.api.core import Pod
from serried.api.resources import LIMIT_RANGES, PODS, RUNTIME_CLASSES
from serried.cluster.protocol import Cluster, NotFound
from tests.contract.answers import CONTAINER, Both, Refusal, asking, named, pod

Json = dict[str, Any]
GPU = "example.com/gpu"


def limits(**of: Any) -> Json:
    return {"type": "Container", **of}


def whole(**of: Any) -> Json:
    return {"type": "Pod", **of}


def init(always: bool = False, **resources: Any) -> list[Json]:
    policy = {"restartPolicy": "Always"} if always else {}
    return [{**CONTAINER, "name": "i", "resources": resources, **policy}]


CASES: list[tuple[list[Json], Json]] = [
    ([limits(default={"cpu": "2", "memory": "1Gi"}, defaultRequest={"cpu": "500m"})], pod()),
    ([limits(default={"cpu": "2"}, defaultRequest={"cpu": "500m"})], pod(containers=asking(limits={"cpu": "1"}))),
    ([limits(default={"cpu": "2"}, defaultRequest={"cpu": "500m"})], pod(containers=asking(requests={"cpu": "1"}))),
    ([limits(default={"cpu": "2"})], pod(initContainers=init(requests={"cpu": "100m"}))),
    ([limits(max={"cpu": "4"}, min={"cpu": "100m", "memory": "1Mi"})], pod()),
    ([limits(defaultRequest={"cpu": "1"}), limits(default={"memory": "2Gi"})], pod()),
    ([limits(max={"cpu": "2"})], pod(containers=asking(limits={"cpu": "3"}))),
    ([limits(max={"cpu": "2"})], pod(initContainers=init(limits={"cpu": "2500m"}))),
    ([limits(min={"cpu": "2"})], pod(containers=asking(limits={"cpu": "3"}, requests={"cpu": "1"}))),
    ([limits(min={"cpu": "2"})], pod(containers=asking(limits={"cpu": "1"}))),
    ([limits(max={GPU: "4"})], pod(containers=asking(limits={GPU: "8"}))),
    ([limits(maxLimitRequestRatio={"cpu": "2"})], pod(containers=asking(limits={"cpu": "3"}, requests={"cpu": "1"}))),
    ([limits(maxLimitRequestRatio={"cpu": "3"})], pod(containers=asking(limits={"cpu": "3"}, requests={"cpu": "1"}))),
    ([limits(maxLimitRequestRatio={"cpu": "2"})], pod()),
    ([limits(maxLimitRequestRatio={"cpu": "2"})], pod(containers=asking(requests={"cpu": "1"}))),
    ([whole(max={"cpu": "2"})], pod()),
    ([whole(max={"cpu": "2"})], pod(containers=asking(limits={"cpu": "1"}), initContainers=init(limits={"cpu": "2"}))),
    ([whole(max={"cpu": "2"})], pod(containers=asking(limits={"cpu": "1"}), initContainers=init(limits={"cpu": "3"}))),
    (
        [whole(max={"cpu": "2"})],
        pod(containers=asking(limits={"cpu": "1"}), initContainers=init(always=True, limits={"cpu": "2"})),
    ),
    ([whole(min={"memory": "1Gi"})], pod(containers=asking(requests={"memory": "512Mi"}))),
    ([whole(min={"memory": "1Gi"})], pod()),
]


def create(body: Json, namespace: str) -> Callable[[Cluster], Awaitable[Pod]]:
    return lambda cluster: cluster.create(PODS, body, namespace)


KATA = {"key": "kata", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(("items", "manifest"), CASES)
async def test_limit_ranges(both: Both, items: list[Json], manifest: Json) -> None:
    spec = {"limits": items}
    real, embedded = await both.answers(lambda c: c.create(LIMIT_RANGES, named("l", spec=spec), both.namespace))
    assert embedded == real
    real, embedded = await both.answers(lambda c: c.create(PODS, manifest, both.namespace))
    assert embedded == real


@pytest.mark.parametrize(
    "manifest",
    [
        pod(),
        pod(nodeSelector={"a": "b"}),
        pod(containers=asking(limits={"cpu": "1"})),
        pod(tolerations=[{"key": "own", "operator": "Exists"}]),
        pod(tolerations=[KATA, {"key": "own", "operator": "Exists"}]),
    ],
    ids=str,
)
async def test_runtime_classes(both: Both, manifest: Json) -> None:
    name = both.namespace
    manifest["spec"] = {**manifest["spec"], "runtimeClassName": name}
    real, embedded = await both.answers(lambda c: c.create(PODS, manifest, both.namespace))
    assert isinstance(real, Refusal), real
    assert embedded == real
    runtime_class = named(
        name,
        handler="kata",
        overhead={"podFixed": {"cpu": "250m", "memory": "120Mi"}},
        scheduling={"nodeSelector": {"kata": "yes"}, "tolerations": [KATA, KATA | {"key": "slow"}]},
    )
    try:
        real, embedded = await both.answers(lambda c: c.create(RUNTIME_CLASSES, runtime_class))
        assert embedded == real
        real, embedded = await both.answers(lambda c: c.create(PODS, manifest, both.namespace))
        assert isinstance(real, dict), real
        assert real["spec"]["overhead"] == {"cpu": "250m", "memory": "120Mi"}
        assert embedded == real
        for against in (
            {"overhead": {"cpu": "1"}},
            {"overhead": {"cpu": "0.25", "memory": "120Mi"}},
            {"nodeSelector": {"kata": "no"}},
            {"overhead": {"cpu": "1"}, "nodeSelector": {"kata": "no"}},
            {"overhead": {"cpu": "1"}, "runtimeClassName": None},
        ):
            body = {**manifest, "metadata": {"name": "against"}, "spec": {**manifest["spec"], **against}}
            real, embedded = await both.answers(create(body, both.namespace))
            if isinstance(real, Refusal):
                assert embedded == real
            else:
                assert not isinstance(embedded, Refusal), embedded
    finally:
        with suppress(NotFound):
            await both.real.delete(RUNTIME_CLASSES, name)
