"""Queues that are missing, stopped, wrong or closed to a namespace: who is told what; and what queues report."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.kueue import ClusterQueueStatus, LocalQueue, LocalQueueStatus
from serried.api.meta import Condition, find_condition
from serried.schedule.engine import Engine
from serried.schedule.types.reasons import Reason
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


def told(given: Engine) -> dict[str, Reason]:
    given.validate()
    return {wait.key[1]: wait.reason for wait in given.cycle(at(0)).waits}


def active(given: Engine, name: str = "cq", namespace: str = "") -> tuple[str, str, str]:
    status = given.status((namespace, name))
    assert status is not None
    condition = find_condition(status.conditions, "Active")
    assert condition is not None
    return condition.status, condition.reason, condition.message


class TestMissing:
    def test_no_local_queue_named(self) -> None:
        reason = told(engine(local_queue(), workload("w", queue="")))["w"]
        assert (reason.layer, reason.code, reason.field) == ("queue", "Inadmissible", "spec.queueName")
        assert "lq" in reason.allowed

    def test_no_such_local_queue(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), local_queue("elsewhere", namespace="x"))
        feed(given, workload("w", queue="nope", cpu=1))
        reason = told(given)["w"]
        assert (reason.field, reason.found, reason.allowed) == ("spec.queueName", "nope", "lq")
        assert "no LocalQueue nope in namespace team" in reason.message
        feed(given, local_queue("nope"))
        assert run(given) == ["w"]

    def test_no_such_cluster_queue(self) -> None:
        given = engine(flavor("default"), local_queue(), workload("w", cpu=1))
        reason = told(given)["w"]
        assert reason.code == "Inadmissible"
        assert "spec.clusterQueue is 'cq', but there is no such ClusterQueue" in reason.message
        assert active(given, "lq", NS)[:2] == ("False", "ClusterQueueDoesNotExist")
        feed(given, cluster_queue())
        assert run(given) == ["w"]
        assert active(given, "lq", NS)[:2] == ("True", "Ready")

    def test_a_queue_that_goes_away_leaves_its_workloads_waiting(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), workload("w", cpu=99))
        assert told(given)["w"].code == "ExceedsMaxQuota"
        given.delete_cluster_queue("cq")
        assert "no such ClusterQueue" in told(given)["w"].message
        feed(given, cluster_queue())
        given.delete_local_queue((NS, "lq"))
        assert "no LocalQueue lq" in told(given)["w"].message
        given.delete_local_queue((NS, "lq"))
        given.delete_cluster_queue("never there")
        given.validate()

    def test_a_local_queue_that_leads_elsewhere_takes_its_workloads_along(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), workload("w", cpu=99))
        told(given)
        feed(given, cluster_queue("big", {"default": {"cpu": 100}}))
        feed(given, local_queue(cluster_queue="big"))
        assert run(given) == ["w"]
        status = given.status(("", "cq"))
        assert isinstance(status, ClusterQueueStatus)
        assert status.pending_workloads == 0


class TestInactive:
    @pytest.mark.parametrize(
        ("spec", "reason", "text"),
        [
            ({"stopPolicy": "Hold"}, "Stopped", "spec.stopPolicy is Hold"),
            ({"stopPolicy": "HoldAndDrain"}, "Stopped", "spec.stopPolicy is HoldAndDrain"),
            ({"flavors": {"nope": {"cpu": 1}}}, "FlavorNotFound", "spec.resourceGroups[0].flavors[0].name: found nope"),
            (
                {"flavors": {"lost": {"cpu": 1}}},
                "TopologyNotFound",
                "spec.topologyName of ResourceFlavor lost: found nowhere",
            ),
            (
                {"flavors": {"default": {"cpu": "-1"}}},
                "Misconfigured",
                "nominalQuota: found -1, allowed: a quantity >= 0",
            ),
            (
                {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}},
                "AdmissionCheckNotFound",
                "admissionChecksStrategy names budget",
            ),
        ],
    )
    def test_the_queue_and_its_workloads_say_why(self, spec: dict[str, Any], reason: str, text: str) -> None:
        given = engine(flavor("default"), flavor("lost", "nowhere"), local_queue(), workload("w", cpu=1))
        feed(given, cluster_queue(**spec))
        assert active(given)[:2] == ("False", reason)
        assert text in active(given)[2]
        assert active(given, "lq", NS)[0] == "False"
        why = told(given)["w"]
        assert why.code == ("Suspended" if reason == "Stopped" else "Inadmissible")
        assert text in why.message
        assert why.where in ("ClusterQueue cq", "LocalQueue team/lq")
        feed(given, cluster_queue())
        assert active(given)[:2] == ("True", "Ready")
        assert run(given) == ["w"]

    def test_flavors_and_topologies_that_come_and_go(self) -> None:
        given = engine(cluster_queue(flavors={"h100": {GPU: 8}}), local_queue(), node("n0"))
        feed(given, workload("w", pod_set(1, required=RACK, ours=True, gpu=8)))
        assert active(given)[1] == "FlavorNotFound"
        feed(given, flavor("h100", "fabric"))
        assert active(given)[1] == "TopologyNotFound"
        feed(given, topology())
        assert active(given)[1] == "Ready"
        given.delete_topology("fabric")
        assert active(given)[1] == "TopologyNotFound"
        assert run(given) == []
        feed(given, topology())
        given.delete_flavor("h100")
        assert active(given)[1] == "FlavorNotFound"
        feed(given, flavor("h100", "fabric"))
        assert run(given) == ["w"]

    def test_a_queue_that_is_being_deleted_admits_nothing_more(self) -> None:
        given = engine(flavor("default"), local_queue(), workload("w", cpu=1))
        queue = cluster_queue()
        queue.metadata.deletion_timestamp = at(0)
        feed(given, queue)
        assert active(given)[:2] == ("False", "Terminating")
        assert run(given) == []

    def test_a_stopped_local_queue(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(stopPolicy="Hold"), workload("w", cpu=1))
        assert active(given, "lq", NS)[:2] == ("False", "Stopped")
        why = told(given)["w"]
        assert (why.code, why.where) == ("Suspended", "LocalQueue team/lq")
        feed(given, local_queue())
        assert run(given) == ["w"]


class TestNamespaces:
    SELECTOR = {"matchLabels": {"team": "a"}}

    def test_a_queue_is_open_to_the_namespaces_it_selects(self) -> None:
        given = engine(flavor("default"), cluster_queue(selector=self.SELECTOR), local_queue(), workload("w", cpu=1))
        why = told(given)["w"]
        assert why.code == "Inadmissible"
        assert "Namespace team is not selected by the namespaceSelector of ClusterQueue cq" in why.message
        given.set_namespace(NS, {"team": "a"})
        given.set_namespace(NS, {"team": "b"})
        assert run(given) == []
        given.set_namespace(NS, {"team": "a"})
        assert run(given) == ["w"]

    def test_without_a_selector_it_is_open_to_none(self) -> None:
        given = engine(flavor("default"), cluster_queue(selector=None), local_queue(), workload("w", cpu=1))
        assert told(given)["w"].code == "Inadmissible"
        feed(given, cluster_queue())
        assert run(given) == ["w"]

    def test_what_waits_is_inadmissible_when_the_namespace_or_selector_changes(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), workload("w", cpu=99))
        assert told(given)["w"].code == "ExceedsMaxQuota"
        feed(given, cluster_queue(selector=self.SELECTOR))
        assert told(given)["w"].code == "Inadmissible"
        given.set_namespace(NS, {"team": "a"})
        assert told(given)["w"].code == "ExceedsMaxQuota"
        given.delete_namespace(NS)
        assert told(given)["w"].code == "Inadmissible"


class TestUnreadable:
    def test_a_workload(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), workload("w", cpu=1))
        given.set_malformed("Workload", (NS, "w"), "expected `int`, got `str` at `$.spec.priority`")
        why = told(given)["w"]
        assert (why.layer, why.code) == ("input", "Misconfigured")
        assert "$.spec.priority" in why.message
        found = given.explain((NS, "w"), at(0))
        assert found is not None
        assert (found.state, found.reason) == ("unreadable", why)
        feed(given, workload("w", cpu=1, version=2))
        assert run(given) == ["w"]

    def test_a_workload_that_runs_keeps_what_it_holds(self) -> None:
        given = engine(flavor("default"), cluster_queue(), local_queue(), workload("w", cpu=8))
        (admit,) = given.cycle(at(0)).decisions
        feed(given, with_admission(workload("w", cpu=8), admit.admission))
        given.set_malformed("Workload", (NS, "w"), "broken")
        feed(given, workload("next", cpu=8))
        assert run(given) == []
        given.delete_workload((NS, "w"))
        assert run(given) == ["next"]

    def test_a_cluster_queue_new_or_known(self) -> None:
        given = engine(flavor("default"), local_queue(), workload("w", cpu=1))
        for _ in range(2):
            given.set_malformed("ClusterQueue", ("", "cq"), "broken")
            assert active(given)[:2] == ("False", "Misconfigured")
            assert "broken" in told(given).get("w", Reason("queue", "", "broken")).message
            feed(given, cluster_queue())
            assert active(given)[:2] == ("True", "Ready")
        assert run(given) == ["w"]

    @pytest.mark.parametrize("kind", ["LocalQueue", "ResourceFlavor", "Topology", "Node", "Lease"])
    def test_other_kinds_are_as_if_absent(self, kind: str) -> None:
        queue = cluster_queue(flavors={"h100": {GPU: 8}})
        given = engine(topology(), flavor("h100", "fabric"), queue, local_queue(), node("n0"))
        name = {"LocalQueue": "lq", "ResourceFlavor": "h100", "Topology": "fabric", "Node": "n0", "Lease": "x"}[kind]
        given.set_malformed(kind, (NS if kind == "LocalQueue" else "", name), "broken")
        feed(given, workload("w", pod_set(1, ours=True, gpu=8)))
        assert run(given) == (["w"] if kind == "Lease" else [])


class TestStatus:
    def given(self) -> Engine:
        queue = cluster_queue(flavors={"a": {"cpu": 4, "memory": "4Gi"}, "b": {"cpu": 4, "memory": "4Gi"}})
        queue.metadata.generation = 3
        return engine(flavor("a"), flavor("b"), queue, local_queue(), local_queue("other"))

    def test_every_declared_cell_is_reported_zeros_too(self) -> None:
        status = self.given().status(("", "cq"))
        assert isinstance(status, ClusterQueueStatus)
        assert status.conditions == [
            Condition(
                type="Active", status="True", reason="Ready", message="Can admit new workloads", observed_generation=3
            )
        ]
        assert (status.pending_workloads, status.reserving_workloads, status.admitted_workloads) == (0, 0, 0)
        nothing = [
            {
                "name": name,
                "resources": [
                    {"name": "cpu", "total": "0", "borrowed": "0"},
                    {"name": "memory", "total": "0", "borrowed": "0"},
                ],
            }
            for name in ("a", "b")
        ]
        assert msgspec.to_builtins(status.flavors_reservation) == nothing
        assert msgspec.to_builtins(status.flavors_usage) == nothing

    def test_counts_and_usage_per_local_queue(self) -> None:
        given = self.given()
        for i, (cpu, queue) in enumerate(((3, "lq"), ("1500m", "other"), (9, "other"))):
            feed(given, workload(f"w{i}", cpu=cpu, queue=queue, memory="1Gi", created=i))
        run(given)
        whole, one, other = (given.status(key) for key in (("", "cq"), (NS, "lq"), (NS, "other")))
        assert isinstance(whole, ClusterQueueStatus)
        assert isinstance(one, LocalQueueStatus)
        assert isinstance(other, LocalQueueStatus)
        numbers = [(s.pending_workloads, s.reserving_workloads, s.admitted_workloads) for s in (whole, one, other)]
        assert numbers == [(1, 2, 2), (0, 1, 1), (1, 1, 1)]
        totals = [[[r.total for r in f.resources] for f in s.flavors_reservation] for s in (whole, one, other)]
        assert totals == [
            [["3", "1Gi"], ["1500m", "1Gi"]],
            [["3", "1Gi"], ["0", "0"]],
            [["0", "0"], ["1500m", "1Gi"]],
        ]
        assert "borrowed" not in msgspec.to_builtins(one)["flavorsUsage"][0]["resources"][0]

    def test_only_queues_whose_numbers_changed_are_named_and_once(self) -> None:
        given = self.given()
        given.queues_changed()
        feed(given, workload("w", cpu=1))
        assert given.queues_changed() == {("", "cq"), (NS, "lq")}
        run(given)
        assert given.queues_changed() == {("", "cq"), (NS, "lq")}
        feed(given, node("n0"))
        feed(given, workload("w", cpu=1))
        assert given.queues_changed() == set()
        feed(given, finished(workload("w", cpu=1)))
        assert given.queues_changed() == {("", "cq"), (NS, "lq")}

    def test_there_is_no_status_of_what_is_not_there(self) -> None:
        given = self.given()
        assert given.status(("", "nope")) is None
        assert given.status((NS, "nope")) is None

    def test_inactive_workloads_do_not_count_as_pending(self) -> None:
        given = self.given()
        feed(given, workload("w", cpu=1, active=False))
        feed(given, workload("wrong", cpu="x"))
        status = given.status((NS, "lq"))
        assert isinstance(status, LocalQueueStatus)
        assert status.pending_workloads == 1

    def test_a_local_queue_without_cluster_queue_reports_nothing_used(self) -> None:
        given = engine(msgspec.convert({"metadata": {"namespace": NS, "name": "lq"}}, LocalQueue))
        status = given.status((NS, "lq"))
        assert isinstance(status, LocalQueueStatus)
        assert status.flavors_reservation == []
