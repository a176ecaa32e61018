"""A fault in the middle of a change leaves no model to decide on; a fresh engine is built from the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

from serried.api.kueue import ReclaimablePod, Workload
from serried.api.meta import Condition, Key
from serried.model.journal import Journal
from serried.schedule.engine import Engine, EngineBroken
from tests.unit.schedule.objects import (
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
    pod_set,
    topology,
    with_admission,
    workload,
)

OPERATIONS = ("record", "rollback", "commit")
PREEMPTS: Any = {"preemption": {"withinClusterQueue": "LowerPriority"}}


class Fault(Exception):
    pass


class Story:
    """An engine, and the objects that it has been told of."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.objects: dict[tuple[str, Key], Any] = {}
        self.version = 10
        self.engine.set_namespace(NS, {})

    def set(self, item: Any) -> None:
        self.objects[type(item).__name__, item.key] = item
        feed(self.engine, item)

    def write(self, given: Workload, admission: Any = None, *, evicted: bool = False) -> None:
        self.version += 1
        given = msgspec.convert(msgspec.to_builtins(given), Workload)
        if admission is not None:
            given = with_admission(given, admission)
        if evicted:
            given.status.conditions += (Condition(type="Evicted", status="True", reason="Preempted"),)
        given.metadata.resource_version = str(self.version)
        self.set(given)

    def named(self, name: str) -> Workload:
        found: Workload = self.objects["Workload", (NS, name)]
        return found

    def cycle(self) -> None:
        """One cycle, whose admissions are not heard of yet."""
        self.admissions = {a.key[1]: a.admission for a in self.engine.cycle(at(100)).decisions}

    def fresh(self) -> Engine:
        engine = Engine()
        engine.set_namespace(NS, {})
        for item in self.objects.values():
            feed(engine, item)
        return engine


def gang(name: str, priority: int = 0, created: float = 0) -> Workload:
    sets = pod_set(2, required=RACK, ours=True, gpu=8)
    return workload(name, sets, queue="lq", priority=priority, created=created)


def fewer(given: Workload) -> Workload:
    """One of its two pods has ended for good."""
    given.status.reclaimable_pods = (ReclaimablePod(name="main", count=1),)
    return given


def without(kind: str, key: Key, event: Callable[[Engine], None]) -> Callable[[Story], None]:
    """An event after which an object is gone, or cannot be read."""

    def step(story: Story) -> None:
        story.objects.pop((kind, key))
        event(story.engine)

    return step


#: One event each.
STEPS: list[tuple[str, Callable[[Story], object]]] = [
    ("topology", lambda s: s.set(topology())),
    ("flavor", lambda s: s.set(flavor("h100", "fabric"))),
    ("node 0", lambda s: s.set(node("n0"))),
    ("node 1", lambda s: s.set(node("n1"))),
    ("cluster queue", lambda s: s.set(cluster_queue(flavors={"h100": {GPU: 32}}, **PREEMPTS))),
    ("local queue", lambda s: s.set(local_queue())),
    ("first", lambda s: s.set(gang("first"))),
    ("second waits", lambda s: s.set(gang("second", created=1))),
    ("admission", Story.cycle),
    ("admission heard", lambda s: s.write(s.named("first"), s.admissions["first"])),
    ("urgent arrives", lambda s: s.set(gang("urgent", priority=5))),
    ("explained", lambda s: s.engine.explain((NS, "urgent"), at(0))),
    ("preemption", Story.cycle),
    ("eviction refused", lambda s: s.engine.withdraw_eviction((NS, "first"))),
    ("preemption again", Story.cycle),
    ("eviction seen", lambda s: s.write(s.named("first"), s.named("first").status.admission, evicted=True)),
    ("victim gone", lambda s: s.write(gang("first"))),
    ("promise kept", Story.cycle),
    ("admission refused", lambda s: s.engine.withdraw((NS, "urgent"))),
    ("admitted again", Story.cycle),
    ("heard", lambda s: s.write(s.named("urgent"), s.admissions["urgent"])),
    ("node deleted", without("Node", ("", "n0"), lambda e: e.delete_node("n0"))),
    ("malformed", without("Workload", (NS, "second"), lambda e: e.set_malformed("Workload", (NS, "second"), "?"))),
    ("node back", lambda s: s.set(node("n0"))),
    ("charged again", Story.cycle),
    ("finished", lambda s: s.write(finished(s.named("urgent")))),
    ("next", Story.cycle),
    ("next heard", lambda s: s.write(s.named("first"), s.admissions["first"])),
    ("found admitted", lambda s: s.write(gang("found"), s.named("first").status.admission)),
    ("workload deleted", without("Workload", (NS, "first"), lambda e: e.delete_workload((NS, "first")))),
    ("found to hold less", lambda s: s.write(fewer(s.named("found")))),
    ("preempted", lambda s: s.set(gang("late", priority=9))),
    ("promised", Story.cycle),
    ("queue deleted", without("ClusterQueue", ("", "cq"), lambda e: e.delete_cluster_queue("cq"))),
]


