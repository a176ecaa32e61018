"""A search for whom to preempt asks for few places on the nodes, however many candidates there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from serried.api.assignment import encode
from serried.api.kueue import Admission, PodSetAssignment
from serried.api.meta import Key
from serried.schedule.cycle import nominate
from serried.schedule.engine import Engine
from serried.schedule.flavors.flavor_topology import nodes_now
from tests.unit.schedule.objects import (
    GPU,
    HOST,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    with_admission,
    workload,
)

NODES, RACK_SIZE = 512, 16
#: With all gone; 16 one by one where bisection is not sound; twice log2(512) for the shortest beginning, and the place
#: with that; 32 for those put back.
AT_MOST = 1 + 16 + 2 * 9 + 1 + 32


def full(priority: Callable[[int], int], since: Callable[[int], float] = float) -> Engine:
    """A node for each of so many jobs, in racks of 16. `priority`: of the job on a node; `since`: when it started."""
    spec = cluster_queue(flavors={"h100": {GPU: 16 * NODES}}, preemption={"withinClusterQueue": "LowerPriority"})
    given = engine(topology(), flavor("h100", "fabric"), local_queue(), spec)
    for i in range(NODES):
        feed(given, node(f"n{i:03}", rack=f"r{i // RACK_SIZE}"))
        job = workload(f"w{i:03}", pod_set(1, gpu=8, ours=True), priority=priority(i), created=i)
        place = encode((HOST,), [((f"n{i:03}",), 1)])
        main = PodSetAssignment("main", {GPU: "h100"}, {GPU: "8"}, 1, place)
        running = with_admission(job, Admission("cq", (main,)))
        running.status.conditions[0].last_transition_time = at(since(i))
        feed(given, running)
    return given


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """For whom nodes were asked for in a preemption search, each time."""
    calls: list[Key] = []

    def counted(state: Any, queue: Any, info: Any, found: Any) -> Any:
        calls.append(info.key)
        return nodes_now(state, queue, info, found)

    monkeypatch.setattr(nominate, "nodes_now", counted)
    return calls


def preempted_for(given: Engine, *sets: dict[str, Any]) -> list[str]:
    feed(given, workload("gang", *sets, priority=5, created=NODES))
    found = [evict.key[1] for evict in given.cycle(at(NODES)).evictions]
    given.validate()
    return found


def test_where_all_candidates_together_free_no_place_one_is_asked_for(asked: list[Key]) -> None:
    given = full(lambda i: 9 if i % RACK_SIZE == 0 else 0)
    assert preempted_for(given, pod_set(RACK_SIZE, gpu=8, required=RACK)) == []
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("sets", "count"),
    [
        ([pod_set(RACK_SIZE, gpu=8, required=RACK)], RACK_SIZE),
        ([pod_set(300, gpu=8, topology={"preferred": RACK})], 300),
        ([pod_set(8, gpu=8, required=RACK), pod_set(8, "other", gpu=8, required=RACK)], 16),
        (
            [
                pod_set(1, "leader", topology={"required": RACK, "podSetGroupName": "g"}, gpu=8),
                pod_set(15, topology={"required": RACK, "podSetGroupName": "g"}, gpu=8),
            ],
            16,
        ),
    ],
    ids=["a rack", "more than half of all", "two pod sets", "a leader and its workers"],
)
def test_few_places_are_asked_for(asked: list[Key], sets: list[dict[str, Any]], count: int) -> None:
    given = full(lambda i: 9 if i % RACK_SIZE == 0 and i < NODES // 3 else 0)
    assert len(preempted_for(given, *sets)) == count
    assert 1 < len(asked) <= AT_MOST


def test_ties_are_broken_by_one_more_search(asked: list[Key]) -> None:
    given = full(lambda i: 9 if i % RACK_SIZE == 0 and i < NODES // 3 else 0, since=lambda i: 0)
    assert len(preempted_for(given, pod_set(300, gpu=8, topology={"preferred": RACK}))) == 300
    assert AT_MOST < len(asked) <= 2 * AT_MOST
