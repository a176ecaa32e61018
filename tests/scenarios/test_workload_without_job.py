"""Gangs of Workloads that no Job owns, whose makers do things that they should not, or at bad moments."""

from __future__ import annotations

from typing import Any

import pytest

from serried.api import names
from serried.api.assignment import decode
from serried.api.kueue import Workload
from serried.api.meta import Condition, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import ADMISSION_CHECKS, CLUSTER_QUEUES, EVENTS, PODS, WORKLOADS
from serried.lifecycle import conditions
from tests.scenarios.arena import GPU, RACK, Arena, pod_set

LEADER, WORKERS = pod_set("leader", 1, 4), pod_set("workers", 3, 8)

MAKER = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]}


async def make_group(arena: Arena, name: str = "group", pod_sets: Any = (LEADER, WORKERS), **more: Any) -> Workload:
    spec = {"queueName": "main", "podSets": list(pod_sets), **more}
    made: Workload = await arena.make(WORKLOADS, name, spec, arena.namespace)
    return made


async def make_pod(
    arena: Arena,
    name: str,
    pod_set: str | None,
    index: int | None = None,
    *,
    gpus: int = 8,
    workload: str = "group",
) -> None:
    labels = {} if pod_set is None else {names.POD_SET: pod_set}
    annotations = {names.WORKLOAD: workload, **({} if index is None else {names.COMPLETION_INDEX: str(index)})}
    resources = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    spec = {"schedulerName": "serried", "containers": [{"name": "c", "image": "x", "resources": resources}]}
    body = {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": spec}
    await arena.cluster.create(PODS, body, arena.namespace)


async def make_pods(arena: Arena, run: str = "a", workload: str = "group") -> None:
    await make_pod(arena, f"{workload}-{run}-l", "leader", 0, gpus=4, workload=workload)
    for i in range(3):
        await make_pod(arena, f"{workload}-{run}-w{i}", "workers", i, workload=workload)


async def delete_pods(arena: Arena, *pods: str) -> None:
    for name in pods:
        await arena.cluster.delete(PODS, name, arena.namespace)


async def nodes(arena: Arena) -> dict[str, str]:
    """Pod → its node, of those that are bound."""
    listing = await arena.cluster.list(PODS, arena.namespace)
    return {p.metadata.name: p.spec.node_name for p in listing.items if p.spec.node_name}


async def plan(arena: Arena, name: str = "group") -> dict[str, list[str]]:
    workload = await arena.cluster.get(WORKLOADS, name, arena.namespace)
    found: dict[str, list[str]] = {}
    assert workload.status.admission is not None
    for a in workload.status.admission.pod_set_assignments:
        assert a.topology_assignment is not None
        found[a.name] = [v[-1] for v, n in decode(a.topology_assignment) for _ in range(n)]
    return found


async def until(arena: Arena, type: str, value: bool = True, name: str = "group") -> None:
    async def there() -> bool:
        workload = await arena.cluster.get(WORKLOADS, name, arena.namespace)
        return condition_is(workload.status.conditions, type) == value

    await arena.until(there)


async def as_planned(arena: Arena, run: str = "a", name: str = "group") -> None:
    """Waits until the leader and the workers of this run are where the plan says."""

    await until(arena, WorkloadCondition.ADMITTED, name=name)

    async def there() -> bool:
        places = await plan(arena, name)
        found = await nodes(arena)
        wanted = {f"{name}-{run}-l": places["leader"][0]}
        wanted |= {f"{name}-{run}-w{i}": node for i, node in enumerate(places["workers"])}
        return wanted.items() <= found.items()

    await arena.until(there)


async def patch(arena: Arena, name: str = "group", **spec: Any) -> None:
    await arena.cluster.patch(WORKLOADS, name, arena.namespace, patch={"spec": spec})


async def test_others_do_not_stand_in_for_the_leader(arena: Arena) -> None:
    """Five workers, one pod of no pod set and one of an unknown one: nobody is bound until the leader is there."""
    await arena.set_up_queue()
    await arena.start()
    for i in range(3):
        await make_pod(arena, f"group-a-w{i}", "workers", i)
    for i in range(2):
        await make_pod(arena, f"more-{i}", "workers", i)
    await make_pod(arena, "nobody", None)
    await make_pod(arena, "stranger", "helpers", 0)
    await make_group(arena)
    await until(arena, WorkloadCondition.ADMITTED)

    async def told() -> bool:
        listing = await arena.cluster.list(EVENTS, arena.namespace)
        return any(
            "'', 'helpers'; allowed are the Workload's pod sets: leader, workers" in e.message for e in listing.items
        )

    await arena.until(told)
    await arena.settle()
    assert await nodes(arena) == {}
    await make_pod(arena, "group-a-l", "leader", 0, gpus=4)
    places = await plan(arena)

    async def bound() -> bool:
        return len(await nodes(arena)) == 4

    await arena.until(bound)
    found = await nodes(arena)
    assert found["group-a-l"] == places["leader"][0]
    assert sorted(node for pod, node in found.items() if pod != "group-a-l") == sorted(places["workers"])


async def test_pods_that_ask_for_what_the_workload_does_not_plan_are_told(arena: Arena) -> None:
    """A plan of racks leaves the nodes to kube-scheduler, which does not look at pods of another scheduler."""
    await arena.set_up_queue()
    await arena.start()
    topology, *_ = [r for r, _ in arena.made if r.plural == "topologies"]
    await arena.cluster.delete(topology, arena.queue)
    await arena.cluster.create(topology, {"metadata": {"name": arena.queue}, "spec": {"levels": [{"nodeLabel": RACK}]}})
    await make_pods(arena)
    await make_group(arena)

    async def told() -> bool:
        listing = await arena.cluster.list(EVENTS, arena.namespace)
        return any("pods of leader, workers wait for a node, and the plan has none" in e.message for e in listing.items)

    await arena.until(told)
    assert await nodes(arena) == {}


async def test_drained_and_admitted_again_while_its_old_pods_run(arena: Arena) -> None:
    """No node is booked twice, and the pods of the second run follow the second plan."""
    await arena.set_up_queue()
    await arena.start()
    await make_group(arena)
    await make_pods(arena)
    await as_planned(arena)
    old = set((await nodes(arena)).values())
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": {"stopPolicy": "HoldAndDrain"}})
    await until(arena, WorkloadCondition.EVICTED)
    await until(arena, WorkloadCondition.QUOTA_RESERVED, False)
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": {"stopPolicy": "None"}})
    await until(arena, WorkloadCondition.ADMITTED)
    again = await plan(arena)
    assert not old & {*again["leader"], *again["workers"]}, "the nodes where the old pods run are full"
    await make_pod(arena, "group-b-l", "leader", 0, gpus=4)
    await arena.settle()
    assert "group-b-l" not in await nodes(arena), "the second run is not whole"
    workload = await arena.cluster.get(WORKLOADS, "group", arena.namespace)
    assert not condition_is(workload.status.conditions, WorkloadCondition.PODS_READY)
    for i in range(3):
        await make_pod(arena, f"group-b-w{i}", "workers", i)
    await as_planned(arena, "b")
    await until(arena, WorkloadCondition.PODS_READY)
    assert again == await plan(arena)
    await delete_pods(arena, *(f"group-a-{x}" for x in ("l", "w0", "w1", "w2")))
    await arena.settle()
    await as_planned(arena, "b")


@pytest.mark.parametrize("checks", [False, True])
async def test_deactivated_and_back(arena: Arena, checks: bool) -> None:
    """Also while its quota is only reserved."""
    await arena.set_up_queue()
    name = arena.scoped("check")
    if checks:
        await arena.make(ADMISSION_CHECKS, name, {"controllerName": "example.com/nobody"})
        active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        await arena.cluster.patch(
            ADMISSION_CHECKS, name, patch={"status": {"conditions": [active | stamp]}}, subresource="status"
        )
        strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": name}]}}
        await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": strategy})
    await arena.start()
    await make_group(arena)
    await until(arena, WorkloadCondition.QUOTA_RESERVED)
    await patch(arena, active=False)
    await until(arena, WorkloadCondition.QUOTA_RESERVED, False)
    workload = await arena.cluster.get(WORKLOADS, "group", arena.namespace)
    evicted = find_condition(workload.status.conditions, WorkloadCondition.EVICTED)
    assert evicted is not None
    assert evicted.reason == "Deactivated"
    assert workload.status.admission is None
    await patch(arena, active=True)
    await until(arena, WorkloadCondition.QUOTA_RESERVED)
    if not checks:
        await make_pods(arena)
        await as_planned(arena)


async def test_an_eviction_that_somebody_else_wrote_is_carried_out(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await make_group(arena)
    await until(arena, WorkloadCondition.ADMITTED)
    stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    evicted = {"type": "Evicted", "status": "True", "reason": "Other", "message": "go", **stamp}
    workload = await arena.cluster.get(WORKLOADS, "group", arena.namespace)
    have = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message, **stamp}
        for c in workload.status.conditions
    ]
    await arena.cluster.patch(
        WORKLOADS,
        "group",
        arena.namespace,
        patch={"status": {"conditions": [*have, evicted]}},
        subresource="status",
    )
    # It gives back what it holds, and is admitted again.
    await until(arena, WorkloadCondition.EVICTED, False)
    await until(arena, WorkloadCondition.ADMITTED)
    await make_pods(arena)
    await as_planned(arena)


