"""The webhook of `serried run` for the embedded cluster, which calls no webhooks: one of its `mutators`."""

from __future__ import annotations

from typing import Any

from serried.api.resources import JOBS, Resource
from serried.jobs import job as jobs


def mutate(resource: Resource[Any], operation: str, obj: dict[str, Any]) -> None:
    """What the webhook does to an object at its creation, in place; the pods are Serried's to bind."""
    for change in jobs.mutate(obj, bind=True) if resource is JOBS and operation == "CREATE" else ():
        *path, last = change["path"].removeprefix("/").split("/")
        holder = obj
        for name in path:
            holder = holder[name]
        holder[last] = change["value"]
