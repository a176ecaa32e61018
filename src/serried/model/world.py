"""The model that every decision is made on: nodes, topologies, flavors, bound pods and what workloads hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from serried.api import names
from serried.api.core import Node, Pod
from serried.api.kueue import ResourceFlavor, Topology
from serried.api.meta import Key
from serried.model.capacity import PODS, UNLIMITED, Capacity, Ints, Vector, add, amounts
from serried.model.departures import Departures, Leaving, Takes
from serried.model.filters import selected
from serried.model.fit_cache import FitCache
from serried.model.hold_index import HoldIndex
from serried.model.holds import Hold, PodSetHold, by_name, estimate, short_rows
from serried.model.journal import Journal
from serried.model.nodes import NAME_FIELD, Nodes, allocatable, same_for_placement
from serried.model.placement import Placement
from serried.model.pod_constraints import NO_CONSTRAINTS, Requirement, Selector, read_constraints
from serried.model.pod_index import NO_KIND, PodIndex, PodKind
from serried.model.pods import BoundPod, readable_requests
from serried.model.requests import PodSetRequest
from serried.model.storage import Storage
from serried.model.topology import Tree, build

_ONE: Final = np.ones(1, dtype=np.int64)
#: Labels that together name the pods of one pod set of a Workload.
_IDENTITY: Final = (names.POD_GROUP, names.POD_SET)
_TERMINAL: Final = ("Succeeded", "Failed")
#: Requests in the vectors that are kept for sharing between pods.
_VECTORS: Final = 16_384


class World:
    """Nodes in topology order with capacity arrays, and who uses them.

    What is read from the cluster (`set_*`, `delete_*`) is applied for good. What a decision does (`hold`, `release`,
    `charge`) is recorded in the journal and can be taken back. The two do not interleave: a trial is over, rolled back
    or committed, before the next event is applied.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.capacity = Capacity()
        self.fit_cache = FitCache(self.capacity)
        self.index = PodIndex()
        self.storage = Storage()
        #: namespace → its labels
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.nodes = Nodes(self.capacity.rows)
        self.topologies: dict[str, Topology] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self._trees: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], Tree] = {}
        self._pods: dict[Key, BoundPod] = {}
        #: workload → its bound pods; and those of them that no hold accounts for
        self._pods_of: dict[Key, dict[Key, BoundPod]] = {}
        self._uncovered: dict[Key, dict[BoundPod, None]] = {}
        #: row → the pods bound there
        self._pods_on: dict[int, dict[Key, BoundPod]] = {}
        self._holds: dict[Key, Hold] = {}
        self._hold_index = HoldIndex()
        #: how often what a workload takes on nodes was changed, or a change rolled back
        self.hold_changes = 0
        self._vectors: dict[tuple[tuple[str, int], ...], Vector] = {}
        self._vectors_size = 0
        self.holds: Mapping[Key, Hold] = MappingProxyType(self._holds)
        self.pods: Mapping[Key, BoundPod] = MappingProxyType(self._pods)
        self.uncovered: Mapping[Key, Mapping[BoundPod, None]] = MappingProxyType(self._uncovered)

    # --- nodes

    def set_node(self, node: Node) -> bool:
        """A node was added or changed. Returns whether that matters to placement: a heartbeat does not."""
        name = node.metadata.name
        row = self.nodes.row_of.get(name)
        if row is None:
            row = self._claim(name)
        else:
            seen = self.nodes.seen[row]
            if seen is not None and same_for_placement(seen, node):
                return False
        shadowed = set(self.nodes.shadowed)
        taints, usable = int(self.nodes.taint_code[row]), bool(self.nodes.usable[row])
        changed = self.nodes.put(row, node)
        if changed or taints != self.nodes.taint_code[row]:
            self._forget(changed, all_trees=shadowed != self.nodes.shadowed)
        fresh = self.capacity.set_allocatable(row, allocatable(node))
        if fresh:
            self._charge_anew(fresh)
        self.fit_cache.touch(np.array([row]))
        if changed or usable != self.nodes.usable[row]:
            self._recompute_around(row)
        if changed:
            # It may belong to a domain now in which pods that it has already are expected.
            for workload in sorted({p.workload for p in self._pods_on.get(row, {}).values() if p.workload is not None}):
                self._account_for_pods(workload)
        return True

    def delete_node(self, name: str) -> bool:
        """A node is gone. Holds on it stay: if it comes back under its name, they are still there."""
        row = self.nodes.row_of.get(name)
        if row is None or self.nodes.seen[row] is None:
            return False
        shadowed = set(self.nodes.shadowed)
        self.nodes.put(row, None)
        # Trees may keep the row, since it is not usable any more.
        if shadowed != self.nodes.shadowed:
            self._trees.clear()
        self.capacity.set_allocatable(row, {})
        self.fit_cache.touch(np.array([row]))
        self._recompute_around(row)
        return True

    def _claim(self, name: str) -> int:
        row = self.nodes.claim(name)
        while self.capacity.rows < len(self.nodes.names):
            self.capacity.grow()
        # Trees may still hold the row for a node that is gone.
        self._trees.clear()
        return row

    def _forget(self, changed: set[str], *, all_trees: bool) -> None:
        """Labels of these keys, or taints, have changed on some node."""
        for key, tree in list(self._trees.items()):
            if all_trees or not changed.isdisjoint((*key[0], *dict(key[1]))) or NAME_FIELD in changed:
                del self._trees[key]
            else:
                tree.masks.clear()

    # --- topologies and flavors

    def set_topology(self, topology: Topology) -> bool:
        name = topology.metadata.name
        before = self.topologies.get(name)
        self.topologies[name] = topology
        for level in topology.spec.levels:
            # Read of all nodes now, rather than in the first decision.
            self.nodes.column(level.node_label)
        return before is None or before.spec != topology.spec

    def delete_topology(self, name: str) -> bool:
        return self.topologies.pop(name, None) is not None

    def set_flavor(self, flavor: ResourceFlavor) -> bool:
        name = flavor.metadata.name
        before = self.flavors.get(name)
        self.flavors[name] = flavor
        return before is None or before.spec != flavor.spec

    def delete_flavor(self, name: str) -> bool:
        return self.flavors.pop(name, None) is not None

    def levels(self, flavor: str, *, bound_by_us: bool = False) -> tuple[str, ...]:
        """The levels pods of this flavor are placed by, top to bottom; () when no place is to be named.

        Pods that Serried binds need a node each, so their lowest level is the host, whatever the topology ends with.
        """
        found = self.flavors.get(flavor)
        if found is None:
            return ()
        topology = self.topologies.get(found.spec.topology_name)
        keys = () if topology is None else tuple(level.node_label for level in topology.spec.levels)
        if found.spec.topology_name and not keys:
            return ()
        if bound_by_us and keys[-1:] != (names.HOSTNAME,):
            keys = (*keys, names.HOSTNAME)
        return keys

    def tree(self, flavor: str, *, bound_by_us: bool = False) -> Tree | None:
        """The nodes of a flavor in the order of its levels; None where `levels` is ()."""
        keys = self.levels(flavor, bound_by_us=bound_by_us)
        return self._tree(keys, self.flavors[flavor].spec.node_labels) if keys else None

    def unlabelled(self, flavor: str, *, bound_by_us: bool = False) -> dict[str, list[str]]:
        """Label of a level → nodes of a flavor that lack it (and none of a level above), and so are in no domain."""
        found: dict[str, list[str]] = {}
        left = self.nodes.column(NAME_FIELD).codes >= 0
        left &= selected(self.nodes, self.flavors[flavor].spec.node_labels)
        for key in self.levels(flavor, bound_by_us=bound_by_us):
            here = self.nodes.column(key).codes >= 0
            if without := np.flatnonzero(left & ~here).tolist():
                found[key] = sorted(self.nodes.names[row] for row in without)
            left &= here
        return found

    def _tree(self, keys: tuple[str, ...], node_labels: Mapping[str, str]) -> Tree:
        key = (keys, tuple(sorted(node_labels.items())))
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = build(self.nodes, keys, node_labels)
        return tree

    def node_of(self, hostname: str) -> str | None:
        """The name of the node with this value of kubernetes.io/hostname (of several, the one that counts)."""
        rows = self.nodes.hosts.get(hostname)
        return self.nodes.names[rows[0]] if rows else None

    def topology_tree(self, topology: str) -> Tree | None:
        """All nodes of a Topology, whatever their flavor; None when there is no such Topology."""
        found = self.topologies.get(topology)
        if found is None or not found.spec.levels:
            return None
        return self._tree(tuple(level.node_label for level in found.spec.levels), {})

    # --- pods

    def set_pod(self, pod: Pod) -> bool:
        """A pod was added or changed. Returns whether the use of a node changed.

        A pod takes capacity while it is bound and has not ended, unless its workload holds a place that accounts for
        it. Of requests that cannot be read, what can be read counts.
        """
        if not pod.spec.node_name or pod.status.phase in _TERMINAL:
            return self.delete_pod(pod.key)
        row = self.nodes.row_of.get(pod.spec.node_name)
        if row is None:
            row = self._claim(pod.spec.node_name)
        vector = self._vector(readable_requests(pod.spec))
        owner = pod.metadata.annotations.get(names.WORKLOAD)
        workload = (pod.metadata.namespace, owner) if owner else None
        meta = pod.metadata
        constraints = read_constraints(pod.spec, meta.namespace, meta.labels, pod=meta.name)
        kind = PodKind(meta.namespace, meta.labels, constraints)
        bound = BoundPod(row, vector, workload, meta.labels.get(names.POD_SET, ""), kind)
        leaving = meta.deletion_timestamp is not None
        before = self._pods.get(pod.key)
        if before is not None and before.takes == bound.takes:
            self.index.leaving[before.entries] = leaving
            return False
        changed = self.delete_pod(pod.key)
        self._pods[pod.key] = bound
        self._pods_on.setdefault(row, {})[pod.key] = bound
        bound.entries = self.index.add(kind, np.array([row]), _ONE, leaving=leaving, held=workload is not None)
        self._use_claims(kind, row, 1)
        self.nodes.references[row] += 1
        if workload is not None:
            self._pods_of.setdefault(workload, {})[pod.key] = bound
            hold = self._holds.get(workload)
            if hold is not None:
                accounted = self._account_for(hold, pod.key, bound)
                if accounted:
                    return changed or accounted == "moved"
        self._count(bound, 1)
        return True

    def delete_pod(self, key: Key) -> bool:
        """A pod is gone or has ended. Returns whether the use of a node changed."""
        bound = self._pods.pop(key, None)
        if bound is None:
            return False
        self.nodes.references[bound.row] -= 1
        del self._pods_on[bound.row][key]
        if not self._pods_on[bound.row]:
            del self._pods_on[bound.row]
        self.index.remove(bound.entries)
        self._use_claims(bound.kind, bound.row, -1)
        if bound.workload is not None:
            siblings = self._pods_of[bound.workload]
            del siblings[key]
            if not siblings:
                del self._pods_of[bound.workload]
        if bound.counted:
            self._count(bound, -1)
            return True
        hold, moved = self._holds.get(bound.workload) if bound.workload is not None else None, False
        for part in hold.parts if hold is not None else ():
            if key in part.bound:
                domain = part.leave(key)
                self._await(part, bound.row, 1)
                moved = part.wide and self._recompute(part, domain)
        return bound.workload is not None and (self._account_for_pods(bound.workload) or moved)

    def _account_for_pods(self, workload: Key) -> bool:
        """Lets a hold account for those of its workload's pods that it can. Returns whether that were any."""
        hold = self._holds.get(workload)
        if hold is None:
            return False
        changed = False
        for key, pod in self._pods_of.get(workload, {}).items():
            if pod.counted and self._account_for(hold, key, pod):
                self._count(pod, -1)
                changed = True
        return changed

    def _count(self, pod: BoundPod, sign: int) -> None:
        """Charges a pod that no hold accounts for, or takes that back. One that has a workload would go with that."""
        pod.counted = sign > 0
        if pod.workload is not None:
            self.hold_changes += 1
            uncovered = self._uncovered.setdefault(pod.workload, {})
            if pod.counted:
                uncovered[pod] = None
            else:
                del uncovered[pod]
                if not uncovered:
                    del self._uncovered[pod.workload]
        rows = np.array([pod.row])
        amount = amounts(pod.vector, np.ones(1, dtype=np.int64))
        self._add(self.capacity.free, pod.vector, rows, amount, -sign)
        if pod.workload is None:
            self._add(self.capacity.unheld, pod.vector, rows, amount, -sign)

    def _account_for(self, hold: Hold, key: Key, pod: BoundPod) -> Literal["", "as is", "moved"]:
        """Whether a hold accounts for this pod ("": it does not), and if a charge has moved to the pod's node for it.

        In a domain larger than a host, the pod takes up one of the places that are expected to be filled.
        """
        labels = self.nodes.last_labels(pod.row)
        for part in hold.parts:
            if pod.pod_set and part.pod_set != pod.pod_set:
                continue
            domain = part.domains.get(tuple(labels.get(level, "") for level in part.levels))
            if domain is None or not part.expected[domain]:
                continue
            source = part.bind_seen(key, domain, pod.row)
            self._await(part, source, -1)
            if source == pod.row:
                return "as is"
            self._shift(part, source, -1)
            self._shift(part, pod.row, 1)
            return "moved"
        return ""

    def _shift(self, part: PodSetHold, row: int, pods: int) -> None:
        """Charges so many pods of a part more (or fewer) to a row."""
        self.hold_changes += 1
        before = part.charged.get(row, 0)
        part.charged[row] = now = before + pods
        if not now:
            del part.charged[row]
        rows = np.array([row])
        change = amounts(part.vector, np.array([now])) - amounts(part.vector, np.array([before]))
        self._add(self.capacity.free, part.vector, rows, change, -1)
        self.nodes.references[row] += (now > 0) - (before > 0)
        self._hold_index.moved(part, row)

    def _await(self, part: PodSetHold, row: int, pods: int) -> None:
        """So many pods of a part more (or fewer) are expected on a row: others reckon with them."""
        if part.kind is NO_KIND:
            return
        entry = part.entries.get(row)
        if entry is None:
            part.entries[row] = int(self.index.add(part.kind, np.array([row]), np.array([pods]), held=True)[0])
        else:
            self.index.counts[entry] += pods
        self._use_claims(part.kind, row, pods)

    def _use_claims(self, kind: PodKind, row: int, pods: int) -> None:
        for claim in kind.constraints.claims:
            self.storage.use((kind.namespace, claim), self.nodes.names[row], pods)

    def _recompute_around(self, row: int) -> None:
        """A node has opened, closed, or gone to another domain: pods expected in domains of its old and new labels are
        estimated on nodes where they can still go."""
        labels = self.nodes.last_labels(row)
        for part in self._hold_index.around(row, labels):
            here = part.domains.get(tuple(labels.get(level, "") for level in part.levels))
            for domain, expected in enumerate(part.expected):
                if part.wide and (domain == here or row in expected):
                    self._recompute(part, domain)

    def _recompute(self, part: PodSetHold, domain: int) -> bool:
        """Moves what is charged for expected pods of a domain from nodes that are closed, or not in it any more, to
        others in it, if there are any. Returns whether anything was moved."""
        expected = part.expected[domain]
        if not expected:
            return False
        tree = self._tree(part.levels, part.node_labels)
        leaf = tree.leaf(list(part.domains)[domain])
        rows = tree.leaf_rows(leaf) if leaf is not None else np.zeros(0, dtype=np.int64)
        rows = rows[self.nodes.usable[rows]]
        strays = expected.keys() - set(rows.tolist())
        if not strays or not len(rows):
            return False
        pods = 0
        for row in strays:
            pods += expected[row]
            self._await(part, row, -expected[row])
            self._shift(part, row, -expected.pop(row))
        for row, count in self._estimated(part.vector, rows, pods).items():
            expected[row] = expected.get(row, 0) + count
            self._await(part, row, count)
            self._shift(part, row, count)
        return True

    def estimated_on(self, row: int) -> list[PodSetHold]:
        """The parts of holds of which pods are promised on a row, or only estimated there."""
        return self._hold_index.on(row)

    def has_pods(self, workload: Key) -> bool:
        """Whether any pod of a workload is still on a node."""
        return bool(self._pods_of.get(workload))

    # --- holds

    def overdrawn(self, key: Key) -> bool:
        """Whether something that a workload's hold takes is less than nothing on some node where it takes it."""
        return bool(short_rows(self._holds[key].parts, self.capacity.free))

    def hold(
        self,
        key: Key,
        placements: Sequence[Placement],
        pod_sets: Sequence[PodSetRequest],
        *,
        promised: bool = False,
    ) -> list[str]:
        """Charges a workload's placements, instead of what it held before. Goes through the journal.

        Its pods that are bound within the placements are accounted for by it and no longer counted by themselves.
        Returns what could not be charged, in words: domains that do not exist (any more). `promised`: others must leave
        first.
        """
        self.release(key)
        uncounted = self._uncounted(key)
        self.journal.record(lambda: self._count_all_but(key, uncounted))
        self._count_all_but(key, frozenset())
        problems: list[str] = []
        requests = by_name(pod_sets)
        parts = []
        for placement in placements:
            request = requests.get(placement.pod_set)
            if request is None:
                problems.append(f'placement of pod set "{placement.pod_set}": the workload has no such pod set')
                continue
            vector = self._vector(request.requests)
            part = PodSetHold(key, placement.pod_set, vector, promised)
            part.kind = request.kind
            self._expect(part, placement, problems)
            parts.append(part)
        hold = Hold(tuple(placements), tuple(pod_sets), tuple(parts))
        self.journal.record(lambda: self._lift(key))
        self._holds[key] = hold
        for part in parts:
            self._charge_part(part, 1)
        self._account_for_pods(key)
        return problems

    def release(self, key: Key, *, with_pods: bool = False) -> None:
        """Gives back what a workload holds. Journalled.

        Its pods that are still on nodes count from now on; `with_pods`, for a trial: as if they were gone as well.
        """
        hold = self._holds.get(key)
        if hold is None and not with_pods:
            return
        uncounted = self._uncounted(key)

        def undo() -> None:
            self._count_all_but(key, uncounted)
            if hold is not None:
                for part in hold.parts:
                    self._charge_part(part, 1)
                self._holds[key] = hold

        self.journal.record(undo)
        if hold is not None:
            self._lift(key)
        self._count_all_but(key, frozenset(self._pods_of.get(key, ())) if with_pods else frozenset())
        if with_pods:
            entries = [int(pod.entries[0]) for pod in self._pods_of.get(key, {}).values()]
            before = self.index.counts[entries]
            self.journal.record(lambda: self.index.set_counts(entries, before))
            self.index.set_counts(entries, 0)

    def departures(self, keys: Iterable[Key]) -> Departures:
        """What nodes would gain if these workloads left, with all of their pods."""
        return Departures((key, self._takes(key), self._entries(key)) for key in keys)

    def leaving(self, departures: Departures) -> Leaving:
        """A trial, journalled, in which some of these workloads leave: nobody has yet."""
        trial = Leaving(self.capacity, self.fit_cache, self.index, departures)
        self.journal.record(trial.none)
        return trial

    def _takes(self, key: Key) -> Sequence[Takes]:
        """What a workload's hold and its uncovered pods take."""
        hold = self._holds.get(key)
        held = () if hold is None else hold.takes
        if key not in self._uncovered:
            return held
        return [*held, *((pod.vector, {pod.row: 1}) for pod in self._uncovered[key])]

    def _entries(self, key: Key) -> list[int]:
        """The entries of a workload's pods in the index, and of those it expects."""
        hold = self._holds.get(key)
        found = [] if hold is None else [entry for part in hold.parts for entry in part.entries.values()]
        return found + [int(pod.entries[0]) for pod in self._pods_of.get(key, {}).values()]

    def rows_of(self, placements: Iterable[Placement]) -> Ints:
        """The rows of the nodes that placements name; of a domain larger than a host, those of all of its nodes."""
        found: list[Ints] = []
        for placement in placements:
            if placement.levels[-1:] == (names.HOSTNAME,):
                hosts = (self.nodes.hosts.get(values[-1], []) for values, _ in placement.domains)
                found.append(np.array([rows[0] for rows in hosts if rows], dtype=np.int64))
            elif placement.levels:
                flavor = self.flavors.get(placement.flavor)
                tree = self._tree(placement.levels, {} if flavor is None else flavor.spec.node_labels)
                leaves = (tree.leaf(values) for values, _ in placement.domains)
                found += [tree.leaf_rows(leaf) for leaf in leaves if leaf is not None]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _lift(self, key: Key) -> None:
        for part in self._holds.pop(key).parts:
            self._charge_part(part, -1)

    def _uncounted(self, key: Key) -> frozenset[Key]:
        """Those pods of a workload that do not count by themselves."""
        return frozenset(pod_key for pod_key, pod in self._pods_of.get(key, {}).items() if not pod.counted)

    def _count_all_but(self, key: Key, uncounted: frozenset[Key]) -> None:
        """Lets all pods of a workload count by themselves, but for those named."""
        for pod_key, pod in self._pods_of.get(key, {}).items():
            if pod.counted == (pod_key in uncounted):
                self._count(pod, -1 if pod.counted else 1)

    def _expect(self, part: PodSetHold, placement: Placement, problems: list[str]) -> None:
        """Estimates on which rows the pods of a placement will be."""
        if not placement.levels:
            return
        hosts = placement.levels[-1] == names.HOSTNAME
        # However it was written, a host is known by its hostname alone.
        part.levels = (names.HOSTNAME,) if hosts else placement.levels
        flavor = self.flavors.get(placement.flavor)
        part.node_labels = {} if flavor is None else flavor.spec.node_labels
        tree = None if hosts else self._tree(placement.levels, part.node_labels)
        for values, count in placement.domains:
            count = min(max(count, 0), UNLIMITED)
            if tree is None:
                rows = self.nodes.hosts.get(values[-1] if values else "", [])[:1]
                expected = {row: count for row in rows if count}
            else:
                domain = tree.leaf(values)
                rows = [] if domain is None else [r for r in tree.leaf_rows(domain).tolist() if self.nodes.seen[r]]
                expected = self._estimated(part.vector, np.array(rows, dtype=np.int64), count) if rows else {}
            if not rows:
                problems.append(
                    f'pod set "{placement.pod_set}": there is no node in {"/".join(values)} '
                    f"({', '.join(placement.levels)})"
                )
                continue
            part.expect(values[-len(part.levels) :], expected)

    def _estimated(self, vector: Vector, rows: Ints, count: int) -> dict[int, int]:
        taken = estimate(self.capacity.free, self.nodes.usable, vector, rows, count)
        at = np.flatnonzero(taken)
        return dict(zip(rows[at].tolist(), taken[at].tolist(), strict=True))

    def _charge_part(self, part: PodSetHold, sign: int) -> None:
        self.hold_changes += 1
        rows, counts = part.rows_and_counts()
        self._add(self.capacity.free, part.vector, rows, amounts(part.vector, counts), -sign)
        self.nodes.references[rows] += sign
        if sign > 0:
            self._hold_index.add(part)
        else:
            self._hold_index.remove(part)
        if part.kind is NO_KIND:
            return
        awaited = part.awaited()
        if sign > 0:
            part.entries = dict(
                zip(awaited, self.index.add(part.kind, *_arrays(awaited), held=True).tolist(), strict=True)
            )
        else:
            self.index.remove(np.fromiter(part.entries.values(), dtype=np.int64, count=len(part.entries)))
            part.entries = {}
        for row, number in awaited.items() if part.kind.constraints.claims else ():
            self._use_claims(part.kind, row, sign * number)

    def charge(self, array: Ints, tree: Tree, leaves: Ints, counts: Ints, pod_set: PodSetRequest) -> None:
        """Charges pods to leaves of a tree in one of the capacity arrays, for a trial: goes through the journal."""
        if not len(leaves):
            return
        vector = self.capacity.vector(pod_set.requests)
        if tree.host:
            rows, taken = tree.rows[leaves], counts
        else:
            parts = [tree.leaf_rows(leaf) for leaf in leaves.tolist()]
            rows = np.concatenate(parts)
            taken = np.concatenate(
                [
                    estimate(array, self.nodes.usable, vector, part, count)
                    for part, count in zip(parts, counts.tolist(), strict=True)
                ]
            )
        amount = amounts(vector, taken)
        self.journal.record(lambda: self._add(array, vector, rows, amount, 1))
        self._add(array, vector, rows, amount, -1)
        if pod_set.kind is not NO_KIND:
            entries = self.index.add(pod_set.kind, rows, taken)
            self.journal.record(lambda: self.index.remove(entries))

    def set_aside(self, kind: PodKind, hostname: str) -> None:
        """Pods of a kind on a node are as if not there, for a trial: goes through the journal."""
        rows = self.nodes.hosts.get(hostname, [])[:1]
        if not rows or (kind.constraints is NO_CONSTRAINTS and not self.index.repels()):
            return
        own = tuple(Requirement(key, "In", (kind.labels[key],)) for key in _IDENTITY if key in kind.labels)
        here = self.index.selected(Selector(own), (kind.namespace,)) & (self.index.rows[: self.index.size] == rows[0])
        entries = np.flatnonzero(here).tolist()
        before = self.index.counts[entries]
        self.journal.record(lambda: self.index.set_counts(entries, before))
        self.index.set_counts(entries, 0)

    def _add(self, array: Ints, vector: Vector, rows: Ints, amount: Ints, sign: int) -> None:
        """Every change of a capacity array by pods and holds. `rows` must be distinct."""
        add(array, vector, rows, amount, sign)
        self.fit_cache.touch(rows)

    def repels(self, kind: PodKind) -> bool:
        """Whether the anti-affinity of some pod selects pods of this kind."""
        labels = self.namespaces.get(kind.namespace, {})
        return any(len(rows) for _, rows in self.index.repelled(kind, labels))

    # --- requests

    def _charge_anew(self, fresh: set[str]) -> None:
        """Some resources are new on the nodes: who asked for them takes them now."""
        self._vectors.clear()
        self._vectors_size = 0
        for pod in self._pods.values():
            if not fresh.isdisjoint(pod.vector.missing):
                counted = pod.counted
                if counted:
                    self._count(pod, -1)
                pod.vector = self._vector(_requests_of(pod.vector))
                if counted:
                    self._count(pod, 1)
        for hold in self._holds.values():
            for part in hold.parts:
                if not fresh.isdisjoint(part.vector.missing):
                    self._charge_part(part, -1)
                    part.vector = self._vector(_requests_of(part.vector))
                    self._charge_part(part, 1)

    def _vector(self, requests: Mapping[str, int]) -> Vector:
        """The vector of some requests, shared between all pods that ask for the same."""
        key = tuple(sorted(requests.items()))
        vector = self._vectors.get(key)
        if vector is None:
            self._vectors_size += len(requests) + 1
            if self._vectors_size > _VECTORS:
                self._vectors.clear()
                self._vectors_size = 0
            vector = self._vectors[key] = self.capacity.vector(requests)
        return vector

    def resources(self) -> Iterator[tuple[str, int]]:
        """The resources that have a line in the arrays, and which."""
        return iter(self.capacity.lines.items())


def _requests_of(vector: Vector) -> dict[str, int]:
    asked = dict(zip(vector.names, vector.value.tolist(), strict=True)) | dict(vector.missing)
    asked[PODS] -= 1
    return asked


def _arrays(numbers: Mapping[int, int]) -> tuple[Ints, Ints]:
    """The keys and the values."""
    keys = np.fromiter(numbers.keys(), dtype=np.int64, count=len(numbers))
    return keys, np.fromiter(numbers.values(), dtype=np.int64, count=len(numbers))
