"""The search for whom to preempt finds just whom a walk would find that asks for a place after every candidate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, event, given, settings

from serried.schedule.cycle.nominate import preemption_oracle, preemption_request
from serried.schedule.flavors.assigner import assign
from serried.schedule.flavors.assignment import Fit
from serried.schedule.flavors.flavor_topology import find_places
from serried.schedule.preemption.candidates import PreemptionRequest, Target, Trial
from serried.schedule.preemption.classical import classical_attempts
from serried.schedule.preemption.fair_sharing import FairTrial, fair_targets
from serried.schedule.preemption.search import find_targets
from serried.schedule.state.state import State
from serried.schedule.types.moment import Moment
from tests.property.small_clusters import Story, jobs, stories
from tests.unit.schedule.objects import NS, at, feed, workload


def walk(trial: Trial, targets: Iterator[Target], *, borrowing: bool) -> list[str]:
    """Takes one candidate after the other until everything fits; then puts back whoever need not go, last but one
    first."""
    world, nodes = trial.state.world, trial.request.nodes

    def fits() -> bool:
        return trial.quota_fits(borrowing=borrowing) and (nodes is None or nodes() is not None)

    gone: list[Target] = []
    for target in targets:
        trial.remove(target.record)
        world.release(target.record.info.key, with_pods=True)
        gone.append(target)
        if fits():
            break
    else:
        return []
    for target in gone[-2::-1]:
        reservation = target.record.reservation
        assert reservation is not None
        trial.restore(target.record)
        world.hold(target.record.info.key, reservation.placements, reservation.pod_sets)
        if fits():
            gone.remove(target)
        else:
            trial.remove(target.record)
            world.release(target.record.info.key, with_pods=True)
    return names(gone)


def expected(state: State, request: PreemptionRequest, moment: Moment) -> list[str]:
    mark = state.journal.checkpoint()
    policy = state.cluster_queues[request.queue].spec.preemption
    found: list[str] = []
    if state.fair_sharing is not None:
        fair = FairTrial(state, request, moment)
        targets = fair_targets(state, fair, policy, state.fair_sharing.preemption_strategies)
        found = walk(fair, targets, borrowing=True)
    else:
        trial = Trial(state, request, moment)
        for borrowing, targets in classical_attempts(state, trial, policy):
            found = found or walk(trial, targets, borrowing=borrowing)
            state.journal.rollback(mark)
    state.journal.rollback(mark)
    return found


def names(targets: list[Target]) -> list[str]:
    return [target.record.info.key[1] for target in targets]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(), jobs())
def test_as_a_walk_finds_them(story: Story, job: tuple[str, int, dict[str, Any]]) -> None:
    engine = story.tell()
    queue, priority, pods = job
    feed(engine, workload("new", pods, queue=queue, priority=priority + 1, created=2))
    state = engine._state
    record = state.workloads[NS, "new"]
    moment = Moment(at(9))
    of = state.cluster_queues[queue]
    found = assign(state, of, record.info.pod_sets, preemption_oracle(state, of, record.info, moment))
    if found.mode == Fit.NO_FIT:
        return
    find_places(state, of, record.info, found)
    if found.mode != Fit.PREEMPT:
        return
    request = preemption_request(state, of, record.info, found)
    assert request.monotone
    targets = names(find_targets(state, request, moment))
    event(f"{min(len(targets), 3)} targets or more, {'by shares' if state.fair_sharing else 'classical'}")
    assert targets == expected(state, request, moment)
    engine.validate()
