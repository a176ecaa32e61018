"""Whether pods can still go where they were planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serried.api import names
from serried.api.core import Toleration
from serried.api.meta import Key
from serried.model.capacity import add, amounts
from serried.model.filters import first_untolerated
from serried.model.holds import short_rows
from serried.model.world import World


def is_schedulable(
    world: World, levels: Sequence[str], values: Sequence[str], tolerations: Sequence[Toleration]
) -> bool:
    """Whether pods with these tolerations can still go to a domain: a node there is ready, not cordoned, and has no
    taint that keeps them off."""
    nodes = world.nodes
    if levels[-1] == names.HOSTNAME:
        rows = nodes.hosts.get(values[-1], [])[:1]
    else:
        there = nodes.usable.copy()
        for key, value in zip(levels, values, strict=True):
            there &= nodes.column(key).equals(value)
        rows = np.flatnonzero(there).tolist()
    return any(
        nodes.usable[row] and first_untolerated(nodes.taints[nodes.taint_code[row]], tolerations) is None
        for row in rows
    )


def overbooked(world: World, key: Key) -> set[str]:
    """The hosts on which a workload holds more than there is: others have come in between, or the node has less."""
    hold = world.holds.get(key)
    parts = [s for s in hold.parts if s.levels == (names.HOSTNAME,)] if hold is not None else []
    short = short_rows(parts, world.capacity.free)
    if not short:
        return set()
    free = world.capacity.free
    at = {row: i for i, row in enumerate(sorted(short))}
    spare = np.zeros((len(free), len(at)), dtype=np.int64)
    for row, i in at.items():
        for part in world.estimated_on(row):
            if part.workload != key:
                add(spare, part.vector, np.array([i]), amounts(part.vector, np.array([part.estimated_on(row)])), 1)
    return {
        world.nodes.last_labels(row).get(names.HOSTNAME, "")
        for part in parts
        for row in at.keys() & part.charged.keys()
        if (free[part.vector.index, row] + spare[part.vector.index, at[row]] < 0).any()
    }
