"""Objects that are there but cannot be read."""

from __future__ import annotations

from serried.api.kueue import ClusterQueue, Cohort
from serried.api.meta import Key
from serried.api.names import PendingReason
from serried.api.problem import Problem
from serried.quota.quotas import Quotas
from serried.schedule.cycle import node_events, queue_events, workload_events
from serried.schedule.state.state import State
from serried.schedule.types.reasons import Reason


def set_malformed(state: State, kind: str, key: Key, error: str) -> None:
    """A Workload is told so, a ClusterQueue or Cohort lets nothing more in; of other kinds it is as if the object
    were not there."""
    match kind:
        case "Workload":
            _workload(state, key, error)
        case "ClusterQueue":
            _cluster_queue(state, key[1], error)
        case "Cohort":
            _cohort(state, key[1], error)
        case "AdmissionCheck":
            queue_events.delete_admission_check(state, key[1])
        case "LocalQueue":
            queue_events.delete_local_queue(state, key)
        case "Topology":
            node_events.delete_topology(state, key[1])
        case "ResourceFlavor":
            node_events.delete_flavor(state, key[1])
        case "Node":
            node_events.delete_node(state, key[1])


def _workload(state: State, key: Key, error: str) -> None:
    record = state.workloads.get(key)
    if record is not None and record.reservation is not None:
        # What runs keeps what it holds.
        return
    workload_events.delete_workload(state, key)
    message = f"The Workload cannot be read: {error}"
    reason = Reason(layer="input", code=PendingReason.MISCONFIGURED, message=message, found=error)
    state.malformed[key] = state.outbox[key] = reason


def _cluster_queue(state: State, name: str, error: str) -> None:
    queue = state.cluster_queues.get(name)
    given = ClusterQueue()
    given.metadata.name = name
    if queue is not None:
        given.spec, given.metadata.generation = queue.spec, queue.generation
    queue_events.put_cluster_queue(state, given, queue.quotas if queue else Quotas(), [_unreadable(error)])


def _cohort(state: State, name: str, error: str) -> None:
    cohort = state.cohorts.get(name)
    given = Cohort()
    given.metadata.name = name
    if cohort is not None:
        given.spec, given.metadata.generation = cohort.spec, cohort.generation
    queue_events.put_cohort(state, given, cohort.quotas if cohort is not None else Quotas(), [_unreadable(error)])


def _unreadable(error: str) -> Problem:
    return Problem("the object", error, "one that can be read")
