"""What has happened in the demo so far: watched from outside, as any client of the cluster could."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any, Literal

from serried.api import names
from serried.api.assignment import decode
from serried.api.batch import Job
from serried.api.core import Pod
from serried.api.kueue import Workload
from serried.api.meta import Key, condition_is, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import JOBS, PODS, WORKLOADS, Resource
from serried.cli import demo_story as story
from serried.cli.demo_story import Training
from serried.cluster.informer import Informer
from serried.cluster.protocol import Cluster

Phase = Literal["waiting", "assembling", "binding", "starting", "running", "finished", "failed"]

#: Jobs that are on the map at the same time have colours of their own while there are enough of them.
COLOURS = 14

_HOMES = {place.node: place for place in story.PLACES}


@dataclass
class JobRecord:
    """One Job that was submitted. Times are real seconds since the demo began, None: not yet."""

    training: Training
    #: names it on the map
    letter: str
    submitted: float
    workload: Key | None = None
    #: of those that are on the map, or were
    colour: int = -1
    admitted: float | None = None
    #: its last pod was made
    assembled: float | None = None
    #: its last pod was bound
    bound: float | None = None
    #: all its pods are ready
    started: float | None = None
    finished: float | None = None
    failed: bool = False
    #: nodes of the plan, in topology order
    planned: Sequence[str] = ()
    #: its pods by name, and the node of those that are bound
    pods: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)

    @property
    def phase(self) -> Phase:
        if self.finished is not None:
            return "failed" if self.failed else "finished"
        if self.admitted is None:
            return "waiting"
        if self.assembled is None:
            return "assembling"
        if self.bound is None:
            return "binding"
        return "starting" if self.started is None else "running"

    @property
    def is_active(self) -> bool:
        return self.admitted is not None and self.finished is None

    @property
    def domain(self) -> str:
        """The smallest domain that holds all of it: "block-0/rack-2", "block-0", or both blocks."""
        return domain_of(self.planned)

    @property
    def bind_seconds(self) -> float | None:
        """From its last pod's creation to its last pod's binding."""
        return self.bound - self.assembled if self.bound is not None and self.assembled is not None else None


@dataclass(frozen=True)
class Happening:
    """A line of the log."""

    #: real seconds since the demo began
    at: float
    record: JobRecord
    text: str


class Chronicle:
    """Records of all Jobs in the order of their submission, and which GPU is whose.

    Arguments:
        day: the Jobs that may come.
        seconds: real seconds since the demo began, now.
    """

    def __init__(self, day: Iterable[Training], seconds: Callable[[], float]) -> None:
        self._trainings = {(t.team, t.name): t for t in day}
        self._seconds = seconds
        self.records: dict[Key, JobRecord] = {}
        #: for each node, the letter of the Job that has a GPU, or ""
        self.cells: dict[str, list[str]] = {place.node: [""] * story.GPUS for place in story.PLACES}
        self.log: deque[Happening] = deque(maxlen=200)
        #: how often something happened that is in the log, ever
        self.happenings = 0
        self.last_change = 0.0
        #: GPUs bound now, and the most there ever were with the map of that moment
        self.busy = 0
        self.peak = 0
        self.peak_at = 0.0
        self.peak_cells: dict[str, list[str]] = {}
        #: GPU-seconds of bound pods, in real seconds, up to `_counted_to`
        self._gpu_seconds = 0.0
        self._counted_to = 0.0

    @asynccontextmanager
    async def follow(self, cluster: Cluster) -> AsyncIterator[None]:
        """Watches Jobs, Workloads and pods as long as the context lasts."""
        feeds: list[tuple[Resource[Any], Callable[[Any, Any], None]]] = [
            (JOBS, self.on_job),
            (WORKLOADS, self.on_workload),
            (PODS, self.on_pod),
        ]
        async with AsyncExitStack() as stack:
            for resource, change in feeds:
                informer = Informer(cluster, resource, on_change=change)
                stack.push_async_callback(informer.stop)
                informer.start()
                await informer.synced()
            yield

    @property
    def active(self) -> list[JobRecord]:
        """The Jobs that are admitted and not over, in the order of their submission."""
        return [record for record in self.records.values() if record.is_active]

    # --- What the watches bring

    def on_job(self, old: Job | None, new: Job | None) -> None:
        if new is not None:
            self._record(new.key)

    def _record(self, key: Key) -> JobRecord | None:
        """The record of a Job, which begins with whatever is first seen of it."""
        training = self._trainings.get(key)
        if training is None:
            return None
        if key not in self.records:
            letter = ascii_letters[len(self.records) % len(ascii_letters)]
            self.records[key] = JobRecord(training, letter, self._now())
        return self.records[key]

    def on_workload(self, old: Workload | None, new: Workload | None) -> None:
        owner = new.metadata.controller if new is not None else None
        record = self._record((new.metadata.namespace, owner.name)) if new is not None and owner is not None else None
        if new is None or record is None:
            return
        record.workload = new.key
        conditions = new.status.conditions
        if record.admitted is None and condition_is(conditions, WorkloadCondition.ADMITTED):
            record.admitted = self._now()
            record.planned = planned_nodes(new)
            record.colour = self._free_colour()
            self._tell(record, f"admitted: {_pods(record)} planned in {record.domain}")
        if record.finished is None and condition_is(conditions, WorkloadCondition.FINISHED):
            done = find_condition(conditions, WorkloadCondition.FINISHED)
            record.finished = self._now()
            record.failed = done is not None and done.reason != "Succeeded"
            self._tell(record, f"failed: {done.message}" if done is not None and record.failed else "finished")

    def _free_colour(self) -> int:
        """The one that fewest of the Jobs on the map have."""
        used = [r.colour for r in self.active]
        return min(range(COLOURS), key=lambda colour: (used.count(colour), colour))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        record = self.records.get((pod.metadata.namespace, pod.metadata.labels.get(names.JOB_NAME, "")))
        if record is None:
            return
        had = record.pods.get(pod.metadata.name, "") if _stands(old) else ""
        has = new.spec.node_name if new is not None and _stands(new) else ""
        if new is not None and pod.metadata.name not in record.pods:
            record.pods[pod.metadata.name] = ""
            if len(record.pods) == record.training.pods:
                record.assembled = self._now()
        if has and not had:
            record.pods[pod.metadata.name] = has
            self._take(has, record.letter, record.training.gpus)
            if record.bound is None and all(record.pods.values()) and record.assembled is not None:
                record.bound = self._now()
                after = f"{1000 * (record.bind_seconds or 0.0):.0f} ms after the last was made"
                self._tell(record, f"bound: {_pods(record)} at once, {after}" if len(record.pods) > 1 else "bound")
        if had and not has:
            self._give_back(had, record.letter, record.training.gpus)
        if new is not None and new.status.phase == "Running":
            record.running.add(pod.metadata.name)
            if record.started is None and len(record.running) == record.training.pods:
                record.started = self._now()

    def _now(self) -> float:
        self.last_change = self._seconds()
        return self.last_change

    def _tell(self, record: JobRecord, text: str) -> None:
        self.log.append(Happening(self._now(), record, text))
        self.happenings += 1

    # --- GPUs

    def _take(self, node: str, letter: str, gpus: int) -> None:
        cells = self.cells[node]
        for i in [i for i, cell in enumerate(cells) if not cell][:gpus]:
            cells[i] = letter
        self._count(gpus)
        if self.busy > self.peak:
            self.peak, self.peak_at = self.busy, self._seconds()
            self.peak_cells = {node: list(cells) for node, cells in self.cells.items()}

    def _give_back(self, node: str, letter: str, gpus: int) -> None:
        cells = self.cells[node]
        for i in [i for i, cell in enumerate(cells) if cell == letter][:gpus]:
            cells[i] = ""
        self._count(-gpus)

    def _count(self, change: int) -> None:
        self._gpu_seconds = self.gpu_seconds
        self._counted_to = self._now()
        self.busy += change

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that pods have been bound for so far, in real seconds."""
        return self._gpu_seconds + self.busy * (self._seconds() - self._counted_to)


def planned_nodes(workload: Workload) -> list[str]:
    """The nodes of the Workload's topologyAssignment, in topology order."""
    admission = workload.status.admission
    assignments = admission.pod_set_assignments if admission is not None else ()
    found = {
        values[-1]
        for a in assignments
        if a.topology_assignment is not None
        for values, _ in decode(a.topology_assignment)
    }
    return sorted(found)


def domain_of(nodes: Sequence[str]) -> str:
    """The smallest domain that holds all these nodes."""
    racks = sorted({f"{_HOMES[node].block}/{_HOMES[node].rack}" for node in nodes})
    blocks = sorted({_HOMES[node].block for node in nodes})
    return racks[0] if len(racks) == 1 else " and ".join(blocks)


def _stands(pod: Pod | None) -> bool:
    """Whether a pod takes up room on its node."""
    return pod is not None and bool(pod.spec.node_name) and pod.status.phase not in ("Succeeded", "Failed")


def _pods(record: JobRecord) -> str:
    return f"{record.training.pods} pods" if record.training.pods > 1 else "1 pod"
