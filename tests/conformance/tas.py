"""Topology-aware placement: a cluster, pod sets, and where their pods must go (or why they cannot)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serried.api.core import Node, NodeAffinity, NodeCondition, NodeSpec, NodeStatus, Pod, Taint, Toleration
from serried.api.kueue import (
    PodSetTopologyRequest,
    ResourceFlavor,
    ResourceFlavorSpec,
    Topology,
    TopologyLevel,
    TopologySpec,
)
from serried.api.meta import ObjectMeta
from serried.model.journal import Journal
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement, Placement

FLAVOR = "flavor"

#: What a record says of one pod set: levels and (values, count) of each domain, or why it has no place.
Answer = tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], int], ...]] | str


def difference(record: Mapping[str, Any]) -> str:
    """What Serried answers differently from the record; "" when nothing."""
    pod_sets = [_pod_set(p) for p in record["podSets"]]
    found = _answers(record, pod_sets)
    expected = [_expected(e) for e in record["expected"]]
    lines = [
        f'pod set "{p.name}": expected {_shown(e)}, found {_shown(f)}'
        for p, e, f in zip(pod_sets, expected, found, strict=True)
        if e != f
    ]
    return "; ".join(lines)


def _answers(record: Mapping[str, Any], pod_sets: Sequence[PodSetRequest]) -> list[Answer]:
    """The answers per pod set: pod sets before the one that fails have their place, those after it nothing."""
    world = _world(record)
    options = PlaceOptions.from_gates(record["featureGates"])
    workload = record["workload"]
    replacement = None
    if workload is not None and workload["unhealthyNodes"]:
        owners = workload["ownerReferences"]
        replacement = Replacement(
            workload["unhealthyNodes"][0],
            {a["name"]: _placement(a["name"], a["topologyAssignment"]) for a in workload["podSetAssignments"]},
            lone_pod=len(owners) == 1
            and (owners[0]["apiVersion"], owners[0]["kind"]) == ("v1", "Pod")
            and workload["annotations"].get("kueue.x-k8s.io/is-group-workload") != "true",
        )
    previous = {
        p["name"]: _placement(p["name"], p["previousAssignment"])
        for p in record["podSets"]
        if p["previousAssignment"] is not None
    }
    answers: list[Answer] = ["" for _ in pod_sets]
    groups = [p["podSetGroupName"] if p["podSetGroupName"] is not None else i for i, p in enumerate(record["podSets"])]
    started: list[Any] = []
    for group in dict.fromkeys(groups):
        started.append(group)
        members = [i for i, g in enumerate(groups) if g in started]
        result = place(
            world,
            FLAVOR,
            [pod_sets[i] for i in members],
            options=options,
            replacement=replacement,
            previous=previous,
        )
        if isinstance(result, NoPlacement):
            for i in members:
                if groups[i] == group:
                    answers[i] = result.message
            break
        for i, placement in zip(members, result, strict=True):
            answers[i] = (placement.levels, placement.domains)
    return answers


def _world(record: Mapping[str, Any]) -> World:
    world = World(Journal())
    name = record["topologyName"]
    levels = [TopologyLevel(node_label=key) for key in record["levels"]]
    world.set_topology(Topology(metadata=ObjectMeta(name=name), spec=TopologySpec(levels=levels)))
    spec = ResourceFlavorSpec(
        node_labels=record["nodeLabels"] or {},
        tolerations=msgspec.convert(record["flavorTolerations"], list[Toleration]),
        topology_name=name,
    )
    world.set_flavor(ResourceFlavor(metadata=ObjectMeta(name=FLAVOR), spec=spec))
    for node in record["nodes"]:
        world.set_node(
            Node(
                metadata=ObjectMeta(name=node["name"], labels=node["labels"]),
                spec=NodeSpec(unschedulable=node["unschedulable"], taints=msgspec.convert(node["taints"], list[Taint])),
                status=NodeStatus(
                    allocatable=node["allocatable"],
                    conditions=[NodeCondition(type="Ready", status="True" if node["ready"] else "False")],
                ),
            )
        )
    for i, pod in enumerate(record["pods"]):
        resources = {"resources": {"requests": pod["requests"]}}
        body = {
            "metadata": {"name": f"pod-{i}", "namespace": "other"},
            "spec": {"nodeName": pod["nodeName"] or "", "containers": [resources]},
            "status": {"phase": pod["phase"]},
        }
        world.set_pod(msgspec.convert(body, Pod))
    levels_named = (record["levels"][-1],) if record["levels"][-1] == "kubernetes.io/hostname" else record["levels"]
    for i, usage in enumerate(record["tasUsage"]):
        # One pod as large as all that is used there together.
        requests = dict(usage["requests"])
        requests["pods"] = requests.get("pods", 0) - 1
        held = Placement("used", FLAVOR, tuple(levels_named), ((tuple(usage["values"]), 1),))
        world.hold(("used", str(i)), [held], [PodSetRequest("used", 1, requests)])
    world.journal.commit()
    return world


def _pod_set(body: Mapping[str, Any]) -> PodSetRequest:
    topology = body["topologyRequest"]
    request = None if topology is None else msgspec.convert(topology, PodSetTopologyRequest)
    if body["podSetGroupName"] is not None:
        # A pod set without a wish is unconstrained, and so it stays when it names its group.
        request = PodSetTopologyRequest(unconstrained=True) if request is None else request
        request.pod_set_group_name = body["podSetGroupName"]
    affinity = body["nodeAffinity"]
    return PodSetRequest(
        name=body["name"],
        count=body["count"],
        requests=body["requests"],
        topology=request,
        node_selector=body["nodeSelector"],
        node_affinity=None if affinity is None else msgspec.convert(affinity, NodeAffinity),
        tolerations=tuple(msgspec.convert(body["tolerations"], list[Toleration])),
    )


def _placement(pod_set: str, assignment: Mapping[str, Any]) -> Placement:
    levels, domains = _assignment(assignment)
    return Placement(pod_set, FLAVOR, levels, domains)


def _assignment(body: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], int], ...]]:
    return tuple(body["levels"]), tuple((tuple(d["values"]), d["count"]) for d in body["domains"])


def _expected(body: Mapping[str, Any]) -> Answer:
    return str(body["reason"]) if body["assignment"] is None else _assignment(body["assignment"])


def _shown(answer: Answer) -> str:
    if isinstance(answer, str):
        return f'"{answer}"'
    levels, domains = answer
    return ", ".join(f"{'/'.join(values)}: {count}" for values, count in domains) + f" at {'/'.join(levels)}"
