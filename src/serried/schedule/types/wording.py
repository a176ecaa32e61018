"""Reasons from numbers: the one place where a refusal of quota, flavors or topology becomes a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec

from serried.api.meta import Key
from serried.api.names import HOSTNAME, PendingReason
from serried.api.problem import Problem
from serried.api.quantity import format_quantity
from serried.place.result import NoPlacement, Placement
from serried.quota.ledger import Shortage
from serried.quota.quotas import FlavorResource
from serried.schedule.types.reasons import Reason
from serried.schedule.types.refusals import (
    AffinityMismatch,
    BadRequest,
    Cause,
    FlavorNotFound,
    NoPlace,
    NotCovered,
    NoTopologyChosen,
    QuotaShort,
    Refusal,
    SeveralTopologies,
    TopologyOnly,
    Untolerated,
    WithoutTopology,
    WrongLabel,
)

#: So many workloads are named in a sentence.
_NAMED = 5


def opening(pod_set: str) -> str:
    """How Kueue's refusals begin."""
    return f"couldn't assign flavors to pod set {pod_set}: "


def refusal(found: Refusal, queue: str, holders: Callable[[FlavorResource], str]) -> Reason:
    """What stands against a flavor of a ClusterQueue. `holders`: who has the most of a flavor's resource, in words."""
    match found.cause:
        case QuotaShort(shortage=short):
            return lacks_quota(found.pod_set, queue, short, holders(short.fr))
        case NotCovered(resource=resource, amount=amount, covered=covered):
            return not_covered(found.pod_set, queue, resource, amount, covered)
        case BadRequest(flavor=flavor, problem=problem):
            return bad_request(found.pod_set, flavor, problem)
        case NoPlace(flavor=flavor, failed=failed):
            return no_place(flavor, failed)
        case cause:
            return no_flavor(found.pod_set, queue, [mismatch(cause)])


def mismatch(cause: Cause) -> str:
    """Why the pods may not use a flavor, whatever is free in it."""
    match cause:
        case FlavorNotFound(flavor=flavor):
            return f"flavor {flavor} not found"
        case Untolerated(flavor=flavor, key=key, value=value, effect=effect):
            return f"untolerated taint {key}={value}:{effect} in flavor {flavor}"
        case WrongLabel(flavor=flavor, key=key, wanted=wanted, has=has):
            found = f"no label {key}" if has is None else f"{key}={has}"
            return f"flavor {flavor} has {found}, but the pods' nodeSelector wants {key}={wanted}"
        case AffinityMismatch(flavor=flavor):
            return f"flavor {flavor} doesn't match the pods' required node affinity"
        case TopologyOnly(flavor=flavor):
            return f"flavor {flavor} is only for pods with a topology request"
        case WithoutTopology(flavor=flavor):
            return f"flavor {flavor} has no topology, which the pods request"
        case NoTopologyChosen(chosen=chosen):
            return f"flavor {', '.join(chosen) or '(none)'} has no topology, which the pods request"
        case SeveralTopologies(chosen=chosen):
            return f"flavors {' and '.join(chosen)} each have a topology, and a pod can be placed in one only"
    return f"flavor {cause.flavor} may not be used"


