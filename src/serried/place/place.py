"""A place for every pod of a workload: its pod sets one after the other, each seeing the ones before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from serried.model.capacity import UNLIMITED, Bools, Ints, fits, fits_beside
from serried.model.filters import Mask, mask, required, selected, tolerated
from serried.model.placement import Domain, Placement
from serried.model.pod_constraints import NO_CONSTRAINTS
from serried.model.pod_filters import Surroundings, Verdict, follows, judge, keeps_off, preference, tied_over
from serried.model.requests import PodSetRequest
from serried.model.topology import Tree
from serried.model.world import World
from serried.place.balanced import place_balanced
from serried.place.counts import count_up
from serried.place.explain import LeafFit, explain
from serried.place.limits import Rules, place_within_rules
from serried.place.node_replacement import Replacement, are_whole, gap, merge, sliced
from serried.place.optimal import LimitReached, place_optimal
from serried.place.options import DEFAULT, PlaceOptions
from serried.place.result import NoPlacement
from serried.place.search import Leaves, Search, Unfit, descend, find
from serried.place.topology_request import TopologyRequest, TopologyRequestError, read_topology_request

__all__ = ["PlaceOptions", "Replacement", "place"]


def place(
    world: World,
    flavor: str,
    pod_sets: Sequence[PodSetRequest],
    *,
    options: PlaceOptions = DEFAULT,
    assume_empty: bool = False,
    replacement: Replacement | None = None,
) -> list[Placement] | NoPlacement:
    """Finds a place for every pod of these pod sets on the nodes of one flavor.

    Pod sets with the same `podSetGroupName` are placed together, the smaller one as the leader of the larger. The
    world is left as it was.

    Args:
        flavor: the ResourceFlavor that all of them were assigned.
        assume_empty: ignore what other workloads hold, and rules that their pods could help to keep.
        replacement: look only for places for the pods that were on a failed node. The places of all others are kept,
            and are taken to be charged already (the workload's hold).

    Returns:
        One placement per pod set, in the same order; or why the first one that has no place has none.
    """
    if assume_empty:
        pod_sets = [_unhelped(pod_set) for pod_set in pod_sets]
    mark = world.journal.checkpoint()
    try:
        result = _Placing(world, flavor, options, assume_empty, replacement).place(pod_sets)
    finally:
        world.journal.rollback(mark)
    if not isinstance(result, NoPlacement) or result.field:
        return result
    if assume_empty or replacement is not None:
        return result
    by_us = any(pod_set.bound_by_us for pod_set in pod_sets)
    if flavor in world.flavors and world.levels(flavor, bound_by_us=by_us):
        result = replace(result, unlabelled=world.unlabelled(flavor, bound_by_us=by_us))
    # Whether it fits is the same for all algorithms.
    options = replace(options, optimal=False)
    empty = place(world, flavor, pod_sets, options=options, assume_empty=True)
    if isinstance(empty, NoPlacement):
        return replace(result, fits_when_empty=False, fits_empty=empty.fits, best_domain_empty=empty.best_domain)
    return replace(result, fits_when_empty=True, fits_empty=result.needed)


def nodes_for(
    world: World, flavor: str, pod_sets: Sequence[PodSetRequest], *, options: PlaceOptions = DEFAULT
) -> Ints | None:
    """The rows of the nodes on which `place` finds a place; None: it finds none. Costs less than the places in words,
    or the reasons."""
    mark = world.journal.checkpoint()
    trial = _Placing(world, flavor, replace(options, optimal=False), bare=True)
    try:
        result = trial.place(pod_sets)
    finally:
        world.journal.rollback(mark)
    return None if isinstance(result, NoPlacement) else np.concatenate([np.zeros(0, dtype=np.int64), *trial.rows])


@dataclass(frozen=True, eq=False)
class PlacementRequest:
    """What is looked for: `count` pods of a pod set, within some leaves of a tree (None: anywhere)."""

    tree: Tree
    topology: TopologyRequest
    workers: PodSetRequest
    leader: PodSetRequest | None
    count: int
    #: whose failure it is
    name: str
    within: Bools | None = None
    #: other pods of the pod set keep their places
    beside_kept: bool = False


class _Placing:
    """A placement in the making: what it places it charges, through the journal."""

    def __init__(
        self,
        world: World,
        flavor: str,
        options: PlaceOptions,
        assume_empty: bool = False,
        replacement: Replacement | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.world = world
        self.flavor = flavor
        self.options = options
        self.assume_empty = assume_empty
        self.array = world.capacity.unheld if assume_empty else world.capacity.free
        self.replacement = replacement
        #: neither places nor reasons are worded; `rows` are those of the nodes used
        self.bare = bare
        self.rows: list[Ints] = []
        #: there are pod sets after this group, which have to see what it takes
        self.more_to_place = True

    def place(self, pod_sets: Sequence[PodSetRequest]) -> list[Placement] | NoPlacement:
        placed: dict[int, Placement] = {}
        groups = self.in_order(pod_sets, _groups(pod_sets))
        for group in groups:
            self.more_to_place = group is not groups[-1]
            for i in group:
                if not 0 <= pod_sets[i].count <= UNLIMITED:
                    text = f"{pod_sets[i].count} pods; from 0 to {UNLIMITED} are possible"
                    return NoPlacement(pod_sets[i].name, text, field="count")
            # A pod set of no pods takes no part in its group.
            workers = max(group, key=lambda i: pod_sets[i].count)
            for i in group:
                if i != workers and not pod_sets[i].count:
                    placed[i] = self.nowhere(pod_sets[i])
            group = [i for i in group if i not in placed]
            leader = next((i for i in group if i != workers), None)
            if len(group) > 2 or (leader is not None and pod_sets[leader].count != 1):
                return NoPlacement(
                    pod_sets[group[0]].name,
                    f"{len(group)} pod sets form a group; a group is one pod set of any size and a leader of one pod",
                    field="topologyRequest.podSetGroupName",
                )
            answer = self.group(
                pod_sets[workers], None if leader is None else pod_sets[leader], pod_sets[group[0]].name
            )
            if isinstance(answer, NoPlacement):
                return answer
            placed[workers] = answer[0]
            if leader is not None:
                placed[leader] = answer[1]
        return [placed[i] for i in range(len(pod_sets))]

    def in_order(self, pod_sets: Sequence[PodSetRequest], groups: list[list[int]]) -> list[list[int]]:
        """Groups whose affinity needs pods of another group come after that one; all others stay as they are."""
        first: list[list[int]] = []
        left = list(groups)
        while left:
            free = (g for g in left if not any(self.needs(pod_sets, g, other) for other in left if other is not g))
            first.append(next(free, left[0]))
            left.remove(first[-1])
        return first

    def needs(self, pod_sets: Sequence[PodSetRequest], group: Sequence[int], other: Sequence[int]) -> bool:
        namespaces = self.world.namespaces
        return any(
            follows(pod_sets[i].kind, pod_sets[j].kind, namespaces)
            for i in group
            for j in other
            if pod_sets[i].kind.constraints.affinity
        )

    def group(
        self, workers: PodSetRequest, leader: PodSetRequest | None, name: str
    ) -> tuple[Placement, Placement] | NoPlacement:
        """Places one pod set and its leader. Without a leader its placement is returned twice."""
        bound_by_us = workers.bound_by_us or (leader is not None and leader.bound_by_us)
        tree = self.world.tree(self.flavor, bound_by_us=bound_by_us)
        if tree is None:
            if workers.topology is not None or bound_by_us or self.flavor not in self.world.flavors:
                return NoPlacement(name, self.no_levels(), field="topologyRequest")
            return self.nowhere(workers), self.nowhere(workers if leader is None else leader)
        try:
            topology = read_topology_request(workers.topology, tree.keys)
        except TopologyRequestError as error:
            return NoPlacement(name, str(error), field=error.field)
        request = PlacementRequest(tree, topology, workers, leader, workers.count, name)
        if self.replacement is not None and workers.name in self.replacement.current:
            return self.replace_lost(request, self.replacement)
        if workers.count % topology.size:
            text = f"the number of pods, {workers.count}, is not a multiple of the slice size {topology.size}"
            return NoPlacement(name, text, field="count")
        if not workers.count:
            return self.nowhere(workers), self.nowhere(workers)
        return self.afresh(request)

    def afresh(self, request: PlacementRequest) -> tuple[Placement, Placement] | NoPlacement:
        leaves = self.search(request)
        if isinstance(leaves, NoPlacement):
            return leaves
        placement = self.charge(request.tree, request.workers, leaves.leaves, leaves.pods)
        placement = replace(placement, fallback=leaves.fallback)
        if request.leader is None:
            return placement, placement
        return placement, self.charge_leader(request.tree, request.leader, leaves.leader)

    def nowhere(self, pod_set: PodSetRequest) -> Placement:
        """The placement of a pod set that has no pods to place, or whose places are not to be named."""
        tree = self.world.tree(self.flavor, bound_by_us=pod_set.bound_by_us)
        return Placement(pod_set.name, self.flavor, () if tree is None else tree.answer_levels, ())

    def no_levels(self) -> str:
        found = self.world.flavors.get(self.flavor)
        if found is None:
            return f'there is no ResourceFlavor "{self.flavor}"'
        name = found.spec.topology_name
        if name:
            return f'there is no Topology "{name}" with levels, which ResourceFlavor "{self.flavor}" names'
        return f'Flavor "{self.flavor}" does not support TopologyAwareScheduling'

    # --- the search

    def search(self, request: PlacementRequest) -> Leaves | NoPlacement:
        tree, topology = request.tree, request.topology
        key = tree.keys[topology.level]
        verdict = self.judge(tree, request.workers)
        problem = _not_kept(request, verdict)
        if problem:
            return NoPlacement(request.name, problem, needed=request.count // topology.size)
        fit = self.fit(request, verdict)
        if not fit.present.any():
            return NoPlacement(
                request.name, f"no topology domains at level: {key}", level=key, needed=request.count // topology.size
            )
        best_fit = topology.mode != "unconstrained" or not self.options.least_free_when_unconstrained
        rules = None if verdict is None or request.count == 1 else Rules.of(verdict, tree)
        if rules is not None:
            return self.search_within(rules, request, fit, best_fit)
        counts = count_up(tree, topology, fit.pods, fit.with_leader, fit.leader, fit.score)
        search = Search(
            tree, counts, topology, request.count // topology.size, request.leader is not None, best_fit, fit.present
        )
        fallback = ""
        if self.options.optimal:
            fallback = _not_covered(request, fit)
            if not fallback:
                try:
                    best = place_optimal(search, self.options.optimal_limit)
                except LimitReached:
                    fallback = f"it was not found within {self.options.optimal_limit} partial placements"
                else:
                    if best is not None:
                        return best
        if self.options.balanced and topology.mode == "preferred":
            balanced = place_balanced(search)
            if balanced is not None:
                return replace(balanced, fallback=fallback)
        found = find(search)
        if not isinstance(found, Unfit):
            leaves = descend(search, found)
            if leaves is not None:
                return replace(leaves, fallback=fallback)
            found = Unfit(found.level, 0)
        if self.bare:
            return NoPlacement(request.name, "there is no place")
        return explain(search, fit, found, request.name, self.topology, request.count)

    def search_within(
        self, rules: Rules, request: PlacementRequest, fit: LeafFit, best_fit: bool
    ) -> Leaves | NoPlacement:
        """As `search`, under rules between the pods."""
        found = place_within_rules(
            self.world.nodes, request.tree, request.topology, rules, fit, request.count, best_fit
        )
        if isinstance(found, Leaves):
            return replace(found, fallback="rules between pods limit the domains" if self.options.optimal else "")
        if isinstance(found, str):
            text = f"pods cannot keep a rule about {found}: its domains cut across those of slices or of other rules"
            return NoPlacement(request.name, text, needed=request.count // request.topology.size)
        result = explain(found.search, found.fits, found.unfit, request.name, self.topology, request.count)
        return replace(result, message=f"{result.message}. {rules}")

    @property
    def topology(self) -> str:
        return self.world.flavors[self.flavor].spec.topology_name or self.flavor

    def fit(self, request: PlacementRequest, verdict: Verdict | None) -> LeafFit:
        """What fits on each leaf now. `verdict`: on the workers."""
        tree, nodes, workers = request.tree, self.world.nodes, request.workers
        present = tree.present(nodes.usable)
        masked = self.mask(tree, workers)
        if masked is not None and verdict is not None:
            alone = verdict.spread_of_one(nodes) if request.count == 1 else ()
            masked = masked.without(tree.rows, (*verdict.exclusions, *alone))
        allowed = _allowed(present, masked)
        score = None
        if self.options.preferred_affinity:
            score = np.zeros(tree.leaves, dtype=np.int64) if masked is None else np.where(allowed, masked.score, 0)
        if tree.host and (workers.kind.constraints.preferred or workers.kind.constraints.preferred_spread):
            more = np.where(allowed, preference(self.around, workers.kind)[tree.rows], 0)
            score = more if score is None else score + more
        if request.within is not None:
            allowed = allowed & request.within
        free = tree.leaf_free(self.array, nodes.usable)
        vector = self.world.capacity.vector(workers.requests)
        if request.leader is None:
            if tree.host:
                pods = self.world.fit_cache.of(vector, assume_empty=self.assume_empty).take(tree.rows)
            else:
                pods = fits(free, vector, tree.leaves)
            pods *= allowed
            if verdict is not None and verdict.alone(tree.keys[-1]):
                np.minimum(pods, 1, out=pods)
            return LeafFit(present, request.within, masked, free, vector, pods, None, None, score)
        own = self.world.capacity.vector(request.leader.requests)
        if tree.host:
            by_row = self.world.fit_cache.beside(vector, own, assume_empty=self.assume_empty)
            pods, beside, welcome = (numbers.take(tree.rows) for numbers in by_row)
        else:
            pods, beside, fitting = fits_beside(free, vector, own, tree.leaves)
            welcome = fitting.astype(np.int64)
        pods, beside = pods * allowed, beside * allowed
        if verdict is not None and verdict.alone(tree.keys[-1]):
            pods, beside = np.minimum(pods, 1), np.minimum(beside, 1)
        if keeps_off(workers.kind, request.leader.kind, self.world.namespaces, tree.keys[-1]):
            beside = np.zeros_like(beside)
        hosts = (welcome > 0) & _allowed(present, self.mask(tree, request.leader))
        leader_verdict = self.judge(tree, request.leader)
        if leader_verdict is not None:
            hosts &= leader_verdict.allowed(nodes)[tree.rows]
        if request.within is not None:
            hosts &= request.within
        with_leader = np.where(hosts, beside, pods)
        return LeafFit(present, request.within, masked, free, vector, pods, with_leader, hosts.astype(np.int64), score)

    def judge(self, tree: Tree, pod_set: PodSetRequest) -> Verdict | None:
        """What pods around them, ports and volumes say of the pods; None if nothing does."""
        world, kind = self.world, pod_set.kind
        if not tree.host or (kind.constraints is NO_CONSTRAINTS and not world.index.repels()):
            return None
        flavor = world.flavors[self.flavor].spec
        by_affinity = by_taints = np.ones(len(world.nodes.names), dtype=np.bool_)
        if kind.constraints.spread:
            by_affinity = selected(world.nodes, {**pod_set.node_selector, **flavor.node_labels})
            by_affinity &= required(world.nodes, pod_set.node_affinity)
            by_taints = tolerated(world.nodes, (*pod_set.tolerations, *flavor.tolerations))
        return judge(self.around, kind, by_affinity, by_taints, bound_by_us=pod_set.bound_by_us)

    @property
    def around(self) -> Surroundings:
        """What pods are judged by, as it is at this point of the trial."""
        world = self.world
        pods = world.index.without_workloads() if self.assume_empty else world.index
        return Surroundings(world.nodes, pods, world.storage, world.namespaces)

    def mask(self, tree: Tree, pod_set: PodSetRequest) -> Mask | None:
        """What the filters say of the leaves; None where they are not asked, since the leaves are not hosts."""
        if not tree.host:
            return None
        tolerations = (*pod_set.tolerations, *self.world.flavors[self.flavor].spec.tolerations)
        return mask(self.world.nodes, tree, tolerations, pod_set.node_selector, pod_set.node_affinity)

    def charge(self, tree: Tree, pod_set: PodSetRequest, leaves: Ints, pods: Ints) -> Placement:
        """Charges pods to leaves for the pod sets that follow, if there are any, and words the placement."""
        order = np.argsort(leaves)
        order = order[pods[order] > 0]
        leaves, pods = leaves[order], pods[order]
        if self.more_to_place:
            self.world.charge(self.array, tree, leaves, pods, pod_set)
        if self.bare:
            self.rows += [tree.rows[leaves]] if tree.host else [tree.leaf_rows(leaf) for leaf in leaves.tolist()]
            return Placement(pod_set.name, self.flavor, tree.answer_levels, ())
        domains = tuple(zip(tree.answers(leaves), pods.tolist(), strict=True))
        return Placement(pod_set.name, self.flavor, tree.answer_levels, domains)

    def charge_leader(self, tree: Tree, leader: PodSetRequest, leaf: int) -> Placement:
        return self.charge(tree, leader, np.array([leaf]), np.ones(1, dtype=np.int64))

    def missing(self, tree: Tree, domains: Sequence[Domain]) -> str | None:
        """The first of some domains that does not exist (any more)."""
        present = tree.present(self.world.nodes.usable)
        for values, _ in domains:
            leaf = tree.leaf(values)
            if leaf is None or not present[leaf]:
                return "/".join(values)
        return None

    # --- keeping places

    def replace_lost(
        self, request: PlacementRequest, replacement: Replacement
    ) -> tuple[Placement, Placement] | NoPlacement:
        """New places for those pods of a group that were on the failed node: its workers first, then its leader."""
        workers, leader = request.workers, request.leader
        if replacement.lone_pod:
            return replacement.current[workers.name], replacement.current[workers.name]
        lead = () if leader is None else replacement.kept(leader.name)
        lost = replacement.lost(workers.name)
        if leader is not None and replacement.lost(leader.name) and lost and not replacement.kept(workers.name):
            return self.afresh(_without(replace(request, count=lost), replacement.unhealthy))
        found = self.replace_lost_of(request, replacement, workers, request.topology, lead)
        if leader is None or isinstance(found, NoPlacement):
            return found if isinstance(found, NoPlacement) else (found, found)
        # Of the topology request, which is the workers', slices are no matter of the leader's.
        single = sliced(request.tree, request.topology, ())
        leads = self.replace_lost_of(request, replacement, leader, single, found.domains)
        return leads if isinstance(leads, NoPlacement) else (found, leads)

    def replace_lost_of(
        self,
        request: PlacementRequest,
        replacement: Replacement,
        pod_set: PodSetRequest,
        topology: TopologyRequest,
        beside: Sequence[Domain],
    ) -> Placement | NoPlacement:
        """New places for the lost pods of one pod set. `beside`: where the rest of its group is."""
        tree, kept, lost = request.tree, replacement.kept(pod_set.name), replacement.lost(pod_set.name)
        if lost <= 0:
            return replacement.current.get(pod_set.name) or self.nowhere(pod_set)
        stale = self.missing(tree, (*kept, *beside))
        if stale is not None:
            return NoPlacement(
                request.name,
                "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the "
                f"stale domain {stale}",
            )
        topology, whole, within = gap(tree, topology, kept, beside, lost)
        if lost % topology.size:
            return NoPlacement(
                request.name, f"cannot find replacement assignment for unhealthy node: {replacement.unhealthy}"
            )
        self.world.set_aside(pod_set.kind, replacement.unhealthy)
        request = replace(
            request, workers=pod_set, leader=None, topology=topology, count=lost, within=within, beside_kept=True
        )
        request = _without(request, replacement.unhealthy)
        found = self.search(request)
        if not isinstance(found, NoPlacement) and not are_whole(tree, whole, found.leaves, found.pods):
            found = self.search(replace(request, topology=sliced(tree, topology, whole)))
        if isinstance(found, NoPlacement):
            return found
        added = self.charge(tree, pod_set, found.leaves, found.pods)
        return replace(added, domains=merge(tree, kept, added.domains), fallback=found.fallback)


def _allowed(present: Bools, masked: Mask | None) -> Bools:
    return present if masked is None else present & masked.allowed


def _unhelped(pod_set: PodSetRequest) -> PodSetRequest:
    """The same, without the rules that pods of others could help to keep."""
    constraints = pod_set.kind.constraints
    if not constraints.affinity and not constraints.spread:
        return pod_set
    return replace(pod_set, kind=replace(pod_set.kind, constraints=replace(constraints, affinity=(), spread=())))


def _not_kept(request: PlacementRequest, verdict: Verdict | None) -> str:
    """Why pods of a group, or several pods, can never keep the rules between them as they are asked for; "" if they
    may."""
    if verdict is not None and verdict.one_in_all and request.count > 1:
        return f"{request.count} pods share a volume that is for one pod (ReadWriteOncePod)"
    if request.leader is not None:
        key = tied_over(request.workers.kind, request.leader.kind, request.tree.keys[-1])
        if key:
            return f"a rule about the label {key} is between the leader and the others of its pod set group"
    return ""


def _without(request: PlacementRequest, hostname: str) -> PlacementRequest:
    """The same, but not on the node with this hostname."""
    leaf = request.tree.leaf((hostname,)) if request.tree.host else None
    if leaf is None:
        return request
    within = np.ones(request.tree.leaves, dtype=np.bool_) if request.within is None else request.within.copy()
    within[leaf] = False
    return replace(request, within=within)


def _not_covered(request: PlacementRequest, fit: LeafFit) -> str:
    """Why optimal placement is not for this; "" if it is."""
    if request.leader is not None:
        return "it does not cover pod set groups"
    if request.beside_kept:
        return "other pods of the pod set keep their places"
    if fit.score is not None and np.ptp(fit.score):
        return "preferred node affinity ranks the nodes"
    return ""


def _groups(pod_sets: Sequence[PodSetRequest]) -> list[list[int]]:
    """The pod sets that are placed together, by index; each group at its first member."""
    groups: dict[object, list[int]] = {}
    for i, pod_set in enumerate(pod_sets):
        name = pod_set.topology.pod_set_group_name if pod_set.topology is not None else None
        groups.setdefault(i if name is None else name, []).append(i)
    return list(groups.values())
