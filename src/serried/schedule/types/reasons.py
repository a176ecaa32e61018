"""Why something waits: one structured reason, from which conditions, events and `explain` are worded."""

from __future__ import annotations

from typing import Literal

import msgspec

from serried.api.names import PendingReason

Layer = Literal["input", "queue", "quota", "topology", "gang", "binding", "start-up", "training"]


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One wait, with numbers.

    `code` is the reason of the condition QuotaReserved=False (`api.names.PendingReason`), `message` its text.
    `needed`, `available` and `missing` are quantities of `what` (a resource, or pods) in the unit `kubectl` shows.
    """

    layer: Layer
    code: str
    message: str
    #: the constraint that does not hold, e.g. "nominalQuota of flavor gpu in ClusterQueue research"
    constraint: str = ""
    what: str = ""
    needed: str = ""
    available: str = ""
    missing: str = ""
    #: where: the queue, flavor or domain that came closest
    where: str = ""
    #: what would free it, in words
    frees: str = ""
    #: for bad input: path of the field, what it holds, what is allowed
    field: str = ""
    found: str = ""
    allowed: str = ""


def layer_of(code: str) -> Layer:
    """The layer of a reason of QuotaReserved=False, where only the condition is known."""
    match code:
        case PendingReason.MISCONFIGURED:
            return "input"
        case PendingReason.TOPOLOGY_PLACEMENT_FAILED:
            return "topology"
        case (
            PendingReason.WAITING_FOR_QUOTA
            | PendingReason.EXCEEDS_MAX_QUOTA
            | PendingReason.NO_MATCHING_FLAVOR
            | PendingReason.WAITING_FOR_PREEMPTED
        ):
            return "quota"
    return "queue"
