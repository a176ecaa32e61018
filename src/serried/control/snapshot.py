"""The cluster as it is right now, read once, for commands that only look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from serried.api.resources import WORKLOADS, Resource
from serried.cluster.protocol import Cluster, Listing, NotFound
from serried.control.config import Configuration
from serried.control.served import NotServed
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine


async def read(
    cluster: Cluster, config: Configuration, begun: Mapping[Resource[Any], Awaitable[Listing[Any]]] = {}
) -> ClusterState:
    """Lists everything the controller watches, into an engine of one's own. Kinds that are not served are empty.

    Arguments:
        config: that of the controller, so that the engine decides as the controller's does.
        begun: lists that are on their way already.

    Raises `NotServed` when there are not even Workloads.
    """
    engine = Engine(config.place_options(), config.options())
    state = ClusterState(engine, mark=lambda _: None)
    feeds = state.feeds()
    lists = [asyncio.ensure_future(_listed(r, begun.get(r) or cluster.list(r))) for r, _ in feeds]
    try:
        for (resource, change), coming in zip(feeds, lists, strict=True):
            listing = await coming
            for obj in listing.items:
                change(None, obj)
            for broken in listing.malformed:
                engine.set_malformed(resource.kind, broken.key, broken.error)
    finally:
        for coming in lists:
            coming.cancel()
    return state


async def _listed(resource: Resource[Any], listing: Awaitable[Listing[Any]]) -> Listing[Any]:
    try:
        return await listing
    except NotFound as error:
        if resource is WORKLOADS:
            raise NotServed(resource) from error
        return Listing([], [], "")
