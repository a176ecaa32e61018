"""A kind of job that Serried does not know, added here without a change anywhere else: its type, its definition, what
Serried asks of it, and the controller that makes its pods.

A TrainingRun has groups of pods, here a driver and workers; it is over when its driver is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from serried.api import names
from serried.api.core import Pod, PodTemplateSpec
from serried.api.kueue import PodSet, Workload
from serried.api.meta import Key, Object, OwnerReference, Wire
from serried.api.names import WorkloadCondition
from serried.api.problem import Problem
from serried.api.resources import CLUSTER_QUEUES, PODS, WORKLOADS, Resource
from serried.cluster import informer
from serried.cluster.informer import Informer
from serried.cluster.protocol import AlreadyExists, NotFound
from serried.cluster.work_queue import WorkQueue
from serried.control import webhook
from serried.control.config import Webhook
from serried.embedded.server import EmbeddedCluster
from serried.embedded.webhook import mutate
from serried.gang.membership import Gang
from serried.jobs import KINDS, template
from serried.jobs.kind import Addition, JobKind, Json, Membership, NotYet, Outcome, Patch, queue_name
from serried.jobs.podset import PodSetStart, topology_request
from serried.lifecycle.reconcile import plans
from serried.observe.report import report
from tests.scenarios.arena import GPU, RACK, Arena, job

# --- the kind


class RunGroup(Wire):
    replicas: int = 1
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)


class RunSpec(Wire):
    suspend: bool = False
    not_before: datetime | None = None
    groups: dict[str, RunGroup] = {}


class RunStatus(Wire, omit_defaults=False):
    phase: str = ""
    active: int = 0


class TrainingRun(Object):
    spec: RunSpec = msgspec.field(default_factory=RunSpec)
    status: RunStatus = msgspec.field(default_factory=RunStatus)


RUNS = Resource("example.com", "v1", "TrainingRun", "trainingruns", TrainingRun, optional=True)

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "spec": {
        "group": RUNS.group,
        "names": {"kind": RUNS.kind, "plural": RUNS.plural},
        "versions": [
            {
                "name": RUNS.version,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}},
                "subresources": {"status": {}},
            }
        ],
    }
}

INDEX = "example.com/index"


class TrainingRuns(JobKind[TrainingRun]):
    """What Serried asks of a TrainingRun."""

    resource = RUNS

    def is_managed(self, job: TrainingRun) -> bool:
        return bool(queue_name(job))

    def priority_class(self, job: TrainingRun) -> tuple[str, str]:
        return "spec.groups[driver].template.spec.priorityClassName", ""

    def pod_sets(self, job: TrainingRun) -> tuple[list[PodSet], list[Problem]]:
        injected = template.read_injected(job)
        pod_sets, problems = [], list[Problem]()
        for name, group in job.spec.groups.items():
            author = template.original(group.template, injected.get(name))
            path = f"spec.groups[{name}].template.metadata.annotations"
            request, wrong = topology_request(author.metadata.annotations, path, INDEX)
            pod_sets.append(PodSet(name=name, template=author, count=group.replicas, topology_request=request))
            problems += wrong
        return pod_sets, problems

    def is_suspended(self, job: TrainingRun) -> bool:
        return job.spec.suspend

    def suspend(self, job: TrainingRun) -> Patch:
        return Patch({"spec": {"suspend": True}})

    def before_start(self, job: TrainingRun, now: datetime) -> Patch | NotYet | None:
        if job.status.active:
            return NotYet()
        start = job.spec.not_before
        return NotYet(start) if start is not None and start > now else None

    def start(self, job: TrainingRun, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> Patch:
        groups, injected, last = {}, {}, template.read_injected(job)
        for name, group in job.spec.groups.items():
            patch, injected[name] = template.injection(group.template, last.get(name), starts[name])
            groups[name] = {"template": patch}
        return Patch(
            {"metadata": {"annotations": template.note(injected)}, "spec": {"suspend": False, "groups": groups}}
        )

    def outcome(self, job: TrainingRun, gang: Gang) -> Outcome | None:
        phase = job.status.phase
        return Outcome(phase == "Succeeded", f"the driver has {phase.lower()}") if phase else None

    def member(self, pod: Pod) -> Membership | None:
        owner = pod.metadata.controller
        if owner is None or owner.kind != RUNS.kind:
            return None
        return Membership(owner.name, int(pod.metadata.labels[INDEX]))

    def admit(self, raw: Json, *, bind: bool) -> list[Addition]:
        if not raw["metadata"].get("labels", {}).get(names.QUEUE_NAME):
            return []
        additions = [Addition(("spec", "suspend"), True)]
        for name in raw["spec"]["groups"] if bind else ():
            path = ("spec", "groups", name, "template", "spec", "schedulerName")
            additions.append(Addition(path, names.SCHEDULER_NAME))
        return additions


KIND = TrainingRuns()


class RunController:
    """Makes the pods of runs that are not suspended, ends those of others, and says how a run stands."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile)
        self._runs = Informer(cluster, RUNS, on_change=lambda old, new: self._queue.add((new or cast(Any, old)).key))
        self._pods = Informer(cluster, PODS, on_change=self._on_pod)
        #: run → when it was first seen started
        self.started: dict[Key, datetime] = {}

    async def start(self) -> None:
        for each in (self._runs, self._pods):
            each.start()
            await each.synced()
        self._queue.start()

    async def stop(self) -> None:
        await self._queue.stop()
        for each in (self._runs, self._pods):
            await each.stop()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and (found := KIND.member(pod)) is not None:
                self._queue.add((pod.metadata.namespace, found.job))

    async def _reconcile(self, key: Key) -> None:
        run = self._runs.store.get(key)
        if run is None:
            return
        pods = {p.metadata.name: p for p in self._pods.store.values() if (p.metadata.namespace, _run_of(p)) == key}
        driver = pods.get(f"{key[1]}-driver-0")
        phase = run.status.phase or (driver.status.phase if driver is not None and not run.spec.suspend else "")
        phase = phase if phase in ("Succeeded", "Failed") else ""
        if run.spec.suspend or phase:
            for pod in pods.values():
                if pod.metadata.deletion_timestamp is None and (not phase or pod is not driver):
                    with suppress(NotFound):
                        await self._cluster.delete(PODS, pod.metadata.name, key[0], uid=pod.metadata.uid)
        else:
            self.started.setdefault(key, datetime.now(UTC))
            for name, body in _wanted(run).items():
                if name not in pods:
                    with suppress(AlreadyExists):
                        await self._cluster.create(PODS, body, key[0])
        active = sum(p.status.phase not in ("Succeeded", "Failed") for p in pods.values())
        if (phase, active) != (run.status.phase, run.status.active):
            patch = {"status": {"phase": phase, "active": active}}
            with suppress(NotFound):
                await self._cluster.patch(RUNS, key[1], key[0], patch=patch, subresource="status")


