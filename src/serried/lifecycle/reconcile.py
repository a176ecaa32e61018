"""The way of a job, one decision at a time: what is written next, given how everything stands. Pure.

`next_steps` looks at one owner, its Workload and its gang and returns the writes that bring them closer to where they
should be. It reads only what the API server holds, so a controller that starts after a crash goes on where the last
one stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from serried.api import assignment, names
from serried.api.core import Toleration
from serried.api.coscheduling import CoschedulingPodGroup, CoschedulingPodGroupSpec
from serried.api.kueue import PodSet, PodSetAssignment, Workload
from serried.api.meta import ObjectMeta, OwnerReference, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import WORKLOADS
from serried.gang.membership import Gang, Stage
from serried.gang.plan import PodSetPlan, Values, has_place, may_move, moves, on_plan, unschedulable_places
from serried.jobs.kind import NotYet
from serried.jobs.podset import PodSetStart, pod_set_start
from serried.lifecycle import conditions
from serried.lifecycle.actions import (
    Action,
    CreatePodGroup,
    CreateWorkload,
    DeleteWorkload,
    Next,
    PatchWorkload,
    Place,
    Subject,
    Warn,
)
from serried.lifecycle.cluster_view import ClusterView
from serried.lifecycle.owner import Owner

_PLACES_NAMED = 3  # in a message


@dataclass(frozen=True)
class Run:
    """What there is of an owner's Workload and its pods."""

    #: those that name the owner as their controller, or one of its name before it, and whoever has the name that its
    #: own Workload has, or would have
    workloads: Sequence[Workload] = ()
    #: the gang of the Workload of that name
    gang: Gang = field(default_factory=Gang)
    has_pod_group: bool = False


def next_steps(owner: Owner | None, run: Run, cluster: ClusterView, now: datetime) -> Next:
    """The writes that are due for this owner, in order; none when all is as it should be.

    `owner`: None for a job that is gone, or about to go.
    """
    if owner is None:
        return Next([DeleteWorkload(w, "its job is gone") for w in run.workloads if _alive(w)])
    if not owner.is_managed and not any(_runs(owner, w) for w in run.workloads):
        own = [w for w in run.workloads if _alive(w) and owner.owns(w)]
        return Next([DeleteWorkload(w, "its job names no queue any more") for w in own])
    name = owner.workload_name
    strays = [w for w in run.workloads if w.metadata.name != name and not owner.owns(w) and _alive(w)]
    first: list[Action] = [DeleteWorkload(w, "its job was deleted and created anew") for w in strays]
    workload = next((w for w in run.workloads if w.metadata.name == name), None)
    if workload is None:
        return Next([*first, *_enqueue(owner, run.gang, cluster)])
    if not owner.owns(workload):
        text = f"its Workload would be named {name}, but there is one that is not its own; delete that one"
        return Next([*first, *owner.stop("Not admitted", "Suspended"), Warn(owner.subject, "Misconfigured", text)])
    if not _alive(workload):
        return Next(first)
    following = _follow(owner, workload, run, cluster, now)
    return replace(following, actions=[*first, *following.actions])


def _enqueue(owner: Owner, gang: Gang, cluster: ClusterView) -> list[Action]:
    """An owner without a Workload: it is held back, then queued."""
    if owner.outcome(gang) is not None:
        return []
    stop = owner.stop("Suspended until admitted", "Suspended")
    desired = owner.desired(cluster)
    if isinstance(desired, list):
        return [*stop, Warn(owner.subject, "Misconfigured", "; ".join(map(str, desired)))]
    subject, meta = owner.subject, owner.subject.object.metadata
    workload = Workload(
        metadata=ObjectMeta(
            name=owner.workload_name,
            namespace=meta.namespace,
            labels={names.JOB_UID: meta.uid},
            owner_references=(_controller(subject, block=True),),
        ),
        spec=desired,
    )
    left = cluster.left_to_kube_scheduler(desired.pod_sets, meta.namespace)
    event = ("LeftToKubeScheduler", f"kube-scheduler binds its pods: {left}") if left else None
    return [*stop, CreateWorkload(subject, workload, event)]


