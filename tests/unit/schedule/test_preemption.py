"""Who has to go for whom, and that what is freed is kept for the one it was freed for."""

from __future__ import annotations

from serried.api.core import Pod
from serried.api.names import POD_SET, WORKLOAD
from serried.model.schedulable import overbooked
from serried.schedule.engine import Engine
from serried.schedule.types.options import Options
from tests.unit.schedule.objects import (
    GPU,
    HOST,
    NS,
    RACK,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    node,
    pod,
    pod_set,
    topology,
)
from tests.unit.schedule.stories import LOWER, Story, queue


def member(workload: str, on: str, *, gpus: int) -> Pod:
    """A pod of a workload, on a node."""
    running = pod(f"{workload}-0", on, gpus=gpus)
    running.metadata.annotations = {WORKLOAD: workload}
    running.metadata.labels = {POD_SET: "main"}
    running.metadata.namespace = NS
    return running


def racks() -> Story:
    """Two racks of two nodes with 8 GPUs each."""
    spec = cluster_queue(flavors={"h100": {GPU: 64}}, preemption=LOWER)
    given = engine(topology(), flavor("h100", "fabric"), local_queue(), spec)
    for i in range(4):
        feed(given, node(f"n{i}", rack=f"r{i // 2}"))
    return Story(given)


def test_fewest_and_lowest_go_first() -> None:
    story = queue()
    for name, priority, cpu in (("low", 1, 4), ("mid", 2, 3), ("high", 5, 3)):
        story.submit(name, priority=priority, cpu=cpu)
    story.cycle()
    story.submit("urgent", priority=9, cpu=4)
    admitted, evictions, waits = story.cycle()
    assert admitted == []
    assert [(e.key[1], e.reason, e.preempted, e.preemptor) for e in evictions] == [
        ("low", "Preempted", "InClusterQueue", (NS, "urgent"))
    ]
    assert waits["urgent"].code == "WaitingForPreemptedWorkloads"
    assert "Pending the preemption of 1 workload(s)" in waits["urgent"].message


def test_where_nobody_carries_out_evictions_nobody_is_preempted() -> None:
    given = Engine(options=Options(preemption=False))
    given.set_namespace(NS, {})
    for item in (flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}, preemption=LOWER), local_queue()):
        feed(given, item)
    story = Story(given)
    story.submit("low", priority=1, cpu=10)
    story.cycle()
    story.submit("urgent", priority=9, cpu=6)
    _, evictions, waits = story.cycle()
    assert (evictions, waits["urgent"].code) == ([], "WaitingForQuota")


def test_equals_do_not_go() -> None:
    story = queue()
    story.submit("first", priority=5, cpu=8)
    story.cycle()
    story.submit("second", priority=5, cpu=4, created=1)
    admitted, evictions, waits = story.cycle()
    assert (admitted, evictions, waits["second"].code) == ([], [], "WaitingForQuota")


def test_what_is_freed_is_kept_for_the_one_it_was_freed_for() -> None:
    story = queue()
    story.submit("low", priority=1, cpu=10)
    story.cycle()
    story.submit("urgent", priority=9, cpu=6)
    _, evictions, _ = story.cycle()
    assert [e.key[1] for e in evictions] == ["low"]
    # While the victim is on its way out, 4 of its 10 are free at once; the other 6 belong to the preemptor.
    story.submit("small", priority=1, cpu=5, created=1)
    story.submit("tiny", priority=1, cpu=4, created=2)
    assert story.cycle()[:2] == (["tiny"], [])
    story.leave("low")
    assert story.cycle()[:2] == (["urgent"], [])


def test_a_preemptor_that_is_deleted_leaves_what_was_kept_to_others() -> None:
    story = queue()
    story.submit("low", priority=1, cpu=10)
    story.cycle()
    story.submit("urgent", priority=9, cpu=6)
    story.cycle()
    story.engine.delete_workload((NS, "urgent"))
    story.submit("other", priority=1, cpu=10, created=1)
    assert story.cycle()[0] == ["other"]
    story.leave("low")
    assert story.cycle()[0] == []


def test_an_eviction_that_the_server_refuses_is_taken_back() -> None:
    story = queue()
    story.submit("low", priority=1, cpu=10)
    story.cycle()
    story.submit("urgent", priority=9, cpu=6)
    story.cycle()
    story.engine.withdraw_eviction((NS, "low"))
    story.engine.validate()
    story.submit("small", priority=1, cpu=1, created=1)
    admitted, evictions, _ = story.cycle()
    assert (admitted, [(e.key[1], e.preemptor) for e in evictions]) == (["small"], [("low", (NS, "urgent"))])


