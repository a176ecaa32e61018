"""What becomes of an admission: assumed, confirmed, refused, lost, ended; and found again after a restart."""

from __future__ import annotations

import msgspec
import pytest

from serried.api.kueue import Admission, ClusterQueueStatus, Workload
from serried.schedule.engine import Engine
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    finished,
    flavor,
    local_queue,
    node,
    pod_set,
    run,
    topology,
    with_admission,
    workload,
)

GANG = pod_set(2, required=RACK, ours=True, gpu=8)


def cluster(*more: object, strict: bool = False) -> Engine:
    queue = cluster_queue(flavors={"h100": {GPU: 16}}, strict=strict)
    return engine(topology(), flavor("h100", "fabric"), queue, local_queue(), node("n0"), node("n1"), *more)


def admit(given: Engine, item: Workload) -> Admission:
    feed(given, item)
    (decision,) = given.cycle(at(1)).decisions
    assert decision.key == item.key
    return decision.admission


def used(given: Engine) -> str:
    status = given.status(("", "cq"))
    assert isinstance(status, ClusterQueueStatus)
    return str(status.flavors_reservation[0].resources[0].total)


def test_older_versions_do_not_undo_what_is_assumed() -> None:
    given, item = cluster(), workload("w", GANG)
    admission = admit(given, item)
    feed(given, workload("w", GANG, version=2))
    assert run(given) == []
    assert used(given) == "16"
    feed(given, with_admission(workload("w", GANG), admission, version=3))
    assert not given.dirty
    # The answer to the write came first; now the watch brings what was before it.
    feed(given, workload("w", GANG, version=2))
    assert used(given) == "16"
    given.validate()


def test_a_refused_admission_is_taken_back_and_the_next_goes_first_if_it_is_first() -> None:
    given = cluster()
    admit(given, workload("w", GANG, created=5))
    feed(given, workload("older", GANG, created=1))
    assert run(given) == []
    given.withdraw((NS, "w"))
    assert run(given) == ["older"]


def test_a_confirmed_admission_cannot_be_withdrawn() -> None:
    given, item = cluster(), workload("w", GANG)
    feed(given, with_admission(item, admit(given, item)))
    given.withdraw((NS, "w"))
    given.withdraw((NS, "nobody"))
    assert used(given) == "16"
    given.validate()


def test_an_eviction_gives_everything_back_and_the_workload_waits_again() -> None:
    given, item = cluster(), workload("w", GANG)
    feed(given, with_admission(item, admit(given, item)))
    feed(given, workload("next", GANG, created=5))
    assert run(given) == []
    feed(given, workload("w", GANG, version=3))
    assert used(given) == "0"
    assert run(given) == ["w"]


def test_an_evicted_workload_that_is_deactivated_is_inadmissible() -> None:
    given, item = cluster(), workload("w", GANG)
    feed(given, with_admission(item, admit(given, item)))
    feed(given, workload("next", GANG, created=5))
    feed(given, workload("w", GANG, version=3, active=False))
    cycle = given.cycle(at(1))
    assert [a.key[1] for a in cycle.decisions] == ["next"]
    ((key, reason),) = [(w.key[1], w.reason) for w in cycle.waits]
    assert (key, reason.code, reason.field) == ("w", "Inadmissible", "spec.active")
    given.validate()


def test_deactivated_while_its_admission_is_on_its_way() -> None:
    given = cluster()
    admission = admit(given, workload("w", GANG))
    inactive = workload("w", GANG, version=2, active=False)
    feed(given, inactive)
    assert used(given) == "16"
    feed(given, with_admission(inactive, admission, version=3))
    assert used(given) == "16"
    feed(given, workload("w", GANG, version=4, active=False))
    assert used(given) == "0"
    assert run(given) == []


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("how", ["finished", "deleted"])
def test_at_its_end_everything_is_given_back(how: str, confirmed: bool) -> None:
    given, item = cluster(), workload("w", GANG)
    admission = admit(given, item)
    if confirmed:
        item = with_admission(item, admission)
        feed(given, item)
    feed(given, workload("next", GANG, created=5))
    assert run(given) == []
    if how == "finished":
        feed(given, finished(item))
        feed(given, finished(item, version=4))
    else:
        given.delete_workload((NS, "w"))
        given.delete_workload((NS, "w"))
    assert used(given) == "0"
    assert run(given) == ["next"]


def test_a_namesake_is_another_workload() -> None:
    given, item = cluster(), workload("w", GANG)
    feed(given, with_admission(item, admit(given, item)))
    feed(given, workload("w", GANG, uid="another", version=3))
    (decision,) = given.cycle(at(1)).decisions
    assert decision.uid == "another"
    given.validate()


