"""Topology-aware placement: a cluster, pod sets, and where their pods must go (or why they cannot)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from serried.api.core import Node, NodeSpec, NodeStatus, Pod
from serried.api.kueue import (
    PodSetTopologyRequest,
    ResourceFlavor,
    ResourceFlavorSpec,
    Topology,
    TopologyLevel,
    TopologySpec,
)
from serried.api.meta import ConditionStatus, ObjectMeta
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.measures import Measures
from serried.place.options import PlaceOptions
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement, Placement
from tests.conformance.elastic import place_scaled
from tests.conformance.quality import Domains, Invalid, Judge, Placed
from tests.conformance.tas_record import Assignment, Expected, PodSetBody, Record, read

FLAVOR = "flavor"

#: What a record says of one pod set: levels and (values, count) of each domain, or why it has no place.
Answer = tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], int], ...]] | str


def difference(body: Mapping[str, Any], *, optimal: bool = False) -> str:
    """What Serried answers differently from the record; "" when nothing. `optimal`: as with `placement: optimal`."""
    record = read(body)
    pod_sets = [_pod_set(p) for p in record.pod_sets]
    found = _answers(record, pod_sets, optimal=optimal)
    expected = [_expected(e) for e in record.expected]
    lines = [
        f'pod set "{p.name}": expected {_shown(e)}, found {_shown(f)}'
        for p, e, f in zip(pod_sets, expected, found, strict=True)
        if e != f
    ]
    return "; ".join(lines)


def shortfall(body: Mapping[str, Any], *, optimal: bool = False) -> str:
    """What of Serried's answers is neither as expected nor valid and as good; "" when nothing."""
    record = read(body)
    pod_sets = [_pod_set(p) for p in record.pod_sets]
    answers = _answers(record, pod_sets, optimal=optimal)
    expected = [_expected(e) for e in record.expected]
    if [isinstance(a, str) and a for a in answers] != [isinstance(e, str) and e for e in expected]:
        return difference(body, optimal=optimal)
    problems = []
    for (name, should), (_, does) in zip(
        _measured(record, pod_sets, expected), _measured(record, pod_sets, answers), strict=True
    ):
        if isinstance(does, str):
            problems.append(f'pod set "{name}": not valid: {does}')
        elif isinstance(should, str):
            problems.append(f'pod set "{name}": the expected assignment is not valid: {should}')
        elif does > should:
            problems.append(f'pod set "{name}": worse than expected: {does} instead of {should}')
    return "; ".join(problems)


def _measured(
    record: Record, pod_sets: Sequence[PodSetRequest], answers: Sequence[Answer]
) -> list[tuple[str, Measures | str]]:
    """Per pod set (with its leader) that has a place: its measures, or what is wrong with it."""
    judge = Judge(_world(record), FLAVOR)
    found: list[tuple[str, Measures | str]] = []
    groups: dict[Any, list[int]] = {}
    for i, group in enumerate(_groups(record)):
        groups.setdefault(group, []).append(i)
    for members in groups.values():
        placed = []
        for i in members:
            answer = answers[i]
            if isinstance(answer, str):
                return found
            placed.append(Placed(pod_sets[i], *answer, *_kept(record, i)))
        workers = max(placed, key=lambda p: p.pod_set.count)
        leader = next((p for p in placed if p is not workers), None)
        try:
            found.append((workers.pod_set.name, judge.group(workers, leader)))
        except Invalid as error:
            found.append((workers.pod_set.name, str(error)))
            return found
    return found


def _kept(record: Record, index: int) -> tuple[Domains | None, bool]:
    """The places that a pod set keeps, and whether they are charged already."""
    body, workload = record.pod_sets[index], record.workload
    if workload is not None and workload.unhealthy_nodes:
        for current in workload.pod_set_assignments:
            if current.name == body.name:
                domains = _assignment(current.topology_assignment)[1]
                return [d for d in domains if d[0][-1:] != (workload.unhealthy_nodes[0],)], True
    if body.previous_assignment is not None and record.feature_gates.get("ElasticJobsViaWorkloadSlicesWithTAS"):
        kept, left = [], body.count
        for values, count in _assignment(body.previous_assignment)[1]:
            kept.append((values, min(count, left)))
            left -= min(count, left)
        return [(values, count) for values, count in kept if count], False
    return None, False


def _groups(record: Record) -> list[object]:
    """For each pod set, what is the same for all of its group."""
    return [i if p.pod_set_group_name is None else p.pod_set_group_name for i, p in enumerate(record.pod_sets)]


