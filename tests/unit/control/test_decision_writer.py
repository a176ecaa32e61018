"""What a cycle decided is written for what it was decided on, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import pytest

from serried.api.kueue import Admission, AdmissionCheckState, PodSetAssignment, Workload
from serried.api.meta import condition_is
from serried.api.resources import NAMESPACES, WORKLOADS, Resource
from serried.cluster import work_queue
from serried.cluster.protocol import Unavailable
from serried.control.controller import utc_now
from serried.control.decision_writer import DecisionWriter
from serried.control.events import Recorder
from serried.control.gate import Gate
from serried.embedded.server import EmbeddedCluster
from serried.lifecycle.actions import PatchWorkload
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine
from serried.schedule.types.decisions import Admit, Cycle, Evict, Wait
from serried.schedule.types.reasons import Reason
from tests.patience import patience
from tests.scenarios.faults import Faults
from tests.unit.schedule.objects import NS, cluster_queue, feed, flavor, local_queue, workload

KEY = (NS, "w")


class Bench:
    """A writer, an API server, and an engine that hears of what is written when the test says so."""

    async def start(self) -> None:
        self.cluster = EmbeddedCluster()
        self.faults = Faults(self.cluster)
        self.engine = Engine()
        self.state = ClusterState(self.engine, lambda owner: None)
        self.engine.set_namespace(NS, {})
        for item in (flavor("default"), cluster_queue(), local_queue()):
            feed(self.engine, item)
        await self.cluster.create(NAMESPACES, {"metadata": {"name": NS}})
        body = msgspec.to_builtins(workload("w", cpu=4))
        body["metadata"] = {"name": "w", "namespace": NS}
        body["status"] = {}
        self.seen: Workload | None = None
        self.observe(WORKLOADS, await self.cluster.create(WORKLOADS, body, NS))
        self.recorder = Recorder(self.cluster, utc_now)
        gate = Gate(self.faults)
        self.writer = DecisionWriter(
            gate, self.state, self.recorder, self.observe, utc_now, lambda: None, work_queue.retry_later
        )
        self.writer.start()

    def observe(self, resource: Resource[Any], obj: Workload) -> None:
        dict(self.state.feeds())[WORKLOADS](self.seen, obj)
        self.seen = obj

    async def there(self) -> Workload:
        found: Workload = await self.cluster.get(WORKLOADS, "w", NS)
        return found

    async def patch(self, subresource: Literal["", "status"] = "", **patch: Any) -> Workload:
        written: Workload = await self.cluster.patch(WORKLOADS, "w", NS, patch=patch, subresource=subresource)
        return written

    def decide(self) -> Admit:
        (admit,) = self.engine.cycle(utc_now()).decisions
        return admit

    async def carry_out(self, *admissions: Admit, evict: Evict | None = None) -> None:
        """Lets the writer write it, to the end."""
        self.writer.decide(Cycle(admissions, (), False, [evict] if evict is not None else ()))
        await self.quiet()

    async def quiet(self) -> None:
        async with patience():
            while not self.writer.is_quiet or self.writer._intents:
                await asyncio.sleep(0.002)

    def evict(self) -> Evict:
        assert self.seen is not None
        return Evict(KEY, self.seen.metadata.uid, self.seen.metadata.resource_version, "Preempted", "goes", "x")

    def writes(self) -> list[str]:
        """What the API server has been asked to write, in words."""
        return [verb for verb, kind, _ in self.faults.written if kind == "Workload"]


@pytest.fixture
async def given() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.writer.stop()
    await made.cluster.close()


async def test_a_workload_edited_after_the_decision_is_decided_anew(given: Bench) -> None:
    admit = given.decide()
    # The edit is heard of before the decision is written.
    given.observe(WORKLOADS, await given.patch(spec={"queueName": "other"}))
    await given.carry_out(admit)
    assert (await given.there()).status.admission is None
    assert given.engine.inspect().reservation(KEY) is None


async def test_a_check_that_has_answered_keeps_what_it_said(given: Bench) -> None:
    update = {"name": "main", "nodeSelector": {"zone": "z1"}}
    said = {"name": "budget", "state": "Ready", "message": "granted", "podSetUpdates": [update]}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    given.observe(WORKLOADS, await given.patch("status", status={"admissionChecks": [said]}))
    states = [AdmissionCheckState(name="budget", state="Ready"), AdmissionCheckState(name="nodes", state="Pending")]
    await given.carry_out(msgspec.structs.replace(given.decide(), checks=states))
    budget, nodes = (await given.there()).status.admission_checks
    assert (budget.message, budget.pod_set_updates[0].node_selector) == ("granted", {"zone": "z1"})
    assert (nodes.name, nodes.state) == ("nodes", "Pending")


async def test_an_eviction_is_not_for_an_admission_that_came_after_it(given: Bench) -> None:
    await given.carry_out(given.decide())
    failed = asyncio.Event()

    async def fails(verb: str, kind: str, name: str, body: Any) -> None:
        failed.set()
        raise Unavailable(0, "Injected", "no answer")

    given.faults.before = fails
    given.writer.decide(Cycle((), (), False, [given.evict()]))
    await failed.wait()
    # While the server does not answer, it goes for another reason, and is admitted anew.
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": ""}]
    conditions[0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    given.observe(WORKLOADS, await given.patch("status", status={"admission": None, "conditions": conditions}))
    admission = Admission("cq", (PodSetAssignment(flavors={"cpu": "default"}, resource_usage={"cpu": 4}, count=1),))
    conditions[0] |= {"status": "True", "reason": "QuotaReserved", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    status = {"admission": msgspec.to_builtins(admission), "conditions": conditions}
    given.observe(WORKLOADS, await given.patch("status", status=status))
    given.faults.before = None
    await given.quiet()
    assert not condition_is((await given.there()).status.conditions, "Evicted")


async def test_an_eviction_waits_for_the_admission_it_takes_back(given: Bench) -> None:
    """Whatever comes first: both are written, the admission before."""
    await given.carry_out(given.decide(), evict=given.evict())
    there = await given.there()
    assert there.status.admission is not None
    assert condition_is(there.status.conditions, "Evicted")
    assert condition_is(there.status.conditions, "Preempted")
    assert given.writes() == ["patch", "patch"]


async def test_an_eviction_that_deactivates_says_so_in_the_spec_first(given: Bench) -> None:
    await given.carry_out(given.decide())
    await given.carry_out(evict=msgspec.structs.replace(given.evict(), deactivate=True))
    there = await given.there()
    assert not there.spec.active
    assert condition_is(there.status.conditions, "Evicted")


async def test_of_reason_and_admission_only_the_admission_is_written(given: Bench) -> None:
    waits = Wait(KEY, Reason(layer="quota", code="Pending", message="not enough"))
    given.writer.decide(Cycle((), [waits], False))
    await given.carry_out(given.decide())
    assert given.writes() == ["patch"]
    assert condition_is((await given.there()).status.conditions, "Admitted")


@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_refused_admission_is_taken_back_unless_it_went_through(given: Bench, carried_out: bool) -> None:
    given.faults.fail, given.faults.lose = 0.0 if carried_out else 1.0, 1.0
    await given.carry_out(given.decide())
    assert (given.engine.inspect().reservation(KEY) is not None) == carried_out
    assert ((await given.there()).status.admission is not None) == carried_out


async def test_an_old_refusal_does_not_take_back_a_newer_admission(given: Bench) -> None:
    first = given.decide()

    async def lost(verb: str, kind: str, name: str, body: Any) -> None:
        given.faults.before = None
        # Meanwhile it is changed, and admitted anew.
        given.observe(WORKLOADS, await given.patch("status", status={"conditions": []}))
        given.engine.withdraw(KEY)
        given.writer.decide(Cycle([given.decide()], (), False))
        raise Unavailable(0, "Injected", "no answer")

    given.faults.before = lost
    await given.carry_out(first)
    assert given.engine.inspect().reservation(KEY) is not None
    assert (await given.there()).status.admission is not None
    assert given.writes() == ["patch"]


async def test_a_step_decided_on_an_older_version_is_dropped(given: Bench) -> None:
    assert given.seen is not None
    old = given.seen
    given.observe(WORKLOADS, await given.patch("status", status={"conditions": []}, metadata={"labels": {"a": "b"}}))
    given.observe(WORKLOADS, await given.patch(metadata={"labels": {"a": "b"}}))
    given.writer.step(PatchWorkload(old, {"spec": {"priority": 7}}, status=False))
    await given.quiet()
    assert given.writes() == []


async def test_a_step_that_is_overtaken_on_its_way_is_dropped(given: Bench) -> None:
    """The change that overtook it brings another reconcile."""
    assert given.seen is not None

    async def overtake(verb: str, kind: str, name: str, body: Any) -> None:
        given.faults.before = None
        given.observe(WORKLOADS, await given.patch(metadata={"labels": {"a": "b"}}))

    given.faults.before = overtake
    version = given.seen.metadata.resource_version
    patch = {"metadata": {"resourceVersion": version}, "spec": {"priority": 7}}
    given.writer.step(PatchWorkload(given.seen, patch, status=False))
    await given.quiet()
    assert given.writes() == []
    assert (await given.there()).spec.priority == 0


async def test_nodes_that_were_lost_before_an_admission_do_not_end_it(given: Bench) -> None:
    given.observe(WORKLOADS, await given.patch("status", status={"unhealthyNodes": [{"name": "n0"}]}))
    await given.carry_out(given.decide())
    there = await given.there()
    assert there.status.admission is not None
    assert there.status.unhealthy_nodes == ()
