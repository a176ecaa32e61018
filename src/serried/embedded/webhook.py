"""The webhook of `serried run` for the embedded cluster, which asks no webhooks: one of its `mutators`."""

from __future__ import annotations

from typing import Any

from serried.api.resources import JOBS, Resource
from serried.embedded import patch
from serried.jobs import job as jobs


def mutate(resource: Resource[Any], operation: str, obj: dict[str, Any]) -> None:
    """What the webhook does to an object at its creation, in place; the pods are Serried's to bind."""
    if resource is JOBS and operation == "CREATE" and (operations := jobs.mutate(obj, bind=True)):
        changed = patch.apply(obj, operations)
        obj.clear()
        obj.update(changed)
