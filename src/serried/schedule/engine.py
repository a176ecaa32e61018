"""The engine: watch events in, decisions and reasons out. Everything here is synchronous and without a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction

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
from serried.api.names import PendingReason, QueueReason
from serried.api.problem import Problem
from serried.model.world import World
from serried.place.options import DEFAULT, PlaceOptions
from serried.quota.quotas import Quotas, read_quotas
from serried.schedule.cycle import workload_events
from serried.schedule.cycle.cycle import Cycle, run_cycle
from serried.schedule.cycle.explain import Explanation, explain
from serried.schedule.cycle.status import (
    cohort_status,
    cohorts_changed,
    queue_status,
    queues_changed,
    resource_requests,
)
from serried.schedule.state.fair_usage import recall_usage, sample_due
from serried.schedule.state.pending_queue import PendingQueue
from serried.schedule.state.records import Activity, ClusterQueueState, CohortState, LocalQueueState
from serried.schedule.state.routing import refresh, refresh_local, reroute
from serried.schedule.state.state import State
from serried.schedule.state.validate import validate
from serried.schedule.types.options import DEFAULT_OPTIONS, Options
from serried.schedule.types.reasons import Reason
from serried.schedule.types.workload import read_weight

_UNKNOWN = Activity(False, "", "")
#: Reasons of a ClusterQueue whose message lists the flavors, or topologies, that there are.
_NAMES_WHAT_IS_THERE = (QueueReason.FLAVOR_NOT_FOUND, QueueReason.TOPOLOGY_NOT_FOUND)
#: Candidates looked at in one cycle, so that a long queue does not keep everything else waiting.
DEFAULT_LIMIT = 256


class Engine:
    """One model of the cluster and its queues, and the decisions on it.

    Feed it with watch events: each is cheap and never raises, whatever the object holds. When `dirty`, call `cycle`,
    write its decisions, and tell the outcome: the written Workload by `set_workload`, a refusal by `withdraw`. At
    start, feed nodes, topologies, flavors and queues first: then nothing has to be worked out twice.
    """

    def __init__(self, place_options: PlaceOptions = DEFAULT, options: Options = DEFAULT_OPTIONS) -> None:
        self._state = State(place_options, options)

    # --- nodes, pods, topologies, flavors

    def set_node(self, node: Node) -> None:
        if self._state.world.set_node(node):
            self._state.stir_nodes()

    def delete_node(self, name: str) -> None:
        if self._state.world.delete_node(name):
            self._state.stir_nodes()

    def set_pod(self, pod: Pod) -> None:
        if self._state.world.set_pod(pod):
            self._state.stir_nodes()

    def delete_pod(self, key: Key) -> None:
        if self._state.world.delete_pod(key):
            self._state.stir_nodes()

    def set_topology(self, topology: Topology) -> None:
        if self._state.world.set_topology(topology):
            self._topology_changed(topology.metadata.name)

    def delete_topology(self, name: str) -> None:
        if self._state.world.delete_topology(name):
            self._topology_changed(name)

    def set_flavor(self, flavor: ResourceFlavor) -> None:
        if self._state.world.set_flavor(flavor):
            self._flavors_changed({flavor.metadata.name})

    def delete_flavor(self, name: str) -> None:
        if self._state.world.delete_flavor(name):
            self._flavors_changed({name})

    def _topology_changed(self, name: str) -> None:
        flavors = self._state.flavors.items()
        self._flavors_changed({flavor for flavor, f in flavors if f.spec.topology_name == name})

    def _flavors_changed(self, names: set[str]) -> None:
        self._state.places_changed = bool(self._state.incomplete)
        for queue in list(self._state.cluster_queues.values()):
            if names.intersection(queue.limits.flavors) or queue.activity.reason in _NAMES_WHAT_IS_THERE:
                refresh(self._state, queue)

    # --- queues and namespaces

    def set_cluster_queue(self, cluster_queue: ClusterQueue) -> None:
        limits, problems = read_quotas(cluster_queue.spec)
        self._put_cluster_queue(cluster_queue, limits, problems)

    def _put_cluster_queue(self, given: ClusterQueue, limits: Quotas, problems: list[Problem]) -> None:
        state, name = self._state, given.metadata.name
        terminating = given.metadata.deletion_timestamp is not None
        queue = state.cluster_queues.get(name)
        if queue is not None and (queue.spec, queue.terminating, queue.problems) == (given.spec, terminating, problems):
            queue.generation = given.metadata.generation
            return
        strict = given.spec.queueing_strategy == "StrictFIFO"
        moves = queue is not None and queue.spec.namespace_selector != given.spec.namespace_selector
        if queue is None:
            pending = PendingQueue(strict=strict)
            queue = ClusterQueueState(name, given.spec, 0, limits, problems, terminating, pending, _UNKNOWN)
            state.cluster_queues[name] = queue
        elif queue.pending.strict != strict:
            self._empty(queue)
            queue.pending = PendingQueue(strict=strict)
            moves = True
        queue.spec, queue.generation = given.spec, given.metadata.generation
        queue.limits, queue.problems, queue.terminating = limits, problems, terminating
        before = state.ledger.tree_of(name)
        weight = read_weight(given.spec.fair_sharing.weight) if given.spec.fair_sharing is not None else Fraction(1)
        state.ledger.set_limits(name, limits, given.spec.cohort_name, weight)
        refresh(state, queue)
        self._tree_changed(before, state.ledger.tree_of(name))
        if moves:
            for local_queue in state.leads_to.get(name, ()):
                reroute(state, local_queue)
        # It may be drained now, or have other checks.
        for key in state.holders.get(name, ()):
            workload_events.look_again(self._state, state.workloads[key])

    def _empty(self, queue: ClusterQueueState) -> None:
        """Takes everyone out of the queue; `reroute` finds them a new place."""
        for order in queue.pending.orders():
            record = self._state.workloads[order[3], order[4]]
            self._state.leave(record)
            self._state.wait(record)

    def delete_cluster_queue(self, name: str) -> None:
        state = self._state
        queue = state.cluster_queues.get(name)
        if queue is None:
            return
        self._empty(queue)
        del state.cluster_queues[name]
        state.awake.pop(name, None)
        tree = state.ledger.tree_of(name)
        state.ledger.remove_limits(name)
        self._tree_changed(tree)
        for local_queue in state.leads_to.get(name, ()):
            refresh_local(state, local_queue)
            reroute(state, local_queue)

    def set_cohort(self, cohort: Cohort) -> None:
        limits, problems = read_quotas(cohort.spec)
        self._put_cohort(cohort, limits, problems)

    def _put_cohort(self, given: Cohort, limits: Quotas, problems: list[Problem]) -> None:
        state, name = self._state, given.metadata.name
        known = state.cohorts.get(name)
        if known is not None and (known.spec, known.problems) == (given.spec, problems):
            known.generation = given.metadata.generation
            return
        before = state.ledger.tree_above(name)
        state.cohorts[name] = CohortState(given.spec, given.metadata.generation, limits, problems)
        weight = read_weight(given.spec.fair_sharing.weight) if given.spec.fair_sharing is not None else Fraction(1)
        state.ledger.set_cohort(name, limits, given.spec.parent_name, weight)
        self._cohorts_changed({before, state.ledger.tree_above(name)})

    def delete_cohort(self, name: str) -> None:
        if self._state.cohorts.pop(name, None) is not None:
            before = self._state.ledger.tree_above(name)
            self._state.ledger.remove_cohort(name)
            self._cohorts_changed({before, self._state.ledger.tree_above(name)})

    def _cohorts_changed(self, trees: set[str]) -> None:
        """Quota of a cohort, or what is above what, has changed: everyone in these trees is looked at again."""
        self._state.changed_trees.update(dict.fromkeys(trees))
        for name, queue in list(self._state.cluster_queues.items()):
            if queue.spec.cohort_name and self._state.ledger.tree_of(name) in trees:
                refresh(self._state, queue)

    def _tree_changed(self, *trees: str) -> None:
        """Quota that others in these trees can borrow has changed."""
        if self._state.fair_sharing is not None:
            self._state.requoted_trees.update(dict.fromkeys(trees))
        self._state.trees_changed.update(dict.fromkeys(trees))

    def set_admission_check(self, check: AdmissionCheck) -> None:
        name = check.metadata.name
        before = self._state.checks.get(name)
        self._state.checks[name] = check
        if before is None or (before.spec, before.status) != (check.spec, check.status):
            self._check_changed(name)

    def delete_admission_check(self, name: str) -> None:
        if self._state.checks.pop(name, None) is not None:
            self._check_changed(name)

    def _check_changed(self, name: str) -> None:
        for queue in list(self._state.cluster_queues.values()):
            strategy = queue.spec.admission_checks_strategy
            if strategy is not None and name in {check.name for check in strategy.admission_checks}:
                refresh(self._state, queue)

    def set_local_queue(self, local_queue: LocalQueue) -> None:
        state, key = self._state, local_queue.key
        terminating = local_queue.metadata.deletion_timestamp is not None
        queue = state.local_queues.get(key)
        if queue is not None and (queue.spec, queue.terminating) == (local_queue.spec, terminating):
            queue.generation = local_queue.metadata.generation
            return
        if queue is not None:
            self._unlink(key, queue)
        past = local_queue.status.fair_sharing
        if past is not None and past.admission_fair_sharing_status is not None:
            recall_usage(state, key, past.admission_fair_sharing_status)
        queue = LocalQueueState(local_queue.spec, local_queue.metadata.generation, terminating, _UNKNOWN)
        state.local_queues[key] = queue
        state.leads_to.setdefault(queue.spec.cluster_queue, {})[key] = None
        state.accounts.touch(("", queue.spec.cluster_queue))
        refresh_local(state, key)
        reroute(state, key)
        if queue.spec.stop_policy == "HoldAndDrain":
            # Also those whose quota is of the ClusterQueue that it led to before.
            for record in state.workloads.values():
                if record.reservation is not None and record.reservation.local_queue == key:
                    workload_events.look_again(self._state, record)

    def delete_local_queue(self, key: Key) -> None:
        queue = self._state.local_queues.pop(key, None)
        if queue is not None:
            self._unlink(key, queue)
            self._state.local_usage.pop(key, None)
            reroute(self._state, key)

    def _unlink(self, key: Key, queue: LocalQueueState) -> None:
        target = queue.spec.cluster_queue
        leads = self._state.leads_to[target]
        del leads[key]
        if not leads:
            del self._state.leads_to[target]
        self._state.accounts.touch(("", target))

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        if self._state.namespaces.get(name) != labels:
            self._state.namespaces[name] = dict(labels)
            self._namespace_changed(name)

    def delete_namespace(self, name: str) -> None:
        if self._state.namespaces.pop(name, None) is not None:
            self._namespace_changed(name)

    def _namespace_changed(self, name: str) -> None:
        for key in list(self._state.waiting):
            if key[0] == name:
                reroute(self._state, key)

    # --- workloads

    def set_workload(self, workload: Workload, problems: Sequence[Problem] = ()) -> None:
        """A Workload was added or changed. `problems`: what else is wrong with it."""
        workload_events.set_workload(self._state, workload, problems)

    def delete_workload(self, key: Key) -> None:
        workload_events.delete_workload(self._state, key)

    def withdraw(self, key: Key) -> None:
        """The API refused an admission: it is taken back, unless it has been heard of. What was admitted waits again
        where it stood.

        The next cycle may decide the same, so call this after whatever pause a repeated refusal calls for.
        """
        workload_events.withdraw(self._state, key)

    def withdraw_eviction(self, key: Key) -> None:
        """The API refused an eviction: it is taken back. What was to be preempted holds again what it held, and its
        preemptor looks for others."""
        workload_events.withdraw_eviction(self._state, key)

    def set_malformed(self, kind: str, key: Key, error: str) -> None:
        """An object is there but cannot be read. A Workload is told so, a ClusterQueue admits nothing more; of other
        kinds it is as if the object were not there."""
        state = self._state
        match kind:
            case "Workload":
                record = state.workloads.get(key)
                if record is not None and record.place == "held":
                    # What runs keeps what it holds.
                    return
                self.delete_workload(key)
                message = f"The Workload cannot be read: {error}"
                reason = Reason(layer="input", code=PendingReason.MISCONFIGURED, message=message, found=error)
                state.malformed[key] = state.outbox[key] = reason
            case "ClusterQueue":
                queue = state.cluster_queues.get(key[1])
                given = ClusterQueue()
                given.metadata.name = key[1]
                if queue is not None:
                    given.spec, given.metadata.generation = queue.spec, queue.generation
                problem = Problem("the object", error, "one that can be read")
                self._put_cluster_queue(given, queue.limits if queue else Quotas(), [problem])
            case "Cohort":
                cohort = state.cohorts.get(key[1])
                given_cohort = Cohort()
                given_cohort.metadata.name = key[1]
                if cohort is not None:
                    given_cohort.spec, given_cohort.metadata.generation = cohort.spec, cohort.generation
                problem = Problem("the object", error, "one that can be read")
                self._put_cohort(given_cohort, cohort.limits if cohort is not None else Quotas(), [problem])
            case "AdmissionCheck":
                self.delete_admission_check(key[1])
            case "LocalQueue":
                self.delete_local_queue(key)
            case "Topology":
                self.delete_topology(key[1])
            case "ResourceFlavor":
                self.delete_flavor(key[1])
            case "Node":
                self.delete_node(key[1])

    # --- decisions

    @property
    def world(self) -> World:
        """The nodes and what stands on them: to read, never to change."""
        return self._state.world

    @property
    def dirty(self) -> bool:
        """Whether a cycle could do something."""
        state = self._state
        return bool(
            state.outbox
            or state.awake
            or state.nodes_stirred
            or state.quota_stirred
            or state.quota_lent
            or state.trees_changed
            or state.places_changed
            or state.promised
            or state.second
        )

    @property
    def wake_at(self) -> datetime | None:
        """When a cycle could do something although nothing happens before: somebody's time to back off is over, or
        what LocalQueues have used is to be worked out."""
        times = [self._state.backing_off[0][0] if self._state.backing_off else None, sample_due(self._state)]
        return min((time for time in times if time is not None), default=None)

    def cycle(self, now: datetime, limit: int = DEFAULT_LIMIT) -> Cycle:
        """Decides on up to `limit` candidates. What is admitted is taken in the model at once."""
        return run_cycle(self._state, now, limit)

    def explain(self, key: Key, now: datetime) -> Explanation | None:
        """Where a workload stands, why, and what would help; None: there is no such workload. Changes nothing."""
        return explain(self._state, key, now)

    # --- what queues report

    def status(self, queue: Key) -> ClusterQueueStatus | LocalQueueStatus | None:
        """The status of ClusterQueue ("", name) or LocalQueue (namespace, name), its conditions without times."""
        return queue_status(self._state, queue)

    @property
    def has_news(self) -> bool:
        """Whether `queues_changed` or `cohorts_changed` has something to say."""
        state = self._state
        return bool(state.accounts.changed or state.changed_trees or state.requoted_trees)

    def queues_changed(self) -> set[Key]:
        """The queues whose status may differ from what it was when this was last called."""
        return queues_changed(self._state)

    def holds(self, key: Key) -> bool:
        """Whether a workload holds quota, also if its admission has not been heard of yet."""
        record = self._state.workloads.get(key)
        return record is not None and record.place == "held"

    def resource_requests(self, key: Key) -> list[PodSetResources]:
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
