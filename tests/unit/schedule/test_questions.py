"""Whatever the engine is asked, its model stays as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest

from serried.api.duration import Duration
from serried.api.kueue import Cohort
from serried.schedule.engine import Engine
from serried.schedule.types.options import AdmissionFairSharing, FairSharing, Options
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    feed,
    finished,
    flavor,
    local_queue,
    node,
    pod,
    pod_set,
    topology,
    with_admission,
    workload,
)
from tests.unit.schedule.stories import CHECKS, check

#: What is only remembered so that it need not be worked out again, by the name of its class.
REMEMBERED = {
    "World": {"_trees", "_vectors", "fit_cache", "hold_changes", "holds", "pods"},
    "Nodes": {"_columns"},
    "State": {"departures", "event", "flavors", "topologies"},
    "WorkloadIndex": {"top_holders"},
    "QuotaNode": {"_lendable", "parent", "children", "borrowers"},
}


def picture(thing: Any) -> Any:
    """All that an object holds, down to plain values: two pictures are equal if and only if the objects are."""
    if thing is None or isinstance(thing, str | int | float | bytes | Enum) or callable(thing):
        return thing
    if isinstance(thing, np.ndarray):
        return thing.shape, thing.tobytes()
    if isinstance(thing, Mapping):
        return {repr(picture(key)): picture(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [picture(item) for item in thing]
    if isinstance(thing, Set):
        return sorted(map(repr, thing))
    if isinstance(thing, msgspec.Struct):
        return msgspec.to_builtins(thing, enc_hook=float)
    if dataclasses.is_dataclass(thing):
        fields = {field.name for field in dataclasses.fields(thing)}
    else:
        fields = {*getattr(thing, "__slots__", ()), *getattr(thing, "__dict__", ())}
    return {name: picture(getattr(thing, name)) for name in fields - REMEMBERED.get(type(thing).__name__, set())}


@pytest.fixture
def given() -> Engine:
    """Something of everything: admitted, reserving, waiting for quota, nodes, victims and its time; a node that went
    with a hold on it, a ClusterQueue that went with its usage, and changes that no cycle has looked at."""
    options = Options(
        fair_sharing=FairSharing(),
        admission_fair_sharing=AdmissionFairSharing(
            usage_half_life_time=Duration(10), usage_sampling_interval=Duration(1)
        ),
    )
    engine = Engine(options=options)
    engine.set_namespace(NS, {})
    for item in (topology(), flavor("h100", "fabric"), flavor("spot")):
        feed(engine, item)
    for i in range(4):
        feed(engine, node(f"n{i}", rack=f"r{i // 2}"))
    engine.set_cohort(msgspec.convert({"metadata": {"name": "all"}, "spec": {"parentName": "above"}}, Cohort))
    policies = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    more: dict[str, Any] = {"cohortName": "all", "preemption": policies}
    groups = {"h100": {GPU: 16, "cpu": 8}, "spot": {GPU: 4, "cpu": 8}}
    feed(engine, cluster_queue("a", groups, **more))
    feed(engine, cluster_queue("b", groups, strict=True, **more))
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    feed(engine, cluster_queue("c", {"spot": {"cpu": 2}}, admissionScope=scope))
    feed(engine, cluster_queue("gone", {"spot": {"cpu": 2}}))
    engine.set_admission_check(check("budget"))
    feed(engine, cluster_queue("checked", {"spot": {"cpu": 2}}, **CHECKS))
    for name in ("a", "b", "c", "gone", "checked"):
        feed(engine, local_queue(name, name))

    def admit(name: str, *sets: dict[str, Any], **more: Any) -> None:
        job = workload(name, *sets, **more)
        feed(engine, job)
        decision = next(d for d in engine.cycle(at(10)).decisions if d.key[1] == name)
        feed(engine, with_admission(job, decision.admission, admitted=decision.admitted))

    gang = pod_set(2, required=RACK, ours=True, gpu=8)
    admit("holder", gang, queue="a")
    admit("lost", gang, queue="b", created=1)
    admit("widow", queue="gone", cpu=1)
    admit("reserving", queue="checked", cpu=1)
    feed(engine, pod("stranger", "n0", 0))
    engine.delete_node("n3")
    engine.delete_cluster_queue("gone")
    feed(engine, workload("urgent", gang, queue="a", priority=5, created=2))
    feed(engine, workload("blocked", pod_set(2, required=BLOCK, ours=True, gpu=8), queue="b", created=3))
    feed(engine, workload("behind", queue="b", cpu=1, created=4))
    feed(engine, workload("never", pod_set(9, required=RACK, gpu=8), queue="a", created=5))
    for i in range(3):
        feed(engine, workload(f"c{i}", queue="c", cpu=2, created=i))
    feed(engine, finished(workload("over", queue="a", cpu=1)))
    feed(engine, workload("nowhere", queue="nowhere", cpu=1))
    engine.set_malformed("Workload", (NS, "bad"), "?")
    engine.cycle(at(20))
    feed(engine, workload("new", gang, queue="a", created=6))
    feed(engine, node("n3", rack="r1"))
    engine.validate()
    return engine


def test_no_question_changes_anything(given: Engine) -> None:
    keys = [found.key for found in given.inspect().workloads()] + [(NS, "unknown")]
    queues = [*("a", "b", "c", "gone", "unknown")]
    states = {found.state for found in given.inspect().workloads()}
    assert len(states) == 7, states
    before = picture(given._state)

    def unchanged(question: str) -> None:
        after = picture(given._state)
        assert {name for name in before if before[name] != after[name]} == set(), question

    for key in keys:
        given.explain(key, at(30))
        unchanged(f"explain {key}")
        given.holds(key)
        given.resource_requests(key)
        given.inspect().workload(key)
        given.inspect().story(key)
        given.inspect().reservation(key)
        unchanged(f"view of {key}")
    for name in queues:
        for queue in (("", name), (NS, name)):
            given.status(queue)
            given.inspect().local_usage(queue)
        given.inspect().queue(name)
        given.inspect().usage(name)
        given.inspect().available(name, ("h100", GPU))
        given.cohort_status(name)
        unchanged(f"status of {name}")
    given.inspect().cohort_usage()
    assert given.dirty
    assert given.has_news
    assert given.wake_at is not None
    assert len(list(given.inspect().workloads())) == len(keys) - 1
    given.validate()
    unchanged("the whole")


def test_the_picture_would_show_a_change(given: Engine) -> None:
    before = picture(given._state)
    given.withdraw_eviction((NS, "holder"))
    after = picture(given._state)
    assert {"workloads", "ledger", "world", "requeue", "cluster_queues"} <= {n for n in before if before[n] != after[n]}
