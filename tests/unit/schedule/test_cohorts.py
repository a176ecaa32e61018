"""ClusterQueues of one cohort lend to each other, within limits, and whoever has a right to it gets it back."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.kueue import ClusterQueueStatus, Cohort
from serried.schedule.engine import Engine
from tests.unit.schedule.objects import (
    NS,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    group,
    local_queue,
    run,
    with_admission,
    workload,
)
from tests.unit.schedule.stories import teams


def cohort(name: str, parent: str = "", **quota: Any) -> Cohort:
    spec: dict[str, Any] = {"parentName": parent}
    if quota:
        spec["resourceGroups"] = [group({"f": quota})]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Cohort)


def limited(name: str, **limits: Any) -> Any:
    quota = {"name": "cpu", "nominalQuota": 10, **limits}
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}]
    return cluster_queue(name, groups=groups, cohortName="all")


def test_a_team_borrows_what_another_one_does_not_use() -> None:
    given = teams("a", "b")
    feed(given, workload("w1", queue="a", cpu=20))
    assert run(given) == ["w1"]
    status = given.status(("", "a"))
    assert isinstance(status, ClusterQueueStatus)
    (usage,) = status.flavors_reservation[0].resources
    assert (usage.total, usage.borrowed) == ("20", "10")


def test_borrowing_and_lending_end_at_their_limits() -> None:
    given = engine(flavor("f"), limited("a", borrowingLimit=5), limited("b"), local_queue("a", "a"))
    feed(given, workload("w1", queue="a", cpu=16))
    feed(given, workload("w2", queue="a", cpu=15))
    assert run(given) == ["w2"]
    given = engine(flavor("f"), limited("a"), limited("b", lendingLimit=3), local_queue("a", "a"))
    feed(given, workload("w1", queue="a", cpu=14))
    feed(given, workload("w2", queue="a", cpu=13))
    assert run(given) == ["w2"]


def test_what_one_team_gives_back_wakes_the_others() -> None:
    given = teams("a", "b", a={"preemption": {}}, b={"preemption": {}})
    feed(given, workload("w1", queue="a", cpu=20))
    assert run(given) == ["w1"]
    feed(given, workload("w2", queue="b", cpu=10))
    assert run(given) == []
    given.delete_workload((NS, "w1"))
    assert run(given) == ["w2"]


def test_a_tree_of_three_levels_lends_from_the_top() -> None:
    given = teams("a", cohort="team")
    feed(given, cluster_queue("b", {"f": {"cpu": 0}}, cohortName="other"))
    feed(given, local_queue("b", "b"))
    for found in (cohort("org", cpu=5), cohort("team", "org"), cohort("other", "org", cpu=2)):
        given.set_cohort(found)
    feed(given, workload("w1", queue="b", cpu=17))
    feed(given, workload("w2", queue="b", cpu=18))
    assert run(given) == ["w1"]


def test_cohorts_in_a_circle_are_told_so_until_the_circle_is_broken() -> None:
    given = teams("a", cohort="x")
    given.set_cohort(cohort("x", "y"))
    given.set_cohort(cohort("y", "x"))
    feed(given, workload("w", queue="a", cpu=1))
    assert run(given) == []
    status = given.status(("", "a"))
    assert isinstance(status, ClusterQueueStatus)
    assert status.conditions[0].reason == "CohortCycle"
    assert "x → y → x" in status.conditions[0].message
    given.delete_cohort("y")
    assert run(given) == ["w"]


def share_of(given: Engine, name: str) -> int:
    status = given.cohort_status(name)
    assert status is not None
    assert status.fair_sharing is not None
    return status.fair_sharing.weighted_share


def active(given: Engine, name: str) -> tuple[str, str, str]:
    status = given.cohort_status(name)
    assert status is not None
    (condition,) = status.conditions
    return condition.status, condition.reason, condition.message


def test_a_cohort_says_what_share_it_borrows() -> None:
    given = teams("a", "b", fair=True, b={"cohortName": "other"})
    for name in ("all", "other"):
        given.set_cohort(cohort(name, "org"))
    given.set_cohort(cohort("org", cpu=20))
    feed(given, workload("w", queue="a", cpu=15))
    assert run(given) == ["w"]
    given.queues_changed()
    assert given.cohorts_changed() == {"all", "other", "org"}
    # 5 beyond its own 10, of the 40 there are
    assert (share_of(given, "all"), share_of(given, "other"), share_of(given, "org")) == (125, 0, 0)
    feed(given, cluster_queue("b", {"f": {"cpu": 70}}, cohortName="other"))
    assert given.has_news
    assert given.queues_changed() >= {("", "a"), ("", "b")}  # what can be lent has changed for both
    assert given.cohorts_changed() == {"all", "other", "org"}
    assert share_of(given, "all") == 50
    assert given.cohort_status("nowhere") is None


def test_without_fair_sharing_a_cohort_has_no_share_and_usage_is_no_news_of_it() -> None:
    given = teams("a")
    given.set_cohort(cohort("all"))
    given.queues_changed()
    assert given.cohorts_changed() == {"all"}
    feed(given, workload("w", queue="a", cpu=5))
    assert run(given) == ["w"]
    given.queues_changed()
    assert given.cohorts_changed() == set()
    status = given.cohort_status("all")
    assert status is not None
    assert status.fair_sharing is None


def test_a_cohort_that_cannot_be_used_says_so_and_so_do_those_below() -> None:
    given = teams("a", cohort="x")
    given.set_cohort(cohort("x", "y"))
    assert active(given, "x")[:2] == ("True", "Ready")
    given.set_cohort(cohort("y", "x"))
    given.queues_changed()
    assert given.cohorts_changed() == {"x", "y"}
    assert active(given, "x")[:2] == active(given, "y")[:2] == ("False", "CohortCycle")
    assert "x → y → x" in active(given, "x")[2]
    given.set_cohort(cohort("y", cpu="lots"))
    assert given.cohorts_changed() == {"x", "y"}
    for name in ("x", "y"):
        status, reason, message = active(given, name)
        assert (status, reason) == ("False", "Misconfigured")
        assert "Cohort y" in message
        assert "lots" in message
    given.set_cohort(cohort("y", cpu=5))
    assert active(given, "x")[:2] == active(given, "y")[:2] == ("True", "Ready")
    given.set_malformed("Cohort", ("", "y"), "spec is a number")
    assert active(given, "x")[1] == "Misconfigured"


def test_a_cohort_that_gets_quota_wakes_those_who_wait() -> None:
    given = teams("a")
    feed(given, workload("w", queue="a", cpu=15))
    assert run(given) == []
    given.set_cohort(cohort("all", cpu=5))
    assert run(given) == ["w"]


def test_a_cohort_that_cannot_be_right_is_told_to_the_queues_below_it() -> None:
    given = teams("a", cohort="team")
    given.set_cohort(cohort("team", "org"))
    given.set_cohort(cohort("org", cpu="-3"))
    feed(given, workload("w", queue="a", cpu=1))
    assert run(given) == []
    status = given.status(("", "a"))
    assert isinstance(status, ClusterQueueStatus)
    assert status.conditions[0].reason == "Misconfigured"
    assert "Cohort org: spec.resourceGroups[0].flavors[0].resources[0].nominalQuota" in status.conditions[0].message
    given.set_cohort(cohort("org", cpu=3))
    assert run(given) == ["w"]
    given.set_malformed("Cohort", ("", "org"), "expected int, got str")
    feed(given, workload("x", queue="a", cpu=1))
    assert run(given) == []


def test_of_two_teams_the_one_with_the_smaller_share_is_served_first() -> None:
    given = teams("a", "b", "bank", fair=True, a={"cpu": 0}, b={"cpu": 0})
    for i in range(4):
        feed(given, workload(f"a{i}", queue="a", cpu=3, created=i))
        feed(given, workload(f"b{i}", queue="b", cpu=3, created=10 + i))
    assert run(given) == ["a0", "b0", "a1"]


def test_shares_follow_weights() -> None:
    weight = {"cpu": 0, "fairSharing": {"weight": "2"}}
    given = teams("a", "b", "bank", fair=True, a=weight, b={"cpu": 0}, bank={"cpu": 9})
    for i in range(9):
        feed(given, workload(f"a{i}", queue="a", cpu=1, created=100 + i))
        feed(given, workload(f"b{i}", queue="b", cpu=1, created=i))
    admitted = run(given)
    assert (sum(n[0] == "a" for n in admitted), sum(n[0] == "b" for n in admitted)) == (6, 3)


def test_a_borrower_gives_way_to_the_owner_and_comes_back() -> None:
    given = teams("a", "b")
    big = workload("big", queue="a", cpu=12)
    feed(given, big)
    (admit,) = given.cycle(at(0)).decisions
    feed(given, with_admission(big, admit.admission))
    feed(given, workload("own", queue="b", cpu=10, created=1))
    (evict,) = given.cycle(at(1)).evictions
    assert (evict.key, evict.preempted, evict.preemptor) == ((NS, "big"), "InCohortReclamation", (NS, "own"))
    assert "due to reclamation within the cohort; preemptor path: /all/b; preemptee path: /all/a" in evict.message
    given.validate()
    given.set_workload(workload("big", queue="a", cpu=12, version=9))
    assert run(given) == ["own"]
    given.delete_workload((NS, "own"))
    assert run(given) == ["big"]
