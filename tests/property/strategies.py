"""Any clusters, nodes and requests: what several properties are checked on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from serried.api.core import Node, NodeAffinity, Taint, Toleration
from serried.api.kueue import PodSetTopologyRequest, SliceConstraint
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, pod, topology

KEYS = (BLOCK, RACK, HOSTNAME)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(Journal())
    world.set_topology(topology(*draw(st.sampled_from([KEYS, KEYS[:2]]))))
    world.set_flavor(flavor())
    for i in range(draw(st.integers(1, 10))):
        block, rack = draw(st.sampled_from("ab")), draw(st.sampled_from("12"))
        labels = {BLOCK: block, RACK: rack, HOSTNAME: f"host-{i}"}
        gpus, ready = draw(st.integers(0, 8)), draw(st.integers(0, 9)) > 0
        allocatable = {GPU: str(gpus), "pods": draw(st.sampled_from(["3", "20"]))}
        world.set_node(node(f"node-{i}", labels=labels, allocatable=allocatable, ready=ready))
    for i, where in enumerate(draw(st.lists(st.integers(0, 9), max_size=4))):
        world.set_pod(pod(f"p{i}", f"node-{where}", {GPU: str(draw(st.integers(0, 3)))}))
    return world


LEVELS = st.sampled_from(KEYS)
SIZES = st.sampled_from([1, 2, 3, 4, 6])


@st.composite
def topology_requests(draw: st.DrawFn) -> PodSetTopologyRequest | None:
    mode = draw(st.sampled_from(["none", "required", "preferred", "unconstrained", "slices"]))
    if mode == "none":
        return None
    request = PodSetTopologyRequest()
    if mode == "required":
        request.required = draw(LEVELS)
    elif mode == "preferred":
        request.preferred = draw(LEVELS)
    elif mode == "unconstrained":
        request.unconstrained = True
    if mode == "slices" or draw(st.booleans()):
        if draw(st.booleans()):
            request.pod_set_slice_required_topology = draw(LEVELS)
            request.pod_set_slice_size = draw(SIZES)
        else:
            layers = draw(st.lists(st.tuples(LEVELS, SIZES), min_size=1, max_size=3))
            request.podset_slice_required_topology_constraints = tuple(
                SliceConstraint(topology=level, size=size) for level, size in layers
            )
    return request


@st.composite
def workloads(draw: st.DrawFn) -> list[PodSetRequest]:
    pod_sets = []
    bound = draw(st.booleans())
    for i in range(draw(st.integers(1, 3))):
        requests = {GPU: draw(st.integers(0, 4))} | ({"example.com/nic": 1} if draw(st.integers(0, 19)) == 0 else {})
        request = draw(topology_requests())
        if request is not None and draw(st.integers(0, 3)) == 0:
            request.pod_set_group_name = "group"
        count = draw(st.sampled_from([0, 1, 1, 2, 3, 4, 6, 8, 12]))
        pod_sets.append(PodSetRequest(f"set-{i}", count, requests, request, bound_by_us=bound))
    return pod_sets


options = st.builds(
    PlaceOptions,
    balanced=st.booleans(),
    least_free_when_unconstrained=st.booleans(),
    preferred_affinity=st.booleans(),
    optimal=st.booleans(),
    optimal_limit=st.sampled_from([0, 20_000, 10**7]),
)
NAMES = [f"n{i}" for i in range(7)]
names = st.sampled_from(NAMES)
disks = st.sampled_from(["fast", "slow", ""])
effects = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    name = draw(names)
    labels = {BLOCK: draw(st.sampled_from("ab")), RACK: draw(st.sampled_from(["1", "2", ""]))}
    labels |= draw(st.fixed_dictionaries({}, optional={"disk": disks, "cores": st.sampled_from("345x"), "pool": disks}))
    taints = st.builds(Taint, key=st.sampled_from("xy"), value=st.sampled_from(["", "v"]), effect=effects)
    found = node(
        name,
        labels=labels,
        allocatable={GPU: str(draw(st.integers(0, 8))), "pods": draw(st.sampled_from(["2", "9"]))},
        taints=draw(st.lists(taints, max_size=2)),
        ready=draw(st.integers(0, 9)) > 0,
        unschedulable=draw(st.integers(0, 9)) == 0,
    )
    for key in draw(st.sampled_from([(), (), (), (RACK,), (HOSTNAME,)])):
        found.metadata.labels = {k: v for k, v in found.metadata.labels.items() if k != key}
    return found


@st.composite
def affinities(draw: st.DrawFn) -> NodeAffinity:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))
    expression: dict[str, Any] = {"key": draw(st.sampled_from(["disk", "cores"])), "operator": operator}
    if operator in ("In", "NotIn"):
        expression["values"] = draw(st.lists(st.sampled_from(["fast", "", "4"]), min_size=1, max_size=2))
    elif operator in ("Gt", "Lt"):
        expression["values"] = [draw(st.sampled_from(["3", "4", "x"]))]
    field = {"key": "metadata.name", "operator": draw(st.sampled_from(["In", "NotIn"])), "values": [draw(names)]}
    terms = draw(
        st.lists(st.sampled_from([{"matchExpressions": [expression]}, {"matchFields": [field]}, {}]), max_size=2)
    )
    preferred = [{"weight": 3, "preference": {"matchExpressions": [expression]}}]
    body = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": draw(st.sampled_from([[], preferred])),
    }
    if draw(st.booleans()):
        del body["requiredDuringSchedulingIgnoredDuringExecution"]
    return msgspec.convert(body, NodeAffinity)


@st.composite
def requests(draw: st.DrawFn) -> list[PodSetRequest]:
    """Pod sets with filters of their own."""
    tolerations = st.builds(
        Toleration,
        key=st.sampled_from(["", "x", "y"]),
        operator=st.sampled_from(["", "Exists", "Equal"]),
        value=st.sampled_from(["", "v"]),
        effect=st.sampled_from(["", "NoSchedule", "NoExecute"]),
        toleration_seconds=st.sampled_from([None, 30]),
    )
    return [
        replace(
            pod_set,
            node_selector=draw(st.sampled_from([{}, {}, {"disk": "fast"}, {"disk": ""}])),
            node_affinity=draw(st.none() | affinities()),
            tolerations=tuple(draw(st.lists(tolerations, max_size=2))),
        )
        for pod_set in draw(workloads())
    ]
