"""The domains of a topology with what is used in them, for displays. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from serried.api.quantity import format_quantity
from serried.model.world import World


class Usage(msgspec.Struct, frozen=True):
    """One resource of a domain, as quantities."""

    name: str
    used: str
    allocatable: str


class Domain(msgspec.Struct, frozen=True, omit_defaults=True):
    """One domain: its label value, how many nodes it has, what is used, and the domains below."""

    value: str
    nodes: int
    resources: Sequence[Usage]
    children: Sequence[Domain] = ()


#: Shown first, where nodes have them; others follow by name. Storage is left out: it is never what is short.
_FIRST = ("cpu", "memory", "pods")
_LEFT_OUT = ("ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi")


def domains(world: World, topology: str) -> list[Domain]:
    """The top domains of a topology, each with those below it; [] when there is no such topology or it has no nodes."""
    tree = world.topology_tree(topology)
    if tree is None:
        return []
    lines = {name: line for name, line in world.resources() if name not in _LEFT_OUT}
    extended = sorted(set(lines) - set(_FIRST))
    order = [*extended, *(name for name in _FIRST if name in lines)]
    wanted = [lines[name] for name in order]
    allocatable = world.capacity.allocatable[wanted][:, tree.rows]
    used = allocatable - world.capacity.free[wanted][:, tree.rows]
    below: list[list[Domain]] = []
    for depth in range(len(tree.levels) - 1, -1, -1):
        level = tree.levels[depth]
        starts = level.nodes[:-1]
        has, takes = (np.add.reduceat(a, starts, axis=1).T.tolist() if level.size else [] for a in (allocatable, used))
        counts = np.diff(level.nodes).tolist()
        children = below or [[] for _ in range(level.size)]
        here = [
            Domain(
                value,
                counts[i],
                [
                    Usage(name, format_quantity(name, t), format_quantity(name, h))
                    for name, t, h in zip(order, takes[i], has[i], strict=True)
                    if h or t
                ],
                children[i],
            )
            for i, value in enumerate(level.values)
        ]
        if depth == 0:
            return here
        parents = level.parent.tolist()
        below = [[] for _ in range(tree.levels[depth - 1].size)]
        for domain, parent in zip(here, parents, strict=True):
            below[parent].append(domain)
    return []
