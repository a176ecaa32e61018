"""However little time each cycle has, the same is decided in the same order, if nothing happens in between."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from serried.schedule.engine import Engine
from tests.property.small_clusters import Story, jobs, stories
from tests.unit.schedule.objects import at, feed, workload


def decided(engine: Engine, times: list[bool]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Who is admitted, with what, and who is preempted, for whom, each in order, until nothing is left to decide.
    `times`: whether time is up, each time that this is asked; then it always is."""
    admitted: list[tuple[str, str]] = []
    preempted: list[tuple[str, str]] = []
    for _ in range(1000):
        engine.validate()
        if not engine.dirty:
            return admitted, preempted
        cycle = engine.cycle(at(9), spent=lambda: times.pop() if times else True)
        admitted += [(a.key[1], str(a.admission)) for a in cycle.decisions]
        preempted += [(e.key[1], e.preemptor[1]) for e in cycle.evictions if e.preemptor is not None]
    raise AssertionError("the cycles never run dry")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    # An admission on borrowed quota would wake whoever may reclaim it, between one cycle and the next.
    stories(policies=["Never"]),
    st.lists(st.tuples(jobs(), st.integers(0, 3)), min_size=2, max_size=8),
    st.lists(st.booleans(), max_size=20),
)
def test_the_same_decisions(
    story: Story, pending: list[tuple[tuple[str, int, dict[str, Any]], int]], times: list[bool]
) -> None:
    engines = story.tell(), story.tell()
    for i, ((queue, priority, pods), created) in enumerate(pending):
        for engine in engines:
            feed(engine, workload(f"new{i}", pods, queue=queue, priority=priority + 1, created=created))
    expected = decided(engines[0], [False] * 10_000)
    event(f"{len(expected[0])} admitted, {len(expected[1])} preempted")
    assert decided(engines[1], times) == expected
