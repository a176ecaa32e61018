"""Gangs: who may take which place, and when."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from serried.api import names
from serried.api.core import Pod, PodSchedulingGate
from serried.api.names import CoschedulingPhase
from serried.gang import coscheduling
from serried.gang.membership import Gang, Member, Stage, completion_index, member
from serried.gang.plan import Move, PodSetPlan, moves, unschedulable_places

PLAN = PodSetPlan.of("main", [names.HOSTNAME], [(("n0",), 1), (("n1",), 2), (("n2",), 1)])


def pod(
    rank: int | None, stage: Stage = Stage.WAITING, *, node: str = "", name: str = "", deleting: bool = False
) -> Member:
    name = name or f"p-{rank}"
    return Member(name, f"uid-{name}", "main", rank, stage, node, (), deleting)


def gang(members: Iterable[Member]) -> Gang:
    result = Gang()
    for m in members:
        result.set(m)
    return result


def next_moves(gang: Gang, size: int = 4, plan: PodSetPlan = PLAN) -> list[Move]:
    return moves(gang, {"main": plan}, {"main": size}, lambda value: value)


def places(found: list[Move]) -> dict[str, str]:
    return {m.pod: m.values[-1] for m in found}


def test_nothing_moves_before_the_gang_is_whole_and_then_everybody_does_by_rank() -> None:
    three = gang(pod(i) for i in (3, 0, 1))
    assert next_moves(three) == []
    three.set(pod(2))
    assert places(next_moves(three)) == {"p-0": "n0", "p-1": "n1", "p-2": "n1", "p-3": "n2"}


def test_a_half_placed_gang_is_rolled_forward_with_those_who_are_there() -> None:
    half = gang([pod(0, Stage.BOUND, node="n0"), pod(2), pod(3)])
    assert places(next_moves(half)) == {"p-2": "n1", "p-3": "n2"}


def test_pods_on_their_way_do_not_move_twice() -> None:
    whole = gang(pod(i) for i in range(4))
    whole.in_flight.update({"uid-p-0", "uid-p-1"})
    assert places(next_moves(whole)) == {"p-2": "n1", "p-3": "n2"}
    whole.set(pod(0, Stage.BOUND, node="n0"))
    assert whole.in_flight == {"uid-p-1"}


def test_a_successor_waits_until_the_place_is_empty() -> None:
    running = [pod(i, Stage.READY, node=PLAN.places[i][0]) for i in range(3)]
    leaving = pod(3, Stage.READY, node="n2", name="old", deleting=True)
    both = gang([*running, leaving, pod(3, name="new")])
    assert next_moves(both) == []
    both.remove("old")
    assert places(next_moves(both)) == {"new": "n2"}


def test_those_of_an_earlier_run_neither_begin_the_gang_nor_keep_places_they_do_not_stand_on() -> None:
    """Rank 3 of the run before is dying on a node that is not in the plan any more, rank 0 on one that is rank 3's."""
    gone = pod(3, Stage.READY, node="lost", name="old-3", deleting=True)
    there = pod(0, Stage.READY, node="n2", name="old-0", deleting=True)
    fresh = gang([gone, there, *(pod(i) for i in (0, 1, 2))])
    assert next_moves(fresh) == []
    fresh.set(pod(3))
    assert places(next_moves(fresh)) == {"p-0": "n0", "p-1": "n1", "p-2": "n1"}
    fresh.remove("old-0")
    assert places(next_moves(fresh)) == {"p-0": "n0", "p-1": "n1", "p-2": "n1", "p-3": "n2"}


def test_more_pods_of_one_kind_do_not_stand_in_for_those_that_another_lacks() -> None:
    """A leader and three workers: four workers, or three and a pod of neither, are not the gang."""
    plans = {
        "leader": PodSetPlan.of("leader", [names.HOSTNAME], [(("n0",), 1)]),
        "main": PodSetPlan.of("main", [names.HOSTNAME], [(("n1",), 3)]),
    }
    sizes = {"leader": 1, "main": 3}
    there = gang(pod(i) for i in range(4))
    assert moves(there, plans, sizes, lambda value: value) == []
    there.set(Member("x", "uid-x", "", 0, Stage.WAITING, "", (), False))
    assert moves(there, plans, sizes, lambda value: value) == []
    there.set(Member("l", "uid-l", "leader", 0, Stage.WAITING, "", (), False))
    found = moves(there, plans, sizes, lambda value: value)
    assert places(found) == {"l": "n0", "p-0": "n1", "p-1": "n1", "p-2": "n1"}