def _follow(owner: Owner, workload: Workload, run: Run, cluster: ClusterView, now: datetime) -> Next:
    """An owner with its Workload: started when admitted, held when not, its end and its pods' state written down."""
    have, gang = workload.status.conditions, run.gang
    if condition_is(have, WorkloadCondition.FINISHED):
        return Next()
    if (outcome := owner.outcome(gang)) is not None:
        done = conditions.finished(*outcome)
        patch = conditions.status_patch(workload, [done], now)
        return Next([PatchWorkload(workload, patch, event=("FinishedWorkload", done.message))])
    evicted = find_condition(have, WorkloadCondition.EVICTED)
    if evicted is not None and evicted.status == "True" and workload.status.admission is not None:
        return Next(_give_back(owner, workload, gang, evicted.message, now))
    if not condition_is(have, WorkloadCondition.ADMITTED):
        return Next(_hold(owner, workload, cluster))
    if not _assignments(workload):
        return Next()
    if (change := _change(owner, workload)) is not None:
        # What was admitted is not what runs, or will run. Stop, and queue what it is now.
        return Next([*owner.stop(change), DeleteWorkload(workload, f"after its admission: {change}")])
    return _run(owner, workload, run, cluster, now, rerun=evicted is not None)


def _run(owner: Owner, workload: Workload, run: Run, cluster: ClusterView, now: datetime, *, rerun: bool) -> Next:
    """Admitted: it is started, and its pods take their places. `rerun`: it was evicted before."""
    gang, sizes, starting = run.gang, pod_counts(workload), owner.is_suspended
    if without := [p.name for p in owner.pod_sets if p.name not in sizes]:
        text = f"Workload {workload.metadata.name}, status.admission: nothing is assigned to {', '.join(without)}"
        return Next([Warn(owner.subject, "Misconfigured", text)])
    leftovers = rerun and not owner.ends_pods  # pods of its earlier run may still be there
    try:
        # A large plan is not read again with each pod that appears or is bound.
        plan = plans(workload) if starting or leftovers or may_move(gang, sizes) else {}
    except assignment.AssignmentError as error:  # it was not written by us: nothing can be placed by it
        text = f"Workload {workload.metadata.name}, status.admission: {error}"
        return Next([Warn(owner.subject, "Misconfigured", text)])
    if leftovers:
        gang = on_plan(gang, plan, cluster.node_of)
        plan = plan if may_move(gang, sizes) else {}
    if (why := _eviction(workload, gang, plan, cluster, every=starting)) is not None:
        return Next([_evict(workload, *why, now)])
    actions: list[Action] = []
    if starting:
        before = owner.before_start(now)
        if isinstance(before, NotYet):
            return Next(look_again=before.until)
        if before:
            return Next(before)
        actions += owner.start(workload, _starts(owner, workload, cluster), sizes)
    elif owner.unplanned_pods:
        # Somebody resumed it by hand, or its suspension went unnoticed: such pods are in nobody's plan.
        return Next(owner.stop("It has pods that were not placed"))
    actions += _gang_actions(workload, gang, plan, sizes, cluster, now, has_pod_group=run.has_pod_group)
    if problems := _misfits(gang, plan, sizes):
        actions.append(Warn(owner.subject, "Misconfigured", "; ".join(problems)))
    return Next(actions)


def _starts(owner: Owner, workload: Workload, cluster: ClusterView) -> dict[str, PodSetStart]:
    """What the start adds to the pods of each pod set."""
    assigned = {a.name: a for a in _assignments(workload)}
    return {p.name: pod_set_start(workload, assigned[p.name], p.template, cluster.flavor) for p in owner.pod_sets}


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


