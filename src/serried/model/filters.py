"""Which nodes a pod may go to: taints, node selector, node affinity, for all nodes of a tree at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from serried.api import label_selector
from serried.api.core import NodeAffinity, NodeSelectorTerm, Taint, Toleration
from serried.model.capacity import Bools, Ints
from serried.model.nodes import NAME_FIELD, Codes, Nodes
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
        keep = np.ones(len(nodes.names), dtype=np.bool_)
        for key, value in node_selector.items():
            keep &= nodes.column(key).equals(value)
        exclude("nodeSelector", keep)
    score = np.zeros(len(rows), dtype=np.int64)
    if affinity is not None:
        required = affinity.required_during_scheduling_ignored_during_execution
        if required is not None:
            keep = np.zeros(len(nodes.names), dtype=np.bool_)
            for term in required.node_selector_terms:
                keep |= _term(nodes, term)
            exclude("affinity", keep)
        for preferred in affinity.preferred_during_scheduling_ignored_during_execution:
            weight = max(-(2**31), min(2**31, preferred.weight))
            score += np.where(_term(nodes, preferred.preference)[rows], weight, 0)
    allowed = excluded == 0
    return Mask(allowed, excluded, tuple(names), np.where(allowed, score, 0))


def first_untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps a pod with these tolerations from the node."""
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # Without a key only Exists is allowed.
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


def _term(nodes: Nodes, term: NodeSelectorTerm) -> Bools:
    """Where all requirements of a term hold; an empty term holds nowhere."""
    keep = np.full(len(nodes.names), bool(term.match_expressions or term.match_fields))
    for requirement in term.match_expressions:
        keep &= nodes.column(requirement.key).where(label_selector.test_of(requirement))
    for requirement in term.match_fields:
        # The only field there is, and the only ways to ask for it.
        legal = requirement.operator in ("In", "NotIn") and len(requirement.values) == 1
        legal = legal and requirement.key == "metadata.name"
        keep &= nodes.column(NAME_FIELD).where(label_selector.test_of(requirement)) & legal
    return keep
