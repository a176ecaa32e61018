"""The cluster as it is right now, read once, for commands that only look."""

from __future__ import annotations

from serried.cluster.protocol import Cluster, NotFound
from serried.control.state import State
from serried.schedule.engine import Engine
from serried.schedule.options import Options


async def read(cluster: Cluster) -> State:
    """Lists everything the controller watches, into an engine of one's own. Kinds that are not served are empty."""
    state = State(Engine(options=Options(preemption=False)), mark=lambda _: None)
    for resource, change in state.feeds():
        try:
            listing = await cluster.list(resource)
        except NotFound:
            continue
        for obj in listing.items:
            change(None, obj)
        for broken in listing.malformed:
            state.engine.set_malformed(resource.kind, broken.key, broken.error)
    return state
