"""The embedded cluster answers as the real one: refuses the same fields, fills in and tells the same."""

import random
from contextlib import aclosing
from typing import Any, Literal, cast

import msgspec
import pytest

from serried.api.resources import (
    CLUSTER_QUEUES,
    COSCHEDULING_POD_GROUPS,
    EVENTS,
    JOBS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from serried.cluster.protocol import Cluster
from tests.contract.answers import CONTAINER, Ask, Both, Json, Refusal, asking, named, plain, pod
from tests.patience import patience


def job(name: str = "x", template: Json | None = None, **spec: Any) -> Json:
    inner = {"restartPolicy": "Never", "containers": [CONTAINER], **(template or {})}
    return named(name, spec={"suspend": True, **spec, "template": {"spec": inner}})


def queue(**spec: Any) -> Json:
    return named(spec=spec)


def group(*resources: Json, covered: tuple[str, ...] = ("cpu",)) -> Json:
    return {"coveredResources": list(covered), "flavors": [{"name": "f", "resources": list(resources)}]}


def topology(*labels: str) -> Json:
    return named(spec={"levels": [{"nodeLabel": label} for label in labels]})


def workload(*pod_sets: Json, **spec: Any) -> Json:
    return named(spec={"podSets": list(pod_sets), **spec})


REFUSED: list[tuple[Resource[Any], Json]] = [
    (PODS, pod(containers=[])),
    (PODS, pod(containers=[{"name": "c"}])),
    (PODS, pod(containers=[{"image": "i"}])),
    (PODS, pod(containers=[{"name": "C C", "image": "i"}])),
    (PODS, pod(containers=[CONTAINER, CONTAINER])),
    (PODS, pod(containers=asking(requests={"cpu": "-1"}))),
    (PODS, pod(containers=asking(requests={"cpu": "2"}, limits={"cpu": "1"}))),
    (PODS, pod(containers=asking(requests={"nvidia.com/gpu": "1"}))),
    (PODS, pod(containers=asking(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "2"}))),
    (PODS, pod(containers=asking(limits={"nvidia.com/gpu": "1500m"}))),
    (PODS, pod(containers=asking(limits={"gpu": "1"}))),
    (PODS, pod(containers=asking(limits={"a b/c": "1"}))),
    (PODS, pod(initContainers=[{"name": "i"}])),
    (PODS, pod("No_Name")),
    (PODS, pod("x" * 254)),
    (PODS, pod("")),
    (PODS, pod(priorityClassName="absent")),
    (PODS, pod(restartPolicy="Sometimes")),
    (PODS, pod(nodeSelector={"a": "b c", "d d": "e"})),
    (PODS, pod(tolerations=[{"key": "a", "operator": "Is"}])),
    (PODS, pod(tolerations=[{"operator": "Equal"}])),
    (PODS, pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}])),
    (PODS, pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "Never"}])),
    (PODS, pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}])),
    (PODS, pod(schedulingGates=[{"name": "a"}, {"name": "a"}])),
    (PODS, pod(schedulingGates=[{"name": "not a name"}])),
    (PODS, pod(schedulingGates=[{"name": "a"}], nodeName="n")),
    (PODS, {"metadata": {"name": "x", "labels": {"a b": "c", "d": "e f"}}, "spec": {"containers": [CONTAINER]}}),
    (PODS, {"metadata": {"name": "x", "labels": {"a": "b" * 64}}, "spec": {"containers": [CONTAINER]}}),
    (PODS, {"metadata": {"name": "x", "annotations": {"a b": "c"}}, "spec": {"containers": [CONTAINER]}}),
    (PODS, {"metadata": {"name": "x", "finalizers": ["a b"]}, "spec": {"containers": [CONTAINER]}}),
    (JOBS, job(template={"restartPolicy": "Always"})),
    (JOBS, job(template={"containers": asking(requests={"cpu": "-1"})})),
    (JOBS, job(template={"containers": []})),
    (JOBS, job(parallelism=-1, completions=-2, backoffLimit=-3)),
    (JOBS, job(completionMode="Sometimes")),
    (JOBS, job(completionMode="Indexed", parallelism=2)),
    (JOBS, job("x" * 63, completionMode="Indexed", completions=10)),
    (JOBS, job(managedBy="me")),
    (NODES, named("x y")),
    (NODES, named("refused", spec={"taints": [{"key": "a", "effect": "Never"}]})),
    (
        NODES,
        named("refused", spec={"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "b b", "effect": "NoExecute"}]}),
    ),
    (NODES, named("refused", status={"allocatable": {"cpu": "-1"}})),
    (NODES, named("refused", status={"allocatable": {"example.com/x": "1500m"}})),
    (NAMESPACES, named("not.this")),
    (NAMESPACES, named("Nor_this")),
    (PRIORITY_CLASSES, named("refused", value=2_000_000_000)),
    (LEASES, named(spec={"leaseDurationSeconds": 0, "leaseTransitions": -1})),
    (EVENTS, named(involvedObject={"kind": "Pod", "name": "p", "namespace": "another"})),
    (TOPOLOGIES, named(spec={})),
    (TOPOLOGIES, topology()),
    (TOPOLOGIES, topology("a", "a")),
    (TOPOLOGIES, topology("kubernetes.io/hostname", "a")),
    (TOPOLOGIES, topology("not a label")),
    (TOPOLOGIES, topology(*(f"l{i}" for i in range(17)))),
    (TOPOLOGIES, named(spec={"levels": "none"})),
    (TOPOLOGIES, named(spec=3)),
    (RESOURCE_FLAVORS, named(spec={"topologyName": "t"})),
    (RESOURCE_FLAVORS, named(spec={"tolerations": [{"value": "v"}]})),
    (RESOURCE_FLAVORS, named(spec={"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]})),
    (RESOURCE_FLAVORS, named(spec={"tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 1}]})),
    (RESOURCE_FLAVORS, named(spec={"nodeTaints": [{"key": "k"}]})),
    (RESOURCE_FLAVORS, named(spec={"nodeLabels": {f"l{i}": "v" for i in range(9)}})),
    (CLUSTER_QUEUES, queue(queueingStrategy="LIFO", stopPolicy="Never")),
    (CLUSTER_QUEUES, queue(resourceGroups=[group({"name": "cpu"})])),
    (CLUSTER_QUEUES, queue(resourceGroups=[group({"name": "cpu", "nominalQuota": "-1"})])),
    (CLUSTER_QUEUES, queue(resourceGroups=[group({"name": "cpu", "nominalQuota": -1})])),
    (CLUSTER_QUEUES, queue(resourceGroups=[group({"name": "cpu", "nominalQuota": "many"})])),
    (CLUSTER_QUEUES, queue(resourceGroups=[group(*[{"name": "cpu", "nominalQuota": 1}] * 2)])),
    (CLUSTER_QUEUES, queue(resourceGroups=[group({"name": "cpu", "nominalQuota": 1, "borrowingLimit": 1})])),
    (CLUSTER_QUEUES, queue(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}})),
    (CLUSTER_QUEUES, queue(cohortName="not a name")),
    (LOCAL_QUEUES, queue(clusterQueue="not a name")),
    (LOCAL_QUEUES, queue(clusterQueue=7)),
    (WORKLOADS, workload()),
    (WORKLOADS, workload({"name": "a"})),
    (WORKLOADS, workload({"template": {}, "count": -1})),
    (WORKLOADS, workload({"template": {}}, {"template": {}})),
    (WORKLOADS, workload({"template": {}, "count": "three"})),
    (WORKLOADS, workload({"template": {}}, active="yes", priority="high")),
    (WORKLOADS, workload({"template": {}}, priorityClassRef={"group": "g", "kind": "k"})),
    (WORKLOADS, workload({"template": {}, "topologyRequest": {"required": "x" * 64}})),
    (WORKLOAD_PRIORITY_CLASSES, named("x")),
    (WORKLOAD_PRIORITY_CLASSES, named("x", value="high")),
    (COSCHEDULING_POD_GROUPS, named(spec={"minMember": 0})),
    (COSCHEDULING_POD_GROUPS, named(spec={"minResources": {"cpu": "-1"}})),
]


@pytest.mark.parametrize(("resource", "manifest"), REFUSED, ids=lambda value: getattr(value, "plural", None))
async def test_it_refuses_the_same_fields(both: Both, resource: Resource[Any], manifest: Json) -> None:
    namespace = both.namespace if resource.namespaced else ""
    real, embedded = await both.answers(lambda cluster: cluster.create(resource, manifest, namespace))
    assert isinstance(real, Refusal), "the real server takes it"
    assert real.status != 422 or real.fields
    assert embedded == real


ACCEPTED: list[tuple[Resource[Any], Json]] = [
    (PODS, pod()),
    (PODS, pod(containers=asking(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "500m"}))),
    (PODS, pod(containers=asking(limits={"cpu": "1", "example.com/gpu": 8}))),
    (PODS, pod(schedulingGates=[{"name": "a"}], priorityClassName="system-node-critical")),
    (PODS, pod(tolerations=[{"operator": "Exists"}])),
    (PODS, pod(tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}])),
    (PODS, {**pod(), "status": {"phase": "Running"}}),
    (JOBS, job()),
    (JOBS, job(parallelism=3)),
    (JOBS, job(completions=3)),
    (JOBS, job(parallelism=0)),
    (JOBS, job(completionMode="Indexed")),
    (JOBS, job(completionMode="Indexed", completions=3, parallelism=2, backoffLimit=0)),
    (JOBS, job(suspend=None, template={"schedulerName": "me", "tolerations": [{"operator": "Exists"}]})),
    (EVENTS, named(involvedObject={"kind": "Node", "name": "n", "namespace": "NAMESPACE"}, type="Odd", count=2)),
    (LEASES, named(spec={"holderIdentity": "me", "renewTime": "2026-01-02T03:04:05.678901Z"})),
    (LEASES, {"metadata": {"name": "x", "finalizers": ["any"]}}),
    (LOCAL_QUEUES, queue(clusterQueue="c", unknown={"field": 1})),
    (LOCAL_QUEUES, named(spec={"clusterQueue": "c"}, status={"pendingWorkloads": 3})),
    (WORKLOADS, workload({"template": {"any": {"thing": None}}, "count": None})),
    (WORKLOADS, workload({"name": "a", "template": {}}, {"name": "b", "template": {}, "topologyRequest": {}})),
    (COSCHEDULING_POD_GROUPS, named(spec={"minMember": 3, "minResources": {"cpu": 3, "memory": "1Gi"}})),
]


@pytest.mark.parametrize(("resource", "manifest"), ACCEPTED, ids=lambda value: getattr(value, "plural", None))
async def test_it_fills_in_the_same(both: Both, resource: Resource[Any], manifest: Json) -> None:
    text = msgspec.json.encode(manifest).replace(b"NAMESPACE", both.namespace.encode())
    manifest = unmanaged(resource, msgspec.json.decode(text))
    real, embedded = await both.answers(lambda cluster: cluster.create(resource, manifest, both.namespace))
    assert isinstance(real, dict), real
    assert embedded == real


def unmanaged(resource: Resource[Any], manifest: Json) -> Json:
    """A Job that the controllers of the real cluster leave alone."""
    if resource is JOBS:
        return {**manifest, "spec": {**manifest["spec"], "managedBy": "example.com/nobody"}}
    return manifest


def template(**spec: Any) -> Json:
    return {"spec": {"template": {"spec": spec}}}


GATED = pod(schedulingGates=[{"name": "a"}, {"name": "b"}], nodeSelector={"k": "v"})
QUEUE = queue(clusterQueue="c")
CONDITION = {
    "type": "A",
    "status": "True",
    "reason": "R",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00.5Z",
}
#: an object and one change of it: a patch of the object, or of its status where there is only a status
CHANGES: list[tuple[Resource[Any], Json, Any]] = [
    (PODS, pod(), {"metadata": {"labels": {"a": "b", "c": None}}}),
    (PODS, pod(), {"metadata": {"labels": {"a": "b b"}}}),
    (PODS, pod(), {"metadata": {"resourceVersion": "1"}}),
    (PODS, pod(), {"metadata": {"name": "another"}}),
    (PODS, pod(), {"metadata": {"uid": "another"}}),
    (PODS, pod(), {"spec": {"schedulerName": "another"}}),
    (PODS, pod(), {"spec": {"nodeSelector": {"a": "b"}}}),
    (PODS, pod(), {"spec": {"schedulingGates": [{"name": "late"}]}}),
    (PODS, pod(), {"spec": {"containers": [{**CONTAINER, "image": "registry.example/other"}]}}),
    (PODS, pod(), {"spec": {"containers": [CONTAINER], "tolerations": [{"operator": "Exists"}]}}),
    (PODS, GATED, {"spec": {"schedulingGates": [{"name": "b"}], "nodeSelector": {"l": "w"}}}),
    (PODS, GATED, {"spec": {"schedulingGates": None, "nodeSelector": {"l": "w"}}}),
    (PODS, GATED, {"spec": {"nodeSelector": {"k": None}}}),
    (PODS, GATED, {"spec": {"nodeSelector": {"k": "w"}}}),
    (PODS, GATED, {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}}),
    (PODS, pod(), {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00.5Z"}}),
    (PODS, pod(), {"status": {"conditions": [{"type": "A", "status": "True"}], "reason": "R"}}),
    (
        JOBS,
        job(),
        template(nodeSelector={"a": "b"}, tolerations=[{"operator": "Exists"}], schedulingGates=[{"name": "g"}]),
    ),
    (JOBS, job(), {"spec": {"template": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}}}),
    (JOBS, job(), {"spec": {"suspend": False, **template(nodeSelector={"a": "b"})["spec"]}}),
    (JOBS, job(), template(containers=asking(limits={"cpu": "1"}))),
    (JOBS, job(suspend=False), {"spec": {"suspend": True}}),
    (JOBS, job(), {"spec": {"parallelism": 5, "backoffLimit": 1}}),
    (JOBS, job(), {"spec": {"completions": 5}}),
    (JOBS, job(), {"spec": {"completionMode": "Indexed"}}),
    (JOBS, job(), {"spec": {"managedBy": "example.com/another"}}),
    (JOBS, job(completionMode="Indexed", completions=2, parallelism=2), {"spec": {"completions": 3, "parallelism": 3}}),
    (JOBS, job(completionMode="Indexed", completions=2, parallelism=2), {"spec": {"completions": 3}}),
    (JOBS, job(), {"status": {"active": -1}}),
    (JOBS, job(), {"status": {"ready": 1}}),
    (JOBS, job(), {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}),
    (JOBS, job(), {"status": {"startTime": "2026-01-01T00:00:00.5Z", "active": 1}}),
    (LOCAL_QUEUES, QUEUE, {"spec": {"clusterQueue": "d"}}),
    (LOCAL_QUEUES, QUEUE, {"spec": {"clusterQueue": None}}),
    (LOCAL_QUEUES, QUEUE, {"spec": {"stopPolicy": None}}),
    (LOCAL_QUEUES, QUEUE, {"spec": None}),
    (LOCAL_QUEUES, QUEUE, {"metadata": {"finalizers": ["any", "a/b"]}, "status": {"pendingWorkloads": 2}}),
    (LOCAL_QUEUES, QUEUE, {"status": {"pendingWorkloads": 2, "conditions": [CONDITION], "unknown": 1}}),
    (LOCAL_QUEUES, QUEUE, {"status": {"conditions": [CONDITION, CONDITION]}}),
    (WORKLOADS, workload({"template": {}}), {"spec": {"podSets": [{"template": {}, "count": 4}], "active": False}}),
    (
        WORKLOADS,
        workload({"template": {}}),
        {"status": {"admission": {"clusterQueue": "c", "podSetAssignments": [{}]}}},
    ),
    (WORKLOADS, workload({"template": {}}), {"status": {"requeueState": {"count": 1}}}),
    (LEASES, named(spec={"holderIdentity": "me"}), {"status": {}}),
    (LEASES, named(spec={"holderIdentity": "me"}), {"spec": {"leaseDurationSeconds": 15, "holderIdentity": None}}),
    (LEASES, named(spec={"holderIdentity": "me"}), {"spec": {"leaseDurationSeconds": "15"}}),
]


@pytest.mark.parametrize(("resource", "manifest", "patch"), CHANGES, ids=lambda value: getattr(value, "plural", None))
async def test_it_changes_the_same(both: Both, resource: Resource[Any], manifest: Json, patch: Any) -> None:
    manifest = unmanaged(resource, manifest)
    await both.answers(lambda cluster: cluster.create(resource, manifest, both.namespace))
    subresource: Literal["", "status"] = "status" if list(patch) == ["status"] else ""
    real, embedded = await both.answers(
        lambda cluster: cluster.patch(resource, "x", both.namespace, patch=patch, subresource=subresource)
    )
    assert embedded == real
    real, embedded = await both.answers(lambda cluster: cluster.get(resource, "x", both.namespace))
    assert embedded == real


_LABELS: list[dict[str, str | None]] = [{"team": "a"}, {"team": "b"}, {"team": None}, {"tier": "x"}, {}]
_FINALIZERS = [None, [], ["example.com/one"], ["example.com/one", "example.com/two"]]
_STORIED = (PODS, LEASES, LOCAL_QUEUES)


def _request(draw: random.Random, namespace: str) -> Ask:
    """Some request about one of a few objects, which may or may not be there."""
    resource: Resource[Any] = draw.choice(_STORIED)
    name = draw.choice("abc")

    def finalizer_choice() -> list[str] | None:
        # The real cluster's garbage collector of pods has something to say about unbound pods with finalizers.
        return draw.choice(_FINALIZERS) if resource is not PODS else None

    def manifest() -> Json:
        spec: Json = {
            PODS: pod(schedulingGates=draw.choice([[], [{"name": "g"}]]))["spec"],
            LEASES: {"holderIdentity": draw.choice(["me", "you"])},
            LOCAL_QUEUES: {"clusterQueue": "c", "stopPolicy": draw.choice(["None", "Hold"])},
        }[resource]
        labels = {key: value for key, value in draw.choice(_LABELS).items() if value}
        finalizers = finalizer_choice()
        return {"metadata": {"name": name, "labels": labels, "finalizers": finalizers}, "spec": spec}

    def patch(content: Any, subresource: Literal["", "status"] = "") -> Ask:
        return lambda cluster: cluster.patch(resource, name, namespace, patch=content, subresource=subresource)

    def change() -> Json:
        phase = draw.choice(["Running", "Succeeded"])
        return draw.choice(
            [
                {"metadata": {"labels": draw.choice(_LABELS)}},
                {"metadata": {"finalizers": finalizer_choice()}},
                {"spec": manifest()["spec"]},
                {"spec": {"tolerations": [{"operator": "Exists"}]} if resource is PODS else {}},
                {} if resource is LEASES else {"status": {"phase": phase, "pendingWorkloads": draw.randrange(3)}},
            ]
        )

    async def patch_as_seen(cluster: Cluster, content: Json, *, late: bool) -> Any:
        seen = await cluster.get(resource, name, namespace)
        if late:
            mark = {"metadata": {"annotations": {"seen": "yes"}}}
            await cluster.patch(resource, name, namespace, patch=mark)
            unmark = {"metadata": {"annotations": None}}
            await cluster.patch(resource, name, namespace, patch=unmark)
        precondition = {"resourceVersion": seen.metadata.resource_version}
        content = {**content, "metadata": {**content.get("metadata", {}), **precondition}}
        return await cluster.patch(resource, name, namespace, patch=content)

    async def delete(cluster: Cluster, grace: int | None, *, other: bool) -> None:
        uid = (await cluster.get(resource, name, namespace)).metadata.uid if not other else "another"
        await cluster.delete(resource, name, namespace, uid=uid, grace_period_seconds=grace)

    content, late, grace, other = change(), draw.random() < 0.5, draw.choice([None, 0, 5]), draw.random() < 0.1
    new, labels = manifest(), draw.choice(_LABELS)
    return draw.choice(
        [
            lambda cluster: cluster.create(resource, new, namespace),
            lambda cluster: cluster.create(resource, new, namespace),
            patch(content),
            patch(content, "status"),
            lambda cluster: patch_as_seen(cluster, {"metadata": {"labels": labels}}, late=late),
            lambda cluster: delete(cluster, grace, other=other),
            lambda cluster: delete(cluster, grace, other=other),
            lambda cluster: cluster.bind(namespace, name, namespace, uid="another" if other else ""),
        ]
    )


async def _told(cluster: Cluster, resource: Resource[Any], namespace: str, version: str, labels: str) -> list[Any]:
    """What a watch from this version on tells, up to the object called `end`."""
    heard: list[Any] = []
    events = cluster.watch(resource, namespace, resource_version=version, label_selector=labels)
    async with patience(), aclosing(cast(Any, events)):
        async for event in events:
            if event.type != "BOOKMARK":
                heard.append((event.type, plain(event.object)))
                if event.object.metadata.name == "end":
                    break
    return heard


@pytest.mark.parametrize("seed", range(5))
async def test_it_answers_and_tells_the_same_whatever_is_asked(both: Both, seed: int) -> None:
    """Random requests about a few objects: each answer is the same, and in the end each watch has told the same."""
    draw = random.Random(seed)
    clusters = (both.real, both.embedded)
    for cluster in clusters:
        # Or pods bound to it would be collected some time.
        await cluster.create(NODES, {"metadata": {"name": both.namespace}})
    versions = [(await cluster.list(LEASES, both.namespace)).resource_version for cluster in clusters]
    for number in range(60):
        ask = _request(draw, both.namespace)
        real, embedded = await both.answers(ask)
        assert embedded == real, f"request {number}"
    ends: list[tuple[Resource[Any], Json]] = [
        (PODS, pod("end")),
        (LEASES, named("end")),
        (LOCAL_QUEUES, named("end", spec={})),
    ]
    for resource, manifest in ends:
        manifest["metadata"]["labels"] = {"team": "a"}
        for cluster in clusters:
            await cluster.create(resource, manifest, both.namespace)
        for selector in ("", "team=a", "team!=b"):
            real, embedded = [
                await _told(cluster, resource, both.namespace, version, selector)
                for cluster, version in zip(clusters, versions, strict=True)
            ]
            assert embedded == real, f"watch of {resource} {selector}"
    for cluster in clusters:
        await cluster.delete(NODES, both.namespace)
