"""What a pod's constraints leave of the nodes, and what they say of several such pods.

Source of the rules: kube-scheduler's plugins NodeName, NodePorts, InterPodAffinity, PodTopologySpread and those for
volumes (Kubernetes 1.37). They judge one pod after the other; pods
that are placed together keep the rules if each of them passes with all others where they are planned:

- a pod that its own anti-affinity selects, or that takes a host port, is alone in its domain;
- pods whose affinity nobody matches but they themselves go to one domain, as if one of them had been there first;
- of topology spread, none of the domains that get pods has more than `max_skew` above the emptiest one in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from serried.model.capacity import UNLIMITED, Bools, Ints
from serried.model.nodes import NAME_FIELD, Column, Nodes
from serried.model.pod_constraints import PodTerm, Selector, SpreadTerm
from serried.model.pod_index import PodIndex, PodKind
from serried.model.storage import READ_WRITE_ONCE_POD, Storage

#: namespace → its labels
Namespaces = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, eq=False)
class Spread:
    """A spread constraint that counts the pods that are to be placed: about the values of a node label, by code."""

    key: str
    #: pods there already
    counts: Ints
    #: domains that are compared: they have a node that the constraint does not leave out
    compared: Bools
    max_skew: int
    min_domains: int

    @property
    def least(self) -> int:
        """Pods in the emptiest domain, as kube-scheduler counts them."""
        return self.least_of(self.counts)

    def least_of(self, counts: Ints) -> int:
        compared = counts[self.compared]
        return int(compared.min()) if len(compared) >= max(1, self.min_domains) else 0

    def room(self, least: int) -> Ints:
        """How many more pods each domain may get, if the emptiest one has at least so many in the end."""
        room: Ints = np.clip(least + self.max_skew - self.counts, 0, UNLIMITED)
        return room


@dataclass(eq=False)
class Verdict:
    """What constraints say of pods of one kind, on all nodes (by row)."""

    #: (reason, the rows that are left), in the order in which kube-scheduler asks
    exclusions: list[tuple[str, Bools]] = field(default_factory=list)
    #: node labels of which each domain may get only one of these pods
    apart: tuple[str, ...] = ()
    #: each node may get only one of them
    one_per_node: bool = False
    #: only one of them may exist at all: they use a volume that is for one pod only
    one_in_all: bool = False
    #: node labels of which all of these pods go to one domain
    together: tuple[str, ...] = ()
    spread: tuple[Spread, ...] = ()

    def alone(self, host: str) -> bool:
        """Whether each node may get only one of the pods. `host`: the label of one node."""
        return self.one_per_node or host in self.apart

    def allowed(self, nodes: Nodes) -> Bools:
        """Where one pod by itself may go."""
        keep = nodes.column(NAME_FIELD).codes >= 0
        for _, left in self.exclusions:
            keep &= left
        for _, left in self.spread_of_one(nodes):
            keep &= left
        return keep

    def spread_of_one(self, nodes: Nodes) -> Iterator[tuple[str, Bools]]:
        """As `exclusions`: what the spread constraints exclude for one pod by itself."""
        for spread in self.spread:
            yield "topologySpread", np.append(spread.room(spread.least), 0)[nodes.column(spread.key).codes] > 0


@dataclass(frozen=True, eq=False)
class Surroundings:
    """All that constraints are judged by."""

    nodes: Nodes
    pods: PodIndex
    storage: Storage
    namespaces: Namespaces


def judge(
    around: Surroundings, kind: PodKind, by_affinity: Bools, by_taints: Bools, *, bound_by_us: bool = False
) -> Verdict:
    """The verdict on pods of a kind.

    Args:
        by_affinity: rows that their node selector and required node affinity allow.
        by_taints: rows whose taints they tolerate.
        bound_by_us: kube-scheduler does not bind them, so their claims are to be bound beforehand.
    """
    constraints = kind.constraints
    verdict = Verdict()
    exclude = verdict.exclusions.append
    if constraints.node_name:
        exclude(("nodeName", around.nodes.column(NAME_FIELD).equals(constraints.node_name)))
    if constraints.ports:
        taken = np.ones(len(around.nodes.names), dtype=np.bool_)
        taken[around.pods.in_use(constraints.ports)] = False
        exclude(("hostPort", taken))
        verdict.one_per_node = True
    if constraints.claims:
        _judge_claims(around, kind, verdict, bound_by_us)
    if constraints.spread:
        spreads = list(_spreads(around, kind, by_affinity, by_taints, verdict))
        verdict.spread = tuple(spreads)
    if constraints.affinity:
        _judge_affinity(around, kind, verdict)
    own = [term for term in constraints.anti_affinity if _selects(around, term, kind)]
    verdict.apart = tuple(dict.fromkeys(term.key for term in own))
    for term in constraints.anti_affinity:
        counts = around.pods.by_row(_selected(around, term), len(around.nodes.names))
        exclude(("podAntiAffinity", _outside(around.nodes.column(term.key), counts > 0)))
    labels = around.namespaces.get(kind.namespace, {})
    for key, rows in around.pods.repelled(kind, labels):
        there = np.zeros(len(around.nodes.names), dtype=np.bool_)
        there[rows] = True
        exclude(("existingPodAntiAffinity", _outside(around.nodes.column(key), there)))
    return verdict


def preference(around: Surroundings, kind: PodKind) -> Ints:
    """How well nodes (by row) suit what pods prefer, from 0 to 100 for each of two kinds of preference: pods that are
    around, by the weights of terms, and few pods that a spread constraint counts."""
    nodes, constraints = around.nodes, kind.constraints
    near: Ints = np.zeros(len(nodes.names), dtype=np.int64)
    crowd = near.copy()
    for weight, term in constraints.preferred:
        near += weight * _around(around, _selected(around, term), term.key)
    for spread in constraints.preferred_spread:
        crowd += _around(around, around.pods.selected(spread.selector, (kind.namespace,)), spread.key)
    return _scaled(near) + _scaled(-crowd)


def _around(around: Surroundings, entries: Bools, key: str) -> Ints:
    """By row, how many of some pods are in the same domain of a label."""
    column = around.nodes.column(key)
    counts = _by_domain(column, around.pods.by_row(entries, len(around.nodes.names)))
    found: Ints = np.append(counts, 0)[column.codes]
    return found


def _scaled(values: Ints) -> Ints:
    low, span = int(values.min(initial=0)), int(np.ptp(values)) if len(values) else 0
    return (values - low) * 100 // span if span else np.zeros_like(values)


def keeps_off(kind: PodKind, other: PodKind, namespaces: Namespaces, host: str) -> bool:
    """Whether pods of two kinds, to be placed together, cannot be on the same node. `host`: the label of one node."""
    ports = kind.constraints.ports, other.constraints.ports
    return any(port.conflicts(another) for port in ports[0] for another in ports[1]) or any(
        term.key == host and term.selects(b.namespace, namespaces.get(b.namespace, {}), b.labels)
        for a, b in ((kind, other), (other, kind))
        for term in a.constraints.anti_affinity
    )


def follows(kind: PodKind, other: PodKind, namespaces: Namespaces) -> bool:
    """Whether pods of a kind, of which nobody has a place yet, need pods of another one to be somewhere."""

    def selects(term: PodTerm, of: PodKind) -> bool:
        return term.selects(of.namespace, namespaces.get(of.namespace, {}), of.labels)

    terms = kind.constraints.affinity
    return any(selects(term, other) for term in terms) and not all(selects(term, kind) for term in terms)


def tied_over(kind: PodKind, other: PodKind, host: str) -> str:
    """The label of a rule between two kinds of pods that are to be placed together, other than one that keeps them
    off the same node; "" if there is none."""
    for a, b in ((kind, other), (other, kind)):
        for term in (*a.constraints.affinity, *(t for t in a.constraints.anti_affinity if t.key != host)):
            if term.selector is not None and term.selector.selects(b.labels):
                return term.key
        for spread in a.constraints.spread:
            if spread.selector is not None and spread.selector.selects(b.labels):
                return spread.key
    return ""


def _judge_claims(around: Surroundings, kind: PodKind, verdict: Verdict, bound_by_us: bool) -> None:
    keys = [(kind.namespace, name) for name in kind.constraints.claims]
    for key in keys:
        reason = around.storage.unusable(key) or (around.storage.needs_kube_scheduler(key) if bound_by_us else "")
        if reason:
            verdict.exclusions.append((reason, np.zeros(len(around.nodes.names), dtype=np.bool_)))
            return
    claims = [around.storage.claims[key] for key in keys]
    verdict.one_in_all = any(READ_WRITE_ONCE_POD in claim.spec.access_modes for claim in claims)
    verdict.exclusions.extend(around.storage.exclusions(around.nodes, keys))


def _judge_affinity(around: Surroundings, kind: PodKind, verdict: Verdict) -> None:
    terms = kind.constraints.affinity
    found = _selected(around, terms[0])
    for term in terms[1:]:
        found &= _selected(around, term)
    by_row = around.pods.by_row(found, len(around.nodes.names))
    somebody, nearby = False, np.ones(len(around.nodes.names), dtype=np.bool_)
    labelled = nearby.copy()
    for term in terms:
        column = around.nodes.column(term.key)
        counts = _by_domain(column, by_row)
        somebody = somebody or bool(counts.any())
        nearby &= np.append(counts > 0, False)[column.codes]
        labelled &= column.codes >= 0
    if somebody or not all(_selects(around, term, kind) for term in terms):
        verdict.exclusions.append(("podAffinity", nearby))
    else:
        verdict.exclusions.append(("podAffinity", labelled))
        verdict.together = tuple(dict.fromkeys(term.key for term in terms))


def _spreads(
    around: Surroundings, kind: PodKind, by_affinity: Bools, by_taints: Bools, verdict: Verdict
) -> Iterator[Spread]:
    """Those that count the pods themselves; what the others exclude goes to the verdict."""
    nodes = around.nodes
    labelled = nodes.column(NAME_FIELD).codes >= 0
    for term in kind.constraints.spread:
        labelled &= nodes.column(term.key).codes >= 0
    for term in kind.constraints.spread:
        column = nodes.column(term.key)
        spread = spread_of(around, kind, term, labelled, by_affinity, by_taints)
        verdict.exclusions.append(("topologySpread", column.codes >= 0))
        if term.selector is not None and term.selector.selects(kind.labels):
            yield spread
        else:
            keep = spread.counts - spread.least <= spread.max_skew
            verdict.exclusions.append(("topologySpread", np.append(keep, False)[column.codes]))


def spread_of(
    around: Surroundings, kind: PodKind, term: SpreadTerm, labelled: Bools, by_affinity: Bools, by_taints: Bools
) -> Spread:
    """How such pods are spread now over the nodes that a constraint compares."""
    compared = labelled
    if term.honors_affinity:
        compared = compared & by_affinity
    if term.honors_taints:
        compared = compared & by_taints
    column = around.nodes.column(term.key)
    # kube-scheduler counts nobody for a selector that selects everything.
    counted = None if term.selector is not None and not term.selector.requirements else term.selector
    found = around.pods.selected(counted, (kind.namespace,)) & ~around.pods.leaving[: around.pods.size]
    by_row = around.pods.by_row(found, len(around.nodes.names))
    return Spread(
        term.key,
        _by_domain(column, np.where(compared, by_row, 0)),
        _by_domain(column, compared.astype(np.int64)) > 0,
        term.max_skew,
        term.min_domains,
    )


def _by_domain(column: Column, by_row: Ints) -> Ints:
    """Numbers of rows, added up for each value of a label."""
    rows = np.flatnonzero(by_row)
    rows = rows[column.codes[rows] >= 0]
    total: Ints = np.bincount(column.codes[rows], by_row[rows], minlength=len(column.values)).astype(np.int64)
    return total


def _outside(column: Column, there: Bools) -> Bools:
    """The rows that share no domain of a label with some rows."""
    table = np.zeros(len(column.values) + 1, dtype=np.bool_)
    table[column.codes[there]] = True
    table[-1] = False  # without the label, no domain is shared
    found: Bools = ~table[column.codes]
    return found


def _selects(around: Surroundings, term: PodTerm, kind: PodKind) -> bool:
    return term.selects(kind.namespace, around.namespaces.get(kind.namespace, {}), kind.labels)


def _selected(around: Surroundings, term: PodTerm) -> Bools:
    """The entries that a term of a pod to be placed selects."""
    if term.namespace_selector is None:
        return around.pods.selected(term.selector, term.namespaces)
    if term.namespace_selector == Selector():
        return around.pods.selected(term.selector, None)
    more = [name for name, labels in around.namespaces.items() if term.namespace_selector.selects(labels)]
    return around.pods.selected(term.selector, term.namespaces.union(more))
