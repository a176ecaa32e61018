"""Where pods go, told on small clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serried.api.core import Taint, Toleration
from serried.api.kueue import PodSetTopologyRequest, SliceConstraint
from serried.api.names import HOSTNAME
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.model.world import World
from serried.place.options import PlaceOptions
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement
from tests.unit.model.clusters import BLOCK, GPU, RACK, flavor, node, pod, racks


def workers(count: int, gpus: int = 8, *, name: str = "main", bound: bool = False, **wish: Any) -> PodSetRequest:
    topology = PodSetTopologyRequest(**wish) if wish else None
    return PodSetRequest(name, count, {GPU: gpus}, topology=topology, bound_by_us=bound)


def places(result: list[Placement] | NoPlacement, index: int = 0) -> dict[str, int]:
    assert not isinstance(result, NoPlacement), result.message
    return {"/".join(values): count for values, count in result[index].domains}


def refused(result: list[Placement] | NoPlacement) -> NoPlacement:
    assert isinstance(result, NoPlacement)
    return result


# --- best fit


def test_a_required_rack_is_the_one_that_fits_best() -> None:
    world = racks(4, 2, 3)
    assert places(place(world, "gpu", [workers(2, required=RACK)])) == {"b0-r1-n0": 1, "b0-r1-n1": 1}
    assert list(places(place(world, "gpu", [workers(3, required=RACK)]))) == ["b1-r0-n0", "b1-r0-n1", "b1-r0-n2"]


def test_preferred_goes_up_until_one_domain_holds_all() -> None:
    world = racks(2, 2, 3)
    result = place(world, "gpu", [workers(4, preferred=RACK)])
    assert list(places(result)) == ["b0-r0-n0", "b0-r0-n1", "b0-r1-n0", "b0-r1-n1"]


def test_preferred_spreads_over_the_top_when_nothing_holds_all() -> None:
    world = racks(2, 2, 3)
    assert sum(places(place(world, "gpu", [workers(6, preferred=RACK)])).values()) == 6


def test_unconstrained_fills_what_is_in_use_already() -> None:
    world = racks(3)
    world.set_pod(pod("other", "b0-r0-n1", {GPU: "6"}))
    assert places(place(world, "gpu", [workers(2, 1, unconstrained=True)])) == {"b0-r0-n1": 2}
    spread = [workers(9, 1, unconstrained=True)]
    assert places(place(world, "gpu", spread)) == {"b0-r0-n0": 7, "b0-r0-n1": 2}
    best_fit = PlaceOptions(least_free_when_unconstrained=False)
    assert places(place(world, "gpu", spread, options=best_fit)) == {"b0-r0-n0": 8, "b0-r0-n1": 1}


def test_without_a_wish_pods_go_anywhere() -> None:
    assert sum(places(place(racks(2, 2), "gpu", [workers(4)])).values()) == 4


def test_slices_stay_whole_in_their_rack() -> None:
    world = racks(3, 3)
    wish: dict[str, Any] = {"preferred": BLOCK, "pod_set_slice_required_topology": RACK, "pod_set_slice_size": 2}
    found = places(place(world, "gpu", [workers(4, **wish)]))
    assert found == {"b0-r0-n0": 1, "b0-r0-n1": 1, "b0-r1-n0": 1, "b0-r1-n1": 1}
    failed = refused(place(world, "gpu", [workers(6, **wish)]))
    assert (failed.needed, failed.fits, failed.slice_size) == (3, 2, 2)


def test_slices_in_slices() -> None:
    world = racks(2, 2)
    layers = [SliceConstraint(topology=RACK, size=8), SliceConstraint(topology=HOSTNAME, size=4)]
    wish: dict[str, Any] = {"required": BLOCK, "podset_slice_required_topology_constraints": layers}
    found = places(place(world, "gpu", [workers(16, 2, **wish)]))
    assert found == {"b0-r0-n0": 4, "b0-r0-n1": 4, "b0-r1-n0": 4, "b0-r1-n1": 4}


def test_a_leader_sits_with_its_workers() -> None:
    world = racks(2, 3)
    leader = workers(1, 8, name="leader", required=RACK, pod_set_group_name="g")
    crew = workers(2, 8, name="workers", required=RACK, pod_set_group_name="g")
    result = place(world, "gpu", [leader, crew])
    assert places(result, 0) == {"b0-r1-n0": 1}
    assert places(result, 1) == {"b0-r1-n1": 1, "b0-r1-n2": 1}


def group(leader: PodSetRequest, crew: PodSetRequest) -> list[PodSetRequest]:
    """A leader and its workers, together in one rack."""
    wish = PodSetTopologyRequest(required=RACK, pod_set_group_name="g")
    return [replace(leader, name="leader", topology=wish), replace(crew, name="workers", topology=wish)]


def test_a_leader_needs_a_node_that_its_own_filters_allow() -> None:
    world = racks(3)
    taint = Taint(key="maintenance", effect="NoSchedule")
    world.set_node(node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, taints=[taint]))
    tolerant = replace(workers(2, 1), tolerations=(Toleration(operator="Exists"),))
    result = place(world, "gpu", group(replace(workers(1, 1), node_selector={HOSTNAME: "b0-r0-n2"}), tolerant))
    assert places(result, 0) == {"b0-r0-n2": 1}
    result = place(world, "gpu", group(workers(1, 8), replace(tolerant, count=3, requests={GPU: 4})))
    assert places(result, 0) in ({"b0-r0-n1": 1}, {"b0-r0-n2": 1})
    assert refused(place(world, "gpu", group(replace(workers(1), node_selector={"disk": "fast"}), tolerant))).fits == 0
    # Nor do the workers go where only the leader may.
    result = place(world, "gpu", group(replace(tolerant, count=1), workers(2, 1)))
    assert not places(result, 1).keys() & {"b0-r0-n0"}
    world.set_pod(pod("p", "b0-r0-n2", {GPU: "8"}))
    result = place(world, "gpu", group(replace(tolerant, count=1), workers(1, 8)))
    assert (places(result, 0), places(result, 1)) == ({"b0-r0-n0": 1}, {"b0-r0-n1": 1})


def test_a_group_gets_nodes_when_one_of_its_two_is_bound_by_us() -> None:
    world = racks(2, keys=(BLOCK, RACK))
    for bound in ((True, False), (False, True)):
        leader, crew = (workers(n, bound=b) for n, b in zip((1, 1), bound, strict=True))
        result = place(world, "gpu", group(leader, crew))
        assert not isinstance(result, NoPlacement)
        assert [p.levels for p in result] == [(HOSTNAME,), (HOSTNAME,)]


def test_the_numbers_of_a_group_are_those_beside_its_leader() -> None:
    failed = refused(place(racks(3, 2), "gpu", group(workers(1), workers(3))))
    assert (failed.beside_leader, failed.fits, failed.best_domain) == (True, 2, ("b0", "b0-r0"))
    # No node has room for this leader. The text tells, as in Kueue, what fits without it in the first rack there is.
    world = racks(2, 3)
    for i in range(2):
        world.delete_node(f"b0-r0-n{i}")
    failed = refused(place(world, "gpu", group(workers(1, 9), workers(4))))
    assert (failed.fits, failed.best_domain) == (0, ())
    assert failed.message == 'topology "default" allows to fit only 3 out of 4 pod(s)'


def test_pod_sets_see_those_before_them_and_the_world_stays_as_it_was() -> None:
    world = racks(2)
    before = world.capacity.free.copy()
    result = place(world, "gpu", [workers(1, name="a", required=HOSTNAME), workers(1, name="b", required=HOSTNAME)])
    assert (places(result, 0), places(result, 1)) == ({"b0-r0-n0": 1}, {"b0-r0-n1": 1})
    assert refused(place(world, "gpu", [workers(2, name="a", required=RACK), workers(1, name="b")])).pod_set == "b"
    assert (world.capacity.free == before).all()


# --- which nodes


def test_nodes_that_cannot_be_used_are_as_if_not_there() -> None:
    world = racks(4)
    world.set_node(node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0"}, ready=False))
    world.set_node(node("b0-r0-n1", labels={BLOCK: "b0", RACK: "b0-r0"}, unschedulable=True))
    world.delete_node("b0-r0-n2")
    failed = refused(place(world, "gpu", [workers(2, required=RACK)]))
    assert (failed.total_nodes, failed.fits, failed.best_domain) == (1, 1, ("b0", "b0-r0"))
    world.delete_node("b0-r0-n3")
    assert refused(place(world, "gpu", [workers(1, required=RACK)])).message == f"no topology domains at level: {RACK}"


def test_tolerations_of_the_flavor_count_too() -> None:
    world = racks()
    taint = Taint(key="gpu", effect="NoSchedule")
    world.set_node(node("n", labels={BLOCK: "b", RACK: "r"}, taints=[taint]))
    failed = refused(place(world, "gpu", [workers(1)]))
    assert failed.excluded == {'taint "gpu:NoSchedule"': 1}
    tolerant = flavor()
    tolerant.spec.tolerations = (Toleration(key="gpu", operator="Exists"),)
    world.set_flavor(tolerant)
    assert places(place(world, "gpu", [workers(1)])) == {"n": 1}


def test_a_flavor_has_only_the_nodes_with_its_labels() -> None:
    world = racks(2)
    world.set_node(node("b0-r0-n1", labels={BLOCK: "b0", RACK: "b0-r0", "pool": "new"}))
    world.set_flavor(flavor("new", labels={"pool": "new"}))
    assert places(place(world, "new", [workers(1, required=RACK)])) == {"b0-r0-n1": 1}


def test_a_relabelled_node_is_looked_at_anew() -> None:
    world = racks(1)
    wanted = replace(workers(1), node_selector={"disk": "fast"})
    assert refused(place(world, "gpu", [wanted])).excluded == {"nodeSelector": 1}
    world.set_node(node("b0-r0-n0", labels={BLOCK: "b0", RACK: "b0-r0", "disk": "fast"}))
    assert places(place(world, "gpu", [wanted])) == {"b0-r0-n0": 1}


# --- pods bound by us, topologies without hosts, flavors without topology


def test_pods_bound_by_us_get_nodes_though_the_topology_ends_at_the_rack() -> None:
    world = racks(2, 2, keys=(BLOCK, RACK))
    bound = place(world, "gpu", [workers(2, required=RACK, bound=True)])
    assert places(bound) == {"b0-r0-n0": 1, "b0-r0-n1": 1}
    assert not isinstance(bound, NoPlacement)
    assert bound[0].levels == (HOSTNAME,)
    left = place(world, "gpu", [workers(2, required=RACK)])
    assert places(left) == {"b0/b0-r0": 2}
    assert not isinstance(left, NoPlacement)
    assert left[0].levels == (BLOCK, RACK)


def test_both_kinds_share_the_nodes_of_a_rack() -> None:
    world = racks(2, keys=(BLOCK, RACK))
    left = [workers(2, 4, required=RACK)]
    result = place(world, "gpu", left)
    assert not isinstance(result, NoPlacement)
    world.hold(("default", "left"), result, left)
    world.journal.commit()
    assert places(place(world, "gpu", [workers(1, 8, required=RACK, bound=True)])) == {"b0-r0-n1": 1}
    assert refused(place(world, "gpu", [workers(2, 8, required=RACK, bound=True)])).fits == 1
    # kube-scheduler put one of them on the node that looked free.
    world.set_pod(pod("p", "b0-r0-n1", {GPU: "4"}, workload="left"))
    assert places(place(world, "gpu", [workers(2, 4, required=RACK, bound=True)])) == {"b0-r0-n0": 1, "b0-r0-n1": 1}


def test_without_a_topology_only_pods_bound_by_us_need_a_place() -> None:
    world = racks(2)
    world.set_flavor(flavor("plain", topology=""))
    result = place(world, "plain", [workers(1), workers(9, 1, name="bound", bound=True)])
    assert not isinstance(result, NoPlacement)
    assert (result[0].levels, result[0].domains) == ((), ())
    assert sum(places(result, 1).values()) == 9
    assert places(place(world, "plain", [workers(1, bound=True, required=HOSTNAME)])) == {"b0-r0-n0": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", 'there is no ResourceFlavor "none"'),
        ("plain", 'Flavor "plain" does not support TopologyAwareScheduling'),
        ("lost", 'there is no Topology "nowhere" with levels, which ResourceFlavor "lost" names'),
    ],
)
def test_a_wish_without_a_topology_is_refused(name: str, message: str) -> None:
    world = racks(1)
    world.set_flavor(flavor("plain", topology=""))
    world.set_flavor(flavor("lost", topology="nowhere"))
    failed = refused(place(world, name, [workers(1, required=RACK)]))
    assert (failed.message, failed.field) == (message, "topologyRequest")


# --- why not


def test_too_large_for_any_rack() -> None:
    """Nine pods of a whole node each, and racks of eight nodes."""
    world = racks(8, 8)
    world.hold(("default", "small"), [Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1),))], [workers(1)])
    failed = refused(place(world, "gpu", [workers(9, required=RACK)]))
    assert failed.message == (
        'topology "default" allows to fit only 8 out of 9 pod(s). Total nodes: 16; '
        'excluded: resource "example.com/gpu": 1'
    )
    assert (failed.level, failed.needed, failed.fits, failed.best_domain) == (RACK, 9, 8, ("b0", "b0-r1"))
    assert failed.limited_by == {GPU: 8}
    assert (failed.fits_when_empty, failed.fits_empty, failed.best_domain_empty) == (False, 8, ("b0", "b0-r0"))


def test_waits_for_what_others_hold() -> None:
    world = racks(2)
    world.hold(("default", "small"), [Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1),))], [workers(1)])
    failed = refused(place(world, "gpu", [workers(2, required=RACK)]))
    assert (failed.fits, failed.fits_when_empty, failed.fits_empty) == (1, True, 2)
    assert places(place(world, "gpu", [workers(2, required=RACK)], assume_empty=True)) == {"b0-r0-n0": 1, "b0-r0-n1": 1}


def test_spread_over_all_there_is_no_best_domain() -> None:
    failed = refused(place(racks(2, 2), "gpu", [workers(9, preferred=RACK)]))
    assert (failed.level, failed.fits, failed.best_domain) == (BLOCK, 4, ())
    assert failed.limited_by == {GPU: 4}


def test_a_resource_that_no_node_has() -> None:
    failed = refused(place(racks(1), "gpu", [PodSetRequest("main", 1, {"example.com/nic": 1})]))
    assert failed.excluded == {'resource "example.com/nic"': 1}
    assert failed.fits_when_empty is False


@pytest.mark.parametrize(
    ("pod_set", "field", "message"),
    [
        (workers(1, required="rack"), "topologyRequest.required", "no requested topology level: rack"),
        (workers(1, preferred="rack"), "topologyRequest.preferred", "no requested topology level: rack"),
        (workers(1, pod_set_group_name="g"), "topologyRequest", "topology level not specified"),
        (
            workers(2, required=BLOCK, pod_set_slice_required_topology=RACK),
            "topologyRequest.podSetSliceSize",
            "slice topology requested, but slice size not provided",
        ),
        (
            workers(3, required=BLOCK, pod_set_slice_required_topology=RACK, pod_set_slice_size=2),
            "count",
            "the number of pods, 3, is not a multiple of the slice size 2",
        ),
        (workers(-1), "count", "-1 pods; from 0 to 2147483647 are possible"),
        (workers(2**40), "count", f"{2**40} pods; from 0 to 2147483647 are possible"),
    ],
)
def test_requests_that_can_never_be_met_name_their_field(pod_set: PodSetRequest, field: str, message: str) -> None:
    failed = refused(place(racks(1), "gpu", [pod_set]))
    assert (failed.field, failed.message) == (field, message)
    assert failed.fits_when_empty is None


def test_a_group_has_one_leader() -> None:
    group = [workers(n, name=str(n), required=RACK, pod_set_group_name="g") for n in (1, 2, 3)]
    failed = refused(place(racks(4), "gpu", group))
    assert (failed.pod_set, failed.field) == ("1", "topologyRequest.podSetGroupName")
    assert refused(place(racks(4), "gpu", group[1:])).field == "topologyRequest.podSetGroupName"


def test_no_pods_need_no_place() -> None:
    world = racks(2)
    result = place(world, "gpu", [workers(0, required=RACK)])
    assert result == [Placement("main", "gpu", (HOSTNAME,), ())]
    head = workers(1, name="head", required=RACK, pod_set_group_name="g")
    result = place(world, "gpu", [head, workers(0, name="workers", required=RACK, pod_set_group_name="g")])
    assert (places(result, 0), places(result, 1)) == ({"b0-r0-n0": 1}, {})


# --- a failed node


def held(world: World, *hosts: str, count: int = 1) -> Placement:
    placement = Placement("main", "gpu", (HOSTNAME,), tuple(((h,), count) for h in hosts))
    world.hold(("default", "train"), [placement], [workers(len(hosts) * count)])
    world.journal.commit()
    return placement


def test_a_failed_node_is_replaced_in_the_rack_and_the_others_stay() -> None:
    world = racks(3, 3)
    current = held(world, "b0-r0-n0", "b0-r0-n1")
    world.delete_node("b0-r0-n1")
    lost = Replacement("b0-r0-n1", {"main": current})
    assert places(place(world, "gpu", [workers(2, required=RACK)], replacement=lost)) == {"b0-r0-n0": 1, "b0-r0-n2": 1}
    world.delete_node("b0-r0-n2")
    failed = refused(place(world, "gpu", [workers(2, required=RACK)], replacement=lost))
    assert failed.message == (
        'topology "default" doesn\'t allow to fit any of 1 pod(s). Total nodes: 4; '
        'excluded: resource "example.com/gpu": 1, topologyDomain: 3'
    )
    anywhere = place(world, "gpu", [workers(2, preferred=RACK)], replacement=lost)
    assert places(anywhere) == {"b0-r0-n0": 1, "b0-r1-n0": 1}


def test_a_node_where_no_pod_is_changes_nothing() -> None:
    world = racks(3)
    current = held(world, "b0-r0-n0")
    assert place(world, "gpu", [workers(1)], replacement=Replacement("b0-r0-n2", {"main": current})) == [current]


def test_nothing_is_replaced_while_another_node_is_gone_too() -> None:
    world = racks(4)
    current = held(world, "b0-r0-n0", "b0-r0-n1")
    world.delete_node("b0-r0-n0")
    failed = refused(place(world, "gpu", [workers(2)], replacement=Replacement("b0-r0-n1", {"main": current})))
    assert "stale domain b0-r0-n0" in failed.message


def test_a_lone_pod_keeps_its_node() -> None:
    world = racks(2)
    current = held(world, "b0-r0-n0")
    lone = Replacement("b0-r0-n0", {"main": current}, lone_pod=True)
    assert place(world, "gpu", [workers(1)], replacement=lone) == [current]
    moves = replace(lone, lone_pod=False)
    assert places(place(world, "gpu", [workers(1)], replacement=moves)) == {"b0-r0-n1": 1}


def test_a_lost_node_is_not_its_own_replacement() -> None:
    """It may be ready: what is wrong with it, somebody else has found out."""
    world = racks(2)
    current = held(world, "b0-r0-n0")
    replaced = place(world, "gpu", [workers(1, 4)], replacement=Replacement("b0-r0-n0", {"main": current}))
    assert places(replaced) == {"b0-r0-n1": 1}
    world.set_node(node("b0-r0-n1", labels={BLOCK: "b0", RACK: "b0-r0"}, ready=False))
    world.release(("default", "train"))
    refused(place(world, "gpu", [workers(1, 4)], replacement=Replacement("b0-r0-n0", {"main": current})))


def test_a_rack_with_the_name_of_a_lost_node_is_not_lost() -> None:
    world = racks(2, 1, keys=(BLOCK, RACK))
    current = Placement("main", "gpu", (BLOCK, RACK), ((("b0", "b0-r0"), 1),))
    lost = Replacement("b0-r0", {"main": current})
    assert place(world, "gpu", [workers(1, required=RACK)], replacement=lost) == [current]


def placed_group(world: World) -> Replacement:
    """A leader on b0-r0-n0 and its three workers beside it in a rack of five, with one node lost."""
    pod_sets = group(workers(1), workers(3))
    result = place(world, "gpu", pod_sets)
    assert (places(result, 0), len(places(result, 1))) == ({"b0-r0-n0": 1}, 3)
    assert not isinstance(result, NoPlacement)
    world.hold(("default", "train"), result, pod_sets)
    world.journal.commit()
    return Replacement("b0-r0-n0", {p.pod_set: p for p in result})


def test_a_lost_leader_stays_with_its_workers() -> None:
    world = racks(4, 8)
    lost = placed_group(world)
    world.delete_node("b0-r0-n0")
    pod_sets = group(workers(1), workers(3))
    failed = refused(place(world, "gpu", pod_sets, replacement=lost))
    assert failed.excluded == {'resource "example.com/gpu"': 3, "topologyDomain": 8}
    world.set_node(node("b0-r0-n9", labels={BLOCK: "b0", RACK: "b0-r0"}))
    result = place(world, "gpu", pod_sets, replacement=lost)
    assert (places(result, 0), result[1]) == ({"b0-r0-n9": 1}, lost.current["workers"])  # type: ignore[index]
    # Slices are of the workers.
    sliced = [replace(p, topology=replace_wish(p)) for p in pod_sets]
    assert place(world, "gpu", sliced, replacement=lost) == result


def replace_wish(pod_set: PodSetRequest) -> PodSetTopologyRequest:
    assert pod_set.topology is not None
    return PodSetTopologyRequest(
        required=pod_set.topology.required,
        pod_set_group_name=pod_set.topology.pod_set_group_name,
        pod_set_slice_required_topology=RACK,
        pod_set_slice_size=3,
    )


def test_lost_workers_stay_with_their_leader() -> None:
    world = racks(3, 8)
    pod_sets = group(workers(1), workers(1))
    current = {
        n: Placement(n, "gpu", (HOSTNAME,), ((("b0-r0-" + h,), 1),)) for n, h in (("leader", "n0"), ("workers", "n1"))
    }
    world.hold(("default", "train"), list(current.values()), pod_sets)
    result = place(world, "gpu", pod_sets, replacement=Replacement("b0-r0-n1", current))
    assert (places(result, 0), places(result, 1)) == ({"b0-r0-n0": 1}, {"b0-r0-n2": 1})


def test_a_group_that_was_on_one_node_moves_together() -> None:
    world = racks(1, 2, 1)
    pod_sets = group(workers(1, 4), workers(1, 4))
    current = {n: Placement(n, "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1),)) for n in ("leader", "workers")}
    world.hold(("default", "train"), list(current.values()), pod_sets)
    for name in ("b0-r1-n0", "b0-r1-n1", "b1-r0-n0"):
        world.set_pod(pod(f"beside-{name}", name, {GPU: "4"}))
    result = place(world, "gpu", pod_sets, replacement=Replacement("b0-r0-n0", current))
    assert {**places(result, 0), **places(result, 1)} == {"b0-r1-n0": 1, "b0-r1-n1": 1}


def test_slices_between_the_lost_and_the_innermost_layer_stay_whole() -> None:
    """Eight pods in a block, four of them in a rack, two of those on a node; and a node with four of them is lost."""
    world = racks(1, 2, 1, 3, keys=("zone", BLOCK, RACK, HOSTNAME))
    layers = [SliceConstraint(topology=k, size=n) for k, n in ((BLOCK, 8), (RACK, 4), (HOSTNAME, 2))]
    wish = [workers(8, 2, required="zone", podset_slice_required_topology_constraints=layers)]
    for name, rack, gpus in (("a", "0", 8), ("b", "1", 8), ("c", "2", 4), ("d", "3", 4)):
        labels = {"zone": "z", BLOCK: "x", RACK: rack}
        world.set_node(node(name, labels=labels, allocatable={GPU: gpus, "pods": "9"}))
    current = Placement("main", "gpu", (HOSTNAME,), ((("a",), 4), (("b",), 4)))
    world.hold(("default", "train"), [current], wish)
    world.delete_node("b")
    # Two and two would fit, into two racks; but four belong into one.
    lost = Replacement("b", {"main": current})
    failed = refused(place(world, "gpu", wish, replacement=lost))
    assert (failed.needed, failed.fits, failed.slice_size) == (1, 0, 4)
    world.set_node(node("e", labels={"zone": "z", BLOCK: "x", RACK: "3"}, allocatable={GPU: 4, "pods": "9"}))
    assert places(place(world, "gpu", wish, replacement=lost)) == {"a": 4, "d": 2, "e": 2}


# --- other algorithms


def test_balanced_spreads_evenly() -> None:
    world = racks(4)
    wish = [workers(10, 2, preferred=RACK)]
    assert sorted(places(place(world, "gpu", wish)).values()) == [2, 4, 4]
    assert sorted(places(place(world, "gpu", wish, options=PlaceOptions(balanced=True))).values()) == [3, 3, 4]


def test_balanced_gives_up_where_there_is_too_much_to_choose_from() -> None:
    """A million pods on a thousand nodes: a selection among them would take gigabytes."""
    world = racks(keys=(HOSTNAME,))
    for i in range(1000):
        world.set_node(node(f"n{i:03}", allocatable={GPU: "1000", "pods": "1000"}))
    wish = [workers(10**6, 1, preferred=HOSTNAME)]
    balanced = place(world, "gpu", wish, options=PlaceOptions(balanced=True))
    assert balanced == place(world, "gpu", wish)
    assert set(places(balanced).values()) == {1000}
    # Nor is there a table as large as what fits on one node.
    world = racks(keys=(HOSTNAME,))
    world.set_node(node("wide", allocatable={"pods": str(10**8)}))
    assert places(place(world, "gpu", [workers(5, 0, preferred=HOSTNAME)], options=PlaceOptions(balanced=True)))


def test_options_are_read_by_the_names_of_feature_gates() -> None:
    assert PlaceOptions.from_gates({}) == PlaceOptions()
    gates = {"TASBalancedPlacement": True, "TASProfileMixed": False, "SomethingElse": True}
    assert PlaceOptions.from_gates(gates) == PlaceOptions(balanced=True, least_free_when_unconstrained=False)
