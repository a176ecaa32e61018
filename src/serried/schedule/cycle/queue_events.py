"""ClusterQueues, cohorts, admission checks, LocalQueues and namespaces that were added, changed or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from serried.api.kueue import AdmissionCheck, ClusterQueue, Cohort, FairSharing, LocalQueue
from serried.api.meta import Key
from serried.api.problem import Problem
from serried.quota.quotas import Quotas, read_quotas
from serried.schedule.cycle.workload_events import look_again
from serried.schedule.state.pending_queue import PendingQueue
from serried.schedule.state.records import Activity, ClusterQueueState, CohortState, LocalQueueState
from serried.schedule.state.routing import refresh, refresh_local, reroute
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.workload import read_weight

_UNKNOWN = Activity(False, "", "")


# --- ClusterQueues


def set_cluster_queue(state: State, cluster_queue: ClusterQueue) -> None:
    put_cluster_queue(state, cluster_queue, *read_quotas(cluster_queue.spec))


def put_cluster_queue(state: State, given: ClusterQueue, quotas: Quotas, problems: list[Problem]) -> None:
    """A ClusterQueue with the quota that could be read of it."""
    name = given.metadata.name
    terminating = given.metadata.deletion_timestamp is not None
    queue = state.cluster_queues.get(name)
    if queue is not None and (queue.spec, queue.terminating, queue.problems) == (given.spec, terminating, problems):
        queue.generation = given.metadata.generation
        return
    strict = given.spec.queueing_strategy == "StrictFIFO"
    moves = queue is not None and queue.spec.namespace_selector != given.spec.namespace_selector
    if queue is None:
        pending = PendingQueue(state.sweep, strict=strict)
        queue = ClusterQueueState(name, given.spec, 0, quotas, problems, terminating, pending, _UNKNOWN)
        state.cluster_queues[name] = queue
    elif queue.pending.strict != strict:
        queue.pending.set_strict(strict)
        # Whom they wait for has changed.
        queue.unreported = dict.fromkeys(queue.pending.orders())
    queue.spec, queue.generation = given.spec, given.metadata.generation
    queue.quotas, queue.problems, queue.terminating = quotas, problems, terminating
    before = state.ledger.tree_of(name)
    state.ledger.set_quotas(name, quotas, given.spec.cohort_name, _weight(given.spec.fair_sharing))
    refresh(state, queue)
    _tree_changed(state, before, state.ledger.tree_of(name))
    if moves:
        for local_queue in state.leads_to.get(name, ()):
            reroute(state, local_queue)
    # It may be drained now, or have other checks.
    for key in state.index.holders.get(name, ()):
        look_again(state, state.workloads[key])


def delete_cluster_queue(state: State, name: str) -> None:
    if state.cluster_queues.pop(name, None) is None:
        return
    state.requeue.queues.pop(name, None)
    tree = state.ledger.tree_of(name)
    state.ledger.remove_quotas(name)
    _tree_changed(state, tree)
    for local_queue in state.leads_to.get(name, ()):
        refresh_local(state, local_queue)
        reroute(state, local_queue)


def _tree_changed(state: State, *trees: str) -> None:
    """Quota that others in these trees can borrow has changed."""
    state.stale.quotas(trees)
    for tree in trees:
        state.requeue.changed(Changed.QUOTAS, tree)


def _weight(fair_sharing: FairSharing | None) -> Fraction:
    return read_weight(fair_sharing.weight) if fair_sharing is not None else Fraction(1)


# --- Cohorts


def set_cohort(state: State, cohort: Cohort) -> None:
    put_cohort(state, cohort, *read_quotas(cohort.spec))


def put_cohort(state: State, given: Cohort, quotas: Quotas, problems: list[Problem]) -> None:
    """A Cohort with the quota that could be read of it."""
    name = given.metadata.name
    known = state.cohorts.get(name)
    if known is not None and (known.spec, known.problems) == (given.spec, problems):
        known.generation = given.metadata.generation
        return
    before = state.ledger.tree_above(name)
    state.cohorts[name] = CohortState(given.spec, given.metadata.generation, quotas, problems)
    state.ledger.set_cohort(name, quotas, given.spec.parent_name, _weight(given.spec.fair_sharing))
    _cohorts_changed(state, {before, state.ledger.tree_above(name)})


def delete_cohort(state: State, name: str) -> None:
    if state.cohorts.pop(name, None) is not None:
        before = state.ledger.tree_above(name)
        state.ledger.remove_cohort(name)
        _cohorts_changed(state, {before, state.ledger.tree_above(name)})


def _cohorts_changed(state: State, trees: set[str]) -> None:
    """Quota of a cohort, or what is above what, has changed: everyone in these trees is looked at again."""
    state.stale.cohorts(trees)
    for name, queue in list(state.cluster_queues.items()):
        if queue.spec.cohort_name and state.ledger.tree_of(name) in trees:
            refresh(state, queue)


# --- admission checks


def set_admission_check(state: State, check: AdmissionCheck) -> None:
    name = check.metadata.name
    before = state.checks.get(name)
    state.checks[name] = check
    if before is None or (before.spec, before.status) != (check.spec, check.status):
        _check_changed(state, name)


def delete_admission_check(state: State, name: str) -> None:
    if state.checks.pop(name, None) is not None:
        _check_changed(state, name)


def _check_changed(state: State, name: str) -> None:
    for queue in list(state.cluster_queues.values()):
        strategy = queue.spec.admission_checks_strategy
        if strategy is not None and name in {check.name for check in strategy.admission_checks}:
            refresh(state, queue)


# --- LocalQueues


def set_local_queue(state: State, local_queue: LocalQueue) -> None:
    key = local_queue.key
    terminating = local_queue.metadata.deletion_timestamp is not None
    queue = state.local_queues.get(key)
    if queue is not None and (queue.spec, queue.terminating) == (local_queue.spec, terminating):
        queue.generation = local_queue.metadata.generation
        return
    if queue is not None:
        _unlink(state, key, queue)
    past = local_queue.status.fair_sharing
    if past is not None and past.admission_fair_sharing_status is not None:
        state.fair_usage.recall(key, past.admission_fair_sharing_status)
    queue = LocalQueueState(local_queue.spec, local_queue.metadata.generation, terminating, _UNKNOWN)
    state.local_queues[key] = queue
    state.leads_to.setdefault(queue.spec.cluster_queue, {})[key] = None
    state.stale.queue(("", queue.spec.cluster_queue))
    refresh_local(state, key)
    reroute(state, key)
    if queue.spec.stop_policy == "HoldAndDrain":
        # Also those whose quota is of the ClusterQueue that it led to before.
        for record in state.workloads.values():
            if record.reservation is not None and record.reservation.local_queue == key:
                look_again(state, record)


def delete_local_queue(state: State, key: Key) -> None:
    queue = state.local_queues.pop(key, None)
    if queue is not None:
        _unlink(state, key, queue)
        state.fair_usage.forget(key)
        reroute(state, key)


def _unlink(state: State, key: Key, queue: LocalQueueState) -> None:
    target = queue.spec.cluster_queue
    leads = state.leads_to[target]
    del leads[key]
    if not leads:
        del state.leads_to[target]
    state.stale.queue(("", target))


# --- namespaces


def set_namespace(state: State, name: str, labels: Mapping[str, str]) -> None:
    if state.namespaces.get(name) != labels:
        state.namespaces[name] = dict(labels)
        if state.world.index.repels():
            state.requeue.changed(Changed.NODES)
        _namespace_changed(state, name)


def delete_namespace(state: State, name: str) -> None:
    if state.namespaces.pop(name, None) is not None:
        _namespace_changed(state, name)


def _namespace_changed(state: State, name: str) -> None:
    for key in list(state.index.waiting):
        if key[0] == name:
            reroute(state, key)
