"""A fault in the middle of a change of the model: nothing more is decided or written on it, a new one is built from the
lists, and an object over which it happens twice is held back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from serried.api.kueue import Workload
from serried.api.meta import Object, condition_is
from serried.api.resources import (
    CLUSTER_QUEUES,
    EVENTS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from serried.control import controller as controller_module
from serried.control.config import Configuration
from serried.control.controller import Controller
from serried.embedded.server import EmbeddedCluster
from serried.lifecycle.cluster_state import ClusterState
from serried.schedule.cycle import malformed, node_events, workload_events
from serried.schedule.cycle.order import Entry
from serried.schedule.cycle.turn import Turn
from tests import patience
from tests.scenarios.faults import Faults
from tests.unit.schedule.objects import (
    GPU,
    NS,
    RACK,
    cluster_queue,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    workload,
)

OPERATIONS = ("record", "rollback", "commit")


class Fault(Exception):
    pass


class Story:
    """Two nodes, a queue with quota for them, and a controller."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster()
        self.faults = Faults(self.cluster)
        self.controller = Controller(self.faults, Configuration(status_interval=0.01))
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.cluster.create(NAMESPACES, {"metadata": {"name": NS}})
        preempts: Any = {"preemption": {"withinClusterQueue": "LowerPriority"}}
        queue = cluster_queue(flavors={"h100": {GPU: 16}}, **preempts)
        for resource, thing in (
            (TOPOLOGIES, topology()),
            (RESOURCE_FLAVORS, flavor("h100", "fabric", nodeLabels={"pool": "gpu"})),
            (NODES, node("n0", pool="gpu")),
            (NODES, node("n1", pool="gpu")),
            (CLUSTER_QUEUES, queue),
            (LOCAL_QUEUES, local_queue()),
        ):
            await self.make(resource, thing)
        self.running = asyncio.create_task(self.controller.run())

    async def stop(self) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.cluster.close()

    async def make(self, resource: Resource[Any], thing: Object) -> None:
        body = msgspec.to_builtins(thing)
        body["metadata"] = {k: v for k, v in body["metadata"].items() if k in ("name", "labels")}
        status = body.pop("status", None)
        namespace = thing.metadata.namespace
        made = await self.cluster.create(resource, body, namespace)
        if resource is NODES:
            patch = {"status": status}
            await self.cluster.patch(NODES, made.metadata.name, patch=patch, subresource="status")
            await self.cluster.patch(NODES, made.metadata.name, patch={"spec": {"taints": None}})

    async def submit(self, name: str, priority: int = 0) -> None:
        """A gang that needs both nodes."""
        await self.make(WORKLOADS, workload(name, pod_set(2, required=RACK, ours=True, gpu=8), priority=priority))

    async def workload(self, name: str) -> Workload:
        return await self.cluster.get(WORKLOADS, name, NS)

    async def until(self, condition: Callable[[], Awaitable[object]], hint: str) -> None:
        async def true() -> object:
            assert self.running is not None
            if self.running.done():
                self.running.result()
            return await condition()

        await patience.until(true, hint=hint)

    async def until_is(self, name: str, condition: str, status: str = "True") -> None:
        async def fits() -> bool:
            return condition_is((await self.workload(name)).status.conditions, condition, status)

        await self.until(fits, f"{condition}={status} of {name}")

    async def until_told(self, name: str, text: str) -> None:
        async def told() -> bool:
            events = (await self.cluster.list(EVENTS)).items
            return any(e.involved_object.name == name and text in e.message for e in events)

        await self.until(told, f"event {text!r} on {name}")

    async def finish(self, name: str) -> None:
        done = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": ""}
        conditions = [done | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
        patch = {"status": {"conditions": conditions}}
        await self.cluster.patch(WORKLOADS, name, NS, patch=patch, subresource="status")

    async def play(self) -> None:
        """Admission, wait, preemption, end, and a node that goes."""
        await self.submit("low")
        await self.until_is("low", "Admitted")
        await self.submit("high", priority=5)
        await self.until_is("low", "Evicted")
        await self.until_is("high", "Admitted")
        await self.finish("high")
        await self.until_is("low", "Admitted")
        await self.cluster.delete(NODES, "n0", uid=(await self.cluster.get(NODES, "n0")).metadata.uid)


@pytest.fixture
async def story(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Story]:
    monkeypatch.setattr(controller_module, "back_off", lambda failures: 0.0)
    made = Story()
    await made.start()
    yield made
    await made.stop()


class FailsOnce:
    """The n-th operation on the journal of the first model raises, before or after it is done."""

    def __init__(self, story: Story, n: int, *, after: bool) -> None:
        self.story = story
        self.broken = story.controller.engine
        self.n, self.after = n, after
        self.operations = 0
        #: what was begun to be written on the broken model
        self.written: list[tuple[str, str, str]] = []
        story.faults.before = self.before
        journal: Any = self.broken._state.journal
        for name in OPERATIONS:
            setattr(journal, name, self.failing(getattr(journal, name)))

    @property
    def has_failed(self) -> bool:
        return self.operations >= self.n

    def failing(self, original: Callable[..., None]) -> Callable[..., None]:
        def operation(*args: Any) -> None:
            self.operations += 1
            if self.operations == self.n and not self.after:
                raise Fault
            original(*args)
            if self.operations == self.n:
                raise Fault

        return operation

    async def before(self, verb: str, kind: str, name: str, body: Any) -> None:
        if self.has_failed and self.story.controller.engine is self.broken and kind != "Event":
            self.written.append((verb, kind, name))


async def fails_at(n: int, *, after: bool) -> bool:
    """The story with a fault at the n-th operation; False: there were not so many."""
    story = Story()
    fault = FailsOnce(story, n, after=after)
    await story.start()
    await story.play()
    await story.controller.idle()
    assert fault.written == []
    assert (story.controller.engine is fault.broken) != fault.has_failed
    story.controller.engine.validate()
    await story.stop()
    return fault.has_failed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_at_each_operation_on_the_journal(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "back_off", lambda failures: 0.0)
    at_once, first = 25, 1
    while all(await asyncio.gather(*(fails_at(n, after=after) for n in range(first, first + at_once)))):
        first += at_once
    assert first > at_once, "the story has hardly any operations"


def failing_over(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function on the model and an object, which raises over the object of this name."""

    def fails(state: Any, obj: Any, *more: Any) -> Any:
        if obj.metadata.name == name:
            raise Fault("boom")
        return original(state, obj, *more)

    return fails


async def test_an_object_that_breaks_it_twice_is_held_back_until_it_is_changed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workload_events, "set_workload", failing_over(workload_events.set_workload, "bad"))
        await story.submit("bad", priority=9)
        await story.until_told("bad", "Fault('boom')")
        await story.submit("good")
        await story.until_is("good", "Admitted")
        await story.controller.idle()
        story.controller.engine.validate()
        assert (await story.workload("bad")).status.conditions == ()
    await story.finish("good")
    await story.cluster.patch(WORKLOADS, "bad", NS, patch={"spec": {"priority": 8}})
    await story.until_is("bad", "Admitted")
    await story.controller.idle()
    story.controller.engine.validate()


async def test_a_workload_over_which_cycles_fail_is_held_back(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Turn.nominate

    def fails(turn: Turn, entry: Entry) -> None:
        if entry.record.info.key == (NS, "bad"):
            raise Fault("boom")
        original(turn, entry)

    monkeypatch.setattr(Turn, "nominate", fails)
    await story.submit("bad", priority=9)
    await story.until_told("bad", "Fault('boom')")
    await story.submit("good")
    await story.until_is("good", "Admitted")
    await story.cluster.delete(WORKLOADS, "bad", NS, uid=(await story.workload("bad")).metadata.uid)
    await story.controller.idle()
    assert story.controller.engine.inspect().reservation((NS, "good")) is not None


async def test_a_node_that_breaks_it_twice_is_as_if_it_were_not_there(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_events, "set_node", failing_over(node_events.set_node, "bad"))
    await story.make(NODES, node("bad", pool="gpu"))
    await story.until_told("bad", "Fault('boom')")
    await story.submit("good")
    await story.until_is("good", "Admitted")
    await story.cluster.delete(NODES, "bad", uid=(await story.cluster.get(NODES, "bad")).metadata.uid)
    await story.controller.idle()
    story.controller.engine.validate()


async def test_an_object_of_which_the_engine_cannot_even_be_told_is_left_out(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise Fault("that, too")

    monkeypatch.setattr(workload_events, "set_workload", failing_over(workload_events.set_workload, "bad"))
    monkeypatch.setattr(malformed, "set_malformed", fails)
    await story.submit("bad", priority=9)
    await story.until_told("bad", "Fault('that, too')")
    await story.submit("good")
    await story.until_is("good", "Admitted")


async def test_a_fault_in_the_state_beside_the_engine_is_one_of_the_model(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the controller knows besides, owners and gangs, is as broken then as the engine would be."""
    await story.until(story.controller.ready.wait, "ready")
    first = story.controller.engine
    original = ClusterState._tell_engine

    def fails(self: ClusterState, found: Workload) -> None:
        monkeypatch.undo()
        raise Fault

    monkeypatch.setattr(ClusterState, "_tell_engine", fails)
    await story.submit("low")
    await story.until_is("low", "Admitted")
    assert story.controller.engine is not first
    assert ClusterState._tell_engine is original


async def test_writes_that_have_begun_come_to_their_end_before_everything_is_listed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they change is in the lists, then, and nobody else is given the same."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def before(verb: str, kind: str, name: str, body: Any) -> None:
        if kind == "Workload" and body.get("status", {}).get("admission"):
            begun.set()
            await go_on.wait()

    story.faults.before = before
    await story.submit("low")
    await story.until(begun.wait, "an admission on its way")
    first = story.controller.engine
    with monkeypatch.context() as patch:
        patch.setattr(node_events, "set_node", failing_over(node_events.set_node, "bad"))
        await story.make(NODES, node("bad"))

        async def is_broken() -> bool:
            return story.controller._session._broken is not None

        await story.until(is_broken, "a broken model")
    await asyncio.sleep(0.05)
    assert story.controller.engine is first
    story.faults.before = None
    go_on.set()
    await story.until_is("low", "Admitted")
    await story.controller.idle()
    assert story.controller.engine is not first
    assert story.controller.engine.inspect().reservation((NS, "low")) is not None
