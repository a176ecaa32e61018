"""Cohorts, borrowing and preemption: on any tree, with any policies, in any order of events, the laws hold."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serried.api.kueue import Admission, ClusterQueue, Cohort, Workload
from serried.api.meta import Condition, Key
from serried.schedule.cycle.cycle import Evict
from serried.schedule.engine import Engine
from serried.schedule.state.records import WorkloadState
from serried.schedule.types.options import FairSharing, Options
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    at,
    feed,
    finished,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    with_admission,
    workload,
)

COHORTS = ("c0", "c1", "c2")
QUEUES = ("q0", "q1", "q2", "q3")
POLICIES = ("Never", "LowerPriority", "Any")
AMOUNTS = st.one_of(st.none(), st.integers(0, 6))


def groups(cpu: int, gpu: int, borrowing: int | None, lending: int | None) -> list[dict[str, Any]]:
    def quota(resource: str, nominal: int) -> dict[str, Any]:
        limits = {"borrowingLimit": borrowing, "lendingLimit": lending}
        return {"name": resource, "nominalQuota": nominal, **{k: v for k, v in limits.items() if v is not None}}

    return [
        {"coveredResources": ["cpu"], "flavors": [{"name": "plain", "resources": [quota("cpu", cpu)]}]},
        {"coveredResources": [GPU], "flavors": [{"name": "racks", "resources": [quota(GPU, gpu)]}]},
    ]


class AdmissionStory(RuleBasedStateMachine):
    """An engine, and an API server that takes its decisions at once, later, or not at all."""

    @initialize(fair=st.booleans(), tree=st.lists(st.integers(0, 3), min_size=7, max_size=7), data=st.data())
    def start(self, fair: bool, tree: list[int], data: st.DataObject) -> None:
        self.options = Options(fair_sharing=FairSharing() if fair else None)
        #: cohorts and ClusterQueues as they are now
        self.cohorts: dict[str, Cohort] = {}
        self.queues: dict[str, ClusterQueue] = {}
        self.engine = self.empty()
        self.objects: dict[str, Workload] = {}
        self.version = self.submitted = 0
        self.in_flight: dict[Key, Admission] = {}
        self.leaving: dict[Key, Evict] = {}
        #: (victim, preemptor) since the preemptor was last admitted or let down
        self.pairs: set[tuple[Key, Key]] = set()
        self.cut = False
        for name, parent in zip(COHORTS, tree, strict=False):
            self.set_cohort(name, parent)
        for name, cohort in zip(QUEUES, tree[3:], strict=True):
            self.set_queue(name, cohort, data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6), AMOUNTS, AMOUNTS)))
            self.engine.set_local_queue(local_queue(name, name))

    def empty(self) -> Engine:
        """An engine that knows of nodes and flavors."""
        engine = Engine(options=self.options)
        engine.set_namespace(NS, {})
        for item in (topology(), flavor("racks", "fabric"), flavor("plain")):
            feed(engine, item)
        for i in range(4):
            feed(engine, node(f"n{i}", rack=f"r{i % 2}", gpus=2))
        return engine

    def set_cohort(self, name: str, parent: int, quota: tuple[int, int, int | None, int | None] | None = None) -> None:
        spec: dict[str, Any] = {"parentName": COHORTS[parent]} if parent < len(COHORTS) else {}
        if quota is not None:
            spec["resourceGroups"] = groups(*quota)
        self.cohorts[name] = msgspec.convert({"metadata": {"name": name}, "spec": spec}, Cohort)
        self.engine.set_cohort(self.cohorts[name])

    def set_queue(
        self,
        name: str,
        cohort: int,
        quota: tuple[int, int, int | None, int | None],
        policies: tuple[str, str, str] = ("LowerPriority", "Any", "Never"),
        strict: bool = False,
    ) -> None:
        within, reclaim, borrow = policies
        spec: dict[str, Any] = {
            "resourceGroups": groups(*quota),
            "namespaceSelector": {},
            "queueingStrategy": "StrictFIFO" if strict else "BestEffortFIFO",
            "preemption": {
                "withinClusterQueue": within,
                "reclaimWithinCohort": reclaim,
                "borrowWithinCohort": {"policy": borrow},
            },
        }
        if cohort < len(COHORTS):
            spec["cohortName"] = COHORTS[cohort]
        self.queues[name] = msgspec.convert({"metadata": {"name": name}, "spec": spec}, ClusterQueue)
        self.engine.set_cluster_queue(self.queues[name])

    def write(self, given: Workload) -> None:
        self.version += 1
        given.metadata.resource_version = str(self.version)
        self.objects[given.metadata.name] = given
        self.engine.set_workload(given)

    # --- what users and administrators do

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 2),
        cpu=st.integers(0, 5),
        count=st.integers(1, 3),
        gang=st.booleans(),
    )
    def submit(self, queue: str, priority: int, cpu: int, count: int, gang: bool) -> None:
        self.submitted += 1
        shape = pod_set(count, required=RACK, ours=True, gpu=1) if gang else pod_set(count, cpu=cpu)
        name = f"w{self.submitted}"
        self.write(workload(name, shape, queue=queue, priority=priority, created=self.submitted))

    @rule(
        name=st.sampled_from(QUEUES),
        cohort=st.integers(0, 3),
        quota=st.tuples(st.integers(0, 6), st.integers(0, 6), AMOUNTS, AMOUNTS),
        policies=st.tuples(st.sampled_from(POLICIES), st.sampled_from(POLICIES), st.sampled_from(POLICIES[:2])),
        strict=st.booleans(),
    )
    def edit_queue(
        self,
        name: str,
        cohort: int,
        quota: tuple[int, int, int | None, int | None],
        policies: tuple[str, str, str],
        strict: bool,
    ) -> None:
        # Two equals that may each preempt the other would go on for ever, as the policies ask for.
        within = "LowerPriority" if policies[0] == "Any" else policies[0]
        self.cut = True
        self.set_queue(name, cohort, quota, (within, *policies[1:]), strict)

    @rule(
        name=st.sampled_from(COHORTS),
        parent=st.integers(0, 3),
        quota=st.tuples(st.integers(0, 6), st.integers(0, 6), AMOUNTS, AMOUNTS),
    )
    def edit_cohort(self, name: str, parent: int, quota: tuple[int, int, int | None, int | None]) -> None:
        self.cut = True
        self.set_cohort(name, parent, quota)

    @rule(name=st.sampled_from(COHORTS))
    def delete_cohort(self, name: str) -> None:
        self.cut = True
        self.cohorts.pop(name, None)
        self.engine.delete_cohort(name)

    @precondition(lambda self: self.objects)
    @rule(data=st.data(), what=st.sampled_from(["finish", "delete"]))
    def end(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.objects)))
        key = (NS, name)
        self.in_flight.pop(key, None)
        self.leaving.pop(key, None)
        given = self.objects.pop(name)
        self.forget(key)
        if what == "finish":
            self.version += 1
            self.engine.set_workload(finished(given, version=self.version))
        else:
            self.engine.delete_workload(key)

    def forget(self, preemptor: Key) -> None:
        self.pairs = {pair for pair in self.pairs if pair[1] != preemptor}

    # --- what the controller does

    @rule(limit=st.sampled_from([1, 3, 100]))
    def cycle(self, limit: int) -> None:
        result = self.engine.cycle(at(1000), limit=limit)
        for admit in result.decisions:
            assert admit.key not in self.in_flight, "decided twice"
            self.in_flight[admit.key] = admit.admission
            self.forget(admit.key)
        for evict in result.evictions:
            assert evict.preemptor is not None
            pair = (evict.key, evict.preemptor)
            assert pair not in self.pairs, f"{evict.key} is preempted again for {evict.preemptor}"
            assert evict.key not in self.leaving, f"{evict.key} is preempted twice"
            self.pairs.add(pair)
            self.leaving[evict.key] = evict
        if not self.cut:
            self.within_limits()

    def within_limits(self) -> None:
        """Without edits, nothing is used or promised beyond what the limits allow."""
        view = self.engine.inspect()
        for name in QUEUES:
            for fr in view.usage(name):
                assert view.available(name, fr) >= 0, f"{fr} of {name} is exceeded"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), accepted=st.booleans())
    def answer(self, data: st.DataObject, accepted: bool) -> None:
        self.admitted(data.draw(st.sampled_from(sorted(self.in_flight))), accepted=accepted)

    def admitted(self, key: Key, *, accepted: bool) -> None:
        admission = self.in_flight.pop(key)
        if accepted:
            self.write(with_admission(self.objects[key[1]], admission))
        else:
            self.leaving.pop(key, None)
            self.engine.withdraw(key)

    @precondition(lambda self: self.leaving)
    @rule(data=st.data(), accepted=st.booleans())
    def leave(self, data: st.DataObject, accepted: bool) -> None:
        self.left(data.draw(st.sampled_from(sorted(self.leaving))), accepted=accepted)

    def left(self, key: Key, *, accepted: bool) -> None:
        if key in self.in_flight:
            # One write after the other.
            self.admitted(key, accepted=True)
        evict = self.leaving.pop(key)
        if not accepted:
            assert evict.preemptor is not None
            self.forget(evict.preemptor)
            self.engine.withdraw_eviction(key)
            return
        given = msgspec.convert(msgspec.to_builtins(self.objects[key[1]]), Workload)
        given.status.admission = None
        given.status.conditions = (
            Condition(type="QuotaReserved", status="False"),
            Condition(type="Evicted", status="True", reason="Preempted"),
        )
        self.write(given)

    # --- the laws

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "engine"):
            self.engine.validate()

    def teardown(self) -> None:
        """With everything written, it comes to rest, and nobody who fits waits, unless StrictFIFO wants it so."""
        if not hasattr(self, "engine"):
            return
        for _ in range(200):
            for key in list(self.in_flight):
                if key in self.in_flight:
                    self.admitted(key, accepted=True)
            for key in list(self.leaving):
                self.left(key, accepted=True)
            if not self.engine.dirty:
                break
            self.cycle(7)
            self.engine.validate()
        else:
            raise AssertionError("it never comes to rest")
        for found in self.engine.inspect().workloads():
            if found.state is WorkloadState.PENDING and found.held_back_by is None:
                assert not found.awaited, f"{found.key} waits for those who have gone: {found.awaited}"
                why = self.engine.explain(found.key, at(1000))
                assert why is not None
                assert not why.fits_now, f"{found.key} waits for nothing"
                assert found.reason is not None
        self.same_after_a_restart()
        for name in list(self.objects):
            self.engine.delete_workload((NS, name))
        self.engine.validate()
        assert not self.engine.world.holds
        assert not any(self.engine.inspect().cohort_usage().values())

    def same_after_a_restart(self) -> None:
        """An engine that hears of all this only now has nothing to decide, and counts the same."""
        other = self.empty()
        for cohort in self.cohorts.values():
            other.set_cohort(cohort)
        for queue in self.queues.values():
            other.set_cluster_queue(queue)
        for name in QUEUES:
            other.set_local_queue(local_queue(name, name))
        for given in self.objects.values():
            other.set_workload(given)
        while other.dirty:
            result = other.cycle(at(1000))
            assert not result.decisions, f"{result.decisions[0].key} waits for nothing"
            assert not result.evictions, f"{result.evictions[0].preemptor} could preempt {result.evictions[0].key}"
        for name in QUEUES:
            for key in (("", name), (NS, name)):
                assert self.engine.status(key) == other.status(key)


TestAdmission = AdmissionStory.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
