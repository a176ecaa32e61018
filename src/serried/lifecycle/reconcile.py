"""The way of a job, one decision at a time: what is written next, given how everything stands. Pure.

`next_steps` looks at one Job, its Workload and its gang and returns the writes that bring them closer to where they
should be. It reads only what the API server holds, so a controller that starts after a crash goes on where the last
one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from serried.api import assignment, names
from serried.api.batch import Job
from serried.api.core import PriorityClass, RuntimeClass, Toleration
from serried.api.coscheduling import CoschedulingPodGroup, CoschedulingPodGroupSpec
from serried.api.kueue import (
    PodSet,
    PodSetAssignment,
    PriorityClassRef,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
    WorkloadSpec,
)
from serried.api.meta import Key, ObjectMeta, OwnerReference, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.problem import Problem
from serried.gang.membership import Gang, Stage
from serried.gang.plan import PodSetPlan, Values, closed_places, has_place, may_move, moves, on_plan
from serried.jobs import job as jobs
from serried.jobs.podset import pod_set_start, workload_name
from serried.lifecycle import conditions
from serried.lifecycle.actions import (
    CreatePodGroup,
    CreateWorkload,
    DeleteWorkload,
    PatchJob,
    PatchWorkload,
    Place,
    Step,
    Warn,
)

_PLACES_NAMED = 3  # in a message


@dataclass(frozen=True)
class View:
    """All that the next step depends on."""

    job: Job | None
    #: those that name this Job as their owner, and whoever has the name that its Workload would have
    workloads: Sequence[Workload]
    #: how many live pods the Job has that no start of ours made
    unplanned_pods: int
    gangs: Mapping[Key, Gang]
    pod_groups: Mapping[Key, CoschedulingPodGroup]
    flavors: Mapping[str, ResourceFlavor]
    workload_priority_classes: Mapping[Key, WorkloadPriorityClass]
    priority_classes: Mapping[Key, PriorityClass]
    runtime_classes: Mapping[str, RuntimeClass]
    #: value of kubernetes.io/hostname → name of the node, None where there is none
    node_of: Callable[[str], str | None]
    #: (levels, values, tolerations) → whether pods with them can still go to that domain
    is_schedulable: Callable[[Sequence[str], Sequence[str], Sequence[Toleration]], bool]
    #: Workload → the hosts on which it holds more than there is
    overbooked: Callable[[Key], Collection[str]]


def next_steps(view: View, now: datetime) -> list[Step]:
    """The writes that are due for this Job, in order. None when all is as it should be."""
    job = view.job
    if job is None or job.metadata.deletion_timestamp is not None:
        named = [w for w in view.workloads if jobs.is_owner(w.metadata.controller)]
        return [DeleteWorkload(w, "its job is gone") for w in named if _alive(w)]
    name = workload_name(jobs.KIND, job.metadata.name, job.metadata.uid)
    if not jobs.is_managed(job) and not any(_runs(job, w) for w in view.workloads):
        mine = [w for w in view.workloads if _alive(w) and _owned_by(w, job)]
        return [DeleteWorkload(w, "its job names no queue any more") for w in mine]
    strays = [w for w in view.workloads if w.metadata.name != name and not _owned_by(w, job) and _alive(w)]
    steps: list[Step] = [DeleteWorkload(w, "its job was deleted and created anew") for w in strays]
    workload = next((w for w in view.workloads if w.metadata.name == name), None)
    if workload is None:
        return steps + _enqueue(job, name, view)
    if not _owned_by(workload, job):
        stop = [] if job.spec.suspend else [PatchJob(job, jobs.stop_patch(job), event=("Suspended", "Not admitted"))]
        text = f"its Workload would be named {name}, but there is one that is not its own; delete that one"
        return [*steps, *stop, Warn(job, "Misconfigured", text)]
    if workload.metadata.deletion_timestamp is not None:
        return steps
    return steps + _follow(job, workload, view, now)


def _enqueue(job: Job, name: str, view: View) -> list[Step]:
    """A Job without a Workload: it is held back, then queued."""
    if jobs.finished(job) is not None:
        return []
    steps: list[Step] = []
    if not job.spec.suspend:
        steps.append(PatchJob(job, jobs.stop_patch(job), event=("Suspended", "Suspended until admitted")))
    pod_sets, problems = jobs.pod_sets(job)
    priority, reference, problem = _priority(job, pod_sets, view)
    if problem is not None:
        problems.append(problem)
    if problems:
        return [*steps, Warn(job, "Misconfigured", "; ".join(map(str, problems)))]
    workload = Workload(
        metadata=ObjectMeta(
            name=name,
            namespace=job.metadata.namespace,
            labels={names.JOB_UID: job.metadata.uid},
            owner_references=[_owner(job)],
        ),
        spec=WorkloadSpec(
            pod_sets=pod_sets, queue_name=jobs.queue_name(job), priority=priority, priority_class_ref=reference
        ),
    )
    return [*steps, CreateWorkload(job, workload)]


def _follow(job: Job, workload: Workload, view: View, now: datetime) -> list[Step]:
    """A Job with its Workload: started when admitted, held when not, its end and its pods' state written down."""
    have = workload.status.conditions
    if condition_is(have, WorkloadCondition.FINISHED):
        return []
    gang = view.gangs.get(workload.key) or Gang()
    if (end := _end(job, gang)) is not None:
        done = conditions.finished(*end)
        patch = conditions.status_patch(workload, [done], now)
        return [PatchWorkload(workload, patch, event=("FinishedWorkload", done.message))]
    evicted = find_condition(have, WorkloadCondition.EVICTED)
    if evicted is not None and evicted.status == "True" and workload.status.admission is not None:
        return _give_back(job, workload, gang, evicted.message, now)
    if not condition_is(have, WorkloadCondition.ADMITTED):
        return _hold(job, workload, view)
    admission = workload.status.admission
    if admission is None or not admission.pod_set_assignments:
        return []
    pod_sets, _ = jobs.pod_sets(job)
    if (change := _change(job, pod_sets, workload)) is not None:
        # What was admitted is not what runs, or will run. Stop, and queue what it is now.
        stop = [] if job.spec.suspend else [PatchJob(job, jobs.stop_patch(job), event=("Stopped", change))]
        return [*stop, DeleteWorkload(workload, f"after its admission: {change}")]
    sizes = _sizes(workload)
    try:
        # A large plan is not read again with each pod that appears or is bound.
        plan = plans(workload) if job.spec.suspend or may_move(gang, sizes) else {}
    except assignment.AssignmentError as error:
        return [_unreadable(job, workload, error)]
    if (why := _eviction(workload, gang, plan, view, every=job.spec.suspend)) is not None:
        return [_evict(workload, *why, now)]
    steps: list[Step] = []
    if job.spec.suspend:
        if view.unplanned_pods or not jobs.may_start(job):
            return []  # pods of an earlier run are still going away
        if job.status.start_time is not None:
            # The API server lets a template change only before the start; the start follows when this is seen.
            return [PatchJob(job, {"status": {"startTime": None}}, status=True)]
        start = pod_set_start(
            workload.metadata.name,
            workload.spec.queue_name,
            admission,
            admission.pod_set_assignments[0],
            view.flavors,
            pod_sets[0].template,
            workload.status.admission_checks,
        )
        event = ("Started", f"Admitted by ClusterQueue {admission.cluster_queue}")
        steps.append(PatchJob(job, jobs.start_patch(job, start, sum(sizes.values())), starts=workload, event=event))
    elif view.unplanned_pods:
        # Somebody resumed it by hand, or its suspension went unnoticed: such pods are in nobody's plan.
        return [PatchJob(job, jobs.stop_patch(job), event=("Stopped", "It has pods that were not placed"))]
    return steps + _gang_steps(workload, gang, plan, sizes, view, now)


