"""Whose pods these are to bind: ours, or kube-scheduler's because they need what only that can do, or nobody's.

What kube-scheduler is needed for: volumes that are bound or provisioned where their pod goes, resource claims, volumes
of plugins that moved to CSI drivers, features that nodes declare, and rules about labels that pods get one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from serried.api import names
from serried.api.core import NodeAffinity, NodeSelectorTerm, PodSpec
from serried.model.pod_constraints import Constraints, PodTerm, Selector, read_constraints
from serried.model.storage import MIGRATED, Storage, has_source

#: Requirements, values and terms about nodes, other pods and resources that one pod may have. People have some tens.
MOST_TERMS: Final = 1000

#: Labels that are known only when a pod exists: each has a value of its own, or it depends on the queue.
LATE_LABELS: Final = frozenset(
    (
        names.COMPLETION_INDEX,
        names.CLUSTER_QUEUE_NAME,
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
    )
)

#: Volumes in a pod's spec that kube-scheduler has rules of its own for.
_INLINE: Final = (*MIGRATED, "iscsi", "rbd")


@dataclass(frozen=True)
class Requirements:
    """Who binds pods of a template, and why not we."""

    way: Literal["bound by us", "handed over", "refused"]
    #: "": bound by us
    reason: str = ""


OURS: Final = Requirements("bound by us")


def by_spec(spec: PodSpec) -> Requirements:
    """What becomes of pods for what stands in their template's spec alone."""
    terms = terms_of(spec)
    if terms > MOST_TERMS:
        return Requirements("refused", f"{terms} terms about nodes, other pods and resources; at most {MOST_TERMS}")
    return _handed_over(_by_spec(spec))


def by_labels(constraints: Constraints) -> Requirements:
    """What becomes of pods for the labels that their rules are about."""
    return _handed_over(_by_labels(constraints))


def by_claims(namespace: str, constraints: Constraints, storage: Storage) -> Requirements:
    """What becomes of pods for the claims that their template names, as these are now. One that is not there yet is
    waited for."""
    return _handed_over(storage.needs_kube_scheduler((namespace, name)) for name in constraints.claims)


def _handed_over(reasons: Iterable[str]) -> Requirements:
    reason = next(filter(None, reasons), "")
    return Requirements("handed over", reason) if reason else OURS


def terms_of(spec: PodSpec) -> int:
    """How many requirements, values and terms a pod has about nodes, other pods and resources."""
    number = len(spec.node_selector) + len(spec.tolerations) + len(spec.overhead) + len(spec.volumes)
    for container in (*spec.containers, *spec.init_containers):
        number += len(container.resources.requests) + len(container.resources.limits) + len(container.ports)
    if spec.affinity is not None and spec.affinity.node_affinity is not None:
        number += sum(
            1 + sum(1 + len(r.values) for r in (*term.match_expressions, *term.match_fields))
            for term in _node_terms(spec.affinity.node_affinity)
        )
    found = read_constraints(spec, "", {})
    for pod_term in (*found.affinity, *found.anti_affinity, *(term for _, term in found.preferred)):
        number += 1 + len(pod_term.namespaces) + _size(pod_term.selector) + _size(pod_term.namespace_selector)
    return number + sum(1 + _size(s.selector) for s in (*found.spread, *found.preferred_spread))


def _node_terms(affinity: NodeAffinity) -> Iterator[NodeSelectorTerm]:
    if affinity.required_during_scheduling_ignored_during_execution is not None:
        yield from affinity.required_during_scheduling_ignored_during_execution.node_selector_terms
    for preferred in affinity.preferred_during_scheduling_ignored_during_execution:
        yield preferred.preference


def _size(selector: Selector | None) -> int:
    return 0 if selector is None else sum(1 + len(r.values) for r in selector.requirements)


def _by_spec(spec: PodSpec) -> Iterator[str]:
    if spec.resource_claims:
        yield f'resource claim "{spec.resource_claims[0].name}" is allocated by kube-scheduler'
    for container in (*spec.containers, *spec.init_containers):
        if any(rule.action == "RestartAllContainers" for rule in container.restart_policy_rules):
            yield "RestartAllContainers needs nodes that declare it, which kube-scheduler looks for"
    for volume in spec.volumes:
        if volume.ephemeral is not None:
            yield f'volume "{volume.name}" is made for each pod, and provisioned where the pod goes'
        if has_source(volume, _INLINE):
            yield f'volume "{volume.name}" is of a kind that kube-scheduler has rules of its own for'


def _by_labels(constraints: Constraints) -> Iterator[str]:
    terms: list[PodTerm] = [*constraints.affinity, *constraints.anti_affinity]
    for selector in (*(term.selector for term in terms), *(spread.selector for spread in constraints.spread)):
        for requirement in selector.requirements if selector is not None else ():
            if requirement.key in LATE_LABELS:
                yield f'a rule about other pods names the label "{requirement.key}", which is not known beforehand'
