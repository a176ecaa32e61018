"""What pods ask of their nodes and of each other is kept by what Serried binds, or is told, or is kube-scheduler's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from serried.api.core import Pod
from serried.api.names import WorkloadCondition
from serried.api.resources import CLAIMS, STORAGE_CLASSES, VOLUMES
from serried.control.config import Configuration
from tests.scenarios.arena import HOST, RACK, Arena, job, node_labels

QUOTA_RESERVED = WorkloadCondition.QUOTA_RESERVED
CONFIG = Configuration(status_interval=0.1)
LABELS = {"app": "ring"}


def ruled(name: str, pods: int, *, gpus: int = 1, scheduler: str | None = "serried", **spec: Any) -> dict[str, Any]:
    """A Job whose pods have the label `app` and further fields in their spec."""
    body = job(name, pods, gpus=gpus, scheduler=scheduler)
    template = body["spec"]["template"]
    template["metadata"]["labels"] = LABELS
    containers = spec.pop("containers", {})
    template["spec"]["containers"][0] |= containers
    template["spec"] |= spec
    return body


def apart(key: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": LABELS}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def racks_of(pods: list[Pod]) -> Counter[tuple[str, str]]:
    """Pods by block and rack."""
    labels = [node_labels(int(pod.spec.node_name.rpartition("-")[2])) for pod in pods]
    return Counter((found["topo.example/block"], found[RACK]) for found in labels)


async def make_volume(arena: Arena, name: str, *nodes: str) -> None:
    """A claim that is bound to a volume on some nodes."""
    volume = arena.scoped(name)
    expression = {"key": HOST, "operator": "In", "values": list(nodes)}
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "nfs": {"server": "192.0.2.1", "path": "/"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    await arena.make(VOLUMES, volume, spec)
    body = {
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
            "volumeName": volume,
        },
    }
    await arena.cluster.create(CLAIMS, body, arena.namespace)


def with_claim(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


async def test_pods_that_keep_apart_are_bound_apart(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    await arena.submit(ruled("first", 6, **apart(HOST)))
    await arena.submit(ruled("second", 4, **apart(HOST)))
    pods = [*await arena.until_running("first", 6), *await arena.until_running("second", 4)]
    assert len({pod.spec.node_name for pod in pods}) == 10
    # Nor does one go there that keeps apart from nobody itself.
    await arena.submit(ruled("third", 2))
    for pod in await arena.until_running("third", 2):
        assert pod.spec.node_name not in {p.spec.node_name for p in pods}


async def test_more_pods_that_keep_apart_than_there_are_racks_wait(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    await arena.submit(ruled("many", 9, **apart(RACK)))
    condition = await arena.until_condition("many", QUOTA_RESERVED, "False", text="podAntiAffinity")
    assert f"one in each {RACK} (podAntiAffinity)" in condition.message


async def test_pods_with_a_host_port_get_a_node_each(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    port = {"ports": [{"containerPort": 29400, "hostPort": 29400}]}
    await arena.submit(ruled("rendezvous", 3, containers=port))
    await arena.submit(ruled("other", 3, containers=port))
    pods = [*await arena.until_running("rendezvous", 3), *await arena.until_running("other", 3)]
    assert len({pod.spec.node_name for pod in pods}) == 6


async def test_pods_are_spread_as_they_ask(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    constraint = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spread = [{**constraint, "labelSelector": {"matchLabels": LABELS}}]
    await arena.submit(ruled("even", 80, topologySpreadConstraints=spread))
    pods = await arena.until_running("even", 80)
    assert set(Counter(pod.spec.node_name for pod in pods).values()) == {1, 2}
    assert set(racks_of(pods).values()) <= set(range(8, 17))


async def test_a_claim_is_waited_for_and_decides_where(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    await arena.submit(ruled("reader", 3, **with_claim("data")))
    condition = await arena.until_condition("reader", QUOTA_RESERVED, "False", text="persistentvolumeclaim")
    assert 'All are excluded by persistentvolumeclaim "data" not found.' in condition.message
    await make_volume(arena, "data", "node-17", "node-42")
    pods = await arena.until_running("reader", 3)
    assert {pod.spec.node_name for pod in pods} <= {"node-17", "node-42"}


@pytest.mark.parametrize("kind", ["claim", "device"])
async def test_what_only_kube_scheduler_can_do_is_left_to_it(arena: Arena, kind: str) -> None:
    """Its pods wait behind the gate, then each gets the node selector of its place."""
    await arena.set_up_queue()
    name = arena.scoped("late")
    body = {"metadata": {"name": name}, "provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    await arena.cluster.create(STORAGE_CLASSES, body)
    arena.made.append((STORAGE_CLASSES, name))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": name}
    await arena.cluster.create(CLAIMS, {"metadata": {"name": "scratch"}, "spec": claim}, arena.namespace)
    await arena.start(CONFIG)
    if kind == "claim":
        spec, reason = with_claim("scratch"), 'persistentvolumeclaim "scratch" is bound or provisioned'
    else:
        spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}
        reason = 'resource claim "gpu" is allocated by kube-scheduler'
    await arena.submit(ruled("theirs", 2, scheduler=None, **spec))

    async def steered() -> list[Pod]:
        pods = await arena.pods("theirs")
        return pods if len(pods) == 2 and not any(pod.spec.scheduling_gates for pod in pods) else []

    for pod in await arena.until(steered, hint="the gates open"):
        assert pod.spec.node_selector[HOST].startswith("node-")

    async def told() -> list[str]:
        return [text for code, text in await arena.events("theirs") if code == "LeftToKubeScheduler" and reason in text]

    await arena.until(told, hint="an event that says so")


async def test_pods_that_are_said_to_be_ours_and_need_kube_scheduler_are_told(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    await arena.submit(ruled("ours", 2, resourceClaims=claims))
    condition = await arena.until_condition("ours", QUOTA_RESERVED, "False", text="resource claim")
    assert condition.reason == "Misconfigured"
    assert "schedulerName: found serried, allowed: default-scheduler" in condition.message


async def test_more_terms_than_anybody_needs_are_told(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start(CONFIG)
    await arena.submit(ruled("absurd", 1, nodeSelector={f"example.com/key-{i}": "x" for i in range(2000)}))
    condition = await arena.until_condition("absurd", QUOTA_RESERVED, "False", text="at most 1000")
    assert condition.reason == "Misconfigured"
    await arena.submit(ruled("sane", 1))
    await arena.until_running("sane", 1)
