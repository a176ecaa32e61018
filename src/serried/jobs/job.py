"""batch/v1 Job: how it becomes pod sets, and how it is started and stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import msgspec

from serried.api import names
from serried.api.batch import Job
from serried.api.core import PodTemplateMeta, PodTemplateSpec
from serried.api.kueue import PodSet
from serried.api.meta import OwnerReference, condition_is
from serried.api.problem import Problem
from serried.api.resources import JOBS
from serried.jobs.podset import PodSetStart, topology_request

KIND = "Job"
POD_SET_NAME = "main"

#: On a started Job: what the start added to its template, so that the next start takes it off again.
INJECTED = "serried.io/injected"


class _Injected(msgspec.Struct, rename="camel", omit_defaults=True):
    labels: list[str] = []
    annotations: list[str] = []
    node_selector: list[str] = []
    tolerations: int = 0
    gates: list[str] = []
    #: parallelism as its author wrote it and as it was admitted, where that is less
    parallelism: tuple[int, int] | None = None


def is_managed(job: Job) -> bool:
    """Whether this Job is ours to queue: it names a queue and no other controller runs it."""
    return bool(job.metadata.labels.get(names.QUEUE_NAME)) and job.spec.managed_by in (
        "",
        "kubernetes.io/job-controller",
    )


def is_owner(owner: OwnerReference | None) -> TypeGuard[OwnerReference]:
    """Whether this owner is a batch/v1 Job: other APIs have a kind of that name, too."""
    return owner is not None and (owner.kind, owner.api_version) == (KIND, JOBS.api_version)


def queue_name(job: Job) -> str:
    return job.metadata.labels.get(names.QUEUE_NAME, "")


def finished(job: Job) -> tuple[bool, str] | None:
    """None while it runs; afterwards whether it succeeded, and the Job's own message."""
    for condition in job.status.conditions:
        if condition.status == "True" and condition.type in ("Complete", "Failed"):
            return condition.type == "Complete", condition.message
    return None


def pod_count(job: Job) -> int:
    """Pods that its author wants to run at the same time: `parallelism`, or `completions` where that is less."""
    parallelism = _parallelism(job)
    return parallelism if job.spec.completions is None else min(parallelism, job.spec.completions)


def _parallelism(job: Job) -> int:
    """As its author wrote it, also where a start with fewer pods has changed it since."""
    now = 1 if job.spec.parallelism is None else job.spec.parallelism
    injected = _injected(job)
    if injected is not None and injected.parallelism is not None and injected.parallelism[1] == now:
        return injected.parallelism[0]
    return now


def pod_sets(job: Job) -> tuple[list[PodSet], list[Problem]]:
    """The one pod set of a Job, and what in its annotations cannot be read."""
    template = original_template(job)
    index_label = names.COMPLETION_INDEX if job.spec.completion_mode == "Indexed" else None
    request, problems = topology_request(
        template.metadata.annotations, "spec.template.metadata.annotations", index_label
    )
    pod_set = PodSet(name=POD_SET_NAME, template=template, count=pod_count(job), topology_request=request)
    text = job.metadata.annotations.get(names.MIN_PARALLELISM)
    if text is not None:
        least = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if 1 <= least <= pod_set.count:
            pod_set.min_count = least if least < pod_set.count else None
        else:
            field = f"metadata.annotations[{names.MIN_PARALLELISM}]"
            problems.append(Problem(field, repr(text), f"a whole number from 1 to {pod_set.count}, its parallelism"))
    return [pod_set], problems


def original_template(job: Job) -> PodTemplateSpec:
    """The template as its author wrote it: without what a start of ours has added."""
    template = job.spec.template
    injected = _injected(job)
    if injected is None:
        return template
    spec = msgspec.structs.replace(
        template.spec,
        node_selector=_without(template.spec.node_selector, injected.node_selector),
        tolerations=template.spec.tolerations[: len(template.spec.tolerations) - injected.tolerations],
        scheduling_gates=[g for g in template.spec.scheduling_gates if g.name not in injected.gates],
    )
    metadata = PodTemplateMeta(
        labels=_without(template.metadata.labels, injected.labels),
        annotations=_without(template.metadata.annotations, injected.annotations),
    )
    return PodTemplateSpec(metadata=metadata, spec=spec)


