"""What `explain` says of a workload, and that asking changes nothing."""

from __future__ import annotations

from serried.schedule.cycle.explain import Explanation
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
    pod,
    pod_set,
    run,
    topology,
    with_admission,
    workload,
)


def gang(size: int, gpus: int = 8) -> dict[str, object]:
    return pod_set(size, required=RACK, ours=True, gpu=gpus)


def cluster(gpus: int = 64, *, strict: bool = False) -> Engine:
    queue = cluster_queue(flavors={"h100": {GPU: gpus}}, strict=strict)
    nodes = [node(f"n{r}{i}", rack=f"r{r}") for r in range(2) for i in range(2)]
    return engine(topology(), flavor("h100", "fabric"), queue, local_queue(), *nodes)


def ask(given: Engine, name: str) -> Explanation:
    before = (given.dirty, given.world.capacity.free.copy())
    found = given.explain((NS, name), at(100))
    given.validate()
    assert given.dirty == before[0]
    assert (given.world.capacity.free == before[1]).all()
    assert found is not None
    return found


def test_nobody_knows_a_stranger() -> None:
    assert cluster().explain((NS, "stranger"), at(0)) is None


def test_the_states_a_workload_can_be_in() -> None:
    given, item = cluster(), workload("w", gang(2), created=40)
    feed(given, item)
    found = ask(given, "w")
    assert (found.state, found.fits_now, found.waited) == ("pending", True, 60.0)
    assert found.reason is not None
    assert found.reason.code == "PendingEvaluation"
    (admit,) = given.cycle(at(50)).decisions
    feed(given, with_admission(item, admit.admission, admitted=False))
    assert ask(given, "w").state == "reserving"
    feed(given, with_admission(item, admit.admission, version=3))
    assert (ask(given, "w").state, ask(given, "w").cluster_queue) == ("admitted", "cq")
    feed(given, finished(item, version=4))
    assert ask(given, "w").state == "finished"


def test_a_workload_in_no_queue() -> None:
    given = cluster()
    feed(given, workload("w", gang(1), queue="nope"))
    found = ask(given, "w")
    assert (found.state, found.local_queue, found.cluster_queue) == ("inadmissible", "nope", "")
    assert found.reason is not None
    assert found.reason.found == "nope"


def test_position_and_who_is_ahead() -> None:
    given = cluster(gpus=8)
    for i in range(9):
        feed(given, workload(f"w{i}", gang(1), created=i))
    run(given)
    found = ask(given, "w8")
    assert (found.ahead, found.pending) == (7, 8)
    assert list(found.ahead_of_it) == [f"team/w{i}" for i in range(3, 8)]


def test_the_fewest_that_have_to_end_for_quota() -> None:
    given = cluster(gpus=24)
    for i, size in enumerate((1, 2)):
        feed(given, workload(f"w{i}", gang(size), created=i))
    assert run(given) == ["w0", "w1"]
    feed(given, workload("next", gang(2), created=5))
    run(given)
    found = ask(given, "next")
    assert list(found.fits_after) == ["team/w1"]
    assert found.attempts[0].quota.startswith(
        "insufficient unused quota for nvidia.com/gpu in flavor h100, 16 more needed"
    )


def test_the_fewest_that_have_to_end_for_nodes_with_their_running_pods() -> None:
    given = cluster()
    feed(given, cluster_queue("other", {"h100": {GPU: 64}}))
    feed(given, local_queue("other", "other"))
    for i, queue in enumerate(("lq", "other", "other")):
        feed(given, workload(f"w{i}", gang(1), created=i, queue=queue))
    assert run(given) == ["w0", "w1", "w2"]
    for i, name in enumerate(("n00", "n01", "n10")):
        running = pod(f"w{i}-0", name, 8)
        running.metadata.namespace = NS
        running.metadata.annotations = {"kueue.x-k8s.io/workload": f"w{i}"}
        running.metadata.labels = {"kueue.x-k8s.io/podset": "main"}
        feed(given, running)
    feed(given, workload("next", gang(2), created=5))
    run(given)
    found = ask(given, "next")
    assert list(found.fits_after) == ["team/w2"]
    assert found.attempts[0].quota == ""
    assert "allows to fit only 1 out of 2" in found.attempts[0].topology


def test_pods_of_strangers_are_not_thought_away() -> None:
    given = cluster()
    for name in ("n00", "n10"):
        feed(given, pod(f"p-{name}", name, 8))
    feed(given, workload("w", gang(2)))
    run(given)
    found = ask(given, "w")
    assert list(found.fits_after) == []
    assert found.reason is not None
    assert "even without any other workload" in found.reason.message


def test_what_can_never_be_placed_is_said_even_while_quota_is_the_first_to_refuse() -> None:
    given = cluster(gpus=32)
    feed(given, workload("w0", gang(2)))
    assert run(given) == ["w0"]
    feed(given, workload("wide", gang(3), created=1))
    run(given)
    found = ask(given, "wide")
    assert found.reason is not None
    assert (found.reason.layer, found.reason.where) == ("topology", "b0/r0")
    assert "The largest rack (b0/r0) has room for 2 of 3 pods" in found.reason.message
    (attempt,) = found.attempts
    assert "insufficient unused quota" in attempt.quota
    assert "The largest rack" in attempt.topology


def test_strict_fifo_names_who_holds_it_back() -> None:
    given = cluster(gpus=16, strict=True)
    for i, size in enumerate((1, 2, 1)):
        feed(given, workload(f"w{i}", gang(size), created=i))
    assert run(given) == ["w0"]
    found = ask(given, "w2")
    assert found.reason is not None
    assert "team/w1, which does not fit yet, is directly ahead of it" in found.reason.message
    assert found.fits_now is True


def test_strict_fifo_explains_itself_without_a_cycle_too() -> None:
    given = cluster(gpus=16, strict=True)
    for i, size in enumerate((9, 2, 1)):
        feed(given, workload(f"w{i}", gang(size), created=i))
    for name in ("n00", "n01", "n10", "n11"):
        given.delete_node(name)
    for name in ("n00", "n10"):
        feed(given, node(name, rack=f"r{name[1]}"))
        feed(given, node(f"{name}b", rack=f"r{name[1]}"))
    given.set_pod(pod("p", "n00", 8))
    feed(given, workload("busy", gang(1), created=-1))
    given.cycle(at(0), limit=1)
    found = ask(given, "w2")
    assert found.reason is not None
    assert "team/w1" in found.reason.message
    assert ask(given, "w0").reason is not None


def test_what_is_missing_of_an_admission_is_named() -> None:
    given, item = cluster(), workload("w", gang(2))
    feed(given, item)
    (admit,) = given.cycle(at(0)).decisions
    again = engine(topology(), flavor("h100", "fabric"), local_queue(), node("n00"))
    feed(again, with_admission(item, admit.admission))
    assert ["n01" in problem for problem in ask(again, "w").problems] == [True]
    feed(again, node("n01"))
    run(again)
    assert list(ask(again, "w").problems) == []
