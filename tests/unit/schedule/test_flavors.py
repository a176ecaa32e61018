"""Which flavor a workload gets, and what is said when it gets none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serried.api.assignment import decode
from serried.api.kueue import Admission
from serried.schedule.engine import Engine
from serried.schedule.types.reasons import Reason
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    HOST,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    group,
    local_queue,
    node,
    pod_set,
    topology,
    workload,
)

SPOT_TAINT = [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]


def decide(given: Engine, *sets: dict[str, Any], name: str = "w", created: float = 0) -> Admission | Reason:
    """What becomes of this workload in the next cycle."""
    feed(given, workload(name, *sets, created=created))
    cycle = given.cycle(at(0))
    given.validate()
    for decision in cycle.decisions:
        if decision.key == (NS, name):
            return decision.admission
    return next(w.reason for w in cycle.waits if w.key == (NS, name))


def flavors(decided: Admission | Reason) -> list[Mapping[str, str]]:
    assert isinstance(decided, Admission), decided
    return [a.flavors for a in decided.pod_set_assignments]


def hosts(decided: Admission | Reason, pod_set: int = 0) -> list[tuple[str, int]]:
    assert isinstance(decided, Admission), decided
    assignment = decided.pod_set_assignments[pod_set].topology_assignment
    assert assignment is not None
    assert assignment.levels == [HOST]
    return [(values[0], count) for values, count in decode(assignment)]


def refusal(decided: Admission | Reason) -> Reason:
    assert isinstance(decided, Reason), decided
    assert decided.message.startswith("couldn't assign flavors to pod set ")
    return decided


class TestQuota:
    def given(self, *more: object, **quotas: Any) -> Engine:
        queue = cluster_queue(flavors={"spot": {"cpu": 4, **quotas}, "demand": {"cpu": 10, **quotas}})
        return engine(flavor("spot"), flavor("demand"), queue, local_queue(), *more)

    def test_the_first_flavor_with_room_is_taken(self) -> None:
        given = self.given()
        assert flavors(decide(given, pod_set(cpu=3), name="a")) == [{"cpu": "spot"}]
        assert flavors(decide(given, pod_set(cpu=2), name="b")) == [{"cpu": "demand"}]
        assert flavors(decide(given, pod_set(cpu=1), name="c")) == [{"cpu": "spot"}]

    def test_all_resources_of_a_group_come_from_one_flavor(self) -> None:
        queue = cluster_queue(flavors={"a": {"cpu": 4, "memory": "1Gi"}, "b": {"cpu": 4, "memory": "9Gi"}})
        given = engine(flavor("a"), flavor("b"), queue, local_queue())
        assert flavors(decide(given, pod_set(cpu=1, memory="2Gi"))) == [{"cpu": "b", "memory": "b"}]

    def test_groups_choose_for_themselves(self) -> None:
        groups = [group({"a": {"cpu": 1}, "b": {"cpu": 4}}), group({"x": {GPU: 8}})]
        given = engine(flavor("a"), flavor("b"), flavor("x"), cluster_queue(groups=groups), local_queue())
        assert flavors(decide(given, pod_set(cpu=2, gpu=8))) == [{"cpu": "b", GPU: "x"}]

    def test_pod_sets_are_served_one_after_the_other(self) -> None:
        given = self.given()
        decided = decide(given, pod_set(1, "driver", cpu=3), pod_set(2, "workers", cpu=2))
        assert flavors(decided) == [{"cpu": "spot"}, {"cpu": "demand"}]

    def test_pods_count_where_the_queue_covers_them(self) -> None:
        given = self.given(pods=3)
        decided = decide(given, pod_set(3, cpu=1))
        assert isinstance(decided, Admission)
        assert decided.pod_set_assignments[0].resource_usage == {"cpu": "3", "pods": "3"}
        reason = refusal(decide(given, pod_set(4, cpu=1), name="more", created=1))
        assert (reason.code, reason.what, reason.needed, reason.available) == ("ExceedsMaxQuota", "pods", "4", "3")

    def test_a_pod_set_of_no_pods_or_no_requests_is_admitted(self) -> None:
        given = self.given()
        assert flavors(decide(given, pod_set(0, cpu=9))) == [{"cpu": "spot"}]
        assert flavors(decide(given, pod_set(1), name="b")) == [{"cpu": "spot"}]

    def test_a_request_of_nothing_needs_no_quota(self) -> None:
        given = self.given()
        assert flavors(decide(given, pod_set(cpu=1, memory=0))) == [{"cpu": "spot"}]

    def test_waiting_says_what_is_missing_and_who_has_it(self) -> None:
        given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
        for i, cpu in enumerate((1, 3, 2, 3)):
            decide(given, pod_set(cpu=cpu), name=f"w{i}", created=i)
        reason = refusal(decide(given, pod_set(cpu="2500m"), name="late", created=9))
        assert (reason.layer, reason.code) == ("quota", "WaitingForQuota")
        assert (reason.what, reason.needed, reason.available, reason.missing) == ("cpu", "2500m", "1", "1500m")
        assert reason.where == "flavor f"
        assert "insufficient unused quota for cpu in flavor f, 1500m more needed" in reason.message
        assert "team/w1 (3), team/w3 (3), team/w2 (2) and 1 more" in reason.frees

    def test_more_than_the_queue_can_ever_have(self) -> None:
        given = self.given()
        reason = refusal(decide(given, pod_set(11, cpu=1)))
        assert (reason.layer, reason.code) == ("quota", "ExceedsMaxQuota")
        assert (reason.found, reason.allowed, reason.missing) == ("11", "at most 4", "7")
        assert reason.field == "requests of cpu in pod set main"

    def test_together_more_than_the_queue_can_ever_have(self) -> None:
        given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}), local_queue())
        reason = refusal(decide(given, pod_set(1, "driver", cpu=6), pod_set(1, "workers", cpu=6)))
        assert (reason.code, reason.needed, reason.available) == ("ExceedsMaxQuota", "12", "10")

    def test_when_one_flavor_may_come_free_that_is_the_reason(self) -> None:
        given = self.given()
        decide(given, pod_set(cpu=9), name="a")
        reason = refusal(decide(given, pod_set(cpu=5), name="b", created=1))
        assert (reason.code, reason.where) == ("WaitingForQuota", "flavor demand")

    def test_a_resource_without_quota_is_named(self) -> None:
        reason = refusal(decide(self.given(), pod_set(cpu=1, gpu=8)))
        assert (reason.code, reason.what, reason.found) == ("NoMatchingFlavor", GPU, "8")
        assert reason.allowed == "requests of cpu"
        assert GPU in reason.message

    def test_huge_requests_are_refused_not_wrapped(self) -> None:
        reason = refusal(decide(self.given(), pod_set(1000, cpu="9E")))
        assert (reason.code, reason.needed) == ("ExceedsMaxQuota", "9223372036854775807m")


class TestMatching:
    def test_a_tainted_flavor_is_for_those_who_tolerate_it(self) -> None:
        spot, demand = flavor("spot", nodeTaints=SPOT_TAINT), flavor("demand")
        queue = cluster_queue(flavors={"spot": {"cpu": 4}, "demand": {"cpu": 4}})
        given = engine(spot, demand, queue, local_queue())
        assert flavors(decide(given, pod_set(cpu=1), name="a")) == [{"cpu": "demand"}]
        tolerant = {"tolerations": [{"key": "spot", "operator": "Exists"}]}
        assert flavors(decide(given, pod_set(cpu=1, pod=tolerant), name="b")) == [{"cpu": "spot"}]

    def test_selectors_count_as_far_as_flavors_speak_of_them(self) -> None:
        labels = {"a": {"gpu": "a100"}, "h": {"gpu": "h100"}}
        queue = cluster_queue(flavors={"a": {"cpu": 4}, "h": {"cpu": 4}})
        given = engine(*(flavor(n, nodeLabels=v) for n, v in labels.items()), queue, local_queue())
        selector = {"nodeSelector": {"gpu": "h100", "disk": "ssd"}}
        assert flavors(decide(given, pod_set(cpu=1, pod=selector))) == [{"cpu": "h"}]

    def test_when_no_flavor_matches_each_says_why(self) -> None:
        queue = cluster_queue(flavors={"spot": {"cpu": 4}, "h": {"cpu": 4}})
        given = engine(
            flavor("spot", nodeTaints=SPOT_TAINT), flavor("h", nodeLabels={"gpu": "h100"}), queue, local_queue()
        )
        reason = refusal(decide(given, pod_set(cpu=1, pod={"nodeSelector": {"gpu": "b200"}})))
        assert reason.code == "NoMatchingFlavor"
        assert "untolerated taint spot=yes:NoSchedule in flavor spot" in reason.message
        assert "flavor h has gpu=h100, but the pods' nodeSelector wants gpu=b200" in reason.message


class TestPlaces:
    def cluster(self, *more: object, racks: int = 2, **flavors: dict[str, Any]) -> Engine:
        queue = cluster_queue(flavors=flavors or {"h100": {GPU: 64}})
        given = engine(topology(), flavor("h100", "fabric"), local_queue(), *more, queue)
        for rack in range(racks):
            for i in range(2):
                feed(given, node(f"n{rack}{i}", rack=f"r{rack}"))
        return given

    def test_a_gang_is_placed_within_its_level(self) -> None:
        given = self.cluster()
        first = decide(given, pod_set(2, required=RACK, ours=True, gpu=8), name="a")
        second = decide(given, pod_set(4, required=RACK, ours=True, gpu=4), name="b")
        assert [hosts(first), hosts(second)] == [[("n00", 1), ("n01", 1)], [("n10", 2), ("n11", 2)]]

    def test_without_a_request_a_queue_of_topologies_only_still_places(self) -> None:
        decided = decide(self.cluster(), pod_set(3, gpu=8))
        assert sum(count for _, count in hosts(decided)) == 3

    def test_without_a_request_a_mixed_queue_uses_the_flavor_without_topology(self) -> None:
        given = self.cluster(flavor("plain"), h100={GPU: 64}, plain={GPU: 8})
        decided = decide(given, pod_set(1, gpu=8))
        assert flavors(decided) == [{GPU: "plain"}]
        assert isinstance(decided, Admission)
        assert decided.pod_set_assignments[0].topology_assignment is None

    def test_pods_that_we_bind_get_a_node_each_even_without_topology(self) -> None:
        given = engine(
            flavor("plain"), cluster_queue(flavors={"plain": {GPU: 64}}), local_queue(), node("n0"), node("n1")
        )
        assert hosts(decide(given, pod_set(3, ours=True, gpu=4))) == [("n0", 2), ("n1", 1)]

    def test_the_next_flavor_is_tried_when_the_first_has_quota_but_no_place(self) -> None:
        given = self.cluster(flavor("h200", "fabric", nodeLabels={"gpu": "h200"}), h200={GPU: 64}, h100={GPU: 64})
        feed(given, node("m0", gpu="h200"))
        assert flavors(decide(given, pod_set(1, required=RACK, ours=True, gpu=8), name="a")) == [{GPU: "h200"}]
        assert flavors(decide(given, pod_set(2, required=RACK, ours=True, gpu=8), name="b")) == [{GPU: "h100"}]

    def test_a_driver_and_its_workers_see_each_other(self) -> None:
        given = self.cluster(racks=1)
        sets = [pod_set(1, "driver", ours=True, gpu=4), pod_set(1, "workers", required=RACK, ours=True, gpu=8)]
        decided = decide(given, *sets)
        assert hosts(decided, 0) != hosts(decided, 1)
        reason = refusal(decide(given, *sets, name="next", created=1))
        assert reason.code == "TopologyPlacementFailed"
        given.validate()

    def test_never_fits(self) -> None:
        reason = refusal(decide(self.cluster(), pod_set(3, required=RACK, ours=True, gpu=8)))
        assert (reason.layer, reason.code) == ("topology", "TopologyPlacementFailed")
        assert (reason.needed, reason.available, reason.missing, reason.what) == ("3", "2", "1", "pods")
        assert reason.where == "b0/r0"
        assert reason.constraint == f"all within one {RACK}"
        assert 'topology "fabric" allows to fit only 2 out of 3 pod(s)' in reason.message
        assert "The largest rack (b0/r0) has room for 2 of 3 pods even without any other workload" in reason.message
        assert reason.frees == ""

    def test_waits_for_the_best_domain(self) -> None:
        given = self.cluster()
        for name in ("a", "b"):
            decide(given, pod_set(1, required=RACK, ours=True, gpu=6), name=name)
        decide(given, pod_set(2, required=RACK, ours=True, gpu=8), name="c", created=1)
        reason = refusal(decide(given, pod_set(2, required=RACK, ours=True, gpu=8), name="d", created=2))
        assert (reason.code, reason.needed, reason.available) == ("TopologyPlacementFailed", "2", "0")
        assert "No rack has room for any of them now" in reason.message
        reason = refusal(decide(given, pod_set(3, required=RACK, ours=True, gpu=2), name="e", created=3))
        assert (reason.needed, reason.available, reason.missing) == ("3", "2", "1")
        assert "The best rack (b0/r0) has room for 2 of 3 pods now" in reason.message
        assert "rack (b0/r0)" in reason.frees

    def test_a_level_that_the_topology_does_not_have(self) -> None:
        reason = refusal(decide(self.cluster(), pod_set(1, required="example.com/row", gpu=1)))
        assert (reason.layer, reason.code) == ("input", "Misconfigured")
        assert (reason.field, reason.found) == ("spec.podSets[0].topologyRequest.required", "example.com/row")
        assert all(level in reason.allowed for level in (BLOCK, RACK, HOST))

    def test_slices_that_do_not_add_up(self) -> None:
        request = {"required": BLOCK, "podSetSliceRequiredTopology": RACK, "podSetSliceSize": 2}
        reason = refusal(decide(self.cluster(), pod_set(3, topology=request, gpu=1)))
        assert (reason.code, reason.field) == ("Misconfigured", "spec.podSets[0].topologyRequest.podSetSliceSize")

    def test_a_topology_request_in_a_queue_without_topologies(self) -> None:
        given = engine(flavor("plain"), cluster_queue(flavors={"plain": {GPU: 64}}), local_queue())
        reason = refusal(decide(given, pod_set(1, required=RACK, gpu=1)))
        assert reason.code == "NoMatchingFlavor"
        assert "flavor plain has no topology, which the pods request" in reason.message

    def test_pods_need_nodes_that_all_their_flavors_name(self) -> None:
        groups = [group({"fast": {"cpu": 99}}), group({"h100": {GPU: 64}})]
        given = engine(
            topology(),
            flavor("h100", "fabric"),
            flavor("fast", nodeLabels={"cpu": "fast"}),
            cluster_queue(groups=groups),
            local_queue(),
            node("n0"),
            node("n1", cpu="fast"),
        )
        assert hosts(decide(given, pod_set(1, required=RACK, ours=True, gpu=1, cpu=1))) == [("n1", 1)]

    def test_pods_that_request_a_topology_get_one_from_some_flavor_or_nothing(self) -> None:
        groups = [group({"fast": {"cpu": 99}}), group({"plain": {GPU: 64}})]
        given = engine(
            topology(), flavor("fast"), flavor("plain"), cluster_queue(groups=groups), local_queue(), node("n0")
        )
        reason = refusal(decide(given, pod_set(1, required=RACK, gpu=1, cpu=1)))
        assert reason.code == "NoMatchingFlavor"
        assert "flavor fast, plain has no topology" in reason.message

    def test_two_topologies_for_one_pod_are_refused(self) -> None:
        groups = [group({"fast": {"cpu": 99}}), group({"h100": {GPU: 64}})]
        given = engine(
            topology(), flavor("h100", "fabric"), flavor("fast", "fabric"), cluster_queue(groups=groups), local_queue()
        )
        reason = refusal(decide(given, pod_set(1, required=RACK, ours=True, gpu=1, cpu=1)))
        assert reason.code == "NoMatchingFlavor"
        assert "fast and h100" in reason.message

    def test_places_larger_than_a_node_are_for_pods_that_kube_scheduler_binds(self) -> None:
        queue = cluster_queue(flavors={"h100": {GPU: 64}})
        given = engine(topology(levels=(BLOCK, RACK)), flavor("h100", "fabric"), queue, local_queue())
        for name in ("n0", "n1"):
            feed(given, node(name))
        decided = decide(given, pod_set(2, required=RACK, gpu=8))
        assert isinstance(decided, Admission)
        assignment = decided.pod_set_assignments[0].topology_assignment
        assert assignment is not None
        assert (assignment.levels, decode(assignment)) == ([BLOCK, RACK], [(("b0", "r0"), 2)])


def test_a_resource_group_that_covers_nothing_has_quota_for_nothing() -> None:
    empty = {"coveredResources": [], "flavors": [{"name": "f", "resources": []}]}
    given = engine(flavor("f"), cluster_queue(groups=[empty]), local_queue())
    assert "cpu unavailable in ClusterQueue" in refusal(decide(given, pod_set(cpu=1), name="a")).message
    assert flavors(decide(given, pod_set(), name="b")) == [{}]
