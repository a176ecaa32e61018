"""The configured way to place pods reaches the decision, and what it could not do reaches the owner."""

from __future__ import annotations

from serried.api.assignment import decode
from serried.lifecycle.conditions import reserved
from serried.place.options import DEFAULT, PlaceOptions
from serried.schedule.cycle.cycle import Admit
from serried.schedule.engine import Engine
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    NS,
    at,
    cluster_queue,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    workload,
)


def decide(options: PlaceOptions) -> Admit:
    """A job of four nodes in one block, where block a has two racks of two nodes, and block b a rack of four and one
    of three."""
    engine = Engine(options)
    racks = {"a0": 2, "a1": 2, "b0": 4, "b1": 3}
    nodes = [node(f"{rack}-{i}", block=rack[0], rack=rack) for rack, size in racks.items() for i in range(size)]
    queue = cluster_queue(flavors={"gpu": {GPU: 100}})
    engine.set_namespace(NS, {})
    for item in [*nodes, topology(), flavor("gpu", topology="fabric"), queue, local_queue()]:
        feed(engine, item)
    feed(engine, workload("w", pod_set(4, required=BLOCK, gpu=8)))
    (decision,) = engine.cycle(at(0)).decisions
    return decision


def hosts(decision: Admit) -> list[str]:
    assignment = decision.admission.pod_set_assignments[0].topology_assignment
    assert assignment is not None
    return [values[-1] for values, _ in decode(assignment)]


def test_by_default_the_fuller_block_is_taken() -> None:
    decision = decide(DEFAULT)
    assert hosts(decision) == ["a0-0", "a0-1", "a1-0", "a1-1"]
    assert decision.note == ""


def test_optimal_placement_finds_the_rack_that_holds_all() -> None:
    decision = decide(PlaceOptions(optimal=True))
    assert hosts(decision) == ["b0-0", "b0-1", "b0-2", "b0-3"]
    assert decision.note == ""


def test_what_was_not_proven_is_told_with_the_admission() -> None:
    decision = decide(PlaceOptions(optimal=True, optimal_limit=1))
    assert hosts(decision) == ["a0-0", "a0-1", "a1-0", "a1-1"]
    note = "The placement of pod set main may not be optimal: it was not found within 1 partial placements."
    assert decision.note == note
    assert reserved("cq", 0, decision.note).message == f"Quota reserved in ClusterQueue cq, wait time was 0s. {note}"
