"""Which nodes a pod may go to: taints, node selector, node affinity, for all nodes of a tree at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from serried.api import label_selector
from serried.api.core import NodeAffinity, NodeSelectorTerm, Taint, Toleration
from serried.api.meta import LabelSelectorRequirement
from serried.model.capacity import Bools, Ints
from serried.model.nodes import NAME_FIELD, Codes, Column, Nodes
from serried.model.topology import Tree

#: Signatures remembered per tree; more are worked out anew.
_REMEMBERED: Final = 256


@dataclass(frozen=True, eq=False)
class Mask:
    """What the filters say of the nodes of a tree, in the order of `Tree.rows`."""

    allowed: Bools
    #: index into `names` of the first filter that excludes the node; 0 where none does
    excluded_by: Codes
    names: tuple[str, ...]
    #: the sum of the weights of the preferred terms that match; 0 where not allowed
    score: Ints

    def at(self, leaves: Ints) -> Mask:
        """The same for the nodes in another order."""
        return Mask(self.allowed[leaves], self.excluded_by[leaves], self.names, self.score[leaves])

    def without(self, rows: Ints, exclusions: Iterable[tuple[str, Bools]]) -> Mask:
        """The same with further exclusions: (reason, by row whether a node is left). `rows`: those of the nodes."""
        excluded, names = self.excluded_by.copy(), list(self.names)
        for name, left in exclusions:
            code = names.index(name) if name in names else len(names)
            if code == len(names):
                names.append(name)
            excluded[(excluded == 0) & ~left[rows]] = code
        allowed = excluded == 0
        return Mask(allowed, excluded, tuple(names), np.where(allowed, self.score, 0))


def mask(
    nodes: Nodes,
    tree: Tree,
    tolerations: Sequence[Toleration],
    node_selector: Mapping[str, str],
    affinity: NodeAffinity | None,
) -> Mask:
    """The mask for one scheduling signature: worked out once, then remembered until labels or taints change."""
    key = (
        tuple((t.key, t.operator, t.value, t.effect) for t in tolerations),
        tuple(sorted(node_selector.items())),
        None if affinity is None else msgspec.json.encode(affinity),
    )
    found = tree.masks.get(key)
    if found is None:
        if len(tree.masks) >= _REMEMBERED:
            tree.masks.clear()
        found = tree.masks[key] = _mask(nodes, tree, tolerations, node_selector, affinity)
    assert isinstance(found, Mask)
    return found


def _mask(
    nodes: Nodes,
    tree: Tree,
    tolerations: Sequence[Toleration],
    node_selector: Mapping[str, str],
    affinity: NodeAffinity | None,
) -> Mask:
    rows = tree.rows
    names = [""]
    by_taints = np.zeros(len(nodes.taints), dtype=np.int32)
    for code, taints in enumerate(nodes.taints):
        taint = first_untolerated(taints, tolerations)
        if taint is not None:
            value = f"={taint.value}" if taint.value else ""
            name = f'taint "{taint.key}{value}:{taint.effect}"'
            if name not in names:
                names.append(name)
            by_taints[code] = names.index(name)
    excluded = by_taints[nodes.taint_code[rows]]

    def exclude(name: str, keep: Bools) -> None:
        excluded[(excluded == 0) & ~keep[rows]] = len(names)
        names.append(name)

    if node_selector:
        exclude("nodeSelector", selected(nodes, node_selector))
    score = np.zeros(len(rows), dtype=np.int64)
    if affinity is not None:
        if affinity.required_during_scheduling_ignored_during_execution is not None:
            exclude("affinity", required(nodes, affinity))
        for preferred in affinity.preferred_during_scheduling_ignored_during_execution:
            weight = max(-(2**31), min(2**31, preferred.weight))
            score += np.where(matches_term(nodes, preferred.preference)[rows], weight, 0)
    allowed = excluded == 0
    return Mask(allowed, excluded, tuple(names), np.where(allowed, score, 0))


def selected(nodes: Nodes, node_selector: Mapping[str, str]) -> Bools:
    """The rows that have all labels of a node selector."""
    keep = np.ones(len(nodes.names), dtype=np.bool_)
    for key, value in node_selector.items():
        keep &= nodes.column(key).equals(value)
        if not keep.any():
            break
    return keep


def required(nodes: Nodes, affinity: NodeAffinity | None) -> Bools:
    """The rows that required node affinity allows."""
    terms = None if affinity is None else affinity.required_during_scheduling_ignored_during_execution
    keep = np.full(len(nodes.names), terms is None)
    for term in terms.node_selector_terms if terms is not None else ():
        keep |= matches_term(nodes, term)
    return keep


def tolerated(nodes: Nodes, tolerations: Sequence[Toleration]) -> Bools:
    """The rows whose taints kube-scheduler finds tolerated."""
    table = [all(_is_tolerated(taint, tolerations) for taint in taints) for taints in nodes.taints]
    found: Bools = np.array(table, dtype=np.bool_)[nodes.taint_code]
    return found


def first_untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps new pods with these tolerations from the node.

    A toleration with tolerationSeconds lets a pod stay for a while on a node that it is about to be driven from
    (effect NoExecute). kube-scheduler puts new pods there as well; we do not.
    """
    for taint in taints:
        drives_out = taint.effect == "NoExecute"
        if not _is_tolerated(taint, (t for t in tolerations if not drives_out or t.toleration_seconds is None)):
            return taint
    return None


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return taint.effect not in ("NoSchedule", "NoExecute") or any(tolerates(t, taint) for t in tolerations)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # Without a key only Exists is allowed.
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


def matches_term(nodes: Nodes, term: NodeSelectorTerm, *, of_volume: bool = False) -> Bools:
    """Where all requirements of a term hold; an empty term holds nowhere.

    `of_volume`: kube-scheduler looks at the nodes' labels only, and fields match anything.
    """
    keep = np.full(len(nodes.names), bool(term.match_expressions or term.match_fields))
    for requirement in term.match_expressions:
        keep &= matches(nodes.column(requirement.key), requirement)
    for requirement in term.match_fields if not of_volume else ():
        # The only field there is, and the only ways to ask for it.
        legal = requirement.operator in ("In", "NotIn") and len(requirement.values) == 1
        legal = legal and requirement.key == "metadata.name"
        keep &= matches(nodes.column(NAME_FIELD), requirement) & legal
    return keep


def matches(column: Column, requirement: LabelSelectorRequirement) -> Bools:
    """Where a requirement of a label or node selector holds; nowhere if it is not legal."""
    if requirement.operator in ("In", "NotIn") and requirement.values:
        found = column.among(requirement.values)
        return found if requirement.operator == "In" else ~found
    return column.where(label_selector.test_of(requirement))