def _run_of(pod: Pod) -> str:
    found = KIND.member(pod)
    return found.job if found is not None else ""


def _wanted(run: TrainingRun) -> dict[str, dict[str, Any]]:
    meta = run.metadata
    owner = OwnerReference(api_version=RUNS.api_version, kind=RUNS.kind, name=meta.name, uid=meta.uid, controller=True)
    pods = {}
    for group_name, group in run.spec.groups.items():
        for i in range(group.replicas):
            name, made = f"{run.metadata.name}-{group_name}-{i}", msgspec.to_builtins(group.template)
            labels = {**made["metadata"].get("labels", {}), INDEX: str(i)}
            metadata = {
                **made["metadata"],
                "name": name,
                "labels": labels,
                "ownerReferences": [msgspec.to_builtins(owner)],
            }
            container = {**made["spec"]["containers"][0], "image": "train"}
            pods[name] = {"metadata": metadata, "spec": {**made["spec"], "containers": [container]}}
    return pods


# --- the stories


def run(name: str, workers: int, *, seconds: float | None = None, **spec: Any) -> dict[str, Any]:
    """A driver with a node of its own and workers of one node each, all in one rack where that can be."""
    driver = {names.PREFERRED_TOPOLOGY: RACK, **({names.RUN_SECONDS: str(seconds)} if seconds is not None else {})}
    container = {"name": "train", "resources": {"requests": {GPU: "8"}, "limits": {GPU: "8"}}}

    def group(replicas: int, annotations: dict[str, str]) -> dict[str, Any]:
        pod_spec = {"restartPolicy": "Never", "containers": [container]}
        return {"replicas": replicas, "template": {"metadata": {"annotations": annotations}, "spec": pod_spec}}

    groups = {"driver": group(1, driver), "worker": group(workers, {names.PREFERRED_TOPOLOGY: RACK})}
    body = {"metadata": {"name": name, "labels": {names.QUEUE_NAME: "main"}}, "spec": {"groups": groups, **spec}}
    mutate(RUNS, "CREATE", body, kinds=[KIND])
    return body


