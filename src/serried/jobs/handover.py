"""Jobs whose pods only kube-scheduler can bind: see `model.requirements`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from serried.api.kueue import PodSet
from serried.api.meta import Key
from serried.jobs.kind import JobKind, Json
from serried.model.pod_constraints import read_constraints
from serried.model.requirements import by_claims, by_labels, by_spec
from serried.model.storage import Storage


def left_to_kube_scheduler(pod_sets: Sequence[PodSet], namespace: str, storage: Storage) -> str:
    """Why pods of these sets are kube-scheduler's to bind, for their templates and for the objects that these name as
    they are now; "" if they are not."""
    for pod_set in pod_sets:
        spec = pod_set.template.spec
        constraints = read_constraints(spec, namespace, pod_set.template.metadata.labels)
        for found in (by_spec(spec), by_labels(constraints), by_claims(namespace, constraints, storage)):
            if found.way == "handed over":
                return found.reason
    return ""


def read_pod_sets(kind: JobKind[Any], raw: Json) -> list[PodSet]:
    """The pod sets of a job on the wire that has not been checked; none if it cannot be read."""
    try:
        return kind.pod_sets(msgspec.convert(raw, kind.resource.type))[0]
    except msgspec.ValidationError:
        return []


def claims_of(pod_sets: Sequence[PodSet], namespace: str) -> Iterator[Key]:
    """The PersistentVolumeClaims that pods of these sets name, each once."""
    names = dict.fromkeys(
        volume.persistent_volume_claim.claim_name
        for pod_set in pod_sets
        for volume in pod_set.template.spec.volumes
        if volume.persistent_volume_claim is not None
    )
    yield from ((namespace, name) for name in names)
