"""A world that has lived through many events decides as one that is built from what there is now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serried.api.core import Node, NodeAffinity, Pod, Taint, Toleration
from serried.api.kueue import ResourceFlavor, Topology
from serried.api.meta import Key
from serried.api.names import HOSTNAME
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement
from tests.property.test_placement import KEYS, options, workloads
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, pod, topology

NAMES = [f"n{i}" for i in range(7)]
names = st.sampled_from(NAMES)
disks = st.sampled_from(["fast", "slow", ""])
flavors = st.sampled_from(["gpu", "pool"])
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
        del found.metadata.labels[key]
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


class LongLived(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(Journal())
        self.nodes: dict[str, Node] = {}
        self.pods: dict[Key, Pod] = {}
        self.held: dict[Key, tuple[list[Placement], list[PodSetRequest]]] = {}
        self.topology: Topology = topology(*KEYS)
        self.flavors: dict[str, ResourceFlavor] = {"gpu": flavor(), "pool": flavor("pool", labels={"pool": "fast"})}
        self.world.set_topology(self.topology)
        for item in self.flavors.values():
            self.world.set_flavor(item)

    @rule(seen=st.lists(nodes(), max_size=4))
    def nodes_set(self, seen: list[Node]) -> None:
        for item in seen:
            self.nodes[item.metadata.name] = item
            self.world.set_node(item)

    @rule(name=names)
    def node_deleted(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.world.delete_node(name)

    @rule(name=st.sampled_from("pqrs"), where=names, gpus=st.integers(0, 3), number=st.integers(0, 9))
    def pod_set(self, name: str, where: str, gpus: int, number: int) -> None:
        keys = sorted(self.held)
        owner = keys[number][1] if number < len(keys) else ""
        seen = pod(name, where, {GPU: str(gpus)}, workload=owner, phase="Succeeded" if gpus == 3 else "Running")
        self.pods[seen.key] = seen
        self.world.set_pod(seen)

    @rule(name=st.sampled_from("pqrs"))
    def pod_deleted(self, name: str) -> None:
        self.pods.pop(("default", name), None)
        self.world.delete_pod(("default", name))

    @rule(levels=st.sampled_from([KEYS, KEYS[1:], KEYS[2:]]))
    def topology_edited(self, levels: tuple[str, ...]) -> None:
        self.topology = topology(*levels)
        self.world.set_topology(self.topology)

    @rule(name=flavors, labels=st.sampled_from([{}, {"pool": "fast"}, {"disk": ""}]), tolerant=st.booleans())
    def flavor_edited(self, name: str, labels: dict[str, str], tolerant: bool) -> None:
        item = flavor(name, labels=labels)
        item.spec.tolerations = [Toleration(key="x", operator="Exists")] if tolerant else []
        self.flavors[name] = item
        self.world.set_flavor(item)

    @rule(pod_sets=requests(), name=flavors, chosen=options)
    def admitted(self, pod_sets: list[PodSetRequest], name: str, chosen: PlaceOptions) -> None:
        found = place(self.world, name, pod_sets, options=chosen)
        if not isinstance(found, NoPlacement) and len(self.held) < 5:
            key = ("default", f"w{len(self.held)}")
            assert self.world.hold(key, found, pod_sets) == []
            self.world.journal.commit()
            self.held[key] = (found, pod_sets)

    @rule(steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["hold", "release", "with pods"])), max_size=5))
    def trial(self, steps: list[tuple[int, str]]) -> None:
        mark = self.world.journal.checkpoint()
        for number, what in steps:
            key = ("default", f"w{number}")
            if what == "hold" and key in self.held:
                self.world.hold(key, *self.held[key])
            else:
                self.world.release(key, with_pods=what == "with pods")
        self.world.journal.rollback(mark)

    @rule()
    def all_released(self) -> None:
        for key in self.held:
            self.world.release(key)
        self.world.journal.commit()
        self.held.clear()

    @rule(pod_sets=requests(), name=flavors, chosen=options, backwards=st.booleans())
    def decides_like_a_new_one(
        self, pod_sets: list[PodSetRequest], name: str, chosen: PlaceOptions, backwards: bool
    ) -> None:
        new = World(Journal())
        for pod_seen in self.pods.values():
            new.set_pod(pod_seen)
        for item in reversed(self.nodes.values()) if backwards else self.nodes.values():
            new.set_node(item)
        new.set_topology(self.topology)
        for item_flavor in self.flavors.values():
            new.set_flavor(item_flavor)
        for key, (placements, held) in self.held.items():
            new.hold(key, placements, held)
        new.journal.commit()
        validate(new)
        assert place(self.world, name, pod_sets, options=chosen) == place(new, name, pod_sets, options=chosen)

    @invariant()
    def its_laws_hold(self) -> None:
        validate(self.world)


LongLived.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLongLived = LongLived.TestCase