@contextmanager
def failing_at(monkeypatch: pytest.MonkeyPatch, n: int, *, after: bool) -> Iterator[Callable[[], int]]:
    """The n-th operation on a journal raises, before or after it is done; gives how many there were."""
    done = 0
    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            original = getattr(Journal, name)

            def operation(self: Journal, *args: Any, original: Callable[..., None] = original) -> None:
                nonlocal done
                done += 1
                if done == n and not after:
                    raise Fault
                original(self, *args)
                if done == n:
                    raise Fault

            patch.setattr(Journal, name, operation)
        yield lambda: done


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[name for name, _ in STEPS])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_nothing_is_decided_on_a_model_changed_by_half(step: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault at the first, second, third … operation on the journal, until the event has no more of them."""
    n = 0
    while True:
        n += 1
        story = Story()
        for _, event in STEPS[:step]:
            event(story)
        with failing_at(monkeypatch, n, after=after) as operations:
            with suppress(EngineBroken):
                STEPS[step][1](story)
            if operations() < n:
                break
            until_now = operations()
            refuses_everything(story.engine)
            assert operations() == until_now, "the model was changed after the fault"
        goes_on(story.fresh())
    story.engine.validate()


def refuses_everything(engine: Engine) -> None:
    for call in (
        lambda: engine.cycle(at(0)),
        lambda: engine.set_node(node("n2")),
        lambda: engine.withdraw((NS, "first")),
        lambda: engine.explain((NS, "first"), at(0)),
        lambda: engine.status(("", "cq")),
        lambda: engine.world,
        lambda: engine.dirty,
    ):
        with pytest.raises(EngineBroken):
            call()


def goes_on(engine: Engine) -> None:
    engine.validate()
    for _ in range(20):
        if not engine.dirty:
            return
        engine.cycle(at(100))
        engine.validate()
    raise AssertionError("the cycles never run dry")


def test_the_error_names_the_object_whose_change_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for _, event in STEPS[:9]:
        event(story)
    with failing_at(monkeypatch, 1, after=False), pytest.raises(EngineBroken) as caught:
        story.engine.delete_workload((NS, "first"))
    assert (caught.value.kind, caught.value.key) == ("Workload", (NS, "first"))
    assert isinstance(caught.value.__cause__, Fault)


def test_of_a_cycle_that_fails_it_names_the_workload_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for _, event in STEPS[:8]:
        event(story)
    with failing_at(monkeypatch, 1, after=False), pytest.raises(EngineBroken, match="Workload team/first"):
        story.cycle()


def test_an_event_that_leaves_the_journal_open_breaks_the_engine() -> None:
    story = Story()
    story.engine._state.journal.record(lambda: None)
    with pytest.raises(EngineBroken, match="Node n0"):
        story.set(node("n0"))
