"""Jobs, nodes and objects as nobody would write them, and somebody does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.api.resources import (
    CLUSTER_QUEUES,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
)
from serried.cluster.protocol import ApiError, Invalid
from serried.jobs.podset import workload_name
from tests.scenarios.arena import BLOCK, GPU, HOST, RACK, Arena, assigned, job, node_labels

FINISHED, ADMITTED, QUOTA_RESERVED = (
    WorkloadCondition.FINISHED,
    WorkloadCondition.ADMITTED,
    WorkloadCondition.QUOTA_RESERVED,
)


async def others_go_on(arena: Arena) -> None:
    await arena.submit(job("good", 2, seconds=0.1))
    assert (await arena.until_condition("good", FINISHED)).reason == "Succeeded"


async def warned(arena: Arena, name: str, text: str) -> None:
    async def told() -> bool:
        return any(text in message for _, message in await arena.events(name))

    await arena.until(told, hint=f"an event on {name} with {text!r}")


@pytest.mark.parametrize("name", ["n" * 63, "with.dots.in-it", "a" * 52 + ".b", "0"])
async def test_names_that_are_long_or_have_dots(arena: Arena, name: str) -> None:
    await arena.set_up_queue()
    await arena.start()
    mode = "NonIndexed" if len(name) > 61 or "." in name else "Indexed"  # their pods' host names would be too long
    await arena.submit(job(name, 2, seconds=0.1, spec={"completionMode": mode}))
    await arena.until_condition(name, FINISHED)
    await arena.until_free()


async def test_a_generated_name(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    body = job("x", 2, seconds=0.1)
    body["metadata"] = {"generateName": "train-", "labels": body["metadata"]["labels"]}
    made = await arena.submit(body)
    await arena.until_condition(made.metadata.name, FINISHED)


@pytest.mark.parametrize(
    ("spec", "done"),
    [
        ({"completionMode": "NonIndexed"}, True),
        ({"completionMode": "NonIndexed", "completions": None}, True),
        ({"completions": 9}, True),
        ({"completionMode": "NonIndexed", "completions": 9}, True),
        ({"completions": 2}, True),
        ({"ttlSecondsAfterFinished": 0}, False),
        ({"podReplacementPolicy": "Failed"}, True),
        ({"backoffLimitPerIndex": 1, "backoffLimit": None}, True),
        ({"activeDeadlineSeconds": 600}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("scheduler", ["serried", None])
async def test_all_shapes_of_jobs(arena: Arena, spec: dict[str, Any], done: bool, scheduler: str | None) -> None:
    await arena.set_up_queue()
    await arena.start()
    body = job("train", 4, seconds=0.1, spec=spec, scheduler=scheduler)
    body["spec"] = {k: v for k, v in body["spec"].items() if v is not None}
    await arena.submit(body)
    if done:
        await arena.until_condition("train", FINISHED)
    await arena.until_free()


async def test_a_job_of_no_pods_is_admitted_and_resized_later(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("none", 4, seconds=0.1, spec={"parallelism": 0}))
    await arena.until_condition("none", ADMITTED)
    await arena.cluster.patch(JOBS, "none", arena.namespace, patch={"spec": {"parallelism": 4}})
    await arena.until_condition("none", FINISHED)
    await arena.until_free()


async def test_a_job_that_another_controller_runs_is_left_alone(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("theirs", 2, spec={"managedBy": "example.com/other"}, suspend=False))
    await others_go_on(arena)
    assert await arena.workload("theirs") is None
    assert not (await arena.job("theirs")).spec.suspend


async def test_pods_behind_a_foreign_gate_wait_for_it(arena: Arena) -> None:
    """The gang is bound once all its gates are open, and not before."""
    await arena.set_up_queue()
    await arena.start()
    body = job("gated", 3)
    body["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/data"}]
    await arena.submit(body)

    async def all_there() -> bool:
        return len(await arena.pods("gated")) == 3

    await arena.until(all_there)
    for number, pod in enumerate(await arena.pods("gated")):
        await arena.settle()
        assert not any(p.spec.node_name for p in await arena.pods("gated")), f"bound with {3 - number} gates closed"
        await arena.cluster.patch(PODS, pod.metadata.name, arena.namespace, patch={"spec": {"schedulingGates": None}})
    await arena.until_running("gated", 3)


async def test_a_pod_that_somebody_else_has_bound(arena: Arena) -> None:
    """It stays where it is; the others take their places."""
    await arena.set_up_queue()
    await arena.start()
    body = job("train", 3)
    body["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/data"}]
    await arena.submit(body)

    async def all_there() -> bool:
        return len(await arena.pods("train")) == 3

    await arena.until(all_there)
    pods = await arena.pods("train")
    for number, pod in enumerate(pods):
        await arena.cluster.patch(PODS, pod.metadata.name, arena.namespace, patch={"spec": {"schedulingGates": None}})
        if number == 0:
            await arena.cluster.bind(arena.namespace, pod.metadata.name, "node-63")
    running = await arena.until_running("train", 3)
    assert running[0].spec.node_name == "node-63"
    _, domains = assigned(await arena.workload("train"))
    assert [p.spec.node_name for p in running[1:]] == [v[0] for v, c in domains for _ in range(c)][1:]


async def test_failing_pods_are_replaced_until_the_back_off_limit(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("fails", 2, seconds=0.1, result="fail", spec={"backoffLimit": 0}))
    done = await arena.until_condition("fails", FINISHED)
    assert done.reason == "Failed"
    await arena.until_free()


async def test_a_workload_of_the_name_that_a_job_needs(arena: Arena) -> None:
    """The Job waits, says whose Workload is in its way, and goes on when that is deleted."""
    await arena.set_up_queue()
    made = await arena.submit(job("train", 2, seconds=0.1))
    name = workload_name("Job", "train", made.metadata.uid)
    template = {"spec": {"containers": [{"name": "c"}]}}
    spec = {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template}]}
    await arena.make(WORKLOADS, name, spec, arena.namespace)
    await arena.start()
    await warned(arena, "train", name)
    await others_go_on(arena)
    await arena.cluster.delete(WORKLOADS, name, arena.namespace)
    await arena.until_condition("train", FINISHED)


async def test_a_workload_that_claims_somebody_elses_job(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    made = await arena.submit(job("train", 2))
    await arena.until_running("train", 2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": made.metadata.uid, "controller": True}
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {GPU: "1"}}}]}}
    body = {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {"name": "thief", "ownerReferences": [owner]},
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template}]},
    }
    await arena.cluster.create(WORKLOADS, body, arena.namespace)
    await arena.settle()
    await arena.until_running("train", 2)
    await others_go_on(arena)
    assert not (await arena.job("train")).spec.suspend


async def test_an_admission_written_by_hand(arena: Arena) -> None:
    """For a queue, a flavor and places that do not exist, or that cannot be read: told, and nobody is held up."""
    await arena.set_up_queue()
    await arena.start()
    assignments: list[dict[str, Any]] = [
        {"name": "main", "flavors": {GPU: "nowhere"}, "resourceUsage": {GPU: "8"}, "count": 2},
        {
            "name": "main",
            "topologyAssignment": {
                "levels": [HOST],
                "slices": [
                    {
                        "domainCount": 2,
                        "podCounts": {"individual": [1]},
                        "valuesPerLevel": [{"individual": {"roots": ["a", "b", "c"]}}],
                    }
                ],
            },
        },
        {
            "name": "main",
            "topologyAssignment": {
                "levels": [HOST],
                "slices": [
                    {"domainCount": 1, "podCounts": {"universal": 2}, "valuesPerLevel": [{"universal": "nowhere"}]}
                ],
            },
        },
        {"name": "other", "flavors": {GPU: "x"}, "resourceUsage": {GPU: "-8"}, "count": -1},
        {"name": "main", "flavors": {GPU: "x"}, "resourceUsage": {GPU: "9999999999999999999999Ei"}, "count": 2},
    ]
    for number, assignment in enumerate(assignments):
        name = f"by-hand-{number}"
        await arena.submit(job(name, 2, queue="nowhere"))
        await arena.until_condition(name, QUOTA_RESERVED, "False")
        now = "2026-01-01T00:00:00Z"
        conditions = [
            {"type": t, "status": "True", "reason": "Me", "message": "", "lastTransitionTime": now}
            for t in ("QuotaReserved", "Admitted")
        ]
        status = {
            "conditions": conditions,
            "admission": {"clusterQueue": "nowhere", "podSetAssignments": [assignment]},
        }
        try:
            await arena.cluster.patch(
                WORKLOADS,
                await arena.workload_name(name),
                arena.namespace,
                patch={"status": status},
                subresource="status",
            )
        except Invalid:
            continue
    await arena.settle()
    await others_go_on(arena)


@pytest.mark.parametrize(
    "change",
    [
        {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": "none"}}}]},
        {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [{"resources": 7}]}}}]},
        {"podSets": [{"name": "main", "count": 1, "template": {"metadata": {"annotations": {"a": 1}}}}]},
        {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"tolerations": [{"key": {}}]}}}]},
        {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"nodeSelector": {"a": None}}}}]},
    ],
    ids=str,
)
async def test_a_workload_with_a_template_of_wrong_types(arena: Arena, change: dict[str, Any]) -> None:
    await arena.set_up_queue()
    await arena.start()
    with pytest.raises(ApiError, match="Malformed"):  # it is there, but cannot be read
        await arena.make(WORKLOADS, "strange", {"queueName": "main", **change}, arena.namespace)
    await warned(arena, "strange", "spec.podSets[0]")
    await others_go_on(arena)


async def test_a_queue_whose_name_is_too_long_for_a_label(arena: Arena) -> None:
    arena.queue = "q" * 100 + arena.queue
    await arena.set_up_queue()
    await arena.start()
    await others_go_on(arena)


async def test_a_flavor_that_no_pod_can_be_given(arena: Arena) -> None:
    """Its node labels are no labels: the API server refuses the start, which is then over instead of tried again."""
    await arena.set_up_queue()
    await arena.start()
    name = arena.scoped("bad")
    try:
        await arena.make(RESOURCE_FLAVORS, name, {"nodeLabels": {"pool": "not a label!"}})
    except Invalid:
        return
    flavor = {"name": name, "resources": [{"name": GPU, "nominalQuota": "64"}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]}
    await arena.make(CLUSTER_QUEUES, name, spec)
    await arena.make(LOCAL_QUEUES, "bad", {"clusterQueue": name}, arena.namespace)
    await arena.submit(job("train", 2, queue="bad", scheduler="default-scheduler"))
    done = await arena.until_condition("train", FINISHED)
    assert done.reason == "FailedToStart"
    assert "not a label!" in done.message
    await others_go_on(arena)


@pytest.mark.parametrize("kind", ["LocalQueue", "ClusterQueue", "ResourceFlavor", "Topology"])
async def test_what_a_running_job_uses_is_deleted_and_made_again(arena: Arena, kind: str) -> None:
    """It runs on; what waits says why; all goes on when the object is back."""
    await arena.set_up_queue(nominal=64)
    await arena.start()
    await arena.submit(job("runs", 8, topology={names.REQUIRED_TOPOLOGY: RACK}))
    await arena.until_running("runs", 8)
    resource: Any = {
        "LocalQueue": LOCAL_QUEUES,
        "ClusterQueue": CLUSTER_QUEUES,
        "ResourceFlavor": RESOURCE_FLAVORS,
        "Topology": TOPOLOGIES,
    }[kind]
    name, namespace = ("main", arena.namespace) if kind == "LocalQueue" else (arena.queue, "")
    before = await arena.cluster.get(resource, name, namespace)
    await arena.cluster.delete(resource, name, namespace)

    await arena.until_gone(resource, name, namespace)
    await arena.submit(job("waits", 8, seconds=0.1))
    waits = await arena.until_condition("waits", QUOTA_RESERVED, "False")
    assert waits.reason == "Inadmissible"
    assert name in waits.message
    await arena.settle()
    assert len(await arena.until_running("runs", 8)) == 8
    await arena.cluster.create(
        resource,
        {"metadata": {"name": name}, "spec": msgspec.to_builtins(before.spec)},
        namespace,
    )
    await arena.until_condition("waits", QUOTA_RESERVED, "False", text="0 of 64 unused")
    await arena.delete_job("runs")
    await arena.until_condition("waits", FINISHED)
    await arena.until_free()


async def test_the_namespace_goes_under_a_running_job(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    other = f"{arena.namespace}-other"
    await arena.cluster.create(NAMESPACES, {"metadata": {"name": other}})
    await arena.make(LOCAL_QUEUES, "main", {"clusterQueue": arena.queue}, other)
    await arena.cluster.create(JOBS, job("train", 4), other)

    async def runs() -> bool:
        pods = (await arena.cluster.list(PODS, other)).items
        return len(pods) == 4 and all(p.status.phase == "Running" for p in pods)

    await arena.until(runs)
    await arena.cluster.delete(NAMESPACES, other)

    if not arena.real:
        await arena.until_gone(NAMESPACES, other)
    await arena.until_free()
    await others_go_on(arena)


async def test_nodes_that_are_odd(arena: Arena) -> None:
    """No labels, no allocatable, absurd allocatable: they get nothing, and nobody else is held up."""
    odd: list[dict[str, Any]] = [
        {"metadata": {"name": "odd-bare"}},
        {"metadata": {"name": "odd-rackless", "labels": {"pool": "gpu", HOST: "odd-rackless"}}},
        {"metadata": {"name": "odd-twin", "labels": {**node_labels(0)}}},
        {
            "metadata": {"name": "odd-huge", "labels": {"pool": "gpu", HOST: "odd-huge", BLOCK: "z", RACK: "z"}},
            "status": {
                "allocatable": {GPU: "9223372036854775807", "cpu": "1E100" if not arena.real else "1E", "pods": "-1"}
            },
        },
    ]
    await arena.set_up_queue()
    await arena.start()
    for body in odd:
        try:
            await arena.cluster.create(NODES, body)
            arena.made.append((NODES, body["metadata"]["name"]))
        except ApiError:
            continue
    await arena.submit(job("train", 8, topology={names.REQUIRED_TOPOLOGY: RACK}))
    pods = await arena.until_running("train", 8)
    assert not any(p.spec.node_name.startswith("odd") for p in pods)
    await others_go_on(arena)