def _injected(job: Job) -> _Injected | None:
    """What the last start added; None: nothing, or its note was edited, and the Job is taken as it stands."""
    text = job.metadata.annotations.get(INJECTED)
    try:
        return None if text is None else msgspec.json.decode(text, type=_Injected)
    except msgspec.MsgspecError:
        return None


def may_start(job: Job) -> bool:
    """Whether a suspended Job has come to rest, so that no pod of an earlier run is left when it starts.

    One that was suspended from its creation (generation 1) never ran. Of any other the Job controller has to say that
    it knows: a Job that is resumed before the controller has seen it suspended keeps the pods it has.
    """
    if job.metadata.generation == 1 and job.status.start_time is None:
        return True
    return condition_is(job.status.conditions, "Suspended") and not job.status.active


def start_patch(job: Job, start: PodSetStart, count: int) -> dict[str, Any]:
    """The merge patch that starts a suspended Job: its template with all that `start` adds, and `suspend: false`.

    `count` pods were admitted; where these are fewer than it asked for, that is its parallelism from now on.
    A node selector that the author set himself is kept. Carries the resourceVersion it was computed from.
    """
    template, original = job.spec.template, original_template(job)
    # Fewer pods than it asked for, or as its author wrote it after an earlier start with fewer.
    parallelism = count if count < pod_count(job) else _parallelism(job)
    labels, annotations = original.metadata.labels, original.metadata.annotations
    selector, tolerations = original.spec.node_selector, original.spec.tolerations
    added_tolerations = [t for t in start.tolerations if t not in tolerations]
    gates = [g.name for g in original.spec.scheduling_gates]
    injected = _Injected(
        labels=[k for k in start.labels if k not in labels],
        annotations=[k for k in start.annotations if k not in annotations],
        node_selector=[k for k in start.node_selector if k not in selector],
        tolerations=len(added_tolerations),
        gates=[g for g in start.scheduling_gates if g not in gates],
        parallelism=(_parallelism(job), count) if count < pod_count(job) else None,
    )
    return {
        "metadata": {
            "resourceVersion": job.metadata.resource_version,
            "annotations": {INJECTED: msgspec.json.encode(injected).decode()},
        },
        "spec": {
            "suspend": False,
            "parallelism": parallelism,
            "template": {
                "metadata": {
                    "labels": _merge(template.metadata.labels, {**labels, **start.labels}),
                    "annotations": _merge(template.metadata.annotations, {**annotations, **start.annotations}),
                },
                "spec": {
                    "nodeSelector": _merge(template.spec.node_selector, {**start.node_selector, **selector}),
                    "tolerations": msgspec.to_builtins([*tolerations, *added_tolerations]) or None,
                    "schedulingGates": [{"name": g} for g in [*gates, *injected.gates]] or None,
                },
            },
        },
    }


def stop_patch(job: Job) -> dict[str, Any]:
    """The merge patch that suspends a Job; the Job controller then deletes its pods."""
    return {"metadata": {"resourceVersion": job.metadata.resource_version}, "spec": {"suspend": True}}


def mutate(job: dict[str, Any], *, bind: bool) -> list[dict[str, Any]]:
    """What the webhook does to a Job at its creation, as JSON patch operations; none for Jobs without a queue.

    A Job with a queue starts suspended. With `bind`, pods that would go to the default scheduler are Serried's to bind.
    """
    spec, pod_spec = _within(job, "spec"), _within(job, "spec", "template", "spec")
    if not (_within(job, "metadata", "labels") or {}).get(names.QUEUE_NAME) or spec is None or pod_spec is None:
        return []
    operations: list[dict[str, Any]] = []
    if not spec.get("suspend"):
        operations.append({"op": "add", "path": "/spec/suspend", "value": True})
    scheduler = pod_spec.get("schedulerName", "")
    if bind and scheduler in ("", "default-scheduler"):
        operations.append({"op": "add", "path": "/spec/template/spec/schedulerName", "value": names.SCHEDULER_NAME})
    return operations


def _within(obj: Any, *path: str) -> dict[str, Any] | None:
    """The mapping at this path; None where there is none: what is no Job is for the API server to refuse."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj if isinstance(obj, dict) else None


def _without(mapping: Mapping[str, str], keys: list[str]) -> dict[str, str]:
    return {k: v for k, v in mapping.items() if k not in keys}


def _merge(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch that turns the mapping `now` into `wanted`."""
    return {**{k: None for k in now if k not in wanted}, **wanted}