def steps_without_job(view: View, now: datetime) -> list[Step]:
    """The writes that are due for the view's Workload, which no Job owns: its maker's pods take their places as a gang.

    They name it in the annotation kueue.x-k8s.io/workload, and their pod set in the label kueue.x-k8s.io/podset. When
    they are made and when they end is their maker's affair, as is the Workload's condition Finished.
    """
    if not view.workloads:
        return []
    (workload,) = view.workloads
    have = workload.status.conditions
    if condition_is(have, WorkloadCondition.FINISHED) or not _alive(workload):
        return []
    gang = view.gangs.get(workload.key) or Gang()
    evicted = find_condition(have, WorkloadCondition.EVICTED)
    if evicted is not None and evicted.status == "True":
        if workload.status.admission is None or gang.in_flight:
            return []  # what is on its way to a node takes it, whoever else would get it now
        return [PatchWorkload(workload, conditions.release_patch(workload, evicted.message, now))]
    if not condition_is(have, WorkloadCondition.ADMITTED):
        return []
    sizes = _sizes(workload)
    try:
        plan = plans(workload) if evicted is not None or may_move(gang, sizes) else {}
    except assignment.AssignmentError as error:
        return [_unreadable(workload, workload, error)]
    if evicted is not None:  # its maker may not have ended the pods of its earlier run
        gang = on_plan(gang, plan, view.node_of)
        plan = plan if may_move(gang, sizes) else {}
    if (why := _eviction(workload, gang, plan, view, every=False)) is not None:
        return [_evict(workload, *why, now)]
    if problems := _misfits(gang, plan, sizes):
        warning = Warn(workload, "Misconfigured", "; ".join(problems))
        return [*_gang_steps(workload, gang, plan, sizes, view, now), warning]
    return _gang_steps(workload, gang, plan, sizes, view, now)


