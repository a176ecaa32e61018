"""Of several that could go, who reserved last goes first: by the times in their statuses, also of our own decisions."""

from __future__ import annotations

from serried.api.meta import Condition
from serried.schedule.engine import Engine
from tests.unit.schedule.objects import GPU, NS, at, cluster_queue, feed, flavor, local_queue, node, workload


def test_the_last_to_reserve_is_the_first_to_go() -> None:
    engine = Engine()
    engine.set_namespace(NS, {})
    queue = cluster_queue(flavors={"gpu": {GPU: 16}}, preemption={"withinClusterQueue": "LowerPriority"})
    for item in [
        node("n0", block="a", rack="a0"),
        node("n1", block="a", rack="a0"),
        flavor("gpu"),
        queue,
        local_queue(),
    ]:
        feed(engine, item)
    # The uid decides where times are equal: "a" would go before "b".
    for second, (name, uid) in enumerate([("early", "a"), ("late", "b")]):
        waiting = workload(name, uid=uid, gpu=8)
        feed(engine, waiting)
        (admit,) = engine.cycle(at(second)).decisions
        waiting.status.admission = admit.admission
        waiting.status.conditions = tuple(
            Condition(type=t, status="True", reason=t, last_transition_time=at(second))
            for t in ("QuotaReserved", "Admitted")
        )
        waiting.metadata.resource_version = "2"
        feed(engine, waiting)
    feed(engine, workload("high", priority=5, gpu=8))
    assert [e.key[1] for e in engine.cycle(at(9)).evictions] == ["late"]
