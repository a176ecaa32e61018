"""The scan of flavors with rules that only Kueue has: slices of elastic jobs, flavors nominated before or allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from serried.api.kueue import ResourceFlavor
from serried.model.requests import PodSetRequest
from serried.schedule.flavors.assigner import FlavorScan
from serried.schedule.types.refusals import Cause


class NotAllowed(Cause):
    """An annotation names the flavors that may be used, and this one is not among them."""


@dataclass(frozen=True)
class NotNominated(Cause):
    """Another flavor was nominated for the resource."""

    resource: str


@dataclass(frozen=True)
class KeptOut(Cause):
    """The workload that this one replaces has another flavor."""

    original: str


@dataclass(frozen=True)
class PeerRules:
    #: flavors that may be used; None: all
    allowed: frozenset[str] | None = None
    #: pod set → resource → the flavor it has to have
    nominated: Mapping[str, Mapping[str, str]] | None = None
    #: pod set → what the slice before it has: flavors, and amounts to be taken off its needs
    replaced: Mapping[str, tuple[Mapping[str, str], Mapping[str, int]]] = field(default_factory=dict)

    @property
    def scan(self) -> partial[PeerScan]:
        return partial(PeerScan, self)


class PeerScan(FlavorScan):
    def __init__(self, peer: PeerRules, *scan: Any) -> None:
        super().__init__(*scan)
        self.peer = peer
        for pod_set, total in zip(self.pod_sets, self.totals, strict=True):
            has = peer.replaced.get(pod_set.name, ({}, {}))[1]
            for resource in total:
                self.needed[resource] -= has.get(resource, 0)

    def skipped(self, flavor: str, resource: str) -> Cause | None:
        allowed, nominated = self.peer.allowed, self.peer.nominated
        if allowed is not None and flavor not in allowed:
            return NotAllowed(flavor)
        if nominated is not None and nominated.get(self.name, {}).get(resource) != flavor:
            return NotNominated(flavor, resource)
        return None

    def mismatch(
        self, index: int, pod_set: PodSetRequest, flavor: ResourceFlavor, resources: Sequence[str]
    ) -> Cause | None:
        name, has = flavor.metadata.name, self.peer.replaced.get(pod_set.name, ({}, {}))[0]
        original = next((has[r] for r in resources if r in has), name)
        return KeptOut(name, original) if original != name else super().mismatch(index, pod_set, flavor, resources)
