"""An informer through everything a server, a line and an object can do to it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from serried.api.core import Pod
from serried.api.resources import PODS
from serried.cluster import informer
from serried.cluster.http import HttpCluster
from serried.cluster.informer import Informer
from serried.cluster.protocol import Malformed
from tests.patience import PATIENCE, patience
from tests.unit.cluster.server import Answer, ApiServer, Stream, obj, page, refuse


class Follower:
    """An informer with a record of what it said."""

    def __init__(self, cluster: HttpCluster, **options: Any) -> None:
        self.said: list[str] = []
        self.malformed: list[Malformed] = []
        self.changed = asyncio.Event()
        self.informer = Informer(
            cluster,
            PODS,
            on_change=self._on_change,
            on_malformed=self._on_malformed,
            **{"namespace": "default"} | options,
        )

    def _on_change(self, old: Pod | None, new: Pod | None) -> None:
        def short(pod: Pod | None) -> str:
            return f"{pod.metadata.name}{pod.metadata.resource_version}" if pod else "-"

        self.said.append(f"{short(old)}>{short(new)}")
        self.changed.set()
        some = new or old
        assert some is not None
        if "bomb" in some.metadata.labels:
            raise RuntimeError("boom")

    def _on_malformed(self, found: Malformed) -> None:
        self.malformed.append(found)
        self.changed.set()
        if found.metadata.name == "bomb":
            raise RuntimeError("boom")

    async def until(self, *said: str) -> None:
        """Waits until it has said this, and nothing else, since the last time."""
        async with patience():
            while len(self.said) < len(said):
                self.changed.clear()
                await self.changed.wait()
        assert self.said == list(said)
        self.said.clear()

    @property
    def versions(self) -> dict[str, str]:
        return {pod.metadata.name: pod.metadata.resource_version for pod in self.informer.store.values()}


@pytest.fixture
async def follower(cluster: HttpCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr(informer, "FIRST_DELAY", 0.001)
    made = Follower(cluster)
    yield made
    await made.informer.stop()


async def begin(follower: Follower, server: ApiServer, *answers: Answer) -> Stream:
    """Starts it and waits until it watches."""
    server.answers = list(answers)
    follower.informer.start()
    return await server.watch()


def pod(name: str, version: int, *, uid: str = "", namespace: str = "default") -> Pod:
    return msgspec.convert(obj(name, version, uid=uid, namespace=namespace), Pod)


# --- List and watch


async def test_what_is_kept_is_all_that_callbacks_see(cluster: HttpCluster, server: ApiServer) -> None:
    seen: list[tuple[Mapping[str, str], str]] = []

    def without_labels(pod: Pod) -> Pod:
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels={}))

    def on_change(old: Pod | None, new: Pod | None) -> None:
        assert new is not None
        seen.append((new.metadata.labels, new.metadata.resource_version))

    kept = Informer(cluster, PODS, namespace="default", on_change=on_change, keep=without_labels)
    server.answers = [page(obj("a", 3, metadata={"labels": {"x": "y"}}), version=5)]
    kept.start()
    await kept.synced()
    kept.observe(msgspec.convert(obj("a", 6, metadata={"labels": {"x": "y"}}), Pod))
    await kept.stop()
    assert seen == [({}, "3"), ({}, "6")]
    assert [pod.metadata.labels for pod in kept.store.values()] == [{}]


async def test_it_lists_and_then_watches_from_there(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(obj("a", 3), obj("b", 4), version=7))
    async with patience():
        await follower.informer.synced()
    await follower.until("->a3", "->b4")
    assert stream.query["resourceVersion"] == "7"
    await stream.send("ADDED", obj("c", 8))
    await stream.send("MODIFIED", obj("a", 9))
    await stream.send("DELETED", obj("b", 10))
    await follower.until("->c8", "a3>a9", "b4>-")
    assert follower.versions == {"a": "9", "c": "8"}


async def test_it_asks_for_what_it_should(cluster: HttpCluster, server: ApiServer) -> None:
    made = Follower(cluster, namespace="ns", label_selector="team=red", field_selector="spec.nodeName=")
    stream = await begin(made, server, page(version=7))
    for query in (server.seen[0].query, stream.query):
        assert (query["labelSelector"], query["fieldSelector"]) == ("team=red", "spec.nodeName=")
    assert {seen.path for seen in server.seen} == {"/api/v1/namespaces/ns/pods"}
    await made.informer.stop()


async def test_it_is_synced_only_once_it_has_listed(follower: Follower, server: ApiServer) -> None:
    server.answers = [refuse(403, "Forbidden")]
    follower.informer.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follower.informer.synced(), 0.05)
    server.answers = [page(version=7)]
    await asyncio.wait_for(follower.informer.synced(), PATIENCE)


@pytest.mark.parametrize("how", ["end", "cut"])
async def test_a_watch_that_ends_is_resumed_from_the_last_version(
    follower: Follower, server: ApiServer, how: str
) -> None:
    stream = await begin(follower, server, page(version=7))
    await stream.send("ADDED", obj("a", 8))
    await follower.until("->a8")
    getattr(stream, how)()
    stream = await server.watch()
    assert stream.query["resourceVersion"] == "8"
    await stream.send("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    getattr(stream, how)()
    stream = await server.watch()
    assert stream.query["resourceVersion"] == "20"
    await stream.send("MODIFIED", obj("a", 21))
    await follower.until("a8>a21")


async def test_a_watch_cut_in_the_middle_of_an_event_gets_it_again(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(version=7))
    await stream.send("ADDED", obj("a", 8))
    await stream.send_raw(b'{"type":"ADDED","object":{"metadata":{"name":"b"')
    await follower.until("->a8")
    stream.cut()
    stream = await server.watch()
    assert stream.query["resourceVersion"] == "8"
    await stream.send("ADDED", obj("b", 9))
    await follower.until("->b9")


@pytest.mark.parametrize("where", ["event", "answer"])
async def test_when_its_version_has_expired_it_lists_again_and_tells_what_it_missed(
    follower: Follower, server: ApiServer, where: str
) -> None:
    stream = await begin(
        follower,
        server,
        page(obj("gone", 1), obj("same", 2), obj("changed", 3), obj("again", 4), version=7),
        page(obj("same", 2), obj("changed", 11), obj("again", 12, uid="other"), obj("new", 13), version=20),
    )
    await follower.until("->gone1", "->same2", "->changed3", "->again4")
    expired = {"kind": "Status", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired"}
    if where == "event":
        await stream.send("ERROR", expired)
    else:
        server.watch_answers = [refuse(410, "Expired"), *server.watch_answers]
        stream.end()
    await follower.until("gone1>-", "changed3>changed11", "again4>-", "->again12", "->new13")


async def test_trouble_of_any_kind_is_outlived_and_told_once(
    follower: Follower, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "serried.cluster.informer")
    forbidden = refuse(403, "Forbidden", "pods is forbidden")
    busy = refuse(503)
    server.watch_answers = [forbidden, forbidden, busy, forbidden, busy, busy]
    server.answers = [refuse(500), refuse(500), refuse(403, "Forbidden", "listing is forbidden"), page(version=7)]
    follower.informer.start()
    async with patience():
        while len(server.watch_answers) > 1:
            await asyncio.sleep(0.001)
    server.watch_answers = []
    stream = await server.watch()
    await stream.send("ADDED", obj("a", 8))
    await follower.until("->a8")
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if "is forbidden" in message] == [messages[0]]
    assert "listing is forbidden" in messages[0]
    assert len([message for message in messages if "will keep trying" in message]) == 2
    assert messages[-1].endswith("is watched again")


async def test_a_server_whose_data_went_back_in_time_is_believed(follower: Follower, server: ApiServer) -> None:
    """As after a restore: it knows no version that late, and what it has is older than what we know."""
    stream = await begin(
        follower, server, page(obj("a", 90), obj("b", 91), version=100), page(obj("a", 40), version=50)
    )
    await follower.until("->a90", "->b91")
    server.watch_answers = [refuse(504, "Timeout", "Too large resource version")]
    stream.end()
    await follower.until("a90>-", "b91>-", "->a40")
    server.watch_answers = []
    stream = await server.watch()
    await stream.send("MODIFIED", obj("a", 51))
    await follower.until("a40>a51")


# --- Our own writes, and what is late


async def test_a_response_counts_at_once_and_its_event_does_not_count_again(
    follower: Follower, server: ApiServer
) -> None:
    stream = await begin(follower, server, page(obj("a", 3), version=7))
    await follower.until("->a3")
    follower.informer.observe(pod("a", 9))
    assert follower.said == ["a3>a9"]
    await stream.send("MODIFIED", obj("a", 8))  # somebody's write before ours
    await stream.send("MODIFIED", obj("a", 9))
    await stream.send("MODIFIED", obj("a", 10))
    await follower.until("a3>a9", "a9>a10")
    follower.informer.observe(pod("a", 9))
    assert follower.said == []


async def test_a_late_response_raises_nothing_from_the_dead(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(obj("a", 3), version=7))
    await stream.send("DELETED", obj("a", 9))
    await follower.until("->a3", "a3>-")
    follower.informer.observe(pod("a", 8))
    assert follower.informer.store == {}
    follower.informer.observe(pod("a", 12, uid="another"))
    await follower.until("->a12")
    # Nor does the late word of the first one's end touch its successor.
    await stream.send("DELETED", obj("a", 9))
    await stream.send("MODIFIED", obj("a", 13, uid="another"))
    await follower.until("a12>a13")


async def test_deletions_are_remembered_but_not_without_end(
    follower: Follower, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "TOMBSTONES", 2)
    stream = await begin(follower, server, page(version=7))
    for number in range(4):
        await stream.send("DELETED", obj(f"pod-{number}", 10 + number))
    await stream.send("ADDED", obj("last", 20))
    await follower.until("->last20")
    for number in range(4):
        follower.informer.observe(pod(f"pod-{number}", 1))
    assert follower.said == ["->pod-01", "->pod-11"]


async def test_what_we_wrote_while_the_list_was_on_its_way_stays(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(version=7), page(obj("b", 9), version=10))
    follower.informer.observe(pod("a", 11))
    follower.informer.observe(pod("b", 12))
    await stream.send("ERROR", {"kind": "Status", "code": 410})
    await server.watch()
    assert follower.said == ["->a11", "->b12"]
    assert follower.versions == {"a": "11", "b": "12"}


async def test_of_an_object_that_came_to_match_no_more_our_response_knew_first(
    cluster: HttpCluster, server: ApiServer
) -> None:
    """The event of its leaving has the version of the very change that our response brought."""
    made = Follower(cluster, label_selector="team=red")
    stream = await begin(made, server, page(obj("a", 3), version=7))
    made.informer.observe(pod("a", 9))
    await stream.send("DELETED", obj("a", 9))
    await made.until("->a3", "a3>a9", "a9>-")
    made.informer.observe(pod("b", 10))  # whether it matches is not known
    assert made.said == []
    await made.informer.stop()


async def test_objects_of_other_namespaces_are_not_its_affair(follower: Follower, server: ApiServer) -> None:
    await begin(follower, server, page(version=7))
    follower.informer.observe(pod("a", 9, namespace="other"))
    assert follower.informer.store == {}


async def test_versions_that_are_no_numbers_are_taken_as_they_come(follower: Follower, server: ApiServer) -> None:
    def odd(name: str, version: str) -> dict[str, Any]:
        return obj(name, metadata={"resourceVersion": version})

    stream = await begin(follower, server, page(odd("a", "x9"), odd("b", "x1"), version=7), page(version=8))
    await stream.send("MODIFIED", odd("a", "x1"))
    await stream.send("DELETED", odd("a", "x0"))
    await stream.send("ADDED", odd("a", "x0"))
    await follower.until("->ax9", "->bx1", "ax9>ax1", "ax1>-", "->ax0")
    await stream.send("ERROR", {"kind": "Status", "code": 410})
    await follower.until("bx1>-", "ax0>-")


# --- Objects and callbacks that misbehave


async def test_a_malformed_update_is_told_and_the_last_good_one_stays(follower: Follower, server: ApiServer) -> None:
    bad = obj("a", 8, spec={"containers": "none"})
    stream = await begin(
        follower,
        server,
        page(obj("a", 3), obj("b", 4, spec={"containers": "none"}), version=7),
        page(bad, obj("c", 9), version=10),
        page(obj("a", 11, uid="another", spec={"containers": "none"}), obj("c", 9), version=12),
    )
    await follower.until("->a3")
    await stream.send("MODIFIED", bad)
    await stream.send("ADDED", obj("c", 9))
    await follower.until("->c9")
    assert [found.key[1] for found in follower.malformed] == ["b", "a"]
    assert follower.versions == {"a": "3", "c": "9"}
    await stream.send("ERROR", {"kind": "Status", "code": 410})
    stream = await server.watch()
    assert follower.versions == {"a": "3", "c": "9"}
    # Another object of that name, and malformed from the start: the one that was there is gone for certain.
    await stream.send("BOOKMARK", {"metadata": {"resourceVersion": "11"}})
    await stream.send("ERROR", {"kind": "Status", "code": 410})
    await follower.until("a3>-")
    stream = await server.watch()
    await stream.send("DELETED", obj("c", 13, spec={"containers": "none"}))
    await follower.until("c9>-")


async def test_by_default_a_malformed_object_is_logged(
    cluster: HttpCluster, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [page(obj("a", 3, spec={"containers": "none"}), version=7)]
    made = Informer(cluster, PODS, on_change=lambda _old, _new: None)
    made.start()
    await asyncio.wait_for(made.synced(), PATIENCE)
    await made.stop()
    assert "default/a is ignored: Expected `array`" in caplog.text


@pytest.mark.parametrize(
    "bomb", [obj("a", 8, metadata={"labels": {"bomb": ""}}), obj("bomb", 8, spec={"containers": "none"})]
)
async def test_a_callback_that_fails_gets_no_other_change(
    cluster: HttpCluster, server: ApiServer, bomb: dict[str, Any]
) -> None:
    """Whoever has missed one change cannot make sense of the next."""
    follower = Follower(cluster)
    stream = await begin(follower, server, page(obj("first", 3), version=7))
    await stream.send("ADDED", bomb)
    await stream.left()
    said = list(follower.said)
    follower.informer.observe(msgspec.convert(obj("b", 9), Pod))
    assert follower.said == said
    with pytest.raises(RuntimeError):
        await follower.informer.synced()
    with pytest.raises(RuntimeError):
        await follower.informer.stop()


# --- Its life


async def test_others_get_their_turn_while_a_burst_is_taken(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(version=7))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(follower.said) < 2000:
            turns += 1 if follower.said else 0
            await asyncio.sleep(0)

    watching = asyncio.create_task(other())
    burst = [json.dumps({"type": "ADDED", "object": obj(f"pod-{number}", 10 + number)}) for number in range(2000)]
    await stream.send_raw("\n".join(burst).encode() + b"\n")
    await asyncio.wait_for(watching, PATIENCE)
    assert turns >= 10


async def test_after_its_stop_nothing_is_said_and_it_can_start_again(follower: Follower, server: ApiServer) -> None:
    stream = await begin(follower, server, page(obj("a", 3), version=7))
    await follower.until("->a3")
    await follower.informer.stop()
    await stream.left()
    await follower.informer.stop()
    follower.informer.start()
    stream = await server.watch()
    assert stream.query["resourceVersion"] == "7"
    await stream.send("MODIFIED", obj("a", 8))
    await follower.until("a3>a8")
