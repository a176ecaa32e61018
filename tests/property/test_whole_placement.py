"""The whole way from nodes and pods as they are read to the answer and its numbers, beside one that goes slowly.

What fits on each node, which filter excludes it and why nothing fits are worked out here one node at a time, by the
rules of Kubernetes; where the pods then go is what the oracle says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.core import Node, NodeSelectorTerm, Pod, Taint, Toleration
from serried.api.kueue import PodSetTopologyRequest
from serried.api.meta import LabelSelectorRequirement
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement
from serried.place.topology_request import layers_of
from tests.property.placement_oracle import Leaf, Oracle, Path, Request
from tests.property.strategies import KEYS, nodes, requests
from tests.unit.model.clusters import GPU, flavor, pod, topology

UNLIMITED = 2**31 - 1

options = st.sampled_from(
    [
        PlaceOptions(),
        PlaceOptions(balanced=True),
        PlaceOptions(least_free_when_unconstrained=False, preferred_affinity=True),
    ]
)


@dataclass
class Cluster:
    levels: tuple[str, ...]
    nodes: list[Node]
    pods: list[Pod]

    def world(self) -> World:
        world = World(Journal())
        for item in self.nodes:
            world.set_node(item)
        for running in self.pods:
            world.set_pod(running)
        world.set_topology(topology(*self.levels))
        world.set_flavor(flavor())
        return world

    def leaves(self) -> dict[Path, list[Node]]:
        """The nodes that exist to placement, by path."""
        found: dict[Path, list[Node]] = {}
        for item in sorted(self.nodes, key=lambda n: n.metadata.name):
            labels = item.metadata.labels
            ready = item.status.conditions[0].status == "True" and not item.spec.unschedulable
            if ready and all(key in labels for key in self.levels):
                found.setdefault(tuple(labels[key] for key in self.levels), []).append(item)
        return dict(sorted(found.items()))

    def free(self, item: Node) -> Counter[str]:
        found = Counter({name: int(quantity) for name, quantity in item.status.allocatable.items()})
        for running in self.pods:
            if running.spec.node_name == item.metadata.name and running.status.phase != "Succeeded":
                found["pods"] -= 1
                for name, quantity in running.spec.containers[0].resources.requests.items():
                    found[name] -= int(quantity)
        return found


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    seen = draw(st.lists(nodes(), min_size=1, max_size=7, unique_by=lambda n: n.metadata.name))
    where = st.sampled_from([n.metadata.name for n in seen])
    pods = [
        pod(f"p{i}", draw(where), {GPU: str(draw(st.integers(0, 3)))}, phase=draw(st.sampled_from(["", "Succeeded"])))
        for i in range(draw(st.integers(0, 3)))
    ]
    return Cluster(draw(st.sampled_from([KEYS, KEYS, KEYS[1:], KEYS[:2]])), seen, pods)


def excluded_by(item: Node, pod_set: PodSetRequest) -> str:
    """The first filter that excludes a node; "" if none does."""
    for taint in item.spec.taints:
        if taint.effect != "PreferNoSchedule" and not any(tolerates(t, taint) for t in pod_set.tolerations):
            return f'taint "{taint.key}{f"={taint.value}" if taint.value else ""}:{taint.effect}"'
    if any(item.metadata.labels.get(key) != value for key, value in pod_set.node_selector.items()):
        return "nodeSelector"
    affinity = pod_set.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return "affinity" if required is not None and not any(holds(t, item) for t in required.node_selector_terms) else ""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if taint.effect == "NoExecute" and toleration.toleration_seconds is not None:
        return False  # for a while is not for a new pod
    return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)


def holds(term: NodeSelectorTerm, item: Node) -> bool:
    fields = {"metadata.name": item.metadata.name}
    parts = [(r, item.metadata.labels) for r in term.match_expressions] + [(r, fields) for r in term.match_fields]
    return bool(parts) and all(is_met(*part) for part in parts)


def is_met(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    found, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    if found is None or not found.isdigit() or not values[0].isdigit():
        return False
    return int(found) > int(values[0]) if requirement.operator == "Gt" else int(found) < int(values[0])


def score(item: Node, pod_set: PodSetRequest) -> int:
    if pod_set.node_affinity is None:
        return 0
    terms = pod_set.node_affinity.preferred_during_scheduling_ignored_during_execution
    return sum(term.weight for term in terms if holds(term.preference, item))


def fit(free: Mapping[str, int], requests: Mapping[str, int]) -> tuple[int, str]:
    """How many pods fit, and which resource lets no more on."""
    need = Counter({name: amount for name, amount in requests.items() if amount} | {"pods": 1})
    rooms = [(free.get(name, 0) // amount, name) for name, amount in need.items()]
    number, name = min(rooms)
    return max(0, min(UNLIMITED, number)), name


@dataclass
class Expected:
    leaves: list[Leaf]
    excluded: Counter[str]
    #: leaf → the resource that lets no more pods on, where no filter excludes it
    limits: dict[Path, str]


def expected(cluster: Cluster, workers: PodSetRequest, leader: PodSetRequest | None, *, ranked: bool) -> Expected:
    found = Expected([], Counter(), {})
    hosts = cluster.levels[-1] == HOSTNAME
    for path, members in cluster.leaves().items():
        free: Counter[str] = Counter()
        for member in members:
            free.update(cluster.free(member))
        why = excluded_by(members[0], workers) if hosts else ""
        pods, limit = fit(free, workers.requests)
        if why:
            pods = 0
            found.excluded[why] += 1
        else:
            found.limits[path] = limit
            found.excluded[f'resource "{limit}"'] += pods == 0
        beside, welcome = pods, False
        if leader is not None:
            welcome = fit(free, leader.requests)[0] > 0 and not (hosts and excluded_by(members[0], leader))
            rest = free.copy()
            rest.subtract({**leader.requests, "pods": 1})
            beside = 0 if why else fit(rest, workers.requests)[0]
        rank = score(members[0], workers) if ranked and hosts and not why else 0
        found.leaves.append(Leaf(path, pods, beside if welcome else pods, welcome, rank))
    found.excluded = +found.excluded
    return found


def read(request: PodSetTopologyRequest | None, levels: Sequence[str]) -> tuple[str, int, list[tuple[int, int]]]:
    """Mode, level, and (level, size) of each layer."""
    layers = [(levels.index(key), size) for key, size in layers_of(request)]
    for mode, key in (("required", request and request.required), ("preferred", request and request.preferred)):
        if key is not None:
            return mode, levels.index(key), layers
    return "unconstrained", 0 if layers else len(levels) - 1, layers


@settings(max_examples=300, deadline=None)
@given(clusters(), requests(), options, st.booleans())
def test_the_answer_and_its_numbers(
    cluster: Cluster, asked: list[PodSetRequest], chosen: PlaceOptions, with_leader: bool
) -> None:
    # A group of its own for the first, with the second as its leader.
    workers, leader = replace(asked[0], bound_by_us=False), None
    if with_leader and len(asked) > 1 and workers.count > 1:
        group_request = workers.topology or PodSetTopologyRequest(unconstrained=True)
        group_request = msgspec.structs.replace(group_request, pod_set_group_name="g")
        workers = replace(workers, topology=group_request)
        leader = replace(asked[1], count=1, topology=group_request, bound_by_us=False)
    elif workers.topology is not None:
        workers = replace(workers, topology=msgspec.structs.replace(workers.topology, pod_set_group_name=None))
    found = place(cluster.world(), "gpu", [workers] if leader is None else [workers, leader], options=chosen)
    if not workers.count or (isinstance(found, NoPlacement) and found.field):
        return
    mode, level, layers = read(workers.topology, cluster.levels)
    slice_level, size = layers[0] if layers else (len(cluster.levels) - 1, 1)
    should = expected(cluster, workers, leader, ranked=chosen.preferred_affinity)
    if not should.leaves:
        assert isinstance(found, NoPlacement)
        assert found.message == f"no topology domains at level: {cluster.levels[level]}"
        return
    inner = [0] * len(cluster.levels)
    for (above, _), (here, inner_size) in pairwise(layers):
        inner[above + 1 : here + 1] = [inner_size] * (here - above)
    request = Request(
        mode,
        level,
        size,
        slice_level,
        tuple(inner),
        workers.count,
        leader is not None,
        mode == "unconstrained" and chosen.least_free_when_unconstrained,
        chosen.preferred_affinity,
        chosen.balanced,
    )
    answer: Any = Oracle(should.leaves, request).place()
    if not isinstance(answer, int):
        assert not isinstance(found, NoPlacement), found.message
        hosts = cluster.levels[-1] == HOSTNAME
        named = [((path[-1],) if hosts else path, count) for path, count in sorted(answer[0].items())]
        assert list(found[0].domains) == named
        if leader is not None:
            assert found[1].domains == (((answer[1][-1],) if hosts else answer[1], 1),)
        return
    assert isinstance(found, NoPlacement)
    assert (found.needed, found.slice_size, found.total_nodes) == (workers.count // size, size, len(should.leaves))
    assert found.excluded == should.excluded
    inside = [p for p in should.limits if p[: len(found.best_domain)] == found.best_domain]
    assert found.limited_by == Counter(should.limits[p] for p in inside)
    if leader is None:
        assert found.fits == answer
    if len(layers) < 2:
        unit = "pod" if size == 1 else "slice"
        text = f'topology "default" allows to fit only {answer} out of {found.needed} {unit}(s)'
        if not answer:
            text = f'topology "default" doesn\'t allow to fit any of {found.needed} {unit}(s)'
        if should.excluded:
            items = ", ".join(sorted(f"{name}: {number}" for name, number in should.excluded.items()))
            text += f". Total nodes: {found.total_nodes}; excluded: {items}"
        assert found.message == text
