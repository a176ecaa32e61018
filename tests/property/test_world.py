"""Whatever happens, what is free is what nodes have less what is used; and a rollback leaves no trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serried.api.names import HOSTNAME
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from tests.unit.model.clusters import BLOCK, GPU, RACK, node, pod, racks

NODES = ["n0", "n1", "n2", "n3"]
#: Workload → GPUs of each of its pods; "" are pods of nobody.
WORKLOADS = {"w0": 1, "w1": 2, "": 1}

names = st.sampled_from(NODES)
owners = st.sampled_from(["w0", "w1"])
counts = st.dictionaries(names, st.integers(1, 3), max_size=3)


class Follows(RuleBasedStateMachine):
    """The world beside a plain account of the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.world = racks()
        self.nodes: dict[str, int] = {}
        self.pods: dict[str, tuple[str, str]] = {}
        self.held: dict[str, dict[str, int]] = {}

    @rule(name=names, gpus=st.integers(0, 9), ready=st.booleans(), rack=st.sampled_from("ab"))
    def node_set(self, name: str, gpus: int, ready: bool, rack: str) -> None:
        changed = node(name, labels={BLOCK: "b", RACK: rack}, allocatable={GPU: str(gpus), "pods": "9"}, ready=ready)
        self.world.set_node(changed)
        assert not self.world.set_node(changed)
        self.nodes[name] = gpus

    @rule(name=names)
    def node_deleted(self, name: str) -> None:
        assert self.world.delete_node(name) == (name in self.nodes)
        self.nodes.pop(name, None)

    @rule(name=st.sampled_from("pqrstu"), where=names, owner=st.sampled_from(list(WORKLOADS)), ended=st.booleans())
    def pod_set(self, name: str, where: str, owner: str, ended: bool) -> None:
        phase = "Succeeded" if ended else "Running"
        self.world.set_pod(pod(name, where, {GPU: str(WORKLOADS[owner])}, phase=phase, workload=owner))
        if ended:
            self.pods.pop(name, None)
        else:
            self.pods[name] = (where, owner)

    @rule(name=st.sampled_from("pqrstu"))
    def pod_deleted(self, name: str) -> None:
        self.world.delete_pod(("default", name))
        self.pods.pop(name, None)

    @rule(owner=owners, wanted=counts)
    def held_by(self, owner: str, wanted: dict[str, int]) -> None:
        problems = self.hold(owner, wanted)
        self.world.journal.commit()
        assert len(problems) == len(wanted.keys() - self.nodes.keys())
        self.held[owner] = {n: c for n, c in wanted.items() if n in self.nodes}

    def hold(self, owner: str, wanted: dict[str, int]) -> list[str]:
        domains = tuple(((name,), count) for name, count in sorted(wanted.items()))
        placement = Placement("main", "gpu", (HOSTNAME,), domains)
        return self.world.hold(
            ("default", owner), [placement], [PodSetRequest("main", sum(wanted.values()), {GPU: WORKLOADS[owner]})]
        )

    @rule(owner=owners)
    def released(self, owner: str) -> None:
        self.world.release(("default", owner))
        self.world.journal.commit()
        self.held.pop(owner, None)

    @rule(steps=st.lists(st.tuples(owners, st.booleans() | counts), min_size=1, max_size=4))
    def trial(self, steps: list[tuple[str, bool | dict[str, int]]]) -> None:
        capacity, references = self.world.capacity, self.world.nodes.references
        before = [a.copy() for a in (capacity.allocatable, capacity.free, capacity.unheld, references)]
        holds = dict(self.world.holds)
        mark = self.world.journal.checkpoint()
        for owner, wanted in steps:
            if isinstance(wanted, bool):
                self.world.release(("default", owner), with_pods=wanted)
            else:
                self.hold(owner, wanted)
        self.world.journal.rollback(mark)
        after = (capacity.allocatable, capacity.free, capacity.unheld, self.world.nodes.references)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert dict(self.world.holds) == holds

    @rule(going=owners)
    def with_its_pods_gone(self, going: str) -> None:
        """For a trial, a workload goes with all its pods, also those that its hold does not cover."""
        mark = self.world.journal.checkpoint()
        self.world.release(("default", going), with_pods=True)
        self.adds_up([owner for owner in WORKLOADS if owner != going])
        self.hold(going, self.held.get(going, {}))
        self.adds_up(WORKLOADS)
        self.world.journal.rollback(mark)

    @invariant()
    def its_laws_hold(self) -> None:
        validate(self.world)

    @invariant()
    def what_is_free_adds_up(self) -> None:
        self.adds_up(WORKLOADS)

    def adds_up(self, there: Iterable[str]) -> None:
        for name, gpus in self.nodes.items():
            running = Counter(owner for where, owner in self.pods.values() if where == name)
            held = {owner: self.held.get(owner, {}).get(name, 0) for owner in WORKLOADS}
            # A hold covers as many of its pods as it has; those beyond count by themselves. All of them would go.
            used = sum(max(held[owner], running[owner]) * WORKLOADS[owner] for owner in there)
            capacity, row = self.world.capacity, self.world.nodes.row_of[name]
            line = capacity.lines[GPU]
            assert capacity.free[line, row] == gpus - used
            assert capacity.unheld[line, row] == gpus - running[""]


Follows.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestWorld = Follows.TestCase