def _misfits(gang: Gang, plan: Mapping[str, PodSetPlan], sizes: Mapping[str, int]) -> list[str]:
    """What is wrong with pods that name the Workload, in words: they would wait for ever without one."""
    problems = []
    if unknown := sorted(gang.present.keys() - sizes.keys()):
        problems.append(
            f"pods name in their label {names.POD_SET} {', '.join(map(repr, unknown))}; "
            f"allowed are the Workload's pod sets: {', '.join(sizes)}"
        )
    if may_move(gang, sizes):
        waiting = [m for name in gang.waiting if (m := gang.members[name]).pod_set in sizes]
        without = sorted({m.pod_set for m in waiting if not has_place(m, plan.get(m.pod_set))})
        if without:
            problems.append(
                f"pods of {', '.join(without)} wait for a node, and the plan has none for them: with schedulerName "
                f"{names.SCHEDULER_NAME}, the Workload's template needs that, too; behind the gate "
                f"{names.TOPOLOGY_GATE}, they need a ResourceFlavor with a topology"
            )
    return problems


def _unreadable(about: Job | Workload, workload: Workload, error: assignment.AssignmentError) -> Warn:
    """A plan that was not written by us: nothing can be placed by it."""
    return Warn(about, "Misconfigured", f"Workload {workload.metadata.name}, status.admission: {error}")


def _change(job: Job, pod_sets: Sequence[PodSet], workload: Workload) -> str | None:
    """What the author has changed since the admission, in words. Of a Job that runs only the size can be changed."""
    if [p.count for p in pod_sets] != [p.count for p in workload.spec.pod_sets]:
        return "its size was changed"
    if job.spec.suspend and _essence(pod_sets) != _essence(workload.spec.pod_sets):
        return "its pod template was changed"
    return None


def _eviction(
    workload: Workload, gang: Gang, plan: Mapping[str, PodSetPlan], view: View, *, every: bool
) -> tuple[str, str] | None:
    """Why an admission is taken back, as (reason, message); None: it stands.

    With `every`, before the start, all places of the plan have to be open. A gang that cannot be completed where it was
    planned is planned anew as a whole, also when some of its pods run: without the others they would only wait.
    """
    flavors = {f for a in _assignments(workload) for f in a.flavors.values()}
    specs = [p.template.spec for p in workload.spec.pod_sets]
    tolerations = [t for spec in specs for t in spec.tolerations]
    classes = [c for spec in specs if (c := view.runtime_classes.get(spec.runtime_class_name)) is not None]
    tolerations += [t for runtime_class in classes for t in runtime_class.scheduling.tolerations]
    tolerations += [t for name in flavors if name in view.flavors for t in view.flavors[name].spec.tolerations]
    updates = [u for check in workload.status.admission_checks for u in check.pod_set_updates]
    tolerations += [t for update in updates for t in update.tolerations]
    overbooked = view.overbooked(workload.key) if plan else ()

    def is_schedulable(levels: Sequence[str], values: Values) -> bool:
        full = levels[-1] == names.HOSTNAME and values[-1] in overbooked
        return not full and view.is_schedulable(levels, values, tolerations)

    closed = closed_places(gang, plan, is_schedulable, view.node_of, every=every)
    if not closed:
        return None
    shown = ", ".join("/".join(values) for values in closed[:_PLACES_NAMED])
    more = f" and {len(closed) - _PLACES_NAMED} more" if len(closed) > _PLACES_NAMED else ""
    return "NodeFailures", (
        f"Pods were planned on {shown}{more}, where they cannot go any more: no node there is ready, not cordoned, "
        "without taints that they do not tolerate and with room for them. The job is placed anew."
    )


