"""What the controller knows: the objects it watches, who belongs to whom, and which owners want another look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from serried.api import names, resources
from serried.api.core import LimitRange, Node, Pod, PriorityClass, RuntimeClass, Toleration
from serried.api.coscheduling import CoschedulingPodGroup
from serried.api.kueue import PodSet, ResourceFlavor, Workload, WorkloadPriorityClass, WorkloadSpec, WorkloadStatus
from serried.api.meta import Key, Object, OwnerReference, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import WORKLOADS, Resource
from serried.gang.membership import Gang, Stage, completion_index, member, workload_of
from serried.jobs import KINDS, handover
from serried.jobs.adjust import adjusted
from serried.jobs.kind import JobKind, Membership
from serried.lifecycle.actions import Next
from serried.lifecycle.index import Index
from serried.lifecycle.owner import JobOwner, Nobody
from serried.lifecycle.reconcile import Run, next_steps
from serried.model import schedulable
from serried.model.nodes import same_for_placement
from serried.model.storage import StorageObject
from serried.schedule.engine import Engine

T = TypeVar("T", bound=Object)
V = TypeVar("V")

#: Names an owner: a job by its kind's resource, or WORKLOADS and the Workload that nobody owns.
OwnerKey = tuple[Resource[Any], Key]

_NO_GANG = Gang()


class ClusterState:
    """Objects by kind and key, with the links between owners, Workloads and gangs.

    Every change comes through one of the handlers of `feeds`, which also tell the engine and mark the owners that it
    concerns. It is the `ClusterView` of their next steps.

    Arguments:
        mark: this owner wants a look.
        kinds: the kinds of jobs that are queued.
    """

    def __init__(self, engine: Engine, mark: Callable[[OwnerKey], None], kinds: Sequence[JobKind[Any]] = KINDS) -> None:
        self.engine = engine
        self._mark = mark
        self.kinds = tuple(kinds)
        self._kinds = {kind.resource: kind for kind in kinds}
        self._by_owner_kind = {(k.resource.api_version, k.resource.kind): k for k in kinds}
        self._jobs: dict[OwnerKey, Object] = {}
        self.workloads: dict[Key, Workload] = {}
        self.pod_groups: dict[Key, CoschedulingPodGroup] = {}
        self._flavors: dict[Key, ResourceFlavor] = {}
        self._workload_priority_classes: dict[Key, WorkloadPriorityClass] = {}
        self._priority_classes: dict[Key, PriorityClass] = {}
        #: namespace → name → LimitRange
        self._limit_ranges: dict[str, dict[Key, LimitRange]] = {}
        self._runtime_classes: dict[str, RuntimeClass] = {}
        #: gang of each Workload that has pods
        self.gangs: dict[Key, Gang] = {}
        #: Workloads whose gang has changed since their PodGroup was last written
        self.changed_gangs: set[Key] = set()
        #: … and of which pods wait for a node, or for kube-scheduler to bind them
        self._assembling: set[Key] = set()
        #: jobs whose Workload was deleted: perhaps because they are gone, which their watch has not brought yet
        self.possibly_deleted: set[OwnerKey] = set()
        #: jobs that are to be queued, have not ended, and have no Workload
        self._unqueued: set[OwnerKey] = set()
        #: owner → names of its live pods that no start of ours made
        self._unplanned: Index[OwnerKey, str] = Index()
        #: owner → keys of the Workloads that name it as their controller
        self._workloads_of: Index[OwnerKey, Key] = Index()
        self._workloads_in: Index[str, Key] = Index()  # namespace → …
        self._workloads_with: Index[str, Key] = Index()  # RuntimeClass that their pods name → …

    # --- questions about owners

    def next_steps(self, key: OwnerKey, now: datetime) -> Next:
        """What is to be written for this owner now, and when to look at it again."""
        if key[0] is WORKLOADS:
            found = self.workloads.get(key[1])
            if found is None or self.owner_of(found) is not None:
                return Next()
            return next_steps(Nobody(found), self._run(key[1], [key[1]]), self, now)
        owner = self.job_owner(key)
        named = set(self._workloads_of[key])
        if owner is None or owner.job.metadata.deletion_timestamp is not None:
            return next_steps(None, self._run(None, named), self, now)
        own = (key[1][0], owner.workload_name)
        return next_steps(owner, self._run(own, named | {own}), self, now)

    def job_owner(self, key: OwnerKey | None) -> JobOwner | None:
        """The job of this name with what is known of it, if there is one."""
        job = self._jobs.get(key) if key is not None else None
        if key is None or job is None:
            return None
        kind = self._kinds[key[0]]
        return JobOwner(kind, job, self._is_managed(kind, job), len(self._unplanned[key]))

    def _is_managed(self, kind: JobKind[Any], job: Object) -> bool:
        """Whether it is to be queued: one that another job has made runs on what that one is given."""
        if not kind.is_managed(job):
            return False
        parent = self._owner_key(job.metadata.namespace, job.metadata.controller)
        found = self._jobs.get(parent) if parent is not None else None
        return parent is None or found is None or not self._kinds[parent[0]].is_managed(found)

    def _run(self, own: Key | None, workloads: Iterable[Key]) -> Run:
        found = [self.workloads[key] for key in sorted(workloads) if key in self.workloads]
        if own is None:
            return Run(found)
        return Run(found, self.gangs.get(own, _NO_GANG), own in self.pod_groups)

    def owner_of(self, workload: Workload) -> OwnerKey | None:
        """The job that the Workload names as its controller; None: it is nobody's that Serried knows."""
        return self._owner_key(workload.metadata.namespace, workload.metadata.controller)

    def _owner_key(self, namespace: str, owner: OwnerReference | None) -> OwnerKey | None:
        kind = self._by_owner_kind.get((owner.api_version, owner.kind)) if owner is not None else None
        return (kind.resource, (namespace, owner.name)) if kind is not None and owner is not None else None

    # --- the handlers of the kinds that take part; the others only feed the engine

    def _on_job(self, kind: JobKind[Any], old: Object | None, new: Object | None) -> None:
        key: OwnerKey = (kind.resource, _key(old, new))
        if new is None:
            self._jobs.pop(key, None)
            self.possibly_deleted.discard(key)
        else:
            self._jobs[key] = new
        self._note_unqueued(key)
        self._mark(key)

    def _note_unqueued(self, key: OwnerKey) -> None:
        job, kind = self._jobs.get(key), self._kinds[key[0]]
        if job is None or self._workloads_of[key]:
            self._unqueued.discard(key)
        elif self._is_managed(kind, job) and kind.outcome(job, _NO_GANG) is None:
            self._unqueued.add(key)
        else:
            self._unqueued.discard(key)

    def _mark_unqueued(self) -> None:
        for key in list(self._unqueued):
            self._mark(key)

    def _on_workload(self, old: Workload | None, new: Workload | None) -> None:
        key = _key(old, new)
        before = self.owner_of(old) if old is not None else None
        after = self.owner_of(new) if new is not None else None
        self._workloads_of.move(key, _some(before), _some(after))
        self._workloads_in.move(key, [key[0]] if old is not None else (), [key[0]] if new is not None else ())
        self._workloads_with.move(key, _runtime_classes(old), _runtime_classes(new))
        for owner in _some(before, after):
            self._note_unqueued(owner)
            self._mark(owner)
        if new is None:
            self.workloads.pop(key, None)
            self.engine.delete_workload(key)
            if before is None:
                self._mark_unqueued()  # one of them may have waited for its name
            elif before in self._jobs:
                self.possibly_deleted.add(before)
            return
        self.workloads[key] = new
        self._tell_engine(new)
        if after is None and (key in self.gangs or condition_is(new.status.conditions, WorkloadCondition.EVICTED)):
            self._mark((WORKLOADS, key))

    def _tell_engine(self, workload: Workload) -> None:
        """The Workload as its pods will be when the API server creates them."""
        limit_ranges = list(self._limit_ranges.get(workload.metadata.namespace, {}).values())
        pod_sets, problems = adjusted(workload.spec.pod_sets, limit_ranges, self._runtime_classes)
        if any(a is not b for a, b in zip(pod_sets, workload.spec.pod_sets, strict=True)):
            spec = msgspec.structs.replace(workload.spec, pod_sets=pod_sets)
            workload = msgspec.structs.replace(workload, spec=spec)
        self.engine.set_workload(workload, problems)

    def _tell_engine_again(self, workloads: Iterable[Key]) -> None:
        """What pods will get has changed. Those that hold quota keep what they were admitted with."""
        for key in list(workloads):
            if self.workloads[key].status.admission is None:
                self._tell_engine(self.workloads[key])

    def _on_limit_range(self, old: LimitRange | None, new: LimitRange | None) -> None:
        namespace = _key(old, new)[0]
        _store(self._limit_ranges.setdefault(namespace, {}), old, new)
        if old is None or new is None or old.spec != new.spec:
            self._tell_engine_again(self._workloads_in[namespace])

    def _on_runtime_class(self, old: RuntimeClass | None, new: RuntimeClass | None) -> None:
        name = _key(old, new)[1]
        if new is None:
            self._runtime_classes.pop(name, None)
        else:
            self._runtime_classes[name] = new
        if old is None or new is None or (old.overhead, old.scheduling) != (new.overhead, new.scheduling):
            self._tell_engine_again(self._workloads_with[name])

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        key = _key(old, new)
        if new is None:
            self.engine.delete_pod(key)
        else:
            self.engine.set_pod(new)
        of_old, of_new = self._membership(old), self._membership(new)
        self._note_unplanned(key[1], _unplanned(old, of_old), _unplanned(new, of_new))
        before = workload_of(old) if old is not None else None
        after = workload_of(new) if new is not None else None
        if before is not None and before != after and (gang := self.gangs.get(before)) is not None:
            gang.remove(key[1])
            if not gang.members:
                del self.gangs[before]
        if new is not None and after is not None:
            rank = of_new[1].rank if of_new is not None else completion_index(new)
            self.gangs.setdefault(after, Gang()).set(member(new, rank))
        for workload in _some(before, after):
            self.changed_gangs.add(workload)
            self._note_assembling(workload)
            self._mark_owner(workload)

    def _membership(self, pod: Pod | None) -> tuple[OwnerKey, Membership] | None:
        """The job that the pod belongs to, by the first kind that claims it."""
        if pod is not None:
            for kind in self._kinds.values():
                if (found := kind.member(pod)) is not None:
                    return (kind.resource, (pod.metadata.namespace, found.job)), found
        return None

    def _note_unplanned(self, pod: str, before: OwnerKey | None, after: OwnerKey | None) -> None:
        self._unplanned.move(pod, _some(before), _some(after))
        for owner in _some(before, after):
            self._mark(owner)

    def _note_assembling(self, workload: Key) -> None:
        gang = self.gangs.get(workload)
        if gang is not None and (gang.waiting or gang.counts[Stage.RELEASED]):
            self._assembling.add(workload)
        else:
            self._assembling.discard(workload)

    def _mark_owner(self, workload: Key) -> None:
        if (found := self.workloads.get(workload)) is not None:
            self._mark(self.owner_of(found) or (WORKLOADS, workload))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        """A node that closes (gone, not ready, cordoned, tainted) may be in the plan of a gang not yet bound."""
        if new is None:
            self.engine.delete_node(_key(old, new)[1])
        else:
            self.engine.set_node(new)
        if old is None or (new is not None and same_for_placement(old, new)):
            return
        for key in self._assembling:
            self._mark_owner(key)

    def _on_pod_group(self, old: CoschedulingPodGroup | None, new: CoschedulingPodGroup | None) -> None:
        _store(self.pod_groups, old, new)
        key = _key(old, new)
        if new is None:
            self._mark_owner(key)
        else:
            self.changed_gangs.add(key)

    def _on_flavor(self, old: ResourceFlavor | None, new: ResourceFlavor | None) -> None:
        _store(self._flavors, old, new)
        if new is None:
            self.engine.delete_flavor(_key(old, new)[1])
        else:
            self.engine.set_flavor(new)

    def _on_workload_priority_class(self, old: WorkloadPriorityClass | None, new: WorkloadPriorityClass | None) -> None:
        _store(self._workload_priority_classes, old, new)
        self._mark_unqueued()

    def _on_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        _store(self._priority_classes, old, new)
        self._mark_unqueued()

    def _on_storage(self, old: StorageObject | None, new: StorageObject | None) -> None:
        if new is not None:
            self.engine.set_storage(new)
        elif old is not None:
            self.engine.delete_storage(old)

    # --- ClusterView

    def flavor(self, name: str) -> ResourceFlavor | None:
        return self._flavors.get(("", name))

    def runtime_class(self, name: str) -> RuntimeClass | None:
        return self._runtime_classes.get(name)

    def workload_priority_class(self, name: str) -> WorkloadPriorityClass | None:
        return self._workload_priority_classes.get(("", name))

    def priority_class(self, name: str) -> PriorityClass | None:
        if name:
            return self._priority_classes.get(("", name))
        return next((c for c in self._priority_classes.values() if c.global_default), None)

    def node_of(self, host: str) -> str | None:
        return self.engine.world.node_of(host)

    def is_schedulable(self, levels: Sequence[str], values: Sequence[str], tolerations: Sequence[Toleration]) -> bool:
        return schedulable.is_schedulable(self.engine.world, levels, values, tolerations)

    def left_to_kube_scheduler(self, pod_sets: Sequence[PodSet], namespace: str) -> str:
        return handover.left_to_kube_scheduler(pod_sets, namespace, self.engine.world.storage)

    def overbooked(self, workload: Key) -> Collection[str]:
        return schedulable.overbooked(self.engine.world, workload)

    # --- what is watched

    def feeds(self) -> list[tuple[Resource[Any], Callable[[Any, Any], None]]]:
        """Each watched kind with what takes its changes (old, new), in an order in which they may first be listed."""
        engine = self.engine
        named = _by_name
        return [
            (resources.TOPOLOGIES, named(engine.set_topology, engine.delete_topology)),
            (resources.RESOURCE_FLAVORS, self._on_flavor),
            (resources.NODES, self._on_node),
            (
                resources.NAMESPACES,
                named(lambda n: engine.set_namespace(n.metadata.name, n.metadata.labels), engine.delete_namespace),
            ),
            *((each, self._on_storage) for each in resources.STORAGE),
            (resources.ADMISSION_CHECKS, named(engine.set_admission_check, engine.delete_admission_check)),
            (resources.COHORTS, named(engine.set_cohort, engine.delete_cohort)),
            (resources.CLUSTER_QUEUES, named(engine.set_cluster_queue, engine.delete_cluster_queue)),
            (resources.LOCAL_QUEUES, _by_key(engine.set_local_queue, engine.delete_local_queue)),
            (resources.LIMIT_RANGES, self._on_limit_range),
            (resources.RUNTIME_CLASSES, self._on_runtime_class),
            (resources.WORKLOAD_PRIORITY_CLASSES, self._on_workload_priority_class),
            (resources.PRIORITY_CLASSES, self._on_priority_class),
            (WORKLOADS, self._on_workload),
            (resources.PODS, self._on_pod),
            (resources.COSCHEDULING_POD_GROUPS, self._on_pod_group),
            *((kind.resource, partial(self._on_job, kind)) for kind in self._kinds.values()),
        ]


def kept(workload: Workload) -> Workload:
    """Of a finished Workload only what says whose it is and that it is over: there may be many thousands of them."""
    done = find_condition(workload.status.conditions, WorkloadCondition.FINISHED)
    if done is None or done.status != "True":
        return workload
    return msgspec.structs.replace(
        workload, spec=WorkloadSpec(queue_name=workload.spec.queue_name), status=WorkloadStatus(conditions=(done,))
    )


def _unplanned(pod: Pod | None, of: tuple[OwnerKey, Membership] | None) -> OwnerKey | None:
    """The job that a live pod belongs to although no start of ours made it."""
    if pod is None or of is None or names.WORKLOAD in pod.metadata.annotations:
        return None
    live = pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")
    return of[0] if live else None


def _runtime_classes(workload: Workload | None) -> set[str]:
    return {c for p in workload.spec.pod_sets if (c := p.template.spec.runtime_class_name)} if workload else set()


def _some(*values: V | None) -> set[V]:
    return {value for value in values if value is not None}


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
