"""The cluster as it is right now, read once, for commands that only look."""

from __future__ import annotations

from serried.api.resources import WORKLOADS
from serried.cluster.protocol import Cluster, NotFound
from serried.control.config import Configuration
from serried.control.run import not_served
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine


async def read(cluster: Cluster, config: Configuration) -> ClusterState:
    """Lists everything the controller watches, into an engine of one's own. Kinds that are not served are empty.

    `config`: that of the controller, so that the engine decides as the controller's does.

    Raises `NotServed` when there are not even Workloads.
    """
    engine = Engine(config.place_options(), config.options())
    state = ClusterState(engine, mark=lambda _: None)
    for resource, change in state.feeds():
        try:
            listing = await cluster.list(resource)
        except NotFound as error:
            if resource is WORKLOADS:
                raise not_served(resource) from error
            continue
        for obj in listing.items:
            change(None, obj)
        for broken in listing.malformed:
            state.engine.set_malformed(resource.kind, broken.key, broken.error)
    return state
