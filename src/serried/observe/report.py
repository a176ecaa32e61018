"""One report of one job over all layers: how far it is, where it stands still, and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from serried.api.assignment import AssignmentError, decode
from serried.api.kueue import Workload
from serried.api.meta import condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.gang.membership import Gang, Stage
from serried.lifecycle.owner import JobOwner
from serried.lifecycle.reconcile import pod_counts
from serried.schedule.cycle.explain import Explanation
from serried.schedule.types.reasons import Layer, Reason

Progress = Literal["done", "here", "ahead"]


class Step(msgspec.Struct, frozen=True):
    """One layer on the way of a job: passed, where it is now, or still ahead."""

    layer: Layer
    state: Progress
    text: str


class Report(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What `serried explain` says of a job."""

    #: the kind of the job, such as Job, and its namespace/name; "" for Workloads that no job owns
    kind: str = ""
    job: str = ""
    workload: str = ""
    #: the layer it is in, or "" when it is over
    layer: Layer | Literal[""] = ""
    #: one sentence: where it stands and why
    summary: str
    steps: Sequence[Step] = ()
    #: where its pods go, in the order of their ranks: the domains of its plan, with counts above one
    places: Sequence[str] = ()
    explanation: Explanation | None = None


#: The layers a job passes, in order.
_WAY: tuple[Layer, ...] = ("queue", "quota", "topology", "gang", "binding", "start-up", "training")


def report(
    owner: JobOwner | None,
    workload: Workload | None,
    gang: Gang | None,
    reason: Reason | None,
    explanation: Explanation | None = None,
) -> Report:
    """Joins what the queue, the gang and the pods say. `owner` is absent for Workloads that no job owns.

    `reason`: why the Workload waits, if it does.
    """
    kind, name = (owner.kind.resource.kind, "/".join(owner.job.key)) if owner is not None else ("", "")
    if workload is None:
        return msgspec.structs.replace(_without_workload(owner), kind=kind, job=name)
    key = "/".join(workload.key)
    finished = find_condition(workload.status.conditions, WorkloadCondition.FINISHED)
    if finished is not None and finished.status == "True":
        return Report(kind=kind, job=name, workload=key, summary=f"Finished ({finished.reason}): {finished.message}")
    layer, text = _where(owner, workload, gang or Gang(), reason)
    passed = _WAY.index(layer) if layer in _WAY else 0
    steps = [
        Step(each, "done" if i < passed else "here" if i == passed else "ahead", text if i == passed else "")
        for i, each in enumerate(_WAY)
    ]
    places = _places(workload)
    return Report(
        kind=kind,
        job=name,
        workload=key,
        layer=layer,
        summary=text,
        steps=steps,
        places=places,
        explanation=explanation,
    )


def _places(workload: Workload) -> list[str]:
    admission = workload.status.admission
    places: list[str] = []
    for pod_set in admission.pod_set_assignments if admission is not None else ():
        if pod_set.topology_assignment is not None:
            try:
                domains = decode(pod_set.topology_assignment)
            except AssignmentError:  # told elsewhere, as a problem of the admission
                continue
            places += ["/".join(values) + (f" ({count} pods)" if count > 1 else "") for values, count in domains]
    return places


def _without_workload(owner: JobOwner | None) -> Report:
    if owner is None:
        return Report(summary="There is no such job.")
    if not owner.is_managed:
        text = "It names no queue (label kueue.x-k8s.io/queue-name), so it is not Serried's to schedule."
        return Report(summary=text)
    if owner.problems:
        return Report(layer="input", summary="; ".join(map(str, owner.problems)))
    text = "It has no Workload yet: the controller (`serried run`) has not seen it, or says why in an event on the job."
    return Report(layer="queue", summary=text)


def _where(owner: JobOwner | None, workload: Workload, gang: Gang, reason: Reason | None) -> tuple[Layer, str]:
    if not condition_is(workload.status.conditions, WorkloadCondition.ADMITTED):
        if reason is not None:
            return reason.layer, reason.message
        return "queue", "It waits for its first look."
    counts = pod_counts(workload)
    size = sum(counts.values())
    if owner is not None and owner.is_suspended:
        return "gang", "It is admitted; its job is about to be started."
    there = Counter(m.pod_set for m in gang if not m.deleting)
    here = sum(min(count, there[name]) for name, count in counts.items())
    over = gang.counts[Stage.SUCCEEDED] + gang.counts[Stage.FAILED]
    if here < size:
        return "gang", f"{here} of {size} pods exist; the gang is bound when all do."
    if held := gang.counts[Stage.HELD]:
        return "gang", f"{held} of {size} pods are behind a scheduling gate that is not Serried's to open."
    ready = gang.counts[Stage.READY]
    bound = ready + gang.counts[Stage.BOUND] + over
    if bound < size:
        return "binding", f"{bound} of {size} pods are bound to their nodes."
    if ready + over < size:
        return "start-up", f"{ready + over} of {size} pods are ready."
    return "training", f"All {size} pods have been ready; {ready} run, {over} have ended."