async def test_owned_by_another_kind_deleted_and_made_again(arena: Arena) -> None:
    """The pods of its first life stay where they are, and those of the second are placed elsewhere."""
    await arena.set_up_queue()
    await arena.start()
    maker = await arena.cluster.create(PODS, {"metadata": {"name": "maker"}, "spec": MAKER}, arena.namespace)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "maker", "uid": maker.metadata.uid, "controller": True}
    body = {
        "metadata": {"name": "group", "ownerReferences": [owner]},
        "spec": {"queueName": "main", "podSets": [LEADER, WORKERS]},
    }
    await arena.cluster.create(WORKLOADS, body, arena.namespace)
    await make_pods(arena)
    await as_planned(arena)
    await arena.cluster.delete(WORKLOADS, "group", arena.namespace)

    await arena.until_gone(WORKLOADS, "group", arena.namespace)
    await arena.cluster.create(WORKLOADS, body, arena.namespace)
    await until(arena, WorkloadCondition.ADMITTED)
    await make_pods(arena, "b")
    await as_planned(arena, "b")
    # A node has 8 GPUs: no two of the seven pods that need whole ones share one.
    found = [node for pod, node in (await nodes(arena)).items() if not pod.endswith("-l")]
    assert len(found) == len(set(found)) == 6