def failed_to_start(workload: Workload, error: str, now: datetime) -> Step:
    """The API server refuses the start for good: it is over, and what was reserved for it goes to others."""
    done = conditions.finished(False, f"the API server refuses the start: {error}", "FailedToStart")
    patch = conditions.status_patch(workload, [done], now)
    return PatchWorkload(workload, patch, event=("FinishedWorkload", done.message))


def _evict(workload: Workload, reason: str, message: str, now: datetime) -> Step:
    """Takes the admission back: `_give_back` follows when the condition is seen."""
    patch = conditions.status_patch(workload, [conditions.evicted(reason, message)], now)
    return PatchWorkload(workload, patch, event=(f"EvictedDueTo{reason}", message))


def _give_back(job: Job, workload: Workload, gang: Gang, message: str, now: datetime) -> list[Step]:
    """Evicted: the Job is stopped first, then, with its last pod on the way out, quota and places are given back."""
    if not job.spec.suspend:
        return [PatchJob(job, jobs.stop_patch(job), event=("Stopped", message))]
    if any(not m.deleting and not m.stage.is_over for m in gang):
        return []
    return [PatchWorkload(workload, conditions.release_patch(workload, message, now))]


def _hold(job: Job, workload: Workload, view: View) -> list[Step]:
    """Not admitted: the Job stays suspended, and the Workload follows what its author changes meanwhile."""
    steps: list[Step] = []
    if not job.spec.suspend:
        steps.append(PatchJob(job, jobs.stop_patch(job), event=("Stopped", "Not admitted")))
    pod_sets, problems = jobs.pod_sets(job)
    if problems:
        return [*steps, Warn(job, "Misconfigured", "; ".join(map(str, problems)))]
    priority, reference, problem = _priority(job, pod_sets, view)
    if problem is not None:
        return [*steps, Warn(job, "Misconfigured", str(problem))]
    change: dict[str, Any] = {}
    if reference != workload.spec.priority_class_ref:  # a priority that was set by hand stays
        change |= {"priority": priority, "priorityClassRef": msgspec.to_builtins(reference)}
    if _essence(pod_sets) != _essence(workload.spec.pod_sets):
        change["podSets"] = msgspec.to_builtins(pod_sets)
    if workload.spec.queue_name != jobs.queue_name(job):
        change["queueName"] = jobs.queue_name(job)
    if workload.status.admission is not None and change.keys() & {"podSets", "queueName"}:
        # Its quota is reserved, for other pods or in another queue.
        return [*steps, DeleteWorkload(workload, "after its quota was reserved, its job was changed")]
    if change:
        version = workload.metadata.resource_version
        patch = {"metadata": {"resourceVersion": version}, "spec": change}
        steps.append(PatchWorkload(workload, patch, status=False, event=("UpdatedWorkload", "Its job was changed")))
    return steps


def _gang_steps(
    workload: Workload,
    gang: Gang,
    plan: Mapping[str, PodSetPlan],
    sizes: Mapping[str, int],
    view: View,
    now: datetime,
) -> list[Step]:
    """Pods that take their places, the condition PodsReady, and the PodGroup that shows the gang."""
    steps: list[Step] = []
    size = sum(sizes.values())
    if found := moves(gang, plan, sizes, view.node_of):
        steps.append(Place(workload, gang, found))
    ready = gang.counts[Stage.READY] + gang.counts[Stage.SUCCEEDED] >= size
    was = find_condition(workload.status.conditions, WorkloadCondition.PODS_READY)
    if ready != (was is not None and was.status == "True") and (ready or was is not None):
        steps.append(PatchWorkload(workload, conditions.status_patch(workload, [conditions.pods_ready(ready)], now)))
    if workload.key not in view.pod_groups and size > 0:  # last: nothing depends on it
        steps.append(CreatePodGroup(_pod_group(workload, size)))
    return steps


