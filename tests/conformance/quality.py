"""Whether an assignment that is not the expected one is valid, and no worse by the three measures.

What is valid is worked out here from the record and the model of the nodes, without asking `serried.place`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serried.api.kueue import PodSetTopologyRequest
from serried.model.capacity import Bools, Ints, fits
from serried.model.filters import mask
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree
from serried.model.world import World
from serried.place.measures import Measures, measure

#: Values of a domain and how many pods go there.
Domains = Sequence[tuple[tuple[str, ...], int]]


class Invalid(Exception):
    """An assignment that breaks a rule; says which."""


@dataclass(frozen=True)
class Placed:
    """One pod set and the assignment it got."""

    pod_set: PodSetRequest
    levels: Sequence[str]
    domains: Domains
    #: pods that were there before and had to stay; None: the pod set had none
    kept: Domains | None
    #: the kept pods are in the nodes' usage already
    kept_is_charged: bool


class Judge:
    """Judges the pod sets of one record in the order they were placed, charging each for those that follow."""

    def __init__(self, world: World, flavor: str) -> None:
        self.world = world
        tree = world.tree(flavor)
        assert tree is not None
        self.tree: Tree = tree
        self.tolerations = world.flavors[flavor].spec.tolerations

    def group(self, workers: Placed, leader: Placed | None) -> Measures:
        """The measures of a pod set's assignment, together with its leader's.

        Raises:
            Invalid: the assignment breaks a rule.
        """
        room = self.room(workers.pod_set)
        at = self.leaves(workers)
        allowed = self.allowed(workers.pod_set)
        kept = Counter(dict(self.leaf_counts(workers.kept or ())))
        everything = Counter(dict(zip(at.tolist(), (n for _, n in workers.domains), strict=True)))
        for leaf, count in kept.items():
            if everything[leaf] < count:
                raise Invalid(f"{self.name(leaf)} had {count} pods that stay, and has {everything[leaf]}")
        added = everything - kept
        for leaf in added:
            if not allowed[leaf]:
                raise Invalid(f"{self.name(leaf)} is excluded by taints, selector or affinity")
        self.charge(workers.pod_set, added if workers.kept_is_charged else everything)
        used = set(everything)
        if leader is not None:
            host = self.leaves(leader)
            used.update(host.tolist())
            self.charge(leader.pod_set, Counter(host.tolist()))
        self.check_wish(workers.pod_set.topology, everything, used)
        leaves = np.array(sorted(used))
        return measure(self.tree, room, leaves, np.array([everything[leaf] for leaf in leaves.tolist()]))

    def leaves(self, placed: Placed) -> Ints:
        """The leaves of an assignment, which has to be well formed."""
        if tuple(placed.levels) != tuple(self.tree.answer_levels):
            raise Invalid(f"levels are {'/'.join(placed.levels)}, not {'/'.join(self.tree.answer_levels)}")
        counted = self.leaf_counts(placed.domains)
        leaves = [leaf for leaf, _ in counted]
        if leaves != sorted(set(leaves)):
            raise Invalid("domains are not in path order, or one appears twice")
        total = sum(count for _, count in counted)
        if total != placed.pod_set.count or any(count < 1 for _, count in counted):
            raise Invalid(f"{total} pods are placed, of {placed.pod_set.count}")
        return np.array(leaves, dtype=np.int64)

    def leaf_counts(self, domains: Domains) -> list[tuple[int, int]]:
        present = self.tree.present(self.world.nodes.usable)
        found = []
        for values, count in domains:
            leaf = self.tree.leaf(values)
            if leaf is None or not present[leaf]:
                raise Invalid(f"there is no domain {'/'.join(values)}")
            found.append((leaf, count))
        return found

    def allowed(self, pod_set: PodSetRequest) -> Bools:
        """Per leaf, whether the filters let these pods there."""
        if not self.tree.host:
            return np.ones(self.tree.leaves, dtype=np.bool_)
        tolerations = (*pod_set.tolerations, *self.tolerations)
        found = mask(self.world.nodes, self.tree, tolerations, pod_set.node_selector, pod_set.node_affinity)
        return found.allowed

    def room(self, pod_set: PodSetRequest) -> Ints:
        """How many of these pods fit on each leaf now."""
        nodes, capacity = self.world.nodes, self.world.capacity
        free = self.tree.leaf_free(capacity.free, nodes.usable)
        usable = self.tree.present(nodes.usable) & self.allowed(pod_set)
        return fits(free, capacity.vector(pod_set.requests), self.tree.leaves) * usable

    def charge(self, pod_set: PodSetRequest, pods: Mapping[int, int]) -> None:
        """Takes what the pods need from their leaves, which have to have it."""
        capacity = self.world.capacity
        vector = capacity.vector(pod_set.requests)
        if vector.missing:
            raise Invalid(f"no node has any {', '.join(vector.missing)}")
        leaves = np.array([leaf for leaf, count in pods.items() if count], dtype=np.int64)
        counts = np.array([count for count in pods.values() if count], dtype=np.int64)
        free = self.tree.leaf_free(capacity.free, self.world.nodes.usable)
        for line, value, name in zip(vector.index.tolist(), vector.value.tolist(), vector.names, strict=True):
            for leaf, has, count in zip(leaves.tolist(), free(line)[leaves].tolist(), counts.tolist(), strict=True):
                if count * value > has:
                    raise Invalid(f"{self.name(leaf)} has {has} {name} free, and {count} pods need {count * value}")
        self.world.charge(capacity.free, self.tree, leaves, counts, pod_set)

    def check_wish(self, request: PodSetTopologyRequest | None, pods: Mapping[int, int], used: set[int]) -> None:
        if request is None:
            return
        keys = list(self.tree.keys)
        if request.required is not None:
            level = keys.index(request.required)
            if len({self.path(leaf)[: level + 1] for leaf in used}) > 1:
                raise Invalid(f"the pods are not in one {request.required}")
        layers = [(layer.topology, layer.size) for layer in request.podset_slice_required_topology_constraints]
        if not layers and request.pod_set_slice_required_topology is not None:
            layers = [(request.pod_set_slice_required_topology, request.pod_set_slice_size or 1)]
        for key, size in layers:
            inside: Counter[tuple[str, ...]] = Counter()
            for leaf, count in pods.items():
                inside[self.path(leaf)[: keys.index(key) + 1]] += count
            for path, count in inside.items():
                if count % size:
                    raise Invalid(f"{'/'.join(path)} has {count} pods, which are no whole slices of {size}")

    def path(self, leaf: int) -> tuple[str, ...]:
        return self.tree.path(len(self.tree.levels) - 1, leaf)

    def name(self, leaf: int) -> str:
        return "/".join(self.path(leaf))
