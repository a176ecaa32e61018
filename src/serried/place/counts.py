"""How many pods and slices each domain of each level has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serried.model.capacity import Ints
from serried.model.topology import Tree
from serried.place.topology_request import TopologyRequest

_MANY = np.iinfo(np.int64).max


@dataclass(eq=False)
class Counts:
    """The numbers of one level, int64, one per domain in path order.

    The numbers with a leader are what is left beside the leader of the group, if it goes into this domain. Without a
    leader they are the same arrays as those without, and `leader` is all 0.
    """

    #: pods that fit
    pods: Ints
    #: whole slices that fit; 0 below the slice level
    slices: Ints
    pods_with_leader: Ints
    slices_with_leader: Ints
    #: 1 where the leader fits
    leader: Ints
    #: how well the nodes match the preferred affinity; None when that is not asked for
    score: Ints | None


def count_up(
    tree: Tree,
    request: TopologyRequest,
    pods: Ints,
    with_leader: Ints | None,
    leader: Ints | None,
    score: Ints | None,
    *,
    span: Span | None = None,
    most: Sequence[Ints | None] = (),
) -> list[Counts]:
    """The counts of every level, top first, from what fits on each leaf.

    Args:
        pods: pods that fit on each leaf.
        with_leader: pods that fit beside the leader on each leaf; None without a leader.
        leader: 1 for each leaf where the leader fits.
        score: of each leaf.
        span: only a part of the tree: the arrays are of its leaves, and its first level comes first.
        most: per level, how many pods each domain may get, if that is limited (for whole trees).
    """
    slices = slices_with_leader = pods
    lowest = len(tree.levels) - 1
    top = 0 if span is None else span.level
    found: list[Counts] = []
    for level in range(lowest, top - 1, -1):
        if level < lowest:
            below = found[-1]
            bounds = tree.levels[level].children[:-1] if span is None else span.children(tree, level)[:-1]
            inner = request.inner[level + 1]
            whole = below.pods // inner * inner if inner else below.pods
            pods = np.add.reduceat(whole, bounds)
            slices = np.add.reduceat(below.slices, bounds) if level < request.slice_level else pods
            slices_with_leader = slices
            if with_leader is not None and leader is not None:
                with_whole = below.pods_with_leader // inner * inner if inner else below.pods_with_leader
                with_leader = _less_least_loss(pods, whole - with_whole, below.leader, bounds)
                if level < request.slice_level:
                    loss = below.slices - below.slices_with_leader
                    slices_with_leader = _less_least_loss(slices, loss, below.leader, bounds)
                leader = np.maximum.reduceat(leader, bounds)
            if score is not None:
                score = np.add.reduceat(score, bounds)
        limit = most[level] if most else None
        if limit is not None:
            pods = np.minimum(pods, limit)
            with_leader = None if with_leader is None else np.minimum(with_leader, limit)
        if level == lowest:
            slices = slices_with_leader = pods
        elif limit is not None and level < request.slice_level:
            slices = np.minimum(slices, limit // request.size)
            slices_with_leader = np.minimum(slices_with_leader, limit // request.size)
        if level == request.slice_level:
            slices = pods // request.size if request.size > 1 else pods
            if with_leader is None:
                slices_with_leader = slices
            else:
                slices_with_leader = with_leader // request.size if request.size > 1 else with_leader
        elif level > request.slice_level:
            slices = slices_with_leader = np.zeros_like(pods)
        found.append(
            Counts(
                pods,
                slices,
                pods if with_leader is None else with_leader,
                slices_with_leader,
                np.zeros(len(pods), dtype=np.int64) if leader is None else leader,
                score,
            )
        )
    found.reverse()
    return found


class Span:
    """Some consecutive domains of one level and all that is below them."""

    def __init__(self, tree: Tree, level: int, low: int, high: int) -> None:
        self.level = level
        #: per level from `level` down: the domains from (inclusive) and to (exclusive)
        self.ranges = [(low, high)]
        for above in tree.levels[level:-1]:
            low, high = int(above.children[low]), int(above.children[high])
            self.ranges.append((low, high))

    def children(self, tree: Tree, level: int) -> Ints:
        """The bounds of the children of the span's domains of a level, counted from the span's first child."""
        low, high = self.ranges[level - self.level]
        first, _ = self.ranges[level + 1 - self.level]
        bounds: Ints = tree.levels[level].children[low : high + 1] - first
        return bounds


def _less_least_loss(total: Ints, loss: Ints, leader: Ints, bounds: Ints) -> Ints:
    """What is left of `total` per domain when the leader goes to the child where it costs least; 0 if it fits none."""
    least = np.minimum.reduceat(np.where(leader > 0, loss, _MANY), bounds)
    left: Ints = np.where(least < _MANY, total - least, 0)
    return left
