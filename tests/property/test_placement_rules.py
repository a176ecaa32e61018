"""Placement under rules between the pods themselves, against all placements there are of few pods on few nodes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serried.api.core import PodSpec
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME
from serried.model import filters
from serried.model.journal import Journal
from serried.model.pod_constraints import read_constraints
from serried.model.pod_filters import Surroundings, Verdict, judge
from serried.model.pod_index import PodKind
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from serried.model.world import World
from serried.place.place import place
from serried.place.result import NoPlacement, Placement
from tests.unit.model.clusters import BLOCK, RACK, flavor, node, pod, topology

ZONE = "zone"
KEYS = (HOSTNAME, RACK, BLOCK, ZONE)
NAMESPACE = "team"
CPU = {"cpu": 1000}
SELECTOR = {"matchLabels": {"app": "web"}}


class Case:
    """Up to eight nodes in racks and blocks, with zones that keep to them or not; some pods; and a pod set."""

    def __init__(self, random: Random) -> None:
        self.random = random
        world = self.world = World(Journal())
        world.set_topology(topology(BLOCK, RACK, HOSTNAME))
        world.set_flavor(flavor())
        world.namespaces[NAMESPACE] = {}
        aligned = random.random() < 0.6
        for i in range(random.randint(1, 8)):
            block = random.randint(0, 1)
            rack = f"{block}-{random.randint(0, 1)}"
            labels = {BLOCK: f"b{block}", RACK: f"r{rack}"}
            if random.random() < 0.9:
                labels[ZONE] = f"z{random.choice([block, rack]) if aligned else random.randint(0, 2)}"
            world.set_node(node(f"n{i}", labels=labels, allocatable={"cpu": str(random.randint(0, 3)), "pods": "9"}))
        for i in range(random.choice([0, 0, 1, 2, 4])):
            item = pod(f"old-{i}", f"n{random.randrange(8)}", {}, namespace=NAMESPACE)
            item.metadata.labels = {**item.metadata.labels, "app": random.choice(["web", "web", "db"])}
            if random.random() < 0.2:
                item.spec.affinity = spec(apart=[random.choice(KEYS)]).affinity
            world.set_pod(item)
        self.template = spec(
            apart=random.sample(KEYS, random.choice([0, 0, 0, 1, 1, 2])),
            together=random.sample(KEYS, random.choice([0, 0, 0, 0, 1, 2])),
            spread=random.sample(KEYS, random.choice([0, 0, 1, 1, 2])),
            skew=random.choice([1, 1, 2]),
            domains=random.choice([None, None, 2, 3]),
            port=random.random() < 0.1,
        )
        labels = {"app": random.choice(["web", "web", "web", "db"])}
        self.kind = PodKind(NAMESPACE, labels, read_constraints(self.template, NAMESPACE, labels))
        self.mode, self.level = random.choice(
            [("unconstrained", 2), ("required", 0), ("required", 1), ("preferred", 1)]
        )
        request = PodSetTopologyRequest()
        if self.mode == "unconstrained":
            request.unconstrained = True
        elif self.mode == "required":
            request.required = (BLOCK, RACK)[self.level]
        else:
            request.preferred = RACK
        self.pods = PodSetRequest("main", random.randint(1, 5), CPU, topology=request, kind=self.kind)

    def judge(self) -> Verdict:
        nodes = self.world.nodes
        everywhere = np.ones(len(nodes.names), dtype=np.bool_)
        around = Surroundings(nodes, self.world.index, self.world.storage, self.world.namespaces)
        return judge(around, self.kind, everywhere, everywhere)

    def label(self, name: str, key: str) -> str | None:
        return self.world.nodes.labels(self.world.nodes.row_of[name]).get(key)

    # --- all there are

    def possible(self) -> bool:
        """Whether there is any placement that keeps all rules."""
        verdict = self.judge()
        open_ = filters.selected(self.world.nodes, {})
        for _, left in verdict.exclusions:
            open_ &= left
        names = [name for name, row in self.world.nodes.row_of.items() if open_[row] and self.room(name)]
        return any(self.keeps(verdict, counts) for counts in self.ways(names, self.pods.count))

    def room(self, name: str) -> int:
        capacity, row = self.world.capacity, self.world.nodes.row_of[name]
        seen = self.world.nodes.seen[row]
        return 0 if seen is None else int(min(capacity.free[capacity.lines["cpu"], row] // 1000, capacity.free[0, row]))

    def ways(self, names: list[str], count: int) -> Iterator[dict[str, int]]:
        if not names:
            if not count:
                yield {}
            return
        for here in range(min(count, self.room(names[0])) + 1):
            for rest in self.ways(names[1:], count - here):
                yield {names[0]: here, **rest} if here else rest

    def keeps(self, verdict: Verdict, counts: dict[str, int]) -> bool:
        """Whether pods, so many on each node, keep the rules between them."""
        if self.mode == "required" and len({self.label(name, (BLOCK, RACK)[self.level]) for name in counts}) > 1:
            return False
        if verdict.one_per_node and max(counts.values()) > 1:
            return False
        for key in verdict.apart:
            values = [self.label(name, key) for name, count in counts.items() for _ in range(count)]
            values = [value for value in values if value is not None]
            if len(set(values)) < len(values):
                return False
        if any(len({self.label(name, key) for name in counts}) > 1 for key in verdict.together):
            return False
        for spread in verdict.spread:
            column = self.world.nodes.column(spread.key)
            after, used = spread.counts.copy(), set()
            for name, count in counts.items():
                code = int(column.codes[self.world.nodes.row_of[name]])
                used.add(code)
                if spread.compared[code]:
                    after[code] += count
            if any(after[code] > spread.least_of(after) + spread.max_skew for code in used):
                return False
        return True

    # --- as kube-scheduler sees it

    def misplaced(self, placement: Placement) -> list[str]:
        """The nodes of pods that kube-scheduler would not let there, with all others where they are."""
        index, row_of, one = self.world.index, self.world.nodes.row_of, np.ones(1, dtype=np.int64)
        entries = {
            values[-1]: [index.add(self.kind, np.array([row_of[values[-1]]]), one) for _ in range(count)]
            for values, count in placement.domains
        }
        wrong = []
        for name, own in entries.items():
            index.remove(own.pop())
            if not self.judge().allowed(self.world.nodes)[row_of[name]]:
                wrong.append(name)
            own.append(index.add(self.kind, np.array([row_of[name]]), one))
        for own in entries.values():
            for entry in own:
                index.remove(entry)
        return wrong


def spec(
    *,
    apart: list[str] = [],  # noqa: B006
    together: list[str] = [],  # noqa: B006
    spread: list[str] = [],  # noqa: B006
    skew: int = 1,
    domains: int | None = None,
    port: bool = False,
) -> PodSpec:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    made: dict[str, Any] = {"containers": [{"name": "main"}], "affinity": {}}
    for which, keys in (("podAntiAffinity", apart), ("podAffinity", together)):
        if keys:
            made["affinity"][which] = {required: [{"topologyKey": key, "labelSelector": SELECTOR} for key in keys]}
    made["topologySpreadConstraints"] = [
        {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
        | ({} if domains is None else {"minDomains": domains})
        for key in spread
    ]
    if port:
        made["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return msgspec.convert(made, PodSpec)


@given(st.integers(0, 2**32))
def test_a_placement_keeps_the_rules_and_is_found_if_there_is_one(seed: int) -> None:
    case = Case(Random(seed))
    found = place(case.world, "gpu", [case.pods])
    validate(case.world)
    if isinstance(found, NoPlacement):
        # Rules over domains that cut across each other are not kept, but told.
        assert "cut across" in found.message or not case.possible(), found.message
        return
    (placement,) = found
    assert sum(count for _, count in placement.domains) == case.pods.count
    assert all(count <= case.room(values[-1]) for values, count in placement.domains)
    if case.mode == "required":
        key = (BLOCK, RACK)[case.level]
        assert len({case.label(values[-1], key) for values, _ in placement.domains}) == 1
    assert case.misplaced(placement) == []