embedded = pytest.mark.parametrize("arena", ["embedded"], indirect=True)


@pytest.fixture
async def runs(arena: Arena) -> AsyncIterator[RunController]:
    cluster = arena.cluster
    assert isinstance(cluster, EmbeddedCluster)
    cluster.add_kind(RUNS, DEFINITION)
    controller = RunController(cluster)
    await controller.start()
    yield controller
    for each in (await cluster.list(RUNS, arena.namespace)).items:
        await cluster.delete(RUNS, each.metadata.name, arena.namespace)
    await controller.stop()


async def until_bound(arena: Arena, name: str, workers: int) -> Workload:
    """Waits until all pods are on the nodes of the plan, by rank, and returns the Workload."""
    expected = {f"{name}-driver-0": "driver", **{f"{name}-worker-{i}": "worker" for i in range(workers)}}

    async def bound() -> dict[str, str]:
        there = {p.metadata.name: p.spec.node_name for p in (await arena.cluster.list(PODS, arena.namespace)).items}
        found = {pod: node for pod, node in there.items() if pod in expected and node}
        return found if found.keys() == expected.keys() else {}

    nodes = await arena.until(bound, hint=f"pods of {name} bound")
    workload = await arena.workload(name)
    assert workload is not None
    owner = workload.metadata.controller
    assert owner is not None
    assert (owner.api_version, owner.kind) == (RUNS.api_version, RUNS.kind)
    assert arena.controller is not None
    plan = placed(workload)
    assert {p: len(places) for p, places in plan.items()} == {"driver": 1, "worker": workers}
    assert nodes == {pod: plan[pod_set][int(pod.rsplit("-", 1)[1])] for pod, pod_set in expected.items()}
    assert len(set(nodes.values())) == len(nodes)
    return workload


def placed(workload: Workload) -> dict[str, list[str]]:
    """Pod set → the node of each rank."""
    return {name: [values[-1] for values in plan.places] for name, plan in plans(workload).items()}


async def finished(arena: Arena, name: str) -> None:
    condition = await arena.until_condition(name, WorkloadCondition.FINISHED)
    assert (condition.reason, condition.message) == ("Succeeded", "the driver has succeeded")


@embedded
async def test_it_is_queued_admitted_bound_and_finished(arena: Arena, runs: RunController) -> None:
    """Two of six nodes each: the second waits for the first."""
    await arena.set_up_queue(nominal=48)
    controller = await arena.start(kinds=[KIND, *KINDS])
    await arena.cluster.create(RUNS, run("first", 3, seconds=0.3), arena.namespace)
    first = await until_bound(arena, "first", 3)
    assert [(p.name, p.count) for p in first.spec.pod_sets] == [("driver", 1), ("worker", 3)]
    await arena.cluster.create(RUNS, run("second", 4, seconds=0.3), arena.namespace)
    told = report(
        controller.state.job_owner((RUNS, (arena.namespace, "first"))), first, controller.state.gangs[first.key], None
    )
    assert (told.kind, told.job) == ("TrainingRun", f"{arena.namespace}/first")
    await finished(arena, "first")
    await until_bound(arena, "second", 4)
    await finished(arena, "second")
    await arena.until_free()