def test_a_pod_that_needs_a_node_of_us_takes_no_place_in_a_rack() -> None:
    """kube-scheduler finds the node within a rack; a pod without a gate it does not get."""
    racks = PodSetPlan.of("main", ["rack"], [(("r0",), 2)])
    gated = Member("p-0", "uid-p-0", "main", 0, Stage.WAITING, "", (names.TOPOLOGY_GATE,), False)
    both = gang([gated, pod(1)])
    assert places(next_moves(both, 2, racks)) == {"p-0": "r0"}
    assert unschedulable_places(both, {"main": racks}, lambda *_: False, lambda value: value, every=False) == [("r0",)]


def closed(gang: Gang, *hosts: str, every: bool = False) -> list[str]:
    found = unschedulable_places(
        gang, {"main": PLAN}, lambda pod_set, levels, values: values[-1] not in hosts, lambda value: value, every=every
    )
    return [values[-1] for values in found]


def test_a_closed_place_matters_while_somebody_is_to_take_it() -> None:
    bound = [pod(i, Stage.READY, node=PLAN.places[i][0]) for i in range(3)]
    assert closed(gang(bound), "n0", "n1", every=True) == ["n0", "n1"]
    assert closed(gang(bound), "n0", "n1", "n2") == []
    assert closed(gang([*bound, pod(3)]), "n0", "n2") == ["n2"]
    assert closed(gang([*bound, pod(3, Stage.RELEASED, node="n2")]), "n2") == ["n2"]
    assert closed(gang([*bound, pod(3, Stage.RELEASED, node="n2", deleting=True)]), "n2") == []
    dying = pod(3, Stage.READY, node="n2", name="old", deleting=True)
    assert closed(gang([*bound, dying, pod(3)]), "n2") == ["n2"]
    assert closed(gang([*bound, pod(None, name="any")]), "n2") == ["n2"]
    on_its_way = gang([*bound, pod(3)])
    on_its_way.in_flight.add("uid-p-3")
    assert closed(on_its_way, "n2") == []


def test_a_finished_pods_place_is_free_for_its_successor() -> None:
    ended = gang([*(pod(i, Stage.READY, node="x") for i in range(3)), pod(3, Stage.FAILED, node="n2", name="old")])
    ended.set(pod(3, name="new"))
    assert places(next_moves(ended)) == {"new": "n2"}


def test_the_dead_of_an_earlier_run_do_not_make_a_gang_begun() -> None:
    leftover = gang([pod(0, Stage.FAILED, node="n0", name="dead"), pod(0), pod(1)])
    assert next_moves(leftover) == []


def test_pods_without_a_rank_fill_the_places_that_are_left() -> None:
    unranked = gang([pod(None, name=f"p{i}") for i in "abcd"])
    assert sorted(places(next_moves(unranked)).values()) == ["n0", "n1", "n1", "n2"]
    unranked.set(pod(None, Stage.BOUND, node="n1", name="pb"))
    assert sorted(places(next_moves(unranked)).values()) == ["n0", "n1", "n2"]


def test_ranks_beyond_the_gang_take_what_is_free() -> None:
    """A Job with more completions than parallelism: index 7 follows index 1, which is done."""
    members = [pod(i, Stage.READY, node=PLAN.places[i][0]) for i in (0, 2, 3)]
    later = gang([*members, pod(1, Stage.SUCCEEDED, node="n1"), pod(7)])
    assert places(next_moves(later)) == {"p-7": "n1"}