def lacks_quota(pod_set: str, queue: str, short: Shortage, holders: str) -> Reason:
    """A flavor is short of a resource: for now, or for good. `holders`: who has most of it, in words ("": nobody)."""
    flavor, resource = short.fr
    show = partial(format_quantity, resource)
    start = opening(pod_set)
    constraint = f"nominalQuota of {resource} in flavor {flavor} of ClusterQueue {queue}"
    if short.never:
        requested = short.before + short.requested
        return Reason(
            layer="quota",
            code=PendingReason.EXCEEDS_MAX_QUOTA,
            message=f"{start}insufficient quota for {resource} in flavor {flavor}: {show(requested)} requested, but "
            f"ClusterQueue {queue} can never have more than {show(short.maximum)}. Ask for less or use another queue.",
            constraint=constraint,
            what=resource,
            needed=show(requested),
            available=show(short.maximum),
            missing=show(requested - short.maximum),
            where=f"flavor {flavor}",
            field=f"requests of {resource} in pod set {pod_set}",
            found=show(requested),
            allowed=f"at most {show(short.maximum)}",
        )
    left = max(0, short.available)
    return Reason(
        layer="quota",
        code=PendingReason.WAITING_FOR_QUOTA,
        message=f"{start}insufficient unused quota for {resource} in flavor {flavor}, {show(short.missing)} more "
        f"needed: {show(short.requested)} requested, {show(left)} of {show(short.maximum)} unused in ClusterQueue "
        f"{queue}",
        constraint=constraint,
        what=resource,
        needed=show(short.requested),
        available=show(short.available),
        missing=show(short.missing),
        where=f"flavor {flavor}",
        frees=f"the end of workloads that hold it: {holders}" if holders else "",
    )


def misconfigured(problem: Problem) -> Reason:
    """The workload cannot be admitted as it is written."""
    return Reason(
        layer="input",
        code=PendingReason.MISCONFIGURED,
        message=f"{problem}. Correct it in the job and submit that again.",
        field=problem.field,
        found=problem.found,
        allowed=problem.allowed,
    )


def not_optimal(placements: Sequence[Placement]) -> str:
    """Optimal placement was asked for, but not all pod sets are known to have it; "" if they are."""
    notes = [
        f"The placement of pod set {p.pod_set} may not be optimal: {p.fallback}." for p in placements if p.fallback
    ]
    return " ".join(notes)


def not_covered(pod_set: str, queue: str, resource: str, amount: int, covered: Sequence[str]) -> Reason:
    """A resource is requested that the ClusterQueue has no quota for."""
    allowed = ", ".join(covered) or "no resource"
    return Reason(
        layer="quota",
        code=PendingReason.NO_MATCHING_FLAVOR,
        message=f"{opening(pod_set)}resource {resource} unavailable in ClusterQueue "
        f"{queue}, which has quota for {allowed}. Leave the request out or use another queue.",
        constraint=f"spec.resourceGroups[].coveredResources of ClusterQueue {queue}",
        what=resource,
        needed=format_quantity(resource, amount),
        available="0",
        missing=format_quantity(resource, amount),
        field=f"requests of {resource} in pod set {pod_set}",
        found=format_quantity(resource, amount),
        allowed=f"requests of {allowed}",
    )


def no_flavor(pod_set: str, queue: str, why: Sequence[str]) -> Reason:
    """No flavor of the ClusterQueue may be used by these pods."""
    return Reason(
        layer="quota",
        code=PendingReason.NO_MATCHING_FLAVOR,
        message=f"{opening(pod_set)}{', '.join(why) or f'ClusterQueue {queue} has none'}",
        constraint=f"flavors of ClusterQueue {queue}",
        where=f"ClusterQueue {queue}",
    )


def bad_request(pod_set: str, flavor: str, problem: Problem) -> Reason:
    """A topology request that the levels of a flavor cannot meet as it is written."""
    return Reason(
        layer="input",
        code=PendingReason.MISCONFIGURED,
        message=f"{opening(pod_set)}for flavor {flavor}, {problem}. Correct it in the job and submit that again.",
        constraint=f"topology levels of flavor {flavor}",
        where=f"flavor {flavor}",
        field=problem.field,
        found=problem.found,
        allowed=problem.allowed,
    )