async def test_a_group_preempts_a_group(arena: Arena) -> None:
    """The nodes are the preemptor's when the pods of its victim are gone, not before."""
    await arena.set_up_queue(nominal=30)
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": within})
    await arena.start()
    await make_group(arena, "low")
    await make_pods(arena, workload="low")
    await as_planned(arena, name="low")
    await make_group(arena, "high", priority=10)
    await make_pods(arena, workload="high")
    await until(arena, WorkloadCondition.EVICTED, name="low")
    await delete_pods(arena, *(f"low-a-{x}" for x in ("l", "w0", "w1", "w2")))
    await as_planned(arena, name="high")
    await until(arena, WorkloadCondition.QUOTA_RESERVED, False, name="low")


async def test_a_restart_in_the_middle_of_the_bindings(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await make_group(arena)
    await until(arena, WorkloadCondition.ADMITTED)
    await arena.stop()
    places = await plan(arena)
    await make_pods(arena)
    pod = await arena.cluster.get(PODS, "group-a-w1", arena.namespace)
    await arena.cluster.bind(arena.namespace, "group-a-w1", places["workers"][1], uid=pod.metadata.uid)
    await arena.start()
    await as_planned(arena)
    assert await plan(arena) == places


async def test_the_end_of_a_workload_without_pods_is_reported(arena: Arena) -> None:
    """A Workload by hand, whose end brings no cycle (nobody waits) and no change of a gang (it has none)."""
    await arena.set_up_queue()
    controller = await arena.start()
    requests = {"requests": {GPU: "8"}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [{"name": "c", "resources": requests}]}}}
    body = {"metadata": {"name": "by-hand"}, "spec": {"queueName": "main", "podSets": [pod_set]}}
    kind = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind}
    await arena.cluster.create(WORKLOADS, {**kind, **body}, arena.namespace)

    async def used() -> bool:
        queue = await arena.cluster.get(CLUSTER_QUEUES, arena.queue)
        return any(str(r.total) == "8" for f in queue.status.flavors_usage for r in f.resources)

    await arena.until(used)
    workload = await arena.cluster.get(WORKLOADS, "by-hand", arena.namespace)
    done = Condition(type="Finished", status="True", reason="Succeeded", message="by hand")
    patch = conditions.status_patch(workload, [done], controller.now())
    await arena.cluster.patch(WORKLOADS, "by-hand", arena.namespace, patch=patch, subresource="status")
    await arena.until_free()