def _sizes(workload: Workload) -> dict[str, int]:
    """How many pods each of its pod sets has: as many as were admitted, which may be fewer than it asked for."""
    wanted = {p.name: p.count for p in workload.spec.pod_sets}
    return {a.name: wanted.get(a.name, 0) if a.count is None else a.count for a in _assignments(workload)}


def plans(workload: Workload) -> dict[str, PodSetPlan]:
    """The binding plan that the Workload's status holds, for each pod set that has one.

    Raises `AssignmentError` when a topologyAssignment cannot be read.
    """
    result = {}
    for a in _assignments(workload):
        if a.topology_assignment is not None:
            domains = assignment.decode(a.topology_assignment)
            result[a.name] = PodSetPlan.of(a.name, a.topology_assignment.levels, domains)
    return result


def _assignments(workload: Workload) -> Sequence[PodSetAssignment]:
    admission = workload.status.admission
    return admission.pod_set_assignments if admission is not None else ()


def _end(job: Job, gang: Gang) -> tuple[bool, str] | None:
    """Whether it is over. The Job controller may take a second to say so; that all pods have succeeded says it too."""
    if (end := jobs.finished(job)) is not None:
        return end
    completions = job.spec.completions
    if job.spec.suspend:
        # Of a suspended Job, pods that succeed on their way out may count for nothing: only the Job itself knows.
        return None
    if not completions or gang.counts[Stage.SUCCEEDED] < completions:
        return None
    succeeded = [m for m in gang if m.stage is Stage.SUCCEEDED]
    if job.spec.completion_mode == "Indexed" and len({m.rank for m in succeeded}) < completions:
        return None
    return True, ""


def _priority(job: Job, pod_sets: Sequence[PodSet], view: View) -> tuple[int, PriorityClassRef | None, Problem | None]:
    """WorkloadPriorityClass, then the pods' PriorityClass, then the global default, then 0."""
    if name := job.metadata.labels.get(names.PRIORITY_CLASS):
        found = view.workload_priority_classes.get(("", name))
        if found is None:
            field = f"metadata.labels[{names.PRIORITY_CLASS}]"
            return 0, None, Problem(field, repr(name), "the name of a WorkloadPriorityClass that exists")
        return found.value, PriorityClassRef(group="kueue.x-k8s.io", kind="WorkloadPriorityClass", name=name), None
    for pod_set in pod_sets:
        if name := pod_set.template.spec.priority_class_name:
            pod_class = view.priority_classes.get(("", name))
            if pod_class is None:
                field = "spec.template.spec.priorityClassName"
                return 0, None, Problem(field, repr(name), "the name of a PriorityClass that exists")
            return pod_class.value, PriorityClassRef(group="scheduling.k8s.io", kind="PriorityClass", name=name), None
    default = next((c for c in view.priority_classes.values() if c.global_default), None)
    if default is not None:
        return (
            default.value,
            PriorityClassRef(group="scheduling.k8s.io", kind="PriorityClass", name=default.metadata.name),
            None,
        )
    return 0, None, None


def _essence(pod_sets: Sequence[PodSet]) -> list[object]:
    """What of the pod sets scheduling depends on."""
    return [(p.name, p.count, p.min_count, p.topology_request, p.template.spec) for p in pod_sets]


def _runs(job: Job, workload: Workload) -> bool:
    """Whether the Job runs on what this Workload was given: then it stays ours until it is over or suspended."""
    started = not job.spec.suspend and condition_is(workload.status.conditions, WorkloadCondition.ADMITTED)
    return started and _alive(workload) and _owned_by(workload, job)


def _alive(workload: Workload) -> bool:
    return workload.metadata.deletion_timestamp is None


def _owned_by(workload: Workload, job: Job) -> bool:
    owner = workload.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def _owner(job: Job) -> OwnerReference:
    return OwnerReference(
        api_version="batch/v1",
        kind="Job",
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _pod_group(workload: Workload, size: int) -> CoschedulingPodGroup:
    owner = OwnerReference(
        api_version="kueue.x-k8s.io/v1beta2",
        kind="Workload",
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        controller=True,
    )
    return CoschedulingPodGroup(
        metadata=ObjectMeta(
            name=workload.metadata.name, namespace=workload.metadata.namespace, owner_references=[owner]
        ),
        spec=CoschedulingPodGroupSpec(min_member=size),
    )
