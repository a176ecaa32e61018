"""Which kinds the API server has to serve before anything works."""

from __future__ import annotations

import asyncio
from typing import Any

from serried.api.resources import ALL, CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS, Resource
from serried.cluster.protocol import Cluster
from serried.jobs import KINDS

#: What the controller itself neither reads nor writes.
_OF_OTHER_COMMANDS = (CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS)


class NotServed(Exception):
    """The API server lacks a kind that Serried needs; the text says which and what to do."""

    def __init__(self, *missing: Resource[Any]) -> None:
        names = ", ".join(f"{each.plural}.{each.group or 'core'}/{each.version}" for each in missing)
        super().__init__(
            f"the API server does not serve {names}; install the custom resource definitions: serried crds --apply"
        )


async def check_served(cluster: Cluster) -> None:
    """Raises `NotServed`, naming them all, when kinds are missing without which nothing works."""
    kinds = {*ALL, *(kind.resource for kind in KINDS)} - {*_OF_OTHER_COMMANDS}
    needed = sorted((each for each in kinds if not each.optional), key=lambda each: each.plural)
    versions = sorted({(each.group, each.version) for each in needed})
    served = dict(zip(versions, await asyncio.gather(*(cluster.served(*each) for each in versions)), strict=True))
    missing = [each for each in needed if each.plural not in served[each.group, each.version]]
    if missing:
        raise NotServed(*missing)
