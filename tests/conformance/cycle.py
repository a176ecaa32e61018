"""Whole cycles: a cluster, its queues and workloads, one run of the admission loop, and what must hold after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from serried.api.assignment import decode
from serried.api.core import Node, Pod
from serried.api.duration import Duration
from serried.api.kueue import (
    Admission,
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
    TopologyAssignment,
    Workload,
)
from serried.api.meta import Key, condition_is
from serried.api.names import PendingReason
from serried.api.quantity import resource_value
from serried.place.options import PlaceOptions
from serried.schedule.cycle.cycle import Admit, Evict
from serried.schedule.cycle.second_pass import needs_second
from serried.schedule.engine import Engine
from serried.schedule.state.fair_usage import LocalUsage
from serried.schedule.state.records import ClusterQueueState, Record, WorkloadState
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.options import AdmissionFairSharing, FairSharing, Options, Resources
from serried.schedule.types.reasons import Reason
from tests.conformance import peer

Case = Mapping[str, Any]

#: Cases whose right answer is another one here (docs/differences.md says why): what is expected instead, and the
#: workloads that stay as they were.
_BETTER: Mapping[str, Mapping[str, Any]] = {
    # A LocalQueue that is deleted admits nothing more.
    "afs-0005": {"scheduled": ["default/wl-a1"], "untouched": ["default/wl-b1"]},
    # The resource cpu is in two groups of the ClusterQueues: they are told so, and admit nothing.
    "fair-0019": {
        "scheduled": [],
        "left": {"fs-nom-a": ["eng-alpha/nom-wl"], "fs-nom-b": ["eng-beta/borrow-wl"]},
        "untouched": ["eng-alpha/nom-wl", "eng-beta/borrow-wl"],
    },
}


def difference(case: Case) -> str:
    """What Serried answers differently from the record; "" when nothing."""
    case = {"id": "", "workloads": (), "expected": {}, "now": "2026-01-01T00:00:00Z", **case}
    outcome = _run(case)
    expected = _expected(case)
    found: dict[str, Any] = {
        "scheduled": sorted(outcome.scheduled),
        "preempted": sorted({_name(e.key) for e in outcome.evictions if e.preempted}),
        "assignments": _assignments(case, outcome, expected.get("assignmentsScope", "all")),
        "left": _by_queue(outcome.left),
        "inadmissibleLeft": _by_queue(outcome.inadmissible),
        "events": _counted(_events(outcome)),
        "workloads": _statuses(case, outcome),
        "skippedPreemptions": {q: outcome.skipped[q] for q in expected.get("skippedPreemptions", ())},
    }
    wanted: dict[str, Any] = {
        "scheduled": sorted(expected.get("scheduled", ())),
        "preempted": sorted(expected.get("preempted", ())),
        "assignments": {
            k: _admission(msgspec.convert(v, Admission)) for k, v in expected.get("assignments", {}).items()
        },
        "left": _by_queue(expected.get("left", {})),
        "inadmissibleLeft": _by_queue(expected.get("inadmissibleLeft", {})),
        "events": _counted((e["object"], e["type"], e["reason"]) for e in expected.get("events", ())),
        "workloads": {_name(_key(w)): _status(w) for w in expected.get("workloads", ())},
        "skippedPreemptions": expected.get("skippedPreemptions", {}),
    }
    lines = []
    for key, value in wanted.items():
        if key in expected and found[key] != value:
            lines.append(f"{key}: expected {_shown(value, found[key])}, found {_shown(found[key], value)}")
    return "; ".join(lines)


def _expected(case: Case) -> dict[str, Any]:
    expected = dict(case["expected"])
    better = dict(_BETTER.get(case["id"], {}))
    untouched = better.pop("untouched", ())
    expected |= better
    before = {_name(_key(w)): w for w in case["workloads"]}
    if untouched:
        after = {_name(_key(w)): w for w in expected.get("workloads", ())}
        expected["workloads"] = list((after | {name: before[name] for name in untouched}).values())
        expected["assignments"] = {k: v for k, v in expected.get("assignments", {}).items() if k not in untouched}
        if "assignments" not in case["expected"]:
            del expected["assignments"]
    return expected


def _key(body: Mapping[str, Any]) -> Key:
    return (body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _shown(value: Any, other: Any) -> str:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        value = {k: v for k, v in value.items() if other.get(k) != v}
    return msgspec.json.encode(value).decode()


@dataclass
class _Outcome:
    engine: Engine
    admits: list[Admit] = field(default_factory=list)
    evictions: list[Evict] = field(default_factory=list)
    #: slices whose place others have taken, with what they had
    replaced: dict[Key, Admission] = field(default_factory=dict)
    refused: set[Key] = field(default_factory=set)
    #: heads that were told why they wait → the code of the reason
    told: dict[Key, str] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)
    inadmissible: dict[str, list[str]] = field(default_factory=dict)
    #: ClusterQueue → heads that would have preempted others, but came too late
    skipped: Counter[str] = field(default_factory=Counter)
    second_failed: list[Key] = field(default_factory=list)

    @property
    def scheduled(self) -> set[str]:
        return {_name(a.key) for a in self.admits if a.kind != "checks" and a.key not in self.refused}


def _run(case: Case) -> _Outcome:
    engine = _engine(case)
    state = engine._state
    now, gates = datetime.fromisoformat(case["now"]), peer.Gates.of(case)
    outcome = _Outcome(engine)
    heads: list[Key] = []
    for _ in range(case.get("cycles", 1)):
        heads = _heads(state)
        second = {key for key in state.requeue.workloads if needs_second(state, state.workloads[key])}
        cycle, replaced = peer.run_cycle(state, now, gates)
        # To admit what has its quota and no checks left is not for Kueue's scheduler, but for another part of it.
        outcome.admits += [a for a in cycle.decisions if a.kind != "checks"]
        outcome.evictions += cycle.evictions
        outcome.replaced |= replaced
        for key in second - {a.key for a in cycle.decisions} - {e.key for e in cycle.evictions}:
            if state.requeue.waits(key, Changed.NODES):
                outcome.second_failed.append(key)
        for key in heads:
            record = state.workloads[key]
            if record.reservation is None and record.last_reason is not None:
                outcome.told[key] = _code(record.last_reason)
                outcome.skipped[record.cluster_queue] += record.last_reason.constraint == peer.SKIPPED_PREEMPTION
        error = case.get("workloadStatusPatchError")
        if error:
            for decision in cycle.decisions:
                outcome.refused.add(decision.key)
                engine.withdraw(decision.key)
            for eviction in cycle.evictions:
                outcome.refused.add(eviction.key)
                engine.withdraw_eviction(eviction.key)
        engine.validate()
    _remaining(state, outcome, _heads(state) if case.get("cycles", 1) > 1 else heads)
    return outcome


def _heads(state: State) -> list[Key]:
    """The workload of each ClusterQueue that is looked at next."""
    found = []
    for queue in state.cluster_queues.values():
        if state.fair_usage.orders(queue.name):
            rank = {o: state.fair_usage.of(state.workloads[o[3], o[4]].info.queue) for o in queue.pending.orders()}
            head = queue.pending.head(rank.__getitem__)
        else:
            head = queue.pending.head()
        blocked = [r for r in _aside(state, queue) if _mismatched(r)]
        first = min((r.info.order for r in blocked), default=None)
        if first is not None and (head is None or first < head):
            head = first
        if head is not None:
            found.append((head[3], head[4]))
    return found


def _aside(state: State, queue: ClusterQueueState) -> list[Record]:
    """Workloads that wait outside of the ClusterQueue that their LocalQueue leads to."""
    local = set(state.leads_to.get(queue.name, ()))
    return [
        r
        for r in state.workloads.values()
        if r.state is WorkloadState.INADMISSIBLE and r.info.active and r.info.queue in local
    ]


def _mismatched(record: Record) -> bool:
    """Its namespace is not selected, or it is wrong in itself: Kueue finds that out when it is a head."""
    told = record.last_reason
    return told is not None and (
        told.constraint.startswith(("spec.namespaceSelector", "admission checks")) or told.layer == "input"
    )


def _remaining(state: State, outcome: _Outcome, heads: Iterable[Key]) -> None:
    for queue in state.cluster_queues.values():
        for order in queue.pending.orders():
            key = (order[3], order[4])
            record = state.workloads[key]
            unschedulable = queue.pending.unschedulable(order)
            waits = unschedulable is None or record.promise is not None or queue.pending.strict
            where = outcome.left if waits else outcome.inadmissible
            where.setdefault(queue.name, []).append(_name(key))
        for record in _aside(state, queue):
            mismatched = _mismatched(record) and record.info.key in heads
            parks = mismatched and (
                not queue.pending.strict or (record.last_reason and record.last_reason.layer != "input")
            )
            where = outcome.inadmissible if parks else outcome.left
            where.setdefault(queue.name, []).append(_name(record.info.key))


def _code(reason: Reason) -> str:
    """As Kueue has it. Ours says Misconfigured where it says that no flavor matches, and names topology as what is
    waited for even if it may come free (see docs/differences.md)."""
    if reason.layer == "topology" and "can never fit" not in reason.message:
        return (
            PendingReason.WAITING_FOR_QUOTA if reason.code == PendingReason.TOPOLOGY_PLACEMENT_FAILED else reason.code
        )
    if reason.layer == "input" and reason.constraint.startswith("topology levels"):
        return PendingReason.NO_MATCHING_FLAVOR
    return reason.code


# --- the state before


def _engine(case: Case) -> Engine:
    gates = case.get("featureGates", {})
    usage = case.get("admissionFairSharing")
    engine = Engine(
        PlaceOptions.from_gates(gates),
        options=Options(
            fair_sharing=FairSharing() if case.get("fairSharing") else None,
            admission_fair_sharing=None
            if usage is None
            else msgspec.convert(usage, AdmissionFairSharing, dec_hook=lambda _, text: Duration.read(text)),
            priority_boost=gates.get("PriorityBoost", False),
            resources=msgspec.convert({"transformations": case.get("resourceTransformations", ())}, Resources),
        ),
    )
    kinds: tuple[tuple[str, type[Any], Any], ...] = (
        ("topologies", Topology, engine.set_topology),
        ("nodes", Node, engine.set_node),
        ("resourceFlavors", ResourceFlavor, engine.set_flavor),
        ("admissionChecks", AdmissionCheck, engine.set_admission_check),
        ("cohorts", Cohort, engine.set_cohort),
        ("clusterQueues", ClusterQueue, engine.set_cluster_queue),
        ("localQueues", LocalQueue, engine.set_local_queue),
        ("pods", Pod, engine.set_pod),
    )
    for body in case.get("namespaces", ()):
        engine.set_namespace(body["metadata"]["name"], body["metadata"].get("labels", {}))
    for name, kind, put in kinds:
        for body in case.get(name, ()):
            put(msgspec.convert(body, kind))
    for body in case["workloads"]:
        workload = msgspec.convert(body, Workload)
        if not gates.get("PartialAdmission", True):
            for pod_set in workload.spec.pod_sets:
                pod_set.min_count = None
        engine.set_workload(workload)
    for name in case.get("deletedLocalQueues", ()):
        namespace, _, queue = name.partition("/")
        engine.delete_local_queue((namespace, queue))
    for name, amounts in case.get("localQueueUsage", {}).items():
        namespace, _, queue = name.partition("/")
        used = {r: resource_value(r, q) / (1000 if r == "cpu" else 1) for r, q in amounts.items()}
        engine._state.fair_usage.used[namespace, queue] = LocalUsage(amounts=used)
    return engine


# --- what holds after


def _name(key: Key) -> str:
    return "/".join(key)


def _by_queue(lists: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    return {queue: sorted(names) for queue, names in lists.items() if names}


def _counted(events: Iterable[tuple[str, str, str]]) -> list[list[Any]]:
    return [[*event, times] for event, times in sorted(Counter(events).items())]


def _assignments(case: Case, outcome: _Outcome, scope: str) -> dict[str, Any]:
    held = {key: r.reservation.admission for key, r in outcome.engine._state.workloads.items() if r.reservation}
    held |= outcome.replaced
    result = {}
    for body in case["workloads"]:
        old = msgspec.convert(body, Workload)
        admitted = condition_is(old.status.conditions, "Admitted") and not old.status.unhealthy_nodes
        if old.key in held and not (scope == "new" and admitted):
            result[_name(old.key)] = _admission(held[old.key])
    return result


def _admission(admission: Admission | None) -> Any:
    if admission is None:
        return None
    return {
        "clusterQueue": admission.cluster_queue,
        "podSets": [
            {
                "name": a.name,
                "count": a.count,
                "flavors": dict(sorted(a.flavors.items())),
                "usage": {r: resource_value(r, q) for r, q in sorted(a.resource_usage.items())},
                "delayed": a.delayed_topology_request or "",
                "topology": _topology(a.topology_assignment),
            }
            for a in admission.pod_set_assignments
        ],
    }


def _topology(assignment: TopologyAssignment | None) -> Any:
    if assignment is None:
        return None
    return {"levels": assignment.levels, "domains": [[list(values), count] for values, count in decode(assignment)]}


def _events(outcome: _Outcome) -> Iterable[tuple[str, str, str]]:
    for admit in outcome.admits:
        if admit.key in outcome.refused:
            continue
        if admit.kind == "new":
            yield _name(admit.key), "Normal", "QuotaReserved"
        if admit.admitted and admit.kind in ("new", "topology"):
            yield _name(admit.key), "Normal", "Admitted"
    for evict in outcome.evictions:
        if evict.key in outcome.refused:
            continue
        yield _name(evict.key), "Normal", f"EvictedDueTo{evict.reason}"
        if evict.preempted:
            assert evict.preemptor is not None
            yield _name(evict.key), "Normal", "Preempted"
            yield _name(evict.preemptor), "Normal", "PreemptedWorkload"
    for key in outcome.replaced:
        yield _name(key), "Normal", "WorkloadSliceReplaced"
    for key, code in outcome.told.items():
        yield _name(key), "Warning", code
    for key in outcome.second_failed:
        yield _name(key), "Warning", "SecondPassFailed"


def _statuses(case: Case, outcome: _Outcome) -> dict[str, Any]:
    """The workloads as they are once the decisions are written."""
    result = {}
    admits = {a.key: a for a in outcome.admits if a.key not in outcome.refused}
    evictions = {e.key: e for e in outcome.evictions if e.key not in outcome.refused}
    for body in case["workloads"]:
        key = _key(body)
        status = _status(body)
        conditions = status["conditions"]
        if key in admits:
            admit = admits[key]
            status["admission"] = _admission(admit.admission)
            conditions["QuotaReserved"] = ["True", "QuotaReserved", ""]
            if admit.admitted:
                conditions["Admitted"] = ["True", "Admitted", ""]
            elif "Admitted" in conditions or admit.kind == "new":
                conditions["Admitted"] = ["False", "UnsatisfiedAdmissionChecks", ""]
        if key in evictions:
            evict = evictions[key]
            conditions["Evicted"] = ["True", evict.reason, evict.message]
            if evict.preempted:
                conditions["Preempted"] = ["True", evict.preempted, evict.message]
        if key in outcome.replaced:
            conditions["Finished"] = ["True", "WorkloadSliceReplaced", ""]
        if key in outcome.told:
            conditions["QuotaReserved"] = ["False", outcome.told[key], ""]
            conditions["Admitted"] = ["False", "NoReservation", ""]
        result[_name(key)] = status
    return result


def _status(body: Mapping[str, Any]) -> dict[str, Any]:
    workload = msgspec.convert(body, Workload)
    return {
        "conditions": {
            c.type: [
                c.status,
                # What the fixture calls ByTest and AdmittedByTest is a placeholder.
                c.reason.replace("AdmittedByTest", "QuotaReserved").replace("ByTest", c.type),
                c.message if c.type in ("Evicted", "Preempted") else "",
            ]
            for c in workload.status.conditions
        },
        "admission": _admission(workload.status.admission),
    }