def test_a_pending_workload_that_changes_is_looked_at_as_it_is_now() -> None:
    given = cluster(workload("w", pod_set(3, required=RACK, ours=True, gpu=8)))
    assert run(given) == []
    feed(given, workload("w", GANG, version=2))
    assert run(given) == ["w"]


def test_after_a_restart_all_is_as_it_was() -> None:
    given, item = cluster(), workload("w", GANG)
    written = with_admission(item, admit(given, item))
    again = cluster(written, workload("next", GANG, created=5))
    assert again.status(("", "cq")) is not None
    assert used(again) == "16"
    assert run(again) == []
    assert (again.world.capacity.free == given.world.capacity.free).all()
    feed(again, finished(written))
    assert run(again) == ["next"]


def test_after_a_restart_in_any_order_of_events() -> None:
    given, item = cluster(), workload("w", GANG)
    written = with_admission(item, admit(given, item))
    again = engine(workload("next", GANG, created=5), written, local_queue(), node("n0"))
    for late in (topology(), cluster_queue(flavors={"h100": {GPU: 64}}), flavor("h100", "fabric"), node("n1")):
        feed(again, late)
    assert run(again) == []
    assert (again.world.capacity.free.sum(axis=1) == given.world.capacity.free.sum(axis=1)).all()


def test_what_the_status_says_is_held_even_beyond_the_limits() -> None:
    given, item = cluster(), workload("w", GANG)
    written = with_admission(item, admit(given, item))
    again = engine(topology(), flavor("h100", "fabric"), local_queue(), node("n0"), node("n1"), written)
    feed(again, cluster_queue(flavors={"h100": {GPU: 8}}))
    assert used(again) == "16"
    feed(again, workload("next", pod_set(1, ours=True, gpu=1)))
    assert run(again) == []
    feed(again, finished(written))
    assert run(again) == ["next"]


def test_an_admission_that_changed_is_held_as_it_is_now() -> None:
    given, item = cluster(), workload("w", GANG)
    admission = admit(given, item)
    admission = msgspec.convert(msgspec.to_builtins(admission), Admission)
    admission.pod_set_assignments[0].resource_usage = {GPU: "8"}
    feed(given, with_admission(item, admission))
    assert used(given) == "8"
    given.validate()


def test_an_admission_that_says_the_same_in_other_words_is_no_work() -> None:
    given, item = cluster(), workload("w", GANG)
    admission = msgspec.convert(msgspec.to_builtins(admit(given, item)), Admission)
    admission.pod_set_assignments[0].resource_usage = {GPU: "16000m"}
    given.queues_changed()
    feed(given, with_admission(item, admission))
    assert given.queues_changed() == set()
    assert not given.dirty
    given.validate()


def test_an_admission_that_cannot_be_read_is_held_as_far_as_it_can() -> None:
    given, item = cluster(), workload("w", GANG)
    admission = admit(given, item)
    odd = msgspec.convert(msgspec.to_builtins(admission), Admission)
    assignment = odd.pod_set_assignments[0]
    assignment.resource_usage = {GPU: "16", "cpu": "1", "memory": "lots"}
    assignment.flavors = {GPU: "h100", "memory": "h100"}
    assert assignment.topology_assignment is not None
    assignment.topology_assignment.slices[0].domain_count = 0
    odd.pod_set_assignments += (msgspec.structs.replace(assignment, name="ghost", resource_usage={}),)
    feed(given, with_admission(item, odd))
    assert used(given) == "16"
    found = given.explain((NS, "w"), at(1))
    assert found is not None
    assert [p.split(":")[0].split(" ")[0] for p in found.problems] == [
        "status.admission.podSetAssignments[0].flavors",
        "status.admission.podSetAssignments[0].resourceUsage[memory]",
        "status.admission.podSetAssignments[0].topologyAssignment.slices[0].domainCount",
        "status.admission.podSetAssignments[1].name",
    ]
    feed(given, finished(item))
    assert used(given) == "0"
    given.validate()


def test_quota_reserved_but_not_admitted_counts_as_reserved_only() -> None:
    given, item = cluster(), workload("w", GANG)
    admission = admit(given, item)
    feed(given, with_admission(item, admission, admitted=False))
    status = given.status(("", "cq"))
    assert isinstance(status, ClusterQueueStatus)
    assert (status.reserving_workloads, status.admitted_workloads) == (1, 0)
    assert (used(given), status.flavors_usage[0].resources[0].total) == ("16", "0")
    feed(given, with_admission(item, admission, version=3))
    status = given.status(("", "cq"))
    assert isinstance(status, ClusterQueueStatus)
    assert (status.reserving_workloads, status.admitted_workloads) == (1, 1)
    given.validate()