def no_place(flavor: str, failed: NoPlacement) -> Reason:
    """Quota is there, but the nodes are not, or not close enough together."""
    start = opening(failed.pod_set) + failed.message
    if failed.field:
        return Reason(
            layer="input",
            code=PendingReason.MISCONFIGURED,
            message=start,
            where=f"flavor {flavor}",
            field=failed.field,
        )
    never = failed.fits_when_empty is False
    domain = failed.best_domain_empty if never else failed.best_domain
    fits = failed.fits_empty if never else failed.fits
    unit = "pods" if failed.slice_size == 1 else f"slices of {failed.slice_size} pods"
    level = short_level(failed.level)
    where = f"nodes of flavor {flavor}"
    beside = " beside the leader of their group" if failed.beside_leader else ""
    if fits == 0:
        start += f". No {level or 'node'} has room for {'any of them' if failed.needed > 1 else 'it'}{beside}"
    elif domain:
        where = f"{'largest' if never else 'best'} {level} ({'/'.join(domain)})"
        start += f". The {where} has room for {fits} of {failed.needed} {unit}{beside}"
    else:
        start += f". All {where} together have room for {fits} of {failed.needed} {unit}{beside}"
    if never:
        start += " even without any other workload: it can never fit on the nodes there are."
        # Of the reasons that exclude every node, what the pods ask of nodes, not how much.
        blocking = [name for name, nodes in failed.excluded.items() if nodes == failed.total_nodes]
        if blocking and not blocking[0].startswith("resource "):
            start += f" All are excluded by {blocking[0]}."
        else:
            start += " Ask for fewer or smaller pods" + (", or for a level higher up." if domain else ".")
    else:
        start += " now."
    for label, nodes in failed.unlabelled.items():
        named = ", ".join(nodes[:_NAMED]) + (" …" if len(nodes) > _NAMED else "")
        start += f" Not looked at, since the label {label} is missing: {named}."
    return Reason(
        layer="topology",
        code=PendingReason.TOPOLOGY_PLACEMENT_FAILED,
        message=start,
        constraint=f"all within one {failed.level}" if domain else f"nodes of flavor {flavor}",
        what=unit,
        needed=str(failed.needed),
        available=str(fits),
        missing=str(failed.needed - fits),
        where="/".join(domain) or f"flavor {flavor}",
        frees="" if never else f"the end of pods in the {where}" if domain else f"the end of pods on {where}",
    )


def behind(queue: str, holder: str, ahead: int) -> Reason:
    """It waits for its turn in a StrictFIFO queue."""
    return Reason(
        layer="queue",
        code=PendingReason.PENDING,
        message=f"Waits for its turn: ClusterQueue {queue} is StrictFIFO, and {holder}, which does not fit yet, is "
        f"{'directly ' if ahead == 1 else ''}ahead of it ({ahead} ahead in all)",
        constraint=f"spec.queueingStrategy of ClusterQueue {queue}",
        what="workloads ahead",
        needed="0",
        available=str(ahead),
        where=f"ClusterQueue {queue}",
        frees=f"the admission of {holder}",
    )


def waits_for_victims(reason: Reason, victims: Sequence[Key]) -> Reason:
    """Others were preempted for it; it waits until they are gone."""
    names = ", ".join("/".join(key) for key in victims[:_NAMED]) + (" …" if len(victims) > _NAMED else "")
    return msgspec.structs.replace(
        reason,
        code=PendingReason.WAITING_FOR_PREEMPTED,
        message=f"{reason.message}. Pending the preemption of {len(victims)} workload(s)",
        frees=f"the end of {names}, which are being preempted for it; what they leave is kept for it",
    )


def backs_off(until: datetime) -> Reason:
    """It was evicted and is to be tried again later."""
    return Reason(
        layer="queue",
        code=PendingReason.PENDING,
        message=f"It is not looked at again before {until:%Y-%m-%dT%H:%M:%SZ}",
        constraint="status.requeueState.requeueAt",
    )


def failed_checks(checks: Sequence[str]) -> Reason:
    """Admission checks have said no, or to try again later."""
    return Reason(
        layer="queue",
        code=PendingReason.INADMISSIBLE,
        message="The workload has failed admission checks",
        constraint="admission checks",
        what=", ".join(checks),
    )


def short_level(label: str) -> str:
    """A topology level in one word: "rack" of "cloud.example.com/topology-rack"."""
    if label == HOSTNAME:
        return "node"
    word = label.rsplit("/", 1)[-1]
    return word.removeprefix("topology-").removesuffix("-topology") or word
