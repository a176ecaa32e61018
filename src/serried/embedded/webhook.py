"""The webhook of `serried run` for the embedded cluster, which calls no webhooks: one of its `mutators`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serried.api.resources import Resource
from serried.jobs import KINDS
from serried.jobs.handover import left_to_kube_scheduler, read_pod_sets
from serried.jobs.kind import JobKind
from serried.model.storage import Storage


def mutate(
    resource: Resource[Any], operation: str, obj: dict[str, Any], *, kinds: Sequence[JobKind[Any]] = KINDS
) -> None:
    """What the webhook does to an object at its creation, in place; the pods are Serried's to bind."""
    kind = next((kind for kind in kinds if kind.resource is resource), None)
    if kind is None or operation != "CREATE":
        return
    # Claims are not asked for: what cannot be bound waits.
    bind = not left_to_kube_scheduler(read_pod_sets(kind, obj), obj["metadata"].get("namespace", ""), Storage())
    for (*path, last), value in kind.admit(obj, bind=bind):
        holder: Any = obj
        for part in path:
            holder = holder[part]
        holder[last] = value