@given(
    st.lists(st.tuples(st.integers(0, 9) | st.none(), st.sampled_from(Stage), st.booleans()), max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_no_place_is_ever_given_twice(drawn: list[tuple[int | None, Stage, bool]], counts: list[int]) -> None:
    plan = PodSetPlan.of("main", [names.HOSTNAME], [((f"n{i}",), c) for i, c in enumerate(counts)])
    members = []
    for i, (rank, stage, deleting) in enumerate(drawn):
        # On a node stands at most what its places hold: bound pods stand where the plan puts them.
        node = plan.places[i % len(plan.places)][0] if stage not in (Stage.WAITING, Stage.HELD) else ""
        members.append(pod(rank, stage, node=node, name=f"p{i}", deleting=deleting))
    found = next_moves(gang(members), len(plan.places), plan)
    assert len({m.pod for m in found}) == len(found)
    given_out = [m.values[0] for m in found]
    for host in set(given_out):
        assert given_out.count(host) <= sum(v == (host,) for v in plan.places)
    assert len(found) <= len(plan.places)
    waiting = {m.name for m in members if m.stage is Stage.WAITING and not m.deleting}
    assert {m.pod for m in found} <= waiting


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Stage), st.booleans(), st.booleans()), max_size=30))
def test_counts_are_those_of_the_members(events: list[tuple[int, Stage, bool, bool]]) -> None:
    g = Gang()
    for rank, stage, deleting, gone in events:
        if gone:
            g.remove(f"p-{rank}")
        else:
            g.set(pod(rank, stage, deleting=deleting))
        assert g.counts == {s: sum(m.stage is s for m in g) for s in Stage}
        assert g.deleting == sum(m.deleting for m in g)
        assert g.waiting == {m.name for m in g if m.stage is Stage.WAITING and not m.deleting}


def test_a_member_is_read_off_its_pod() -> None:
    raw = Pod()
    raw.metadata.name, raw.metadata.uid = "a", "u"
    raw.spec.scheduler_name = names.SCHEDULER_NAME
    raw.metadata.labels = {names.POD_SET: "main", names.COMPLETION_INDEX: "3"}
    assert member(raw, completion_index(raw)) == Member("a", "u", "main", 3, Stage.WAITING, "", (), False)
    raw.metadata.labels[names.COMPLETION_INDEX] = "three"
    assert completion_index(raw) is None


def test_who_opens_the_gate_decides_whether_a_pod_waits_for_us() -> None:
    def stage(scheduler: str, *gates: str) -> Stage:
        raw = Pod()
        raw.spec.scheduler_name = scheduler
        raw.spec.scheduling_gates = tuple(PodSchedulingGate(name=g) for g in gates)
        return member(raw, None).stage

    assert stage("serried") is Stage.WAITING
    assert stage("serried", "other.example/gate") is Stage.HELD
    assert stage("default-scheduler", names.TOPOLOGY_GATE, "other.example/gate") is Stage.WAITING
    assert stage("default-scheduler") is Stage.RELEASED


def test_a_released_pod_keeps_its_place_until_it_is_bound_and_after() -> None:
    released = [pod(i, Stage.RELEASED, node=PLAN.places[i][0]) for i in range(3)]
    assert next_moves(gang([*released, pod(3, Stage.RELEASED, node="n2")])) == []
    unranked = [pod(None, Stage.RELEASED, node=PLAN.places[i][0], name=f"r{i}") for i in range(3)]
    assert places(next_moves(gang([*unranked, pod(None, name="last")]))) == {"last": "n2"}


def test_a_gang_waits_for_a_member_that_somebody_else_holds() -> None:
    assert next_moves(gang([*(pod(i) for i in range(3)), pod(3, Stage.HELD)])) == []


def test_podgroup_phases() -> None:
    def phase(members: Iterable[Member]) -> str:
        return coscheduling.status(gang(members), 2, occupied_by="", started=None).phase

    assert phase([]) == CoschedulingPhase.PENDING
    assert phase([pod(0)]) == CoschedulingPhase.SCHEDULING
    assert phase([pod(0, Stage.BOUND), pod(1)]) == CoschedulingPhase.SCHEDULING
    assert phase([pod(0, Stage.READY), pod(1, Stage.BOUND)]) == CoschedulingPhase.RUNNING
    assert phase([pod(0, Stage.SUCCEEDED), pod(1, Stage.READY)]) == CoschedulingPhase.RUNNING
    assert phase([pod(0, Stage.SUCCEEDED), pod(1, Stage.SUCCEEDED)]) == CoschedulingPhase.FINISHED
    assert phase([pod(0, Stage.SUCCEEDED), pod(1, Stage.FAILED)]) == CoschedulingPhase.FAILED
