"""A workload goes from state to state by the table, and its record tells how it came there."""

from __future__ import annotations

import pytest

from serried.schedule.engine import Engine
from serried.schedule.state import transitions
from serried.schedule.state.records import WorkloadState
from serried.schedule.state.transitions import IllegalTransition
from tests.unit.schedule.objects import (
    NS,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    with_admission,
    workload,
)

W = (NS, "w")


@pytest.fixture
def given() -> Engine:
    return engine(flavor("default"), cluster_queue(), local_queue())


def told(given: Engine) -> list[str]:
    return [str(entry) for entry in given.inspect().story(W)]


def test_the_story_of_a_workload_names_each_transition_and_the_event_that_caused_it(given: Engine) -> None:
    given.delete_local_queue((NS, "lq"))
    job = workload("w", cpu=1)
    feed(given, job)
    feed(given, local_queue())
    (admit,) = given.cycle(at(0)).decisions
    feed(given, with_admission(job, admit.admission))
    assert told(given) == [
        "new → inadmissible: inadmissible (Inadmissible)",
        "inadmissible → pending: queued (cq) by set_local_queue team/lq",
        "pending → admitted: admission decided (cq) by a cycle",
        "admitted → admitted: decision heard (admission)",
    ]
    assert given.inspect().story(W)[2].at == at(0)


def test_a_refused_admission_is_part_of_the_story(given: Engine) -> None:
    feed(given, workload("w", cpu=1))
    given.cycle(at(0))
    given.withdraw(W)
    assert told(given)[1:] == [
        "pending → admitted: admission decided (cq) by a cycle",
        "admitted → pending: queued (cq) by withdraw",
    ]


def test_the_last_20_transitions_are_kept(given: Engine) -> None:
    feed(given, workload("w", cpu=1))
    for _ in range(15):
        given.cycle(at(0))
        given.withdraw(W)
    story = told(given)
    assert len(story) == 20
    assert story[-1] == "admitted → pending: queued (cq) by withdraw"


def test_what_the_table_does_not_have_raises_with_the_story(given: Engine) -> None:
    feed(given, workload("w", cpu=1))
    state = given._state
    with pytest.raises(IllegalTransition) as caught:
        transitions.evict(state, state.workloads[W], "Preempted")
    assert str(caught.value) == (
        "team/w: pending → leaving by 'eviction decided' is no transition\n  new → pending: queued (cq)"
    )


def test_every_transition_leads_somewhere_and_from_somewhere() -> None:
    states = set(WorkloadState)
    assert set().union(*(legal[0] for legal in transitions.TABLE.values())) == states - {WorkloadState.FINISHED}
    assert set().union(*(legal[1] for legal in transitions.TABLE.values())) == states - {WorkloadState.NEW}
