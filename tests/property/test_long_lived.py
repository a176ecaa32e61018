"""A world that has lived through many events decides as one that is built from what there is now."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serried.api.core import Node, Pod, Toleration
from serried.api.kueue import ResourceFlavor, Topology
from serried.api.meta import Key
from serried.model.journal import Journal
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import place
from serried.place.result import NoPlacement
from tests.property.strategies import (
    KEYS,
    names,
    nodes,
    options,
    requests,
)
from tests.unit.model.clusters import GPU, flavor, pod, topology

flavors = st.sampled_from(["gpu", "pool"])


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
        item.spec.tolerations = (Toleration(key="x", operator="Exists"),) if tolerant else ()
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
