"""Refusals in Kueue's words, as the corpora record them. Ours are in `schedule.types.wording`."""

from __future__ import annotations

from functools import partial

from serried.api.quantity import format_quantity
from serried.quota.ledger import Shortage
from serried.schedule.types.refusals import (
    AffinityMismatch,
    BadRequest,
    Cause,
    FlavorNotFound,
    NoPlace,
    NotCovered,
    NoTopologyChosen,
    QuotaShort,
    SeveralTopologies,
    TopologyOnly,
    Untolerated,
    WithoutTopology,
    WrongLabel,
)
from tests.conformance.peer_scan import KeptOut, NotAllowed, NotNominated


def text_of(cause: Cause) -> str:
    """What Kueue says."""
    flavor = cause.flavor
    match cause:
        case FlavorNotFound():
            return f"flavor {flavor} not found"
        case Untolerated(key=key, value=value, effect=effect):
            return f"untolerated taint {{{key} {value} {effect} <nil>}} in flavor {flavor}"
        case WrongLabel() | AffinityMismatch():
            return f"flavor {flavor} doesn't match node affinity"
        case TopologyOnly():
            return f'Flavor "{flavor}" supports only TopologyAwareScheduling'
        case WithoutTopology():
            return f'Flavor "{flavor}" does not support TopologyAwareScheduling'
        case NoTopologyChosen(in_queue=True):
            return "no TAS flavor assigned"
        case NoTopologyChosen():
            return "workload requires Topology, but there is no TAS cache information"
        case SeveralTopologies(chosen=chosen):
            return f"more than one TAS flavor assigned: {', '.join(sorted(chosen))}"
        case BadRequest():
            return f'Flavor "{flavor}" does not contain the requested level'
        case NotCovered(resource=resource):
            return f"resource {resource} unavailable in ClusterQueue"
        case QuotaShort(shortage=short):
            return _short(short)
        case NoPlace(failed=failed):
            return failed.message
        case NotAllowed():
            return f"skipping flavor {flavor} due to WorkloadAllowedResourceFlavorAnnotation annotation"
        case NotNominated(resource=resource):
            return f"skipping flavor {flavor} as it is not found in the nomination mapping for resource {resource}"
        case KeptOut(original=original):
            return f"could not assign {flavor} flavor since the original workload is assigned: {original}"
    raise AssertionError(cause)


def _short(short: Shortage) -> str:
    flavor, resource = short.fr
    show = partial(format_quantity, resource)
    if short.never:
        return (
            f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests "
            f"({show(short.before)}) + current podset request ({show(short.requested)}) > maximum capacity "
            f"({show(short.maximum)})"
        )
    return f"insufficient unused quota for {resource} in flavor {flavor}, {show(short.missing)} more needed"
