"""What a cycle decided is written for what it was decided on, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from serried.api.kueue import Admission, AdmissionCheckState, PodSetAssignment, Workload
from serried.api.meta import condition_is
from serried.api.resources import NAMESPACES, WORKLOADS, Resource
from serried.cluster.protocol import Unavailable
from serried.control.controller import utc_now
from serried.control.decision_writer import DecisionWriter
from serried.control.events import Recorder
from serried.embedded.server import EmbeddedCluster
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.engine import Engine
from serried.schedule.types.decisions import Admit, Evict
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
        recorder = Recorder(self.cluster, utc_now)
        self.writer = DecisionWriter(self.faults, self.state, recorder, self.observe, utc_now, lambda: None)

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

    def carry_out(self, admit: Admit) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self.writer.admit(admit))
        self.writer.admitting[KEY] = task
        return task


async def bench() -> Bench:
    made = Bench()
    await made.start()
    return made


async def test_a_workload_edited_after_the_decision_is_decided_anew() -> None:
    given = await bench()
    admit = given.decide()
    # The edit is heard of before the decision is written.
    given.observe(WORKLOADS, await given.patch(spec={"queueName": "other"}))
    await given.carry_out(admit)
    assert (await given.there()).status.admission is None
    assert given.engine.inspect().reservation(KEY) is None


async def test_a_check_that_has_answered_keeps_what_it_said() -> None:
    given = await bench()
    update = {"name": "main", "nodeSelector": {"zone": "z1"}}
    said = {"name": "budget", "state": "Ready", "message": "granted", "podSetUpdates": [update]}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    given.observe(WORKLOADS, await given.patch("status", status={"admissionChecks": [said]}))
    states = [AdmissionCheckState(name="budget", state="Ready"), AdmissionCheckState(name="nodes", state="Pending")]
    await given.carry_out(msgspec.structs.replace(given.decide(), checks=states))
    budget, nodes = (await given.there()).status.admission_checks
    assert (budget.message, budget.pod_set_updates[0].node_selector) == ("granted", {"zone": "z1"})
    assert (nodes.name, nodes.state) == ("nodes", "Pending")


async def test_an_eviction_is_not_for_an_admission_that_came_after_it() -> None:
    given = await bench()
    await given.carry_out(given.decide())
    assert given.seen is not None
    evict = Evict(KEY, given.seen.metadata.uid, given.seen.metadata.resource_version, "Preempted", "goes", "x")
    given.faults.fail = 1.0
    writing = asyncio.get_running_loop().create_task(given.writer.evict(evict))
    await asyncio.sleep(0.05)
    # While the server does not answer, it goes for another reason, and is admitted anew.
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": ""}]
    conditions[0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    given.observe(WORKLOADS, await given.patch("status", status={"admission": None, "conditions": conditions}))
    admission = Admission("cq", (PodSetAssignment(flavors={"cpu": "default"}, resource_usage={"cpu": 4}, count=1),))
    conditions[0] |= {"status": "True", "reason": "QuotaReserved", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    status = {"admission": msgspec.to_builtins(admission), "conditions": conditions}
    given.observe(WORKLOADS, await given.patch("status", status=status))
    given.faults.fail = 0.0
    await writing
    assert not condition_is((await given.there()).status.conditions, "Evicted")


async def test_an_old_refusal_does_not_take_back_a_newer_admission() -> None:
    given = await bench()
    first = given.decide()

    async def lost(verb: str, kind: str, name: str, body: Any) -> None:
        given.faults.before = None
        given.observe(WORKLOADS, await given.patch("status", status={"conditions": []}))
        raise Unavailable(0, "Injected", "no answer")

    given.faults.before = lost
    refused = given.carry_out(first)
    await asyncio.sleep(0.05)
    # Meanwhile it was changed, and is admitted anew.
    given.engine.withdraw(KEY)
    second = given.decide()
    writing = given.writer.admitting[KEY] = asyncio.get_running_loop().create_task(asyncio.sleep(5))
    await refused
    holding = given.engine.inspect().reservation(KEY)
    assert holding is not None
    assert holding.admission == second.admission
    assert given.writer.admitting[KEY] is writing
    writing.cancel()


async def test_nodes_that_were_lost_before_an_admission_do_not_end_it() -> None:
    given = await bench()
    given.observe(WORKLOADS, await given.patch("status", status={"unhealthyNodes": [{"name": "n0"}]}))
    await given.carry_out(given.decide())
    there = await given.there()
    assert there.status.admission is not None
    assert there.status.unhealthy_nodes == ()
