"""Whether pods may use a flavor, by its taints and node labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from serried.api.core import NodeAffinity, NodeSelectorTerm
from serried.api.kueue import ResourceFlavor
from serried.api.label_selector import holds
from serried.model.filters import first_untolerated
from serried.model.requests import PodSetRequest
from serried.schedule.types.refusals import AffinityMismatch, Cause, Untolerated, WrongLabel


def flavor_mismatch(pod_set: PodSetRequest, flavor: ResourceFlavor, keys: Collection[str]) -> Cause | None:
    """Why pods of this pod set cannot use the flavor; None: they can.

    As in Kueue: the pods or the flavor itself tolerate its taints, and the pods' node selector and required node
    affinity, as far as they speak of `keys` (the label keys of all flavors of the resource group), match its labels.
    """
    name = flavor.metadata.name
    taint = first_untolerated(flavor.spec.node_taints, [*pod_set.tolerations, *flavor.spec.tolerations])
    if taint is not None:
        return Untolerated(name, taint.key, taint.value, taint.effect)
    labels = flavor.spec.node_labels
    for key, value in pod_set.node_selector.items():
        if key in keys and labels.get(key) != value:
            return WrongLabel(name, key, value, labels.get(key))
    if not _affinity_allows(pod_set.node_affinity, labels, keys):
        return AffinityMismatch(name)
    return None


def _affinity_allows(affinity: NodeAffinity | None, labels: Mapping[str, str], keys: Collection[str]) -> bool:
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None or not required.node_selector_terms:
        return True
    return any(_term_allows(term, labels, keys) for term in required.node_selector_terms)


def _term_allows(term: NodeSelectorTerm, labels: Mapping[str, str], keys: Collection[str]) -> bool:
    """A term that says nothing about `keys` leaves the flavor open."""
    return all(holds(r, labels) for r in term.match_expressions if r.key in keys)