@embedded
async def test_it_is_evicted_for_another_kind_of_job_and_resumed(arena: Arena, runs: RunController) -> None:
    await arena.set_up_queue(nominal=40)
    preemption = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await arena.cluster.patch(CLUSTER_QUEUES, arena.queue, patch={"spec": preemption})
    await arena.make_priority_class("high", 10)
    await arena.start(kinds=[KIND, *KINDS])
    await arena.cluster.create(RUNS, run("low", 4), arena.namespace)
    before = await until_bound(arena, "low", 4)
    uids = {p.metadata.uid for p in (await arena.cluster.list(PODS, arena.namespace)).items}
    high = job("high", 2, seconds=0.3, labels={names.PRIORITY_CLASS: arena.scoped("high")})
    await arena.submit(high)
    await arena.until_condition("high", WorkloadCondition.FINISHED)
    await arena.until_condition("low", WorkloadCondition.EVICTED, "False", text="Previously: Preempted")
    after = await until_bound(arena, "low", 4)
    assert after.metadata.uid == before.metadata.uid
    again = [p for p in (await arena.cluster.list(PODS, arena.namespace)).items if "low" in p.metadata.name]
    assert not uids & {p.metadata.uid for p in again}
    assert Counter(p.metadata.labels[names.POD_SET] for p in again) == {"driver": 1, "worker": 4}
    # What the first start added was taken off again by the second.
    resumed = await arena.cluster.get(RUNS, "low", arena.namespace)
    assert {p.template.spec.node_selector.get("pool") for p in KIND.pod_sets(resumed)[0]} == {None}


@embedded
async def test_it_says_when_it_wants_to_be_looked_at_again(arena: Arena, runs: RunController) -> None:
    """Nothing happens to it between its admission and its time to start."""
    await arena.set_up_queue(nominal=40)
    await arena.start(kinds=[KIND, *KINDS])
    start = datetime.now(UTC) + timedelta(seconds=0.5)
    await arena.cluster.create(RUNS, run("later", 2, seconds=0.1, notBefore=start.isoformat()), arena.namespace)
    await finished(arena, "later")
    assert runs.started[arena.namespace, "later"] >= start


@embedded
async def test_its_definition_may_come_later(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "LOOK_FOR_KIND", 0.1)
    cluster = arena.cluster
    assert isinstance(cluster, EmbeddedCluster)
    await arena.set_up_queue(nominal=40)
    await arena.start(kinds=[KIND, *KINDS])
    await arena.submit(job("other", 1))
    await arena.until_running("other", 1)
    cluster.add_kind(RUNS, DEFINITION)
    await cluster.create(RUNS, run("late", 2), arena.namespace)
    await arena.until_condition("late", WorkloadCondition.ADMITTED)
    await cluster.delete(RUNS, "late", arena.namespace)

    async def gone() -> bool:
        return all(w.metadata.name.startswith("job-") for w in (await cluster.list(WORKLOADS, arena.namespace)).items)

    await arena.until(gone)


def test_the_webhook_takes_it_in_on_a_path_of_its_own() -> None:
    registered = webhook.registration(Webhook(), b"ca", "https://here:1", [KIND, *KINDS])["webhooks"]
    assert [(w["name"], w["clientConfig"]["url"]) for w in registered] == [
        ("trainingrun.serried.io", "https://here:1/mutate-example-com-v1-trainingrun"),
        ("job.serried.io", "https://here:1/mutate-batch-v1-job"),
    ]
    assert registered[0]["rules"][0]["resources"] == ["trainingruns"]