def test_a_gang_preempts_exactly_those_who_free_one_rack() -> None:
    story = racks()
    for i in range(4):
        story.submit(f"job{i}", pod_set(1, required=RACK, ours=True, gpu=8), priority=1, created=i)
    assert len(story.cycle()[0]) == 4
    story.submit("gang", pod_set(2, required=RACK, ours=True, gpu=8), priority=5, created=9)
    _, evictions, _ = story.cycle()
    assert len(evictions) == 2
    hosts = set()
    for evict in evictions:
        reservation = story.engine.inspect().reservation(evict.key)
        assert reservation is not None
        (placement,) = reservation.placements
        hosts.add(placement.domains[0][0][-1])
    assert hosts in ({"n0", "n1"}, {"n2", "n3"})
    for evict in evictions:
        story.leave(evict.key[1])
    assert story.cycle()[0] == ["gang"]


def test_whoever_is_spared_holds_its_nodes_once() -> None:
    """A search for victims takes workloads away with their pods, and puts back whoever need not go."""
    story = racks()
    for i, priority in enumerate((1, 9, 2, 2)):
        here = {"nodeSelector": {HOST: f"n{i}"}}
        story.submit(f"job{i}", pod_set(1, required=RACK, ours=True, gpu=4, pod=here), priority=priority, created=i)
        story.cycle()
        story.engine.set_pod(member(f"job{i}", f"n{i}", gpus=4))
    story.submit("gang", pod_set(2, required=RACK, ours=True, gpu=8), priority=5, created=9)
    _, evictions, _ = story.cycle()  # which looks at the laws of the model
    assert sorted(e.key[1] for e in evictions) == ["job2", "job3"]
    story.submit("small", pod_set(2, required=RACK, ours=True, gpu=4), priority=1, created=10)
    assert story.cycle()[0] == ["small"], "4 GPUs are left on the nodes of each of those who stay"


def test_who_shares_a_node_with_a_victim_keeps_its_place_there() -> None:
    """While the victim's pods are on their way out, they and the preemptor's are more than there is: nobody else's
    matter."""
    story = racks()
    here = {"nodeSelector": {HOST: "n0"}}
    for name, priority in (("low", 1), ("beside", 9)):
        story.submit(name, pod_set(1, ours=True, gpu=4, pod=here), priority=priority)
    story.cycle()
    story.engine.set_pod(member("low", "n0", gpus=4))
    story.submit("urgent", pod_set(1, ours=True, gpu=4, pod=here), priority=5, created=1)
    assert [e.key[1] for e in story.cycle()[1]] == ["low"]
    assert overbooked(story.engine.world, (NS, "beside")) == set()


def test_a_gang_preempts_nobody_when_no_victims_free_a_rack() -> None:
    story = racks()
    # In each rack, one workload that may be preempted and one that may not.
    for i, priority in enumerate((1, 9, 1, 9)):
        here = {"nodeSelector": {HOST: f"n{i}"}}
        sets = pod_set(1, required=RACK, ours=True, gpu=8, pod=here)
        story.submit(f"job{i}", sets, priority=priority, created=i)
    assert len(story.cycle()[0]) == 4
    story.submit("gang", pod_set(2, required=RACK, ours=True, gpu=8), priority=5, created=9)
    _, evictions, waits = story.cycle()
    assert evictions == []
    assert waits["gang"].code == "TopologyPlacementFailed"


def test_nobody_goes_for_a_workload_that_can_never_fit() -> None:
    story = queue()
    story.submit("low", priority=1, cpu=6)
    story.cycle()
    story.submit("never", priority=9, cpu=11)
    _, evictions, waits = story.cycle()
    assert evictions == []
    assert waits["never"].code == "ExceedsMaxQuota"


def test_the_preemptor_waits_for_the_pods_of_its_victims_without_a_busy_loop() -> None:
    story = racks()
    story.submit("low", pod_set(4, ours=True, gpu=8), priority=1)
    story.cycle()
    running = member("low", "n0", gpus=8)
    story.engine.set_pod(running)
    story.submit("gang", pod_set(4, ours=True, gpu=8), priority=5, created=1)
    assert [e.key[1] for e in story.cycle()[1]] == ["low"]
    story.leave("low")
    assert story.cycle()[0] == []
    story.submit("other", pod_set(1, ours=True, gpu=8), priority=1, created=2)
    assert story.cycle()[0] == [], "the nodes are kept for the gang"
    story.engine.delete_pod(running.key)
    assert story.cycle()[0] == ["gang"]


def test_a_promise_ends_when_the_nodes_it_was_made_of_are_gone() -> None:
    story = racks()
    story.submit("low", pod_set(4, ours=True, gpu=8), priority=1)
    story.cycle()
    story.submit("gang", pod_set(4, ours=True, gpu=8), priority=5, created=1)
    story.cycle()
    story.engine.delete_node("n0")
    story.leave("low")
    admitted, _, waits = story.cycle()
    assert admitted == []
    assert waits["gang"].code == "TopologyPlacementFailed"
    story.submit("other", pod_set(1, ours=True, gpu=8), priority=1, created=2)
    assert story.cycle()[0] == ["other"]
