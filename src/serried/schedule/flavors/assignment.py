"""What flavor assignment answers: a flavor for each resource of each pod set, how well it fits, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from serried.api.names import PendingReason
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.quota.quotas import FlavorResource
from serried.schedule.types.changed import Changed
from serried.schedule.types.refusals import Cause, Refusal, RefusalKind


class Fit(IntEnum):
    """How well something fits; more is better. Only the first, PREEMPT and FIT are answers: the others are shades."""

    NO_FIT = 0
    #: it would fit if others were preempted, but nobody may be
    NO_CANDIDATES = 1
    #: preempting workloads of the same ClusterQueue, among others, would make it fit
    PREEMPT = 2
    #: preempting workloads of other ClusterQueues alone would make it fit
    RECLAIM = 3
    FIT = 4

    @property
    def answer(self) -> Fit:
        return Fit.PREEMPT if Fit.NO_FIT < self < Fit.FIT else self

    @property
    def word(self) -> str:
        return {Fit.NO_FIT: "NoFit", Fit.FIT: "Fit"}.get(self, "Preempt")


#: The reasons of QuotaReserved=False that an assignment can end with, least severe first.
SEVERITY = (
    "",
    PendingReason.TOPOLOGY_PLACEMENT_FAILED,
    PendingReason.WAITING_FOR_QUOTA,
    PendingReason.EXCEEDS_MAX_QUOTA,
    PendingReason.NO_MATCHING_FLAVOR,
)


@dataclass
class Choice:
    """The flavor of one resource."""

    flavor: str
    mode: Fit
    #: 0: within nominal; otherwise the height of the smallest subtree of cohorts that covers it
    borrow: int
    #: index in the resource group at which the scan stopped; -1: it saw the last flavor
    tried: int = -1


@dataclass
class Tried:
    """One flavor that was looked at for a pod set."""

    flavor: str
    mode: Fit = Fit.FIT
    borrow: int = 0
    #: what preemption could do for it; None: it was not asked
    possibility: Fit | None = None
    no_fit: str = ""
    refusals: list[Refusal] = field(default_factory=list)

    def merge(self, other: Tried) -> None:
        """The same flavor was looked at for another resource group."""
        self.mode = min(self.mode, other.mode)
        self.borrow = max(self.borrow, other.borrow)
        found = [p for p in (self.possibility, other.possibility) if p is not None]
        self.possibility = min(found, default=None)
        self.no_fit = max(self.no_fit, other.no_fit, key=SEVERITY.index)
        self.refusals += [r for r in other.refusals if r.cause not in [s.cause for s in self.refusals]]


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One flavor (or several, where resources have different ones) tried for one pod set, and what stood against it."""

    pod_set: str
    flavor: str
    #: what stands against it; "" where nothing does, or where it was not looked at because something earlier does
    match: str = ""
    quota: str = ""
    topology: str = ""


@dataclass
class PodSetChoice:
    """What one pod set gets, or what stood against it."""

    pod_set: PodSetRequest
    #: what its pods request together
    requests: Mapping[str, int]
    flavors: dict[str, Choice] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    #: why no topology can be worked with
    error: Cause | None = None
    tried: dict[str, Tried] = field(default_factory=dict)
    placement: Placement | None = None
    #: its place is named later, when its admission checks are ready
    delayed: bool = False
    no_fit: str = ""
    #: flavors in which it has no place even on empty nodes: more quota in them would not help
    hopeless: set[str] = field(default_factory=set)

    @property
    def mode(self) -> Fit:
        if self.error is not None:
            return Fit.NO_FIT
        if not self.flavors:
            return Fit.NO_FIT if self.refusals else Fit.FIT
        worst = Fit.FIT
        for choice in self.flavors.values():
            if choice.mode < worst:
                worst = choice.mode
        return worst


@dataclass
class Assignment:
    """What a workload would get. Nothing of it is charged."""

    pod_sets: list[PodSetChoice] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    blocked_on: Changed = Changed.NOTHING

    @property
    def mode(self) -> Fit:
        worst = Fit.FIT
        for pod_set in self.pod_sets:
            mode = pod_set.mode
            if mode < worst:
                worst = mode
        return worst

    @property
    def borrowing(self) -> int:
        return max((c.borrow for p in self.pod_sets for c in p.flavors.values()), default=0)

    @property
    def no_fit(self) -> str:
        """The reason of QuotaReserved=False that it ends with; "" unless it does not fit."""
        if self.mode != Fit.NO_FIT:
            return ""
        return max((p.no_fit for p in self.pod_sets), key=SEVERITY.index, default="")

    @property
    def contested(self) -> frozenset[FlavorResource]:
        """That of which somebody would have to give way."""
        return frozenset(
            (choice.flavor, resource)
            for p in self.pod_sets
            for resource, choice in p.flavors.items()
            if choice.mode == Fit.PREEMPT
        )

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(p.placement for p in self.pod_sets if p.placement is not None)

    def furthest(self) -> tuple[PodSetChoice, Refusal] | None:
        """The refusal that came closest to fitting, and whose it is; None when nothing was refused."""
        failed = [p for p in self.pod_sets if p.mode < Fit.FIT] or self.pod_sets
        found = []
        for p in failed:
            refusals = [
                r for r in p.refusals if not (r.kind == RefusalKind.WAITS_QUOTA and r.cause.flavor in p.hopeless)
            ]
            if refusals:
                found.append((p, max(refusals, key=lambda r: r.kind)))
        # One flavor is enough for a pod set, but all pod sets are needed: if one can never fit, no other need wait.
        never = [f for f in found if f[1].kind.never]
        return max(never or found, key=lambda f: f[1].kind, default=None)
