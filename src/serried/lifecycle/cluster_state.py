"""What the controller knows: the objects it watches, who belongs to whom, and which Jobs want another look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from serried.api import names, resources
from serried.api.batch import Job
from serried.api.core import LimitRange, Node, Pod, PriorityClass, RuntimeClass
from serried.api.coscheduling import CoschedulingPodGroup
from serried.api.kueue import ResourceFlavor, Workload, WorkloadPriorityClass, WorkloadSpec, WorkloadStatus
from serried.api.meta import Key, Object, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import Resource
from serried.gang.membership import Gang, Stage, member, workload_of
from serried.jobs import job as jobs
from serried.jobs.adjust import adjusted
from serried.jobs.podset import workload_name
from serried.lifecycle.reconcile import View
from serried.model.nodes import same_for_placement
from serried.model.schedulable import is_schedulable, overbooked
from serried.schedule.engine import Engine

T = TypeVar("T", bound=Object)


class ClusterState:
    """Objects by kind and key, with the links between Jobs, Workloads and gangs.

    Every change comes through `set` or `delete`, which also tell the engine and mark the Jobs that it concerns.
    """

    def __init__(self, engine: Engine, mark: Callable[[Key], None], mark_workload: Callable[[Key], None]) -> None:
        self.engine = engine
        self._mark = mark
        self._mark_workload = mark_workload  # one that no Job owns
        self.jobs: dict[Key, Job] = {}
        self.workloads: dict[Key, Workload] = {}
        self.pod_groups: dict[Key, CoschedulingPodGroup] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self.workload_priority_classes: dict[Key, WorkloadPriorityClass] = {}
        self.priority_classes: dict[Key, PriorityClass] = {}
        #: namespace → name → LimitRange
        self.limit_ranges: dict[str, dict[str, LimitRange]] = {}
        self.runtime_classes: dict[str, RuntimeClass] = {}
        #: gang of each Workload that has pods
        self.gangs: dict[Key, Gang] = {}
        #: Workloads whose gang has changed since their PodGroup was last written
        self.changed_gangs: set[Key] = set()
        #: (namespace, Job name) → names of its live pods that no start of ours made
        self._unplanned: defaultdict[Key, set[str]] = defaultdict(set)
        #: Jobs whose Workload was deleted: perhaps because they are gone, which their watch has not brought yet
        self.possibly_deleted: set[Key] = set()
        #: (namespace, Job name) → keys of the Workloads that name it as their owner
        self._workloads_of: defaultdict[Key, set[Key]] = defaultdict(set)

    def view(self, key: Key) -> View:
        """Everything that the next step of this Job depends on."""
        job = self.jobs.get(key)
        workloads = set(self._workloads_of.get(key, ()))
        if job is not None:
            workloads.add((key[0], workload_name(jobs.KIND, key[1], job.metadata.uid)))
        found = [self.workloads[k] for k in sorted(workloads) if k in self.workloads]
        return self._view(job, found, unplanned_pods=len(self._unplanned.get(key, ())))

    def _view(self, job: Job | None, workloads: Sequence[Workload], unplanned_pods: int = 0) -> View:
        return View(
            job=job,
            workloads=workloads,
            unplanned_pods=unplanned_pods,
            gangs=self.gangs,
            pod_groups=self.pod_groups,
            flavors=self.flavors,
            workload_priority_classes=self.workload_priority_classes,
            priority_classes=self.priority_classes,
            runtime_classes=self.runtime_classes,
            node_of=self.engine.world.node_of,
            is_schedulable=partial(is_schedulable, self.engine.world),
            overbooked=partial(overbooked, self.engine.world),
        )

    def view_of_workload(self, key: Key) -> View:
        """The same for a Workload that no Job owns; without it when it is gone, or a Job's."""
        found = self.workloads.get(key)
        return self._view(None, [] if found is None or self.job_of(found) is not None else [found])

    def job_of(self, workload: Workload) -> Key | None:
        owner = workload.metadata.controller
        return (workload.metadata.namespace, owner.name) if jobs.is_owner(owner) else None

    # --- one method for each kind that takes part; the others only feed the engine

    def on_job(self, old: Job | None, new: Job | None) -> None:
        key = _key(old, new)
        if new is None:
            self.jobs.pop(key, None)
            self.possibly_deleted.discard(key)
        else:
            self.jobs[key] = new
        self._mark(key)

    def on_workload(self, old: Workload | None, new: Workload | None) -> None:
        key = _key(old, new)
        if old is not None and (job := self.job_of(old)) is not None:
            self._workloads_of[job].discard(key)
            if not self._workloads_of[job]:
                del self._workloads_of[job]
            self._mark(job)
        if new is None:
            self.workloads.pop(key, None)
            self.engine.delete_workload(key)
            owner = self.job_of(old) if old is not None else None
            if owner is None:
                self._mark_without_workload()  # one of them may have waited for its name
            elif owner in self.jobs:
                self.possibly_deleted.add(owner)
            return
        self.workloads[key] = new
        self._tell_engine(new)
        if (job := self.job_of(new)) is not None:
            self._workloads_of[job].add(key)
            self._mark(job)
        elif key in self.gangs or condition_is(new.status.conditions, WorkloadCondition.EVICTED):
            self._mark_workload(key)

    def _tell_engine(self, workload: Workload) -> None:
        """The Workload as its pods will be when the API server creates them."""
        limit_ranges = list(self.limit_ranges.get(workload.metadata.namespace, {}).values())
        pod_sets, problems = adjusted(workload.spec.pod_sets, limit_ranges, self.runtime_classes)
        if any(a is not b for a, b in zip(pod_sets, workload.spec.pod_sets, strict=True)):
            spec = msgspec.structs.replace(workload.spec, pod_sets=pod_sets)
            workload = msgspec.structs.replace(workload, spec=spec)
        self.engine.set_workload(workload, problems)

    def _tell_engine_again(self, concerns: Callable[[Workload], bool]) -> None:
        """What pods will get has changed. Those that hold quota keep what they were admitted with."""
        for workload in list(self.workloads.values()):
            if workload.status.admission is None and concerns(workload):
                self._tell_engine(workload)

    def on_limit_range(self, old: LimitRange | None, new: LimitRange | None) -> None:
        namespace, name = _key(old, new)
        there = self.limit_ranges.setdefault(namespace, {})
        if new is None:
            there.pop(name, None)
        else:
            there[name] = new
        if old is None or new is None or old.spec != new.spec:
            self._tell_engine_again(lambda w: w.metadata.namespace == namespace)

    def on_runtime_class(self, old: RuntimeClass | None, new: RuntimeClass | None) -> None:
        name = _key(old, new)[1]
        if new is None:
            self.runtime_classes.pop(name, None)
        else:
            self.runtime_classes[name] = new
        self._tell_engine_again(lambda w: any(p.template.spec.runtime_class_name == name for p in w.spec.pod_sets))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        key = _key(old, new)
        if new is None:
            self.engine.delete_pod(key)
        else:
            self.engine.set_pod(new)
        self._count_unplanned(old, new)
        before = workload_of(old) if old is not None else None
        after = workload_of(new) if new is not None else None
        if before is not None and before != after and (gang := self.gangs.get(before)) is not None:
            gang.remove(key[1])
            if not gang.members:
                del self.gangs[before]
        if new is not None and after is not None:
            self.gangs.setdefault(after, Gang()).set(member(new))
        for workload in {before, after} - {None}:
            assert workload is not None
            self.changed_gangs.add(workload)
            self._mark_owner(workload)

    def _mark_owner(self, workload: Key) -> None:
        found = self.workloads.get(workload)
        if found is None:
            return
        if (job := self.job_of(found)) is not None:
            self._mark(job)
        else:
            self._mark_workload(workload)

    def _count_unplanned(self, old: Pod | None, new: Pod | None) -> None:
        for pod, there in ((old, False), (new, True)):
            owner = pod.metadata.controller if pod is not None else None
            if pod is None or not jobs.is_owner(owner) or names.WORKLOAD in pod.metadata.annotations:
                continue
            job = (pod.metadata.namespace, owner.name)
            live = pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")
            if there and live:
                self._unplanned[job].add(pod.metadata.name)
            elif pod.metadata.name in self._unplanned.get(job, ()):
                self._unplanned[job].discard(pod.metadata.name)
                if not self._unplanned[job]:
                    del self._unplanned[job]
            self._mark(job)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A node that closes (gone, not ready, cordoned, tainted) may be in the plan of a gang not yet bound."""
        if new is None:
            self.engine.delete_node(_key(old, new)[1])
        else:
            self.engine.set_node(new)
        if old is None or (new is not None and same_for_placement(old, new)):
            return
        for key, gang in self.gangs.items():
            if gang.waiting or gang.counts[Stage.RELEASED]:
                self._mark_owner(key)

    def on_pod_group(self, old: CoschedulingPodGroup | None, new: CoschedulingPodGroup | None) -> None:
        key = _key(old, new)
        if new is None:
            self.pod_groups.pop(key, None)
            self._mark_owner(key)
        else:
            self.pod_groups[key] = new
            self.changed_gangs.add(key)

    def on_flavor(self, old: ResourceFlavor | None, new: ResourceFlavor | None) -> None:
        name = _key(old, new)[1]
        if new is None:
            self.flavors.pop(name, None)
            self.engine.delete_flavor(name)
        else:
            self.flavors[name] = new
            self.engine.set_flavor(new)

    def on_workload_priority_class(self, old: WorkloadPriorityClass | None, new: WorkloadPriorityClass | None) -> None:
        _store(self.workload_priority_classes, old, new)
        self._mark_without_workload()

    def on_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        _store(self.priority_classes, old, new)
        self._mark_without_workload()

    def _mark_without_workload(self) -> None:
        for key in self.jobs:
            if key not in self._workloads_of:
                self._mark(key)

    # --- what is watched

    def feeds(self) -> list[tuple[Resource[Any], Callable[[Any, Any], None]]]:
        """Each watched kind with what takes its changes (old, new), in an order in which they may first be listed."""
        engine = self.engine
        named = _by_name
        return [
            (resources.TOPOLOGIES, named(engine.set_topology, engine.delete_topology)),
            (resources.RESOURCE_FLAVORS, self.on_flavor),
            (resources.NODES, self.on_node),
            (
                resources.NAMESPACES,
                named(lambda n: engine.set_namespace(n.metadata.name, n.metadata.labels), engine.delete_namespace),
            ),
            (resources.ADMISSION_CHECKS, named(engine.set_admission_check, engine.delete_admission_check)),
            (resources.COHORTS, named(engine.set_cohort, engine.delete_cohort)),
            (resources.CLUSTER_QUEUES, named(engine.set_cluster_queue, engine.delete_cluster_queue)),
            (resources.LOCAL_QUEUES, _by_key(engine.set_local_queue, engine.delete_local_queue)),
            (resources.LIMIT_RANGES, self.on_limit_range),
            (resources.RUNTIME_CLASSES, self.on_runtime_class),
            (resources.WORKLOAD_PRIORITY_CLASSES, self.on_workload_priority_class),
            (resources.PRIORITY_CLASSES, self.on_priority_class),
            (resources.WORKLOADS, self.on_workload),
            (resources.PODS, self.on_pod),
            (resources.COSCHEDULING_POD_GROUPS, self.on_pod_group),
            (resources.JOBS, self.on_job),
        ]


def kept(workload: Workload) -> Workload:
    """Of a finished Workload only what says whose it is and that it is over: there may be many thousands of them."""
    done = find_condition(workload.status.conditions, WorkloadCondition.FINISHED)
    if done is None or done.status != "True":
        return workload
    return msgspec.structs.replace(
        workload, spec=WorkloadSpec(queue_name=workload.spec.queue_name), status=WorkloadStatus(conditions=[done])
    )


def _key(old: Object | None, new: Object | None) -> Key:
    thing = new if new is not None else old
    assert thing is not None
    return thing.key


def _store(store: dict[Key, T], old: T | None, new: T | None) -> None:
    if new is None:
        store.pop(_key(old, new), None)
    else:
        store[new.key] = new


def _by_name(
    put: Callable[[Any], object], drop: Callable[[str], object]
) -> Callable[[Object | None, Object | None], None]:
    def change(old: Object | None, new: Object | None) -> None:
        if new is not None:
            put(new)
        else:
            drop(_key(old, new)[1])

    return change


def _by_key(
    put: Callable[[Any], object], drop: Callable[[Key], object]
) -> Callable[[Object | None, Object | None], None]:
    def change(old: Object | None, new: Object | None) -> None:
        if new is not None:
            put(new)
        else:
            drop(_key(old, new))

    return change