def _change(owner: Owner, workload: Workload) -> str | None:
    """What the author has changed since the admission, in words. Of a job that runs only the size can be changed."""
    wanted, admitted = owner.pod_sets, workload.spec.pod_sets
    if [(p.name, p.count) for p in wanted] != [(p.name, p.count) for p in admitted]:
        return "its size was changed"
    if owner.is_suspended and _essence(wanted) != _essence(admitted):
        return "its pod template was changed"
    return None


def _eviction(
    workload: Workload, gang: Gang, plan: Mapping[str, PodSetPlan], cluster: ClusterView, *, every: bool
) -> tuple[str, str] | None:
    """Why an admission is taken back, as (reason, message); None: it stands.

    With `every`, before the start, all places of the plan have to be open. A gang that cannot be completed where it was
    planned is planned anew as a whole, also when some of its pods run: without the others they would only wait.
    """
    tolerations = _tolerations(workload, cluster)
    overbooked = cluster.overbooked(workload.key) if plan else ()

    def is_schedulable(pod_set: str, levels: Sequence[str], values: Values) -> bool:
        full = levels[-1] == names.HOSTNAME and values[-1] in overbooked
        return not full and cluster.is_schedulable(levels, values, tolerations.get(pod_set, ()))

    lost = unschedulable_places(gang, plan, is_schedulable, cluster.node_of, every=every)
    if not lost:
        return None
    shown = ", ".join("/".join(values) for values in lost[:_PLACES_NAMED])
    more = f" and {len(lost) - _PLACES_NAMED} more" if len(lost) > _PLACES_NAMED else ""
    return "NodeFailures", (
        f"Pods were planned on {shown}{more}, where they cannot go any more: no node there is ready, not cordoned, "
        "without taints that they do not tolerate and with free capacity for them. The job is placed anew."
    )


def _tolerations(workload: Workload, cluster: ClusterView) -> dict[str, list[Toleration]]:
    """What the pods of each pod set tolerate: by their template, their RuntimeClass, flavors and admission checks."""
    updates = [u for check in workload.status.admission_checks for u in check.pod_set_updates]
    specs = {p.name: p.template.spec for p in workload.spec.pod_sets}
    result = {}
    for a in _assignments(workload):
        if (spec := specs.get(a.name)) is None:
            continue
        tolerations = list(spec.tolerations)
        if spec.runtime_class_name and (found := cluster.runtime_class(spec.runtime_class_name)) is not None:
            tolerations += found.scheduling.tolerations
        for name in set(a.flavors.values()):
            if (flavor := cluster.flavor(name)) is not None:
                tolerations += flavor.spec.tolerations
        tolerations += [t for update in updates if update.name == a.name for t in update.tolerations]
        result[a.name] = tolerations
    return result


def failed_to_start(workload: Workload, error: str, now: datetime) -> Action:
    """The API server refuses the start for good: it is over, and what was reserved for it goes to others."""
    done = conditions.finished(False, f"the API server refuses the start: {error}", "FailedToStart")
    patch = conditions.status_patch(workload, [done], now)
    return PatchWorkload(workload, patch, event=("FinishedWorkload", done.message))


def _evict(workload: Workload, reason: str, message: str, now: datetime) -> Action:
    """Takes the admission back: `_give_back` follows when the condition is seen."""
    patch = conditions.status_patch(workload, [conditions.evicted(reason, message)], now)
    return PatchWorkload(workload, patch, event=(f"EvictedDueTo{reason}", message))


def _give_back(owner: Owner, workload: Workload, gang: Gang, message: str, now: datetime) -> list[Action]:
    """Evicted: it is stopped first, then, with its last pod on the way out, quota and places are given back.

    Pods that nobody ends for us are not waited for, but what is on its way to a node takes it, whoever else would get
    it now.
    """
    if stop := owner.stop(message):
        return stop
    if gang.in_flight or (owner.ends_pods and any(not m.deleting and not m.stage.is_over for m in gang)):
        return []
    return [PatchWorkload(workload, conditions.release_patch(workload, message, now))]


