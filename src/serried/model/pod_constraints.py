"""What a pod asks of its node and of the pods around it, beyond room, taints and node labels.

Source of the rules: kube-scheduler's plugins NodePorts, InterPodAffinity, PodTopologySpread and the volume plugins
(Kubernetes 1.37), and what the API server makes of `matchLabelKeys` when a pod is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from serried.api import label_selector
from serried.api.core import (
    Container,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    Volume,
)
from serried.api.meta import LabelSelector, LabelSelectorRequirement

#: A host port that is not given an address takes the port of all of them.
ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on labels: an operator of label selectors (In, NotIn, Exists, DoesNotExist) and its values."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def wire(self) -> LabelSelectorRequirement:
        return LabelSelectorRequirement(self.key, self.operator, self.values)

    def holds(self, labels: Mapping[str, str]) -> bool:
        return label_selector.holds(self.wire, labels)


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector. Without requirements it selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.holds(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A term of pod affinity or anti-affinity: which pods, and in domains of which label.

    Attributes:
        key: the node label whose values are the domains.
        selector: of the pods' labels; None selects no pod.
        namespaces: of the pods, by name.
        namespace_selector: of the labels of the pods' namespaces, besides those named; None selects none.
    """

    key: str
    selector: Selector | None
    namespaces: frozenset[str]
    namespace_selector: Selector | None

    def selects(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        if self.selector is None or not self.selector.selects(labels):
            return False
        return namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.selects(namespace_labels)
        )


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """A topology spread constraint: how far the domains of a node label may differ in such pods of the namespace."""

    key: str
    selector: Selector | None
    max_skew: int
    min_domains: int
    #: whether nodes that the pod's selector and affinity (its tolerations) exclude are left out of the comparison
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class HostPort:
    address: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or ANY_ADDRESS in (self.address, other.address)


@dataclass(frozen=True, slots=True)
class Constraints:
    """All that `read_constraints` finds."""

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    #: (weight, term); below zero for anti-affinity
    preferred: tuple[tuple[int, PodTerm], ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    #: whenUnsatisfiable: ScheduleAnyway
    preferred_spread: tuple[SpreadTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()
    #: names of PersistentVolumeClaims
    claims: tuple[str, ...] = ()
    node_name: str = ""

    def label_keys(self) -> set[str]:
        """The labels of pods that any of them is about."""
        terms = (*self.affinity, *self.anti_affinity, *(term for _, term in self.preferred))
        selectors = (
            *(term.selector for term in terms),
            *(spread.selector for spread in (*self.spread, *self.preferred_spread)),
        )
        return {r.key for selector in selectors if selector is not None for r in selector.requirements}

    def __bool__(self) -> bool:
        return self is not NO_CONSTRAINTS and any(getattr(self, f.name) for f in fields(self))


NO_CONSTRAINTS: Final = Constraints()


def read_constraints(spec: PodSpec, namespace: str, labels: Mapping[str, str], *, pod: str = "") -> Constraints:
    """The constraints of a pod with these labels in this namespace.

    Without a name of the `pod`, it is the template of pods to be. When these are created, the API server gives the
    containers of pods on the host's network the host ports that they listen on, and adds the labels that
    `matchLabelKeys` name to the selectors.
    """
    volumes = [v for v in spec.volumes if v.persistent_volume_claim is not None or (v.ephemeral is not None and pod)]
    if not (
        spec.affinity is not None
        or spec.topology_spread_constraints
        or volumes
        or (spec.node_name and not pod)
        or any(c.ports for c in spec.containers)
        or any(c.ports for c in spec.init_containers)
    ):
        return NO_CONSTRAINTS
    together = spec.affinity.pod_affinity if spec.affinity is not None else None
    apart = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    keys_from = {} if pod else labels
    spread = spec.topology_spread_constraints
    found = Constraints(
        affinity=_required(together, namespace, keys_from),
        anti_affinity=_required(apart, namespace, keys_from),
        preferred=(*_preferred(together, namespace, keys_from, 1), *_preferred(apart, namespace, keys_from, -1)),
        spread=tuple(_spread(c, labels) for c in spread if c.when_unsatisfiable == "DoNotSchedule"),
        preferred_spread=tuple(_spread(c, labels) for c in spread if c.when_unsatisfiable == "ScheduleAnyway"),
        ports=tuple(sorted(set(_host_ports(spec, not pod and spec.host_network)), key=_port_order)),
        claims=tuple(dict.fromkeys(_claim(v, pod) for v in volumes)),
        node_name="" if pod else spec.node_name,
    )
    return found or NO_CONSTRAINTS


def read_selector(selector: LabelSelector | None, more: Sequence[Requirement] = ()) -> Selector | None:
    """A selector with further requirements; None, which selects nothing, stays None."""
    if selector is None:
        return None
    return Selector(
        (
            *(Requirement(key, "In", (value,)) for key, value in selector.match_labels.items()),
            *(Requirement(e.key, e.operator, tuple(e.values)) for e in selector.match_expressions),
            *more,
        )
    )


def _required(affinity: PodAffinity | None, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    if affinity is None:
        return ()
    return tuple(_term(t, namespace, labels) for t in affinity.required_during_scheduling_ignored_during_execution)


def _preferred(
    affinity: PodAffinity | None, namespace: str, labels: Mapping[str, str], sign: int
) -> Iterator[tuple[int, PodTerm]]:
    for term in affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ():
        yield sign * max(0, min(100, term.weight)), _term(term.pod_affinity_term, namespace, labels)


def _term(term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    more = [Requirement(key, "In", (labels[key],)) for key in term.match_label_keys if key in labels]
    more += [Requirement(key, "NotIn", (labels[key],)) for key in term.mismatch_label_keys if key in labels]
    own = not term.namespaces and term.namespace_selector is None
    return PodTerm(
        term.topology_key,
        read_selector(term.label_selector, more),
        frozenset([namespace] if own else term.namespaces),
        read_selector(term.namespace_selector),
    )


def _spread(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> SpreadTerm:
    more = [Requirement(key, "In", (labels[key],)) for key in constraint.match_label_keys if key in labels]
    return SpreadTerm(
        constraint.topology_key,
        read_selector(constraint.label_selector, more),
        constraint.max_skew,
        1 if constraint.min_domains is None else constraint.min_domains,
        constraint.node_affinity_policy in (None, "Honor"),
        constraint.node_taints_policy == "Honor",
    )


def _host_ports(spec: PodSpec, of_host: bool) -> Iterator[HostPort]:
    running: list[Container] = [*spec.containers, *(c for c in spec.init_containers if c.restart_policy == "Always")]
    for container in running:
        for port in container.ports:
            number = port.host_port or (port.container_port if of_host else 0)
            if number > 0:
                yield HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", number)


def _claim(volume: Volume, pod: str) -> str:
    """The claim of a volume: that which it names, or that which is made for the pod's generic ephemeral volume."""
    source = volume.persistent_volume_claim
    return f"{pod}-{volume.name}" if source is None else source.claim_name


def _port_order(port: HostPort) -> tuple[int, str, str]:
    return port.port, port.protocol, port.address