def _answers(record: Record, pod_sets: Sequence[PodSetRequest], *, optimal: bool) -> list[Answer]:
    """The answers per pod set: pod sets before the one that fails have their place, those after it nothing."""
    world = _world(record)
    gates, workload = record.feature_gates, record.workload
    options = replace(PlaceOptions.from_gates(gates), optimal=optimal)
    replacement = None
    if workload is not None and workload.unhealthy_nodes:
        owners = [(owner.api_version, owner.kind) for owner in workload.owner_references]
        replacement = Replacement(
            workload.unhealthy_nodes[0],
            {a.name: _placement(a.name, a.topology_assignment) for a in workload.pod_set_assignments},
            lone_pod=gates.get("SkipReassignmentForPodOwnedWorkloads", True)
            and owners == [("v1", "Pod")]
            and workload.annotations.get("kueue.x-k8s.io/is-group-workload") != "true",
        )
    elastic = gates.get("ElasticJobsViaWorkloadSlicesWithTAS", False)
    previous = {
        p.name: _placement(p.name, p.previous_assignment)
        for p in record.pod_sets
        if elastic and p.previous_assignment is not None
    }
    answers: list[Answer] = ["" for _ in pod_sets]
    groups = _groups(record)
    started: list[Any] = []
    for group in dict.fromkeys(groups):
        started.append(group)
        members = [i for i, g in enumerate(groups) if g in started]
        asked = [pod_sets[i] for i in members]
        if previous and replacement is None:
            result = place_scaled(world, FLAVOR, asked, previous, options)
        else:
            result = place(world, FLAVOR, asked, options=options, replacement=replacement)
        if isinstance(result, NoPlacement):
            for i in members:
                if groups[i] == group:
                    answers[i] = result.message
            break
        for i, placement in zip(members, result, strict=True):
            answers[i] = (placement.levels, placement.domains)
    return answers


def _world(record: Record) -> World:
    world = World(Journal())
    name = record.topology_name
    levels = tuple(TopologyLevel(node_label=key) for key in record.levels)
    world.set_topology(Topology(metadata=ObjectMeta(name=name), spec=TopologySpec(levels=levels)))
    spec = ResourceFlavorSpec(node_labels=record.node_labels, tolerations=record.flavor_tolerations, topology_name=name)
    world.set_flavor(ResourceFlavor(metadata=ObjectMeta(name=FLAVOR), spec=spec))
    for node in record.nodes:
        ready = ConditionStatus(type="Ready", status="True" if node.ready else "False")
        world.set_node(
            Node(
                metadata=ObjectMeta(name=node.name, labels=node.labels),
                spec=NodeSpec(unschedulable=node.unschedulable, taints=node.taints),
                status=NodeStatus(allocatable=node.allocatable, conditions=(ready,)),
            )
        )
    for i, pod in enumerate(record.pods):
        body = {
            "metadata": {"name": f"pod-{i}", "namespace": "other"},
            "spec": {"nodeName": pod.node_name, "containers": [{"resources": {"requests": pod.requests}}]},
            "status": {"phase": pod.phase},
        }
        world.set_pod(msgspec.convert(body, Pod))
    named = record.levels[-1:] if record.levels[-1:] == [HOSTNAME] else record.levels
    for i, usage in enumerate(record.tas_usage):
        # One pod as large as all that is used there together.
        requests = {**usage.requests, "pods": usage.requests.get("pods", 0) - 1}
        held = Placement("used", FLAVOR, tuple(named), ((tuple(usage.values), 1),))
        world.hold(("used", str(i)), [held], [PodSetRequest("used", 1, requests)])
    world.journal.commit()
    return world


def _pod_set(body: PodSetBody) -> PodSetRequest:
    request = body.topology_request
    if body.pod_set_group_name is not None:
        # A pod set without a topology request is unconstrained, and so it stays when it names its group.
        request = PodSetTopologyRequest(unconstrained=True) if request is None else request
        request.pod_set_group_name = body.pod_set_group_name
    return PodSetRequest(
        name=body.name,
        count=body.count,
        requests=body.requests,
        topology=request,
        node_selector=body.node_selector,
        node_affinity=body.node_affinity,
        tolerations=tuple(body.tolerations),
    )


def _placement(pod_set: str, assignment: Assignment) -> Placement:
    return Placement(pod_set, FLAVOR, *_assignment(assignment))


def _assignment(body: Assignment) -> tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], int], ...]]:
    return tuple(body.levels), tuple((tuple(d.values), d.count) for d in body.domains)


def _expected(body: Expected) -> Answer:
    return body.reason if body.assignment is None else _assignment(body.assignment)


def _shown(answer: Answer) -> str:
    if isinstance(answer, str):
        return f'"{answer}"'
    levels, domains = answer
    return ", ".join(f"{'/'.join(values)}: {count}" for values, count in domains) + f" at {'/'.join(levels)}"
