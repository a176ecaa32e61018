"""A place for every pod of a workload: its pod sets one after the other, each seeing the ones before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from serried.model.capacity import Ints, fits
from serried.model.filters import mask
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree
from serried.model.world import World
from serried.place.counts import count_up
from serried.place.explain import Room, explain
from serried.place.options import PlaceOptions
from serried.place.result import NoPlacement
from serried.place.search import Leaves, Search, Unfit, descend, find
from serried.place.wish import WishError, read_wish

DEFAULT: Final = PlaceOptions()


@dataclass(frozen=True)
class Replacement:
    """An admitted workload has lost a node and needs places for the pods that were there."""

    #: the label kubernetes.io/hostname of the node
    unhealthy: str
    #: pod set → where its pods are
    current: Mapping[str, Placement]
    #: the workload is one Pod by itself, which cannot move
    lone_pod: bool = False


def place(
    world: World,
    flavor: str,
    pod_sets: Sequence[PodSetRequest],
    *,
    options: PlaceOptions = DEFAULT,
    assume_empty: bool = False,
    replacement: Replacement | None = None,
    previous: Mapping[str, Placement] = MappingProxyType({}),
) -> list[Placement] | NoPlacement:
    """Finds a place for every pod of these pod sets on the nodes of one flavor.

    Pod sets with the same `podSetGroupName` are placed together, the smaller one as the leader of the larger. The
    world is left as it was.

    Args:
        flavor: the ResourceFlavor that all of them were assigned.
        assume_empty: ignore what other workloads hold.
        replacement: look only for places for the pods that were on a failed node. The places of all others are kept,
            and are taken to be charged already (the workload's hold).
        previous: pod set → the place it had before it was scaled (with `options.elastic`): the pods it keeps stay
            there. These are charged here, so the workload's hold has to be released first.

    Returns:
        One placement per pod set, in the same order; or why the first one that has no place has none.
    """
    array = world.capacity.unheld if assume_empty else world.capacity.free
    mark = world.journal.checkpoint()
    try:
        result = _place_all(world, flavor, pod_sets, options, array)
    finally:
        world.journal.rollback(mark)
    if isinstance(result, NoPlacement) and not assume_empty and not result.field:
        empty = place(world, flavor, pod_sets, options=options, assume_empty=True)
        if isinstance(empty, NoPlacement):
            return replace(result, fits_when_empty=False, fits_empty=empty.fits, best_domain_empty=empty.best_domain)
        return replace(result, fits_when_empty=True, fits_empty=result.needed)
    return result


def _place_all(
    world: World, flavor: str, pod_sets: Sequence[PodSetRequest], options: PlaceOptions, array: Ints
) -> list[Placement] | NoPlacement:
    placed: dict[int, Placement] = {}
    for group in _groups(pod_sets):
        workers = max(group, key=lambda i: pod_sets[i].count)
        leader = next((i for i in group if i != workers), None)
        first = pod_sets[group[0]]
        if len(group) > 2 or (leader is not None and pod_sets[leader].count != 1):
            return NoPlacement(
                first.name,
                "a pod set group is one pod set of any size and one leader of one pod",
                field="topologyRequest.podSetGroupName",
            )
        answer = _place_group(
            world, flavor, pod_sets[workers], None if leader is None else pod_sets[leader], options, array
        )
        if isinstance(answer, NoPlacement):
            return answer
        placed[workers] = answer[0]
        if leader is not None:
            placed[leader] = answer[1]
    return [placed[i] for i in range(len(pod_sets))]


def _groups(pod_sets: Sequence[PodSetRequest]) -> list[list[int]]:
    """The pod sets that are placed together, by index; each group at its first member."""
    groups: dict[object, list[int]] = {}
    for i, pod_set in enumerate(pod_sets):
        name = pod_set.topology.pod_set_group_name if pod_set.topology is not None else None
        groups.setdefault(i if name is None else name, []).append(i)
    return list(groups.values())


def _place_group(
    world: World,
    flavor: str,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    options: PlaceOptions,
    array: Ints,
) -> tuple[Placement, Placement] | NoPlacement:
    tree = world.tree(flavor, bound_by_us=workers.bound_by_us)
    name = workers.name if leader is None else leader.name
    if tree is None:
        if workers.topology is not None or workers.bound_by_us or flavor not in world.flavors:
            return NoPlacement(name, _no_levels(world, flavor), field="topologyRequest")
        nowhere = Placement(name, flavor, (), ())
        return replace(nowhere, pod_set=workers.name), nowhere
    topology = world.flavors[flavor].spec.topology_name or flavor
    try:
        wish = read_wish(workers.topology, tree.keys)
    except WishError as error:
        return NoPlacement(name, str(error), field=error.field)
    if workers.count < 0 or workers.count % wish.size:
        return NoPlacement(
            name, f"the number of pods, {workers.count}, is not a multiple of the slice size {wish.size}", field="count"
        )
    room = _room(world, flavor, tree, workers, leader, options, array)
    if not room.present.any():
        return NoPlacement(name, f"no topology domains at level: {tree.keys[wish.level]}", level=tree.keys[wish.level])
    counts = count_up(tree, wish, room.pods, room.with_leader, room.leader, room.score)
    best_fit = wish.mode != "unconstrained" or not options.least_free_when_unconstrained
    search = Search(tree, counts, wish, workers.count // wish.size, leader is not None, best_fit)
    found = find(search)
    if isinstance(found, Unfit):
        return explain(search, room, found, name, topology, workers.count)
    leaves = descend(search, found)
    if leaves is None:
        return explain(search, room, Unfit(found.level, 0), name, topology, workers.count)
    return _answer(world, tree, flavor, workers, leader, leaves, array)


def _no_levels(world: World, flavor: str) -> str:
    found = world.flavors.get(flavor)
    if found is None:
        return f'there is no ResourceFlavor "{flavor}"'
    if found.spec.topology_name:
        return f'there is no Topology "{found.spec.topology_name}" with levels, which ResourceFlavor "{flavor}" names'
    return f'Flavor "{flavor}" does not support TopologyAwareScheduling'


def _room(
    world: World,
    flavor: str,
    tree: Tree,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    options: PlaceOptions,
    array: Ints,
) -> Room:
    usable = world.nodes.usable
    present = tree.present(usable)
    allowed, masked, score = present, None, None
    if tree.host:
        tolerations = (*workers.tolerations, *world.flavors[flavor].spec.tolerations)
        masked = mask(world.nodes, tree, tolerations, workers.node_selector, workers.node_affinity)
        allowed = present & masked.allowed
        if options.preferred_affinity:
            score = np.where(allowed, masked.score, 0)
    elif options.preferred_affinity:
        score = np.zeros(tree.leaves, dtype=np.int64)
    free = tree.leaf_free(array, usable)
    vector = world.capacity.vector(workers.requests)
    pods = fits(free, vector, tree.leaves) * allowed
    if leader is None:
        return Room(present, None, masked, free, vector, pods, None, None, score)
    own = world.capacity.vector(leader.requests)
    hosts = (fits(free, own, tree.leaves) > 0) & allowed
    takes = dict(zip(own.index.tolist(), own.value.tolist(), strict=True))
    beside = fits(lambda line: free(line) - takes.get(line, 0), vector, tree.leaves)
    with_leader = np.where(hosts, beside, pods)
    return Room(present, None, masked, free, vector, pods, with_leader, hosts.astype(np.int64), score)


def _answer(
    world: World,
    tree: Tree,
    flavor: str,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    leaves: Leaves,
    array: Ints,
) -> tuple[Placement, Placement]:
    by_path = np.argsort(leaves.leaves)
    at, pods = leaves.leaves[by_path], leaves.pods[by_path]
    at, pods = at[pods > 0], pods[pods > 0]
    domains = tuple((tree.answer(leaf), count) for leaf, count in zip(at.tolist(), pods.tolist(), strict=True))
    placement = Placement(workers.name, flavor, tree.answer_levels, domains)
    world.charge(array, tree, at, pods, workers.requests)
    if leader is None:
        return placement, placement
    host = np.array([leaves.leader])
    world.charge(array, tree, host, np.ones(1, dtype=np.int64), leader.requests)
    return placement, Placement(leader.name, flavor, tree.answer_levels, ((tree.answer(leaves.leader), 1),))
