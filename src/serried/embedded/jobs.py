"""A Job controller for clusters that have none: makes and deletes the pods of Jobs and keeps their status.

It knows a cluster by the `Cluster` protocol only. What it decides is in `job_plan`; here is what it does about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from serried.api.batch import JobStatus
from serried.api.core import Pod
from serried.api.meta import Key, OwnerReference
from serried.api.names import COMPLETION_INDEX
from serried.api.resources import PODS, Resource
from serried.cluster.informer import Informer
from serried.cluster.protocol import ApiError, Cluster, Conflict, NotFound
from serried.cluster.work_queue import WorkQueue
from serried.embedded.job_plan import TRACKING, Job, Plan, has_failed, next_status, plan_pods

log = logging.getLogger(__name__)

#: Jobs with their whole templates.
_JOBS = Resource("batch", "v1", "Job", "jobs", Job)

#: Jobs that say they are managed by this, or do not say, are ours.
MANAGER = "kubernetes.io/job-controller"

#: Seconds before the first failed pod in a row is replaced; doubles with each further one.
FIRST_BACK_OFF = 10.0
LONGEST_BACK_OFF = 600.0


@dataclass
class _Record:
    """What is remembered of one Job between two looks at it."""

    uid: str
    #: uids of pods that are in the numbers of the status but still carry the finalizer
    counted: set[str]
    failed: int = 0
    succeeded: int = 0
    #: failures since the last success, and when the last of them was seen (the loop's time)
    failures: int = 0
    last_failure: float = 0.0


class JobController:
    """Runs Jobs, from `start` to `stop`.

    What it has counted but not yet released is remembered in memory only: use one controller for the life of a
    cluster that is itself in memory. A real cluster has its own.

    Arguments:
        speed: how many times faster than in reality the back-off after failures goes by.
        now: the clock that conditions are stamped with.
        pods_per_second: how many pods are made in a second at most, all Jobs together. The client of a real
            kube-controller-manager is limited, too (--kube-api-qps). None: as fast as the server takes them.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        speed: float = 1.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pods_per_second: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._speed = speed
        self._now = now
        self._pods_per_second = pods_per_second
        #: the loop's time at which the next pod may be made
        self._next_pod = 0.0
        self._jobs = Informer(cluster, _JOBS, on_change=self._job_changed)
        self._pods = Informer(cluster, PODS, on_change=self._pod_changed)
        self._pods_of: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._records: dict[Key, _Record] = {}
        self._queue: WorkQueue[Key] = WorkQueue(self._sync)

    async def start(self) -> None:
        """Returns when all that is there has been seen; from then on Jobs are looked after."""
        self._jobs.start()
        self._pods.start()
        await self._jobs.synced()
        await self._pods.synced()
        self._queue.start()

    async def stop(self) -> None:
        """Nothing is written after this."""
        await self._jobs.stop()
        await self._pods.stop()
        await self._queue.stop()

    # --- What changes

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is not None:
            self._queue.add(job.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod, is_there in ((old, False), (new, True)):
            if pod is None:
                continue
            owner = pod.metadata.controller
            if owner is not None and owner.kind == "Job":
                key = (pod.metadata.namespace, owner.name)
                if is_there:
                    self._pods_of[key][pod.key] = pod
                else:
                    self._pods_of[key].pop(pod.key, None)
                    if not self._pods_of[key]:
                        del self._pods_of[key]
                self._queue.add(key)

    # --- What is done

    async def _sync(self, key: Key) -> None:
        """One look at one Job: its pods first, then what is to be said of them."""
        job = self._jobs.store.get(key)
        if job is None or job.ended:
            self._records.pop(key, None)
            await self._together(map(self._release, self._tracked(key)))
            return
        if job.spec.managed_by not in ("", MANAGER):
            return
        # Pods of an earlier Job of this name are not this one's.
        others = [pod for pod in self._tracked(key) if not _owned(pod, job)]
        record = self._records.get(key)
        if record is None or record.uid != job.metadata.uid:
            record = self._records[key] = _Record(job.metadata.uid, set())
        status = next_status(job, self._own(job), record.counted, self._stamp())
        errors: list[ApiError] = []
        if job.metadata.deletion_timestamp is None:
            self._note_failures(record, status)
            errors = await self._carry_out(job, plan_pods(job, self._own(job), status), record)
        await self._write_status(job, record)
        await self._together(map(self._release, others))
        if errors:
            raise errors[0]

    def _own(self, job: Job) -> list[Pod]:
        return [pod for pod in self._pods_of.get(job.key, {}).values() if _owned(pod, job)]

    def _tracked(self, key: Key) -> list[Pod]:
        return [pod for pod in self._pods_of.get(key, {}).values() if TRACKING in pod.metadata.finalizers]

    def _stamp(self) -> datetime:
        return self._now().replace(microsecond=0)

    def _note_failures(self, record: _Record, status: JobStatus) -> None:
        if status.succeeded > record.succeeded:
            record.failures = 0
        if status.failed > record.failed:
            record.failures += status.failed - record.failed
            record.last_failure = asyncio.get_running_loop().time()
        record.failed, record.succeeded = status.failed, status.succeeded

    async def _carry_out(self, job: Job, plan: Plan, record: _Record) -> list[ApiError]:
        """Creates and deletes pods, all at once. Returns what the server refused."""
        create = plan.create
        if record.failures and create:
            back_off = min(FIRST_BACK_OFF * 2 ** (record.failures - 1), LONGEST_BACK_OFF)
            when = record.last_failure + back_off / self._speed
            left = when - asyncio.get_running_loop().time()
            if left > 0:
                self._queue.add_after(job.key, left)
                create = ()
        return await self._together(
            [
                *(self._create(job, index) for index in create),
                *(self._discard(pod) for pod in plan.superfluous),
                *(self._delete(pod) for pod in plan.lost),
            ]
        )

    async def _create(self, job: Job, index: int | None) -> None:
        if self._pods_per_second is not None:
            now = asyncio.get_running_loop().time()
            turn = max(now, self._next_pod)
            self._next_pod = turn + 1 / self._pods_per_second
            await asyncio.sleep(turn - now)
        self._pods.observe(await self._cluster.create(PODS, _new_pod(job, index), job.metadata.namespace))

    async def _discard(self, pod: Pod) -> None:
        """Deletes a pod that is not to count as a failure: so it is taken out of the count first."""
        await self._release(pod)
        await self._delete(pod)

    async def _delete(self, pod: Pod) -> None:
        await self._cluster.delete(PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)

    async def _release(self, pod: Pod) -> None:
        """Takes our finalizer off a pod."""
        if TRACKING not in pod.metadata.finalizers:
            return
        left = [each for each in pod.metadata.finalizers if each != TRACKING]
        version = pod.metadata.resource_version
        patch = {"metadata": {"resourceVersion": version, "finalizers": left or None}}
        released = await self._cluster.patch(PODS, pod.metadata.name, pod.metadata.namespace, patch=patch)
        if pod.metadata.deletion_timestamp is None:
            self._pods.observe(released)

    async def _write_status(self, job: Job, record: _Record) -> None:
        """Writes the status if it has changed, and lets go of the pods that are counted in it."""
        pods = self._own(job)
        latest = self._jobs.store.get(job.key)
        if latest is None or latest.metadata.uid != record.uid or latest.ended:
            return
        job = latest
        status = next_status(job, pods, record.counted, self._stamp())
        patch = _difference(job.status, status)
        if patch:
            written = await self._cluster.patch(
                _JOBS,
                job.metadata.name,
                job.metadata.namespace,
                patch={"metadata": {"resourceVersion": job.metadata.resource_version}, "status": patch},
                subresource="status",
            )
            self._jobs.observe(written)
        ended = [pod for pod in pods if TRACKING in pod.metadata.finalizers and _has_ended(pod)]
        record.counted = {pod.metadata.uid for pod in ended}
        await self._together(map(self._release, ended))

    async def _together(self, work: Iterable[Coroutine[Any, Any, None]]) -> list[ApiError]:
        """Does all of it at once; what has been overtaken by events is left. Returns what else was refused."""
        results = await asyncio.gather(*work, return_exceptions=True)
        errors: list[ApiError] = []
        for result in results:
            if isinstance(result, (NotFound, Conflict)):
                log.debug("overtaken: %s", result)
            elif isinstance(result, ApiError):
                errors.append(result)
            elif result is not None:
                raise result
        return errors


def _owned(pod: Pod, job: Job) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def _has_ended(pod: Pod) -> bool:
    return pod.status.phase == "Succeeded" or has_failed(pod)


def _difference(old: JobStatus, new: JobStatus) -> dict[str, Any]:
    """The merge patch that makes one status of the other."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _new_pod(job: Job, index: int | None) -> dict[str, Any]:
    """The pod of a completion index, or of a Job without indexes. What only a kubelet would read is left out."""
    template = job.spec.template
    metadata = template.get("metadata") or {}
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    prefix = f"{job.metadata.name}-"
    if index is not None:
        labels[COMPLETION_INDEX] = annotations[COMPLETION_INDEX] = str(index)
        prefix = f"{prefix}{index}-"
    owner = OwnerReference(
        api_version=_JOBS.api_version,
        kind=_JOBS.kind,
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return {
        "metadata": {
            "generateName": prefix,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
            "finalizers": [*(metadata.get("finalizers") or ()), TRACKING],
        },
        "spec": template.get("spec") or {},
    }
