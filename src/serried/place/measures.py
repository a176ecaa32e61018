"""How good a placement is: the three measures that `placement: optimal` minimises, in this order.

1. The level of the spread: the lowest level at which all pods are in one domain. Lower is better.
2. The domains used: how many at the top level, then how many at the next, and so on down to the lowest. Fewer is
   better, and a level counts only where all above it are equal.
3. The capacity stranded: of the domains used at one level, how many more pods of this kind they had room for than they
   got. First at the lowest level, then at the next one up, and so on to the top: a rest on a node or in a rack is of
   less use to others than one in a large block. Less is better.

All three together are one total order, and sums over the domains used, so a level of domains can be decided on without
knowing what is above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serried.model.capacity import Ints
from serried.model.topology import Tree


class Measures(NamedTuple):
    """Compared as tuples; less is better."""

    #: how many levels there are below the level of the spread; all of them if no domain of the top level holds all
    spread: int
    #: used domains of each level, top first
    domains: tuple[int, ...]
    #: pods of this kind that would still fit into these domains, lowest level first
    stranded: tuple[int, ...]


def measure(tree: Tree, capacity: Ints, leaves: Ints, pods: Ints) -> Measures:
    """The measures of a placement.

    Args:
        capacity: per leaf of the tree, how many pods of this kind fit before any of these is placed.
        leaves, pods: how many pods (at least 1) go to which leaves, each leaf once.
    """
    count = int(pods.sum())
    domains, stranded = [], []
    used = leaves
    for level in reversed(tree.levels):
        domains.append(len(used))
        stranded.append(int(capacity[used].sum()) - count)
        if level is not tree.levels[0]:
            used = np.unique(level.parent[used])
            capacity = np.add.reduceat(capacity, tree.levels[tree.levels.index(level) - 1].children[:-1])
    domains.reverse()
    return Measures(sum(number > 1 for number in domains), tuple(domains), tuple(stranded))
