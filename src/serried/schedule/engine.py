"""The engine: watch events in, decisions and reasons out. Everything here is synchronous and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from serried.api.core import Node, Pod
from serried.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    LocalQueue,
    LocalQueueStatus,
    PodSetResources,
    ResourceFlavor,
    Topology,
    Workload,
)
from serried.api.meta import Key
from serried.api.problem import Problem
from serried.model.storage import StorageObject
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.schedule.cycle import malformed, node_events, queue_events, workload_events
from serried.schedule.cycle.cycle import Cycle, run_cycle
from serried.schedule.cycle.explain import Explanation, explain
from serried.schedule.cycle.status import (
    cohort_status,
    cohorts_changed,
    queue_status,
    queues_changed,
    resource_requests,
)
from serried.schedule.state.state import Event, State
from serried.schedule.state.validate import validate
from serried.schedule.types.options import DEFAULT_OPTIONS, Options
from serried.schedule.view import EngineView

P = ParamSpec("P")
R = TypeVar("R")

#: Candidates looked at in one cycle, so that a long queue does not keep everything else waiting.
DEFAULT_LIMIT = 256


class EngineBroken(Exception):
    """A change of the model failed half-way, by a fault of ours. The engine has let go of its model and does nothing
    more: build a new one from the objects there are.

    Attributes:
        kind: of the object whose change it was, e.g. "Workload". Of a cycle, "Workload" if it failed over one.
        key: of that object; None: a cycle failed, and over no workload.
        __cause__: the fault.
    """

    def __init__(self, kind: str, key: Key | None) -> None:
        self.kind = kind
        self.key = key
        where = f"{kind} {'/'.join(filter(None, key))}" if key is not None else "a cycle"
        super().__init__(f"the engine failed over {where} and has let go of its model")


class Engine:
    """One model of the cluster and its queues, and the decisions on it.

    Feed it with watch events: each is cheap, and whatever the object holds is answered by a reason. When `dirty`, call
    `cycle`, write its decisions, and tell the outcome: the written Workload by `set_workload`, a refusal by `withdraw`.
    At start, feed nodes, topologies, flavors and queues first: then nothing has to be worked out twice.

    Every call is carried out as a whole, or the engine is broken: then that call and all later ones, questions too,
    raise `EngineBroken`, so that nothing is decided on a model that was changed by half.
    """

    def __init__(self, place_options: PlaceOptions = DEFAULT, options: Options = DEFAULT_OPTIONS) -> None:
        self._model: State | EngineBroken = State(place_options, options)

    @property
    def _state(self) -> State:
        if isinstance(self._model, EngineBroken):
            raise EngineBroken(self._model.kind, self._model.key) from self._model.__cause__
        return self._model

    def _run(
        self, kind: str, key: Key | None, change: Callable[Concatenate[State, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Everything that changes the model, if only for a trial. If it fails, the model is gone: not all of a change
        is in the journal, so rolling that back would not be enough."""
        state = self._state
        state.event = Event(change.__name__, kind, key)
        try:
            result = change(state, *args, **kwargs)
            assert state.journal.empty, "changes were left in the journal, neither kept nor taken back"
        except BaseException as error:
            if key is None and state.looked_at is not None:
                kind, key = "Workload", state.looked_at
            self._model = EngineBroken(kind, key)
            self._model.__cause__ = error
            if isinstance(error, Exception):
                raise self._model from error
            raise
        return result

    # --- nodes, pods, topologies, flavors

    def set_node(self, node: Node) -> None:
        self._run("Node", node.key, node_events.set_node, node)

    def delete_node(self, name: str) -> None:
        self._run("Node", ("", name), node_events.delete_node, name)

    def set_pod(self, pod: Pod) -> None:
        self._run("Pod", pod.key, node_events.set_pod, pod)

    def delete_pod(self, key: Key) -> None:
        self._run("Pod", key, node_events.delete_pod, key)

    def set_storage(self, obj: StorageObject) -> None:
        """A claim, volume, storage class, CSI node or driver, or an attachment was added or changed."""
        self._run(type(obj).__name__, obj.key, node_events.set_storage, obj)

    def delete_storage(self, obj: StorageObject) -> None:
        self._run(type(obj).__name__, obj.key, node_events.delete_storage, obj)

    def set_topology(self, topology: Topology) -> None:
        self._run("Topology", topology.key, node_events.set_topology, topology)

    def delete_topology(self, name: str) -> None:
        self._run("Topology", ("", name), node_events.delete_topology, name)

    def set_flavor(self, flavor: ResourceFlavor) -> None:
        self._run("ResourceFlavor", flavor.key, node_events.set_flavor, flavor)

    def delete_flavor(self, name: str) -> None:
        self._run("ResourceFlavor", ("", name), node_events.delete_flavor, name)

    # --- queues and namespaces

    def set_cluster_queue(self, cluster_queue: ClusterQueue) -> None:
        self._run("ClusterQueue", cluster_queue.key, queue_events.set_cluster_queue, cluster_queue)

    def delete_cluster_queue(self, name: str) -> None:
        self._run("ClusterQueue", ("", name), queue_events.delete_cluster_queue, name)

    def set_cohort(self, cohort: Cohort) -> None:
        self._run("Cohort", cohort.key, queue_events.set_cohort, cohort)

    def delete_cohort(self, name: str) -> None:
        self._run("Cohort", ("", name), queue_events.delete_cohort, name)

    def set_admission_check(self, check: AdmissionCheck) -> None:
        self._run("AdmissionCheck", check.key, queue_events.set_admission_check, check)

    def delete_admission_check(self, name: str) -> None:
        self._run("AdmissionCheck", ("", name), queue_events.delete_admission_check, name)

    def set_local_queue(self, local_queue: LocalQueue) -> None:
        self._run("LocalQueue", local_queue.key, queue_events.set_local_queue, local_queue)

    def delete_local_queue(self, key: Key) -> None:
        self._run("LocalQueue", key, queue_events.delete_local_queue, key)

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        self._run("Namespace", ("", name), queue_events.set_namespace, name, labels)

    def delete_namespace(self, name: str) -> None:
        self._run("Namespace", ("", name), queue_events.delete_namespace, name)

    # --- workloads

    def set_workload(self, workload: Workload, problems: Sequence[Problem] = ()) -> None:
        """A Workload was added or changed. `problems`: what else is wrong with it."""
        self._run("Workload", workload.key, workload_events.set_workload, workload, problems)

    def delete_workload(self, key: Key) -> None:
        self._run("Workload", key, workload_events.delete_workload, key)

    def withdraw(self, key: Key) -> None:
        """The API refused an admission: it is taken back, unless it has been heard of. What was admitted waits again
        where it stood.

        The next cycle may decide the same, so call this after whatever pause a repeated refusal calls for.
        """
        self._run("Workload", key, workload_events.withdraw, key)

    def withdraw_eviction(self, key: Key) -> None:
        """The API refused an eviction: it is taken back. What was to be preempted holds again what it held, and its
        preemptor looks for others."""
        self._run("Workload", key, workload_events.withdraw_eviction, key)

    def set_malformed(self, kind: str, key: Key, error: str) -> None:
        """An object is there but cannot be read. A Workload is told so, a ClusterQueue admits nothing more; of other
        kinds it is as if the object were not there."""
        self._run(kind, key, malformed.set_malformed, kind, key, error)

    # --- decisions

    @property
    def world(self) -> World:
        """The nodes and what stands on them: to read, never to change."""
        return self._state.world

    @property
    def dirty(self) -> bool:
        """Whether a cycle could do something."""
        return bool(self._state.outbox or self._state.requeue)

    @property
    def wake_at(self) -> datetime | None:
        """When a cycle could do something although nothing happens before: somebody's time to back off is over, or
        what LocalQueues have used is to be worked out."""
        times = [self._state.requeue.next_time, self._state.fair_usage.next_sample]
        return min((time for time in times if time is not None), default=None)

    def cycle(self, now: datetime, *, limit: int = DEFAULT_LIMIT, spent: Callable[[], bool] = lambda: False) -> Cycle:
        """Decides on up to `limit` candidates. What is admitted is taken in the model at once.

        `spent` says whether the time is up: it is asked after each candidate, and the rest is left to the next cycle
        (`Cycle.more`). The engine has no clock of its own.
        """
        return self._run("", None, run_cycle, now, limit, spent)

    def explain(self, key: Key, now: datetime) -> Explanation | None:
        """Where a workload stands, why, and what would help; None: there is no such workload. Changes nothing."""
        return self._run("Workload", key, explain, key, now)

    def inspect(self) -> EngineView:
        """The model as it is now, to read."""
        return EngineView(self._state)

    # --- what queues report

    def status(self, queue: Key) -> ClusterQueueStatus | LocalQueueStatus | None:
        """The status of ClusterQueue ("", name) or LocalQueue (namespace, name), its conditions without times."""
        return queue_status(self._state, queue)

    @property
    def has_news(self) -> bool:
        """Whether `queues_changed` or `cohorts_changed` has something to say."""
        return bool(self._state.stale)

    def queues_changed(self) -> set[Key]:
        """The queues whose status may differ from what it was when this was last called."""
        return queues_changed(self._state)

    def holds(self, key: Key) -> bool:
        """Whether a workload holds quota, also if its admission has not been heard of yet."""
        record = self._state.workloads.get(key)
        return record is not None and record.reservation is not None

    def resource_requests(self, key: Key) -> tuple[PodSetResources, ...]:
        """What a workload that waits asks for, as quota counts it."""
        return resource_requests(self._state, key)

    def cohort_status(self, name: str) -> CohortStatus | None:
        """The status of a Cohort, its condition without a time."""
        return cohort_status(self._state, name)

    def cohorts_changed(self) -> set[str]:
        """The Cohorts whose status may differ; call `queues_changed` before."""
        return cohorts_changed(self._state)

    def validate(self) -> None:
        """Raises AssertionError if anything the engine knows contradicts anything else."""
        validate(self._state)
