"""Places of pod sets that were scaled: what Kueue does for slices of elastic jobs, made of Serried's own placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from serried.model.placement import Domain, Placement
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree
from serried.model.world import World
from serried.place.node_replacement import merge
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement
from serried.place.topology_request import layers_of


def place_scaled(
    world: World,
    flavor: str,
    pod_sets: Sequence[PodSetRequest],
    previous: Mapping[str, Placement],
    options: PlaceOptions,
) -> list[Placement] | NoPlacement:
    """As `place`, but pod sets that have a place in `previous` keep it, as far as it exists: a larger one gets places
    for the difference, a smaller one gives up its last ones."""
    groups: dict[object, list[int]] = {}
    for i, pod_set in enumerate(pod_sets):
        name = pod_set.topology.pod_set_group_name if pod_set.topology is not None else None
        groups.setdefault(i if name is None else name, []).append(i)
    placed: dict[int, Placement] = {}
    mark = world.journal.checkpoint()
    try:
        for members in groups.values():
            group = [pod_sets[i] for i in members]
            here = world.journal.checkpoint()
            found = _group(world, flavor, group, previous, options)
            world.journal.rollback(here)
            if isinstance(found, NoPlacement):
                return found
            placed |= dict(zip(members, found, strict=True))
            for pod_set, placement in zip(group, found, strict=True):
                _charge(world, flavor, pod_set, placement.domains)
    finally:
        world.journal.rollback(mark)
    return [placed[i] for i in range(len(pod_sets))]


def _group(
    world: World,
    flavor: str,
    group: Sequence[PodSetRequest],
    previous: Mapping[str, Placement],
    options: PlaceOptions,
) -> list[Placement] | NoPlacement:
    workers = max(group, key=lambda p: p.count)
    leader = next((p for p in group if p is not workers), None)
    tree = world.tree(flavor)
    before = previous.get(workers.name)
    leader_before = previous.get(leader.name) if leader is not None else None
    if tree is None or before is None or not all(_exists(world, tree, p) for p in (before, leader_before) if p):
        return place(world, flavor, group, options=options)
    had = sum(count for _, count in before.domains)
    more = workers.count - had
    layers = layers_of(workers.topology)
    size = layers[0][1] if layers else 1
    if size <= 0 or had % size or workers.count % size or (more <= 0 and leader is not None and leader_before is None):
        return place(world, flavor, group, options=options)
    kept = _cut(before.domains, workers.count)
    _charge(world, flavor, workers, kept)
    if leader is not None and leader_before is not None:
        _charge(world, flavor, leader, leader_before.domains)
    if more > 0:
        asked = [replace(p, count=more) if p is workers else p for p in group if p is workers or leader_before is None]
        found = place(world, flavor, asked, options=options)
        if isinstance(found, NoPlacement):
            return found
        by_name = {p.pod_set: p for p in found}
        kept = merge(tree, kept, by_name[workers.name].domains)
        leader_before = leader_before or (by_name[leader.name] if leader is not None else None)
    answers = {workers.name: replace(before, domains=kept)}
    if leader is not None and leader_before is not None:
        answers[leader.name] = leader_before
    return [answers[p.name] for p in group]


def _exists(world: World, tree: Tree, placement: Placement) -> bool:
    present = tree.present(world.nodes.usable)
    leaves = [tree.leaf(values) for values, _ in placement.domains]
    return all(leaf is not None and present[leaf] for leaf in leaves)


def _cut(domains: Sequence[Domain], count: int) -> tuple[Domain, ...]:
    """The first `count` pods of a placement."""
    kept: list[Domain] = []
    for values, number in domains:
        kept.append((values, min(number, count)))
        count -= kept[-1][1]
    return tuple(domain for domain in kept if domain[1] > 0)


def _charge(world: World, flavor: str, pod_set: PodSetRequest, domains: Sequence[Domain]) -> None:
    tree = world.tree(flavor)
    if tree is None:
        return
    pods: dict[int, int] = {}
    for values, count in domains:
        leaf = tree.leaf(values)
        assert leaf is not None
        pods[leaf] = pods.get(leaf, 0) + count
    leaves, counts = (np.array(list(each), dtype=np.int64) for each in (pods.keys(), pods.values()))
    world.charge(world.capacity.free, tree, leaves, counts, pod_set)