def _hold(owner: Owner, workload: Workload, cluster: ClusterView) -> list[Action]:
    """Not admitted: it stays suspended, and the Workload follows what its author changes meanwhile."""
    stop = owner.stop("Not admitted")
    desired = owner.desired(cluster)
    if isinstance(desired, list):
        return [*stop, Warn(owner.subject, "Misconfigured", "; ".join(map(str, desired)))]
    have, change = workload.spec, dict[str, Any]()
    if desired.priority_class_ref != have.priority_class_ref:  # a priority that was set by hand stays
        change |= {
            "priority": desired.priority,
            "priorityClassRef": msgspec.to_builtins(desired.priority_class_ref),
        }
    if _essence(desired.pod_sets) != _essence(have.pod_sets):
        change["podSets"] = msgspec.to_builtins(desired.pod_sets)
    if desired.queue_name != have.queue_name:
        change["queueName"] = desired.queue_name
    if workload.status.admission is not None and change.keys() & {"podSets", "queueName"}:
        # Its quota is reserved, for other pods or in another queue.
        return [*stop, DeleteWorkload(workload, "after its quota was reserved, its job was changed")]
    if change:
        version = workload.metadata.resource_version
        patch = {"metadata": {"resourceVersion": version}, "spec": change}
        return [*stop, PatchWorkload(workload, patch, status=False, event=("UpdatedWorkload", "Its job was changed"))]
    return stop


def _gang_actions(
    workload: Workload,
    gang: Gang,
    plan: Mapping[str, PodSetPlan],
    sizes: Mapping[str, int],
    cluster: ClusterView,
    now: datetime,
    *,
    has_pod_group: bool,
) -> list[Action]:
    """Pods that take their places, the condition PodsReady, and the PodGroup that shows the gang."""
    actions: list[Action] = []
    size = sum(sizes.values())
    if found := moves(gang, plan, sizes, cluster.node_of):
        actions.append(Place(workload, gang, found))
    ready = gang.counts[Stage.READY] + gang.counts[Stage.SUCCEEDED] >= size
    was = find_condition(workload.status.conditions, WorkloadCondition.PODS_READY)
    if ready != (was is not None and was.status == "True") and (ready or was is not None):
        actions.append(PatchWorkload(workload, conditions.status_patch(workload, [conditions.pods_ready(ready)], now)))
    if not has_pod_group and size > 0:  # last: nothing depends on it
        actions.append(CreatePodGroup(_pod_group(workload, size)))
    return actions


def pod_counts(workload: Workload) -> dict[str, int]:
    """Pod set → how many pods it has: as many as were admitted, which may be fewer than it asked for."""
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


def _essence(pod_sets: Sequence[PodSet]) -> list[object]:
    """What of the pod sets scheduling depends on."""
    return [(p.name, p.count, p.min_count, p.topology_request, p.template.spec) for p in pod_sets]


def _runs(owner: Owner, workload: Workload) -> bool:
    """Whether the owner runs on what this Workload was given: then it stays ours until it is over or suspended."""
    started = not owner.is_suspended and condition_is(workload.status.conditions, WorkloadCondition.ADMITTED)
    return started and _alive(workload) and owner.owns(workload)


def _alive(workload: Workload) -> bool:
    return workload.metadata.deletion_timestamp is None


def _controller(of: Subject, *, block: bool = False) -> OwnerReference:
    """A reference to the object as the controller; with `block`, it is not deleted in the foreground before us."""
    return OwnerReference(
        api_version=of.resource.api_version,
        kind=of.resource.kind,
        name=of.object.metadata.name,
        uid=of.object.metadata.uid,
        controller=True,
        block_owner_deletion=block or None,
    )


def _pod_group(workload: Workload, size: int) -> CoschedulingPodGroup:
    meta = workload.metadata
    return CoschedulingPodGroup(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, owner_references=(_controller(Subject(WORKLOADS, workload)),)
        ),
        spec=CoschedulingPodGroupSpec(min_member=size),
    )
