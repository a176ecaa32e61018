"""Installs the custom resource definitions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from serried.api.crds import REVISION, REVISION_ANNOTATION, crds
from serried.api.extensions import CustomResourceDefinition
from serried.api.meta import condition_is
from serried.api.resources import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from serried.cluster.protocol import Cluster, NotFound

_ESTABLISHED_WITHIN = 30.0  # seconds


@dataclass(frozen=True)
class Installation:
    """What became of one definition, and why."""

    name: str
    action: Literal["created", "updated", "unchanged", "kept"]
    detail: str = ""


async def apply(cluster: Cluster) -> list[Installation]:
    """Creates the definitions, updates older ones of ours, and keeps what is newer or somebody else's.

    Returns once all are established. Raises `TimeoutError` naming those that are not.
    """
    outcomes = [await _apply(cluster, wanted) for wanted in crds()]
    await _established(cluster, [o.name for o in outcomes])
    return outcomes


async def _apply(cluster: Cluster, wanted: dict[str, Any]) -> Installation:
    name = wanted["metadata"]["name"]
    try:
        there = await cluster.get(CRDS, name)
    except NotFound:
        await cluster.create(CRDS, wanted)
        return Installation(name, "created")
    text = there.metadata.annotations.get(REVISION_ANNOTATION)
    if text is None:
        return Installation(name, "kept", f"not made by Serried; {_serves(there, wanted)}")
    revision = int(text) if text.isdecimal() else 0
    if revision == REVISION:
        return Installation(name, "unchanged", f"revision {revision}")
    if revision > REVISION:
        return Installation(name, "kept", f"revision {revision} is newer than {REVISION} here")
    await cluster.patch(
        CRDS,
        name,
        patch={
            "metadata": {
                "resourceVersion": there.metadata.resource_version,
                "annotations": wanted["metadata"]["annotations"],
            },
            "spec": wanted["spec"],
        },
    )
    return Installation(name, "updated", f"revision {revision} → {REVISION}")


def _serves(there: CustomResourceDefinition, wanted: dict[str, Any]) -> str:
    """Whether a definition that is not ours serves the version we use, in words."""
    version = wanted["spec"]["versions"][0]["name"]
    served = [v.name for v in there.spec.versions if v.served]
    if version in served:
        return f"it serves {version}"
    return f"WARNING: it serves {', '.join(served)} and not {version}, which Serried needs"


async def _established(cluster: Cluster, names: list[str]) -> None:
    waiting = set(names)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ESTABLISHED_WITHIN
    while True:
        listing = await cluster.list(CRDS)
        waiting -= {c.metadata.name for c in listing.items if condition_is(c.status.conditions or [], "Established")}
        if not waiting:
            return
        if loop.time() > deadline:
            raise TimeoutError(f"not established after {_ESTABLISHED_WITHIN:.0f} s: {', '.join(sorted(waiting))}")
        await asyncio.sleep(0.1)
