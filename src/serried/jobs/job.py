"""batch/v1 Job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from serried.api import names
from serried.api.batch import Job
from serried.api.core import Pod
from serried.api.kueue import PodSet
from serried.api.meta import condition_is
from serried.api.problem import Problem
from serried.api.resources import JOBS
from serried.gang.membership import Gang, Stage, completion_index
from serried.jobs import template
from serried.jobs.kind import Addition, JobKind, Json, Membership, NotYet, Outcome, Patch, queue_name
from serried.jobs.podset import PodSetStart, topology_request

POD_SET_NAME = "main"


class BatchJob(JobKind[Job]):
    """batch/v1 Job: one pod set, `main`; ranks are completion indexes."""

    resource = JOBS

    def is_managed(self, job: Job) -> bool:
        return bool(queue_name(job)) and job.spec.managed_by in ("", "kubernetes.io/job-controller")

    def priority_class(self, job: Job) -> tuple[str, str]:
        return "spec.template.spec.priorityClassName", job.spec.template.spec.priority_class_name

    def pod_sets(self, job: Job) -> tuple[list[PodSet], list[Problem]]:
        author = template.original(job.spec.template, template.read_injected(job).get(POD_SET_NAME))
        index_label = names.COMPLETION_INDEX if job.spec.completion_mode == "Indexed" else None
        request, problems = topology_request(
            author.metadata.annotations, "spec.template.metadata.annotations", index_label
        )
        pod_set = PodSet(name=POD_SET_NAME, template=author, count=_pod_count(job), topology_request=request)
        text = job.metadata.annotations.get(names.MIN_PARALLELISM)
        if text is not None:
            least = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
            if 1 <= least <= pod_set.count:
                pod_set.min_count = least if least < pod_set.count else None
            else:
                field = f"metadata.annotations[{names.MIN_PARALLELISM}]"
                allowed = f"a whole number from 1 to {pod_set.count}, its parallelism"
                problems.append(Problem(field, repr(text), allowed))
        return [pod_set], problems

    def is_suspended(self, job: Job) -> bool:
        return job.spec.suspend

    def suspend(self, job: Job) -> Patch:
        return Patch({"metadata": {"resourceVersion": job.metadata.resource_version}, "spec": {"suspend": True}})

    def before_start(self, job: Job, now: datetime) -> Patch | NotYet | None:
        """It has to have come to rest, so that no pod of an earlier run is left when it starts.

        One that was suspended from its creation (generation 1) never ran. Of any other the Job controller has to say
        that it knows: a Job that is resumed before the controller has seen it suspended keeps the pods it has.
        """
        if job.metadata.generation == 1 and job.status.start_time is None:
            return None
        if not condition_is(job.status.conditions, "Suspended") or job.status.active:
            return NotYet()
        if job.status.start_time is not None:
            # The API server lets a template change only before the start; the start follows when this is seen.
            return Patch({"status": {"startTime": None}}, status=True)
        return None

    def start(self, job: Job, starts: Mapping[str, PodSetStart], counts: Mapping[str, int]) -> Patch:
        """Fewer pods than it asked for are its parallelism from now on."""
        last = template.read_injected(job).get(POD_SET_NAME)
        patch, injected = template.injection(job.spec.template, last, starts[POD_SET_NAME])
        count, parallelism = counts[POD_SET_NAME], _parallelism(job)
        if count < _pod_count(job):
            injected.count = (parallelism, count)
            parallelism = count
        return Patch(
            {
                "metadata": {
                    "resourceVersion": job.metadata.resource_version,
                    "annotations": template.note({POD_SET_NAME: injected}),
                },
                "spec": {"suspend": False, "parallelism": parallelism, "template": patch},
            }
        )

    def outcome(self, job: Job, gang: Gang) -> Outcome | None:
        """The Job controller may take a second to say so; that all pods have succeeded says it, too."""
        for condition in job.status.conditions:
            if condition.status == "True" and condition.type in ("Complete", "Failed"):
                return Outcome(condition.type == "Complete", condition.message)
        completions = job.spec.completions
        if job.spec.suspend or not completions or gang.counts[Stage.SUCCEEDED] < completions:
            # Of a suspended Job, pods that succeed on their way out may count for nothing: only the Job itself knows.
            return None
        succeeded = [m for m in gang if m.stage is Stage.SUCCEEDED]
        if job.spec.completion_mode == "Indexed" and len({m.rank for m in succeeded}) < completions:
            return None
        return Outcome(True)

    def member(self, pod: Pod) -> Membership | None:
        owner = pod.metadata.controller
        if owner is None or (owner.kind, owner.api_version) != (JOBS.kind, JOBS.api_version):
            return None
        return Membership(owner.name, completion_index(pod))

    def admit(self, raw: Json, *, bind: bool) -> list[Addition]:
        spec, pod_spec = _within(raw, "spec"), _within(raw, "spec", "template", "spec")
        if not (_within(raw, "metadata", "labels") or {}).get(names.QUEUE_NAME) or spec is None or pod_spec is None:
            return []
        additions = [] if spec.get("suspend") else [Addition(("spec", "suspend"), True)]
        if bind and pod_spec.get("schedulerName", "") in ("", "default-scheduler"):
            additions.append(Addition(("spec", "template", "spec", "schedulerName"), names.SCHEDULER_NAME))
        return additions


def _pod_count(job: Job) -> int:
    """Pods that its author wants to run at the same time: `parallelism`, or `completions` where that is less."""
    parallelism = _parallelism(job)
    return parallelism if job.spec.completions is None else min(parallelism, job.spec.completions)


def _parallelism(job: Job) -> int:
    """As its author wrote it, also where a start with fewer pods has changed it since."""
    now = 1 if job.spec.parallelism is None else job.spec.parallelism
    injected = template.read_injected(job).get(POD_SET_NAME)
    if injected is not None and injected.count is not None and injected.count[1] == now:
        return injected.count[0]
    return now


def _within(obj: Any, *path: str) -> dict[str, Any] | None:
    """The mapping at this path; None where there is none: what is no Job is for the API server to refuse."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj if isinstance(obj, dict) else None
