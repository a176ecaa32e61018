"""Quota, flavors, shares and victims: a state of the queues, one question, and its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec

from serried.api.core import Node
from serried.api.duration import Duration
from serried.api.kueue import (
    ClusterQueue,
    Cohort,
    FlavorFungibility,
    LocalQueue,
    PodSet,
    ResourceFlavor,
    Topology,
    Workload,
)
from serried.api.quantity import resource_value
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.quota.quotas import FlavorResource, Quotas
from serried.quota.tree import QuotaNode
from serried.schedule.cycle.nominate import reduced
from serried.schedule.cycle.reason_text import preemption_message
from serried.schedule.engine import Engine
from serried.schedule.flavors.assigner import Oracle, assign, preference_key
from serried.schedule.flavors.assignment import Assignment, Fit, PodSetChoice
from serried.schedule.flavors.flavor_topology import find_places
from serried.schedule.preemption.candidates import PreemptionRequest, candidate_order, may_preempt
from serried.schedule.preemption.fair_sharing import Offers
from serried.schedule.preemption.search import find_targets
from serried.schedule.state.fair_usage import LocalUsage
from serried.schedule.state.records import Record
from serried.schedule.state.state import State
from serried.schedule.types.moment import Moment
from serried.schedule.types.options import AdmissionFairSharing, FairSharing, Options
from serried.schedule.types.workload import priority_boost, read_workload
from tests.conformance.peer import Gates, reclaiming
from tests.conformance.peer_scan import PeerRules
from tests.conformance.texts import text_of

Case = Mapping[str, Any]
_MODES = {
    "NoFit": Fit.NO_FIT,
    "NoCandidates": Fit.NO_CANDIDATES,
    "Preempt": Fit.PREEMPT,
    "Reclaim": Fit.RECLAIM,
    "Fit": Fit.FIT,
}
#: Absent means empty.
_ABSENT: Mapping[str, Any] = {
    "expected": {},
    "requested": {},
    "candidates": (),
    "candidateClusterQueues": (),
    "incoming": {},
    "candidate": {},
    "assignment": {},
    "podSets": (),
    "countLimit": 0,
    "preemptionSimulation": {},
    "targetClusterQueue": "",
    "targetLocalQueue": "/",
    "deleteCohort": "",
    "policy": "",
}
_ALLOWED = "kueue.x-k8s.io/workload-allowed-resource-flavors"


def difference(case: Case) -> str:
    """What Serried answers differently from the record; "" when nothing."""
    case = {**_ABSENT, **case}
    found, expected = _SUITES[case["suite"]](case), dict(case["expected"])
    lines = []
    for path in expected.pop("orderSensitive", ()):
        # The answer depends on the order in which resources are visited, which is ours where it matters.
        match = re.fullmatch(r"podSets\[(\d+)\]\.(\w+)", path)
        assert match, path
        for side in (found, expected):
            side["podSets"][int(match[1])].pop(match[2], None)
    for key in sorted(found.keys() | expected.keys()):
        a, b = _plain(expected.get(key)), _plain(found.get(key))
        if a != b:
            lines.append(f"{key}: expected {msgspec.json.encode(a).decode()}, found {msgspec.json.encode(b).decode()}")
    return "; ".join(lines)


def _plain(value: Any) -> Any:
    """Absent means null, an empty string, list or map; entries of zero in maps of amounts may be missing."""
    if isinstance(value, Mapping):
        plain = {k: _plain(v) for k, v in value.items()}
        return {k: v for k, v in plain.items() if v or v is False} or None
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value] or None
    return value or None


# --- the state


def _engine(case: Case) -> Engine:
    gates = case.get("featureGates", {})
    fair = case.get("fairSharing") or {}
    strategies = fair.get("preemptionStrategies") or FairSharing().preemption_strategies
    engine = Engine(
        options=Options(
            fair_sharing=FairSharing(preemption_strategies=tuple(strategies)) if fair.get("enabled") else None,
            admission_fair_sharing=AdmissionFairSharing(usage_half_life_time=Duration(0))
            if "admissionFairSharing" in case
            else None,
            priority_boost=gates.get("PriorityBoost", False),
        )
    )
    for body in case.get("topologies", ()):
        engine.set_topology(msgspec.convert(body, Topology))
    for body in case.get("nodes", ()):
        engine.set_node(msgspec.convert(body, Node))
    for body in case.get("resourceFlavors", ()):
        engine.set_flavor(msgspec.convert(body, ResourceFlavor))
    for body in case.get("cohorts", ()):
        engine.set_cohort(msgspec.convert(body, Cohort))
    for body in case.get("clusterQueues", ()):
        engine.set_cluster_queue(msgspec.convert(body, ClusterQueue))
    for body in case.get("localQueues", ()):
        engine.set_local_queue(msgspec.convert(body, LocalQueue))
    for body in (*case.get("admitted", ()), *case.get("workloads", ())):
        engine.set_workload(msgspec.convert(body, Workload))
    for queue, amounts in case.get("usage", {}).items():
        engine._state.ledger.charge(queue, _amounts(amounts))
    for i, use in enumerate(case.get("nodeUsage", ())):
        levels, domain, count = engine._state.world.levels(use["flavor"]), use.get("domain", ()), use.get("count", 0)
        held = Placement("used", use["flavor"], levels[-len(domain) :], ((tuple(domain), count),))
        used = PodSetRequest("used", count, use.get("perPodRequests", {}))
        engine._state.world.hold(("used", str(i)), [held], [used])
    engine._state.journal.commit()
    return engine


def _state(case: Case) -> State:
    return _engine(case)._state


def _amounts(usage: Mapping[str, Mapping[str, int]]) -> dict[FlavorResource, int]:
    return {(flavor, resource): n for flavor, amounts in usage.items() for resource, n in amounts.items()}


def _nested(usage: Mapping[FlavorResource, int]) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for (flavor, resource), amount in usage.items():
        result.setdefault(flavor, {})[resource] = amount
    return result


def _now(case: Case) -> datetime:
    text = case.get("now")
    return datetime.fromisoformat(text) if text else datetime(2026, 1, 1, tzinfo=UTC)


def _workload(body: Any) -> Workload:
    return msgspec.convert(body, Workload)


def _nodes(state: State) -> list[QuotaNode]:
    queues = [state.ledger.queue(name) for name in state.cluster_queues]
    return queues + state.ledger.cohorts()


def _key(record: Record) -> str:
    return "/".join(record.info.key)


# --- quota


def _available(case: Case) -> dict[str, Any]:
    state = _state(case)
    result: dict[str, dict[str, Any]] = {"available": {}, "potentiallyAvailable": {}}
    for name, queue in state.cluster_queues.items():
        node = state.ledger.queue(name)
        wanted = _amounts(case["expected"].get("available", {}).get(name, {})).keys() | queue.quotas.nominal.keys()
        result["available"][name] = _nested({c: max(0, node.available(c)) for c in wanted})
        result["potentiallyAvailable"][name] = _nested({c: node.potential(c) for c in wanted})
    return result


def _tree(case: Case, state: State | None = None) -> dict[str, Any]:
    state = state or _state(case)
    result: dict[str, dict[str, Any]] = {}
    inactive = [n for n, q in state.cluster_queues.items() if q.activity.reason in ("FlavorNotFound", "CohortCycle")]
    for node in _nodes(state):
        if node.is_queue and node.name in inactive and node.name not in case["expected"].get("clusterQueues", {}):
            continue
        kind = "clusterQueues" if node.is_queue else "cohorts"
        subtree, usage = _nested(node.subtree), _nested(node.usage)
        result.setdefault(kind, {})[node.name] = {"subtreeQuota": subtree, "usage": usage}
    return {**result, "inactiveClusterQueues": sorted(inactive)}


def _ops(case: Case) -> dict[str, Any]:
    state = _state(case)
    for names, move in ((case.get("remove", ()), state.ledger.refund), (case.get("add", ()), state.ledger.charge)):
        for name in names:
            record = next(r for r in state.workloads.values() if name in (r.info.key[1], _key(r)))
            assert record.reservation is not None
            move(record.reservation.cluster_queue, record.reservation.usage)
    return _tree(case, state)


def _cohort_delete(case: Case) -> dict[str, Any]:
    engine = _engine(case)
    ledger = engine._state.ledger
    before = {node.name: _nested(node.subtree) for node in ledger.cohorts()}
    engine.delete_cohort(case["deleteCohort"])
    after = {node.name: _nested(node.subtree) for node in ledger.cohorts()}
    return {"cohortSubtreeQuotaBefore": before, "cohortSubtreeQuotaAfter": after}


def _shares(case: Case) -> dict[str, Any]:
    state = _state(case)
    extra = _amounts(case.get("extraUsage", {}))
    shares = []
    for node in _nodes(state):
        share = node.share(extra)
        infinite, value = share.key
        shares.append(
            {
                "kind": "ClusterQueue" if node.is_queue else "Cohort",
                "name": node.name,
                "borrowing": share.borrowing,
                "dominantResource": share.resource,
                "share": share.rounded,
                "preciseShare": "+Inf" if infinite else _same_decimal(case, node, value),
            }
        )
    order = [(s["kind"], s["name"]) for s in case["expected"].get("shares", ())]
    place = {name: i for i, name in enumerate(order)}
    return {"shares": sorted(shares, key=lambda s: place.get((s["kind"], s["name"]), len(place)))}


def _same_decimal(case: Case, node: QuotaNode, value: Fraction) -> str:
    """The expected decimal if it is the value to within its precision, else the value."""
    kind = "ClusterQueue" if node.is_queue else "Cohort"
    for share in case["expected"].get("shares", ()):
        if (share["kind"], share["name"]) == (kind, node.name) and share["preciseShare"] != "+Inf":
            text = str(share["preciseShare"])
            if abs(Fraction(text) - value) <= abs(value) / 10**9:
                return text
    return str(float(value))


def _borrowing(case: Case) -> dict[str, Any]:
    node = _state(case).ledger.queue(case["targetClusterQueue"])
    requested = _amounts(case["requested"])
    return {
        "borrowing": any(node.exceeds(fr) for fr in node.usage),
        "borrowingOnRequested": any(node.exceeds(fr) for fr in requested),
    }


def _cq_usage(case: Case) -> dict[str, Any]:
    engine = _engine(case)
    status = engine.status(("", case["targetClusterQueue"]))
    return _report(status, borrows=True) if status is not None else {}


def _lq_usage(case: Case) -> dict[str, Any]:
    engine = _engine(case)
    target = case["targetLocalQueue"]
    body = (
        target
        if isinstance(target, dict)
        else dict(zip(("namespace", "name"), target.rpartition("/")[::2], strict=True))
    )
    key = (body.get("namespace", ""), body["name"])
    state = engine._state
    account = state.accounts[key]
    local = state.local_queues.get(key)
    queue = state.cluster_queues.get(local.spec.cluster_queue) if local is not None else None
    quotas = queue.quotas if queue is not None else Quotas()
    result: dict[str, Any] = {}
    for field, amounts in (("admitted", account.used), ("reserved", account.reserved)):
        if field in case["expected"]:
            result[field] = [{"flavor": f, "resource": r, "total": amounts.get((f, r), 0)} for f, r in quotas.nominal]
    for field, count in (("admittedWorkloads", account.admitted), ("reservingWorkloads", account.reserving)):
        if field in case["expected"]:
            result |= {field: count}
    return result


def _report(status: Any, *, borrows: bool) -> dict[str, Any]:
    def rows(usage: Iterable[Any]) -> list[dict[str, Any]]:
        return [
            {
                "flavor": flavor.name,
                "resource": r.name,
                "total": resource_value(r.name, r.total),
                "borrowed": resource_value(r.name, r.borrowed),
            }
            for flavor in usage
            for r in flavor.resources
        ]

    return {
        "admitted": rows(status.flavors_usage),
        "reserved": rows(status.flavors_reservation),
        "admittedWorkloads": status.admitted_workloads,
        "reservingWorkloads": status.reserving_workloads,
    }


# --- priorities and orders


def _policy(case: Case) -> dict[str, Any]:
    boost = case.get("featureGates", {}).get("PriorityBoost", False)
    incoming, candidate = (read_workload(_workload(case[k]), boost=boost) for k in ("incoming", "candidate"))
    return {"eligible": may_preempt(case["policy"], incoming, candidate)}


def _priority(case: Case) -> dict[str, Any]:
    boost = case.get("featureGates", {}).get("PriorityBoost", False)
    workload = _workload(case["incoming"])
    return {
        "basePriority": workload.spec.priority or 0,
        "boost": priority_boost(workload) if boost else 0,
        "effectivePriority": read_workload(workload, boost=boost).priority,
    }


def _candidate_order(case: Case) -> dict[str, Any]:
    usage = (case.get("admissionFairSharing") or {}).get("localQueueUsage", {})
    spec = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}} if usage else {}
    target = {"metadata": {"name": case["targetClusterQueue"]}, "spec": spec}
    state = _state({**case, "clusterQueues": [target], "admitted": case["candidates"]})
    for name, value in usage.items():
        namespace, _, queue = name.rpartition("/")
        state.fair_usage.used[namespace, queue] = LocalUsage(amounts={"": float(value)})
    key = candidate_order(state, case["targetClusterQueue"], Moment(_now(case)))
    return {"order": [_key(r) for r in sorted(state.workloads.values(), key=key)]}


def _fair_order(case: Case) -> dict[str, Any]:
    state = _state(case)
    target = state.ledger.queue(case["targetClusterQueue"])
    order = candidate_order(state, target.name, Moment(_now(case)))
    candidates = {
        name: sorted((order(r), r) for k in state.index.holders.get(name, ()) for r in [state.workloads[k]])
        for name in case["candidateClusterQueues"]
    }
    offers = Offers(target, candidates)
    found = []
    actions = iter(case.get("actions", ()))
    for queue in offers:
        found.append(queue.name)
        if next(actions, "") == "drop":
            offers.drop(queue.name)
        else:
            candidates[queue.name].pop(0)
    return {"order": found}


# --- victims


def _assigned(case: Case) -> tuple[dict[FlavorResource, int], frozenset[FlavorResource]]:
    requests = {p["name"]: _pod_requests(p) for p in _incoming_pod_sets(case)}
    replaced = {p["name"]: p["count"] for p in (case.get("replacedSlice") or {}).get("podSets", ())}
    needed: dict[FlavorResource, int] = {}
    contested = set()
    for pod_set in case["assignment"].get("podSets", ()):
        count = pod_set.get("count", 0)
        if pod_set["name"] in replaced and case["suite"] == "flavorusage":
            count -= replaced[pod_set["name"]]
        for resource, choice in pod_set.get("flavors", {}).items():
            fr = (choice["name"], resource)
            per_pod = 1 if resource == "pods" else requests.get(pod_set["name"], {}).get(resource, 0)
            if per_pod:
                needed[fr] = needed.get(fr, 0) + per_pod * count
            if choice.get("mode") == "Preempt":
                contested.add(fr)
    return needed, frozenset(contested)


def _incoming_pod_sets(case: Case) -> Sequence[Any]:
    found: Sequence[Any] = case["incoming"].get("spec", {}).get("podSets", ())
    return found


def _pod_requests(pod_set: Any) -> Mapping[str, int]:
    workload = Workload()
    workload.spec.pod_sets = (msgspec.convert(pod_set, PodSet),)
    return read_workload(workload).pod_sets[0].requests


def _victims(case: Case) -> dict[str, Any]:
    state = _state(case)
    workload = _workload(case["incoming"])
    incoming = Record(read_workload(workload, boost=state.options.priority_boost), (), "")
    needed, contested = _assigned(case)
    queue = case["targetClusterQueue"]
    if queue not in state.cluster_queues:
        return {"preempted": []}
    with reclaiming(Gates.of(case)):
        found = find_targets(state, PreemptionRequest(incoming.info, queue, needed, contested), Moment(_now(case)))
    rows = []
    fields = {k for row in case["expected"].get("preempted", ()) for k in row} or {"workload", "reason"}
    for victim in found:
        assert victim.record.reservation is not None
        paths = [state.ledger.queue(q).path_name for q in (queue, victim.record.reservation.cluster_queue)]
        message = "" if victim.record.info.evicted else preemption_message(incoming, victim, *paths)
        row = {
            "workload": _key(victim.record),
            "reason": victim.reason,
            "message": message,
            "alreadyEvicted": victim.record.info.evicted,
        }
        rows.append({k: v for k, v in row.items() if k in fields})
    order = [row["workload"] for row in case["expected"].get("preempted", ())]
    rows.sort(key=lambda row: order.index(row["workload"]) if row["workload"] in order else len(order))
    return {"preempted": rows}


# --- flavors


def _preference(case: Case) -> dict[str, Any]:
    fungibility = msgspec.convert(case.get("flavorFungibility", {}), FlavorFungibility)
    a, b = (preference_key(fungibility, _MODES[case[k]["mode"]], case[k].get("borrowing", 0)) for k in ("a", "b"))
    return {"aPreferredOverB": a > b}


def _usage(case: Case) -> dict[str, Any]:
    return {"usage": _nested(_assigned(case)[0])}


def _reduce(case: Case) -> dict[str, Any]:
    pod_sets = [PodSetRequest(p.get("name", str(i)), p.get("count", 0), {}) for i, p in enumerate(case["podSets"])]
    counts = [p.get("minCount") for p in case["podSets"]]
    found = reduced(pod_sets, counts, lambda sets: sum(p.count for p in sets) <= case["countLimit"])
    return {"found": found is not None, "count": sum(p.count for p in found or ())}


def _simulated(case: Case) -> Oracle:
    simulation = case["preemptionSimulation"]
    overrides = {(o["flavor"], o["resource"]): o for o in simulation.get("overrides", ())}

    def ask(fr: FlavorResource, amount: int) -> tuple[Fit, int]:
        answer = overrides.get(fr, simulation.get("default", {}))
        return _MODES[answer.get("possibility", "NoCandidates")], answer.get("borrowAfter", 0)

    return ask


def _flavors(case: Case) -> dict[str, Any]:
    state = _state(case)
    queue = state.cluster_queues.get(case["targetClusterQueue"])
    if queue is None:
        return {}
    info = read_workload(_workload(case["incoming"]), boost=state.options.priority_boost)
    gates = case.get("featureGates", {})
    allowed = _workload(case["incoming"]).metadata.annotations.get(_ALLOWED)
    replaced = {
        p["name"]: (p.get("flavors", {}), p.get("requests") or _replaced_requests(case, p))
        for p in (case.get("replacedSlice") or {}).get("podSets", ())
    }
    rules = PeerRules(
        allowed=frozenset(allowed.split(",")) if allowed and gates.get("ConcurrentAdmission") else None,
        nominated=case.get("nominatedFlavors"),
        replaced=replaced,
    )
    found = assign(state, queue, info.pod_sets, _simulated(case), scan=rules.scan)
    if found.mode != Fit.NO_FIT:
        find_places(state, queue, info, found)
    state.journal.rollback(0)
    observed = gates.get("UnadmittedWorkloadsObservability", True)
    return {
        "mode": found.mode.word,
        "borrowing": found.borrowing,
        "usage": _nested(found.usage),
        "noFitReason": found.no_fit if observed else "",
        "podSets": [_pod_set(found, p, observed=observed) for p in found.pod_sets],
    }


def _replaced_requests(case: Case, pod_set: Any) -> dict[str, int]:
    requests = next(
        (_pod_requests(p) for p in _incoming_pod_sets(case) if p["name"] == pod_set["name"]),
        {},
    )
    return {resource: amount * pod_set.get("count", 0) for resource, amount in requests.items()}


def _pod_set(found: Assignment, choice: PodSetChoice, *, observed: bool) -> dict[str, Any]:
    placement = choice.placement
    return {
        "name": choice.pod_set.name,
        "count": choice.pod_set.count,
        "mode": choice.mode.word,
        "requests": {r: n for r, n in choice.requests.items() if n},
        "error": "" if choice.error is None else text_of(choice.error),
        "reasons": sorted(text_of(r.cause) for r in choice.refusals if r.cause != choice.error),
        "flavors": {
            r: {"name": c.flavor, "mode": c.mode.word, "borrow": c.borrow, "triedFlavorIndex": c.tried}
            for r, c in choice.flavors.items()
        },
        "topologyAssignment": placement
        and {
            "levels": list(placement.levels),
            "domains": [{"values": list(v), "count": n} for v, n in placement.domains],
        },
        "attempts": [
            {
                "flavor": t.flavor,
                "mode": t.mode.word,
                "borrow": t.borrow,
                "preemptionPossibility": {1: "NoCandidates", 2: "Preempt", 3: "Reclaim"}.get(t.possibility or 0, ""),
                "noFitReason": t.no_fit if observed else "",
                "reasons": sorted(text_of(r.cause) for r in t.refusals),
            }
            for t in sorted(choice.tried.values(), key=lambda t: t.flavor)
        ],
    }


_SUITES: dict[str, Callable[[Case], dict[str, Any]]] = {
    "available": _available,
    "borrowing": _borrowing,
    "candorder": _candidate_order,
    "cohortdelete": _cohort_delete,
    "cqusage": _cq_usage,
    "drs": _shares,
    "fairorder": _fair_order,
    "fairpreempt": _victims,
    "flavorpref": _preference,
    "flavorusage": _usage,
    "hierpreempt": _victims,
    "lqusage": _lq_usage,
    "policy": _policy,
    "preempt": _victims,
    "priority": _priority,
    "quotaops": _ops,
    "quotatree": _tree,
    "reduce": _reduce,
    **dict.fromkeys(
        (
            "flavor",
            "flavorallowed",
            "flavordeleted",
            "flavorhier",
            "flavornofit",
            "flavorreclaim",
            "flavorscan",
            "flavortas",
        ),
        _flavors,
    ),
}
