"""Watches as a server sends them: in pieces, cut off, with errors and with objects that are not as they should be."""

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.core import Pod
from serried.api.resources import NODES, PODS
from serried.cluster.codec import Lines
from serried.cluster.http import HttpCluster
from serried.cluster.protocol import ApiError, Expired, Forbidden, Malformed, Unavailable, WatchEvent
from tests.unit.cluster.server import Answer, ApiServer, Stream, hang_up, obj, refuse


def line(type: str, some: dict[str, Any]) -> bytes:
    return json.dumps({"type": type, "object": some}).encode() + b"\n"


def sends(*chunks: bytes, cut: bool = False) -> Answer:
    """A watch of these chunks, which then ends or is cut off."""

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = Stream(request)
        serving = asyncio.create_task(stream.serve())
        await asyncio.sleep(0)
        for chunk in chunks:
            await stream.send_raw(chunk)
            await asyncio.sleep(0.001)
        if cut:
            stream.cut()
        else:
            stream.end()
        return await serving

    return answer


async def watched(cluster: HttpCluster, version: str = "1") -> list[WatchEvent[Pod]]:
    return [event async for event in cluster.watch(PODS, "default", resource_version=version)]


def names(events: list[WatchEvent[Pod]]) -> list[tuple[str, str]]:
    return [(event.type, event.object.metadata.name) for event in events]


@settings(deadline=None)
@given(lines=st.lists(st.binary(min_size=1).filter(lambda some: b"\n" not in some)), cuts=st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(line + b"\n" for line in lines) + b"unfinished"
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    reader = Lines()
    found = [some for start, end in pairwise(places) for some in reader.feed(whole[start:end])]
    assert found == lines


async def test_a_watch_asks_for_what_it_should(cluster: HttpCluster, server: ApiServer) -> None:
    server.watch_answers = [sends()]
    async for _ in cluster.watch(
        PODS, "ns", resource_version="7", label_selector="team=red", field_selector="spec.nodeName="
    ):
        pytest.fail("there is no event")
    (seen,) = server.seen
    assert seen.path == "/api/v1/namespaces/ns/pods"
    assert 240 <= int(seen.query.pop("timeoutSeconds")) <= 480
    assert seen.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "labelSelector": "team=red",
        "fieldSelector": "spec.nodeName=",
    }


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
async def test_events_come_whole_from_pieces_of_any_size(cluster: HttpCluster, server: ApiServer, size: int) -> None:
    whole = line("ADDED", obj("a", 2)) + b"\n" + line("MODIFIED", obj("a", 3)) + line("DELETED", obj("a", 4))
    server.watch_answers = [sends(*(whole[at : at + size] for at in range(0, len(whole), size)))]
    events = await watched(cluster)
    assert names(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [event.object.metadata.resource_version for event in events] == ["2", "3", "4"]


async def test_a_line_may_be_megabytes(cluster: HttpCluster, server: ApiServer) -> None:
    huge = obj("huge", metadata={"annotations": {"note": "x" * 5_000_000}})
    server.watch_answers = [sends(line("ADDED", huge) + line("ADDED", obj("small")))]
    events = await watched(cluster)
    assert names(events) == [("ADDED", "huge"), ("ADDED", "small")]
    assert len(events[0].object.metadata.annotations["note"]) == 5_000_000


async def test_a_watch_cut_in_the_middle_of_a_line_ends_after_the_last_whole_one(
    cluster: HttpCluster, server: ApiServer
) -> None:
    server.watch_answers = [sends(line("ADDED", obj("a")), line("ADDED", obj("b"))[:40], cut=True)]
    assert names(await watched(cluster)) == [("ADDED", "a")]


async def test_a_watch_that_ends_without_a_word_just_ends(cluster: HttpCluster, server: ApiServer) -> None:
    server.watch_answers = [sends(line("ADDED", obj("a")))]
    assert names(await watched(cluster)) == [("ADDED", "a")]


async def test_a_malformed_object_breaks_nothing(cluster: HttpCluster, server: ApiServer) -> None:
    bad = obj("bad", 5, spec={"containers": "none"})
    server.watch_answers = [sends(line("ADDED", bad), line("DELETED", bad), line("ADDED", obj("good")))]
    events = await watched(cluster)
    assert names(events) == [("ADDED", "bad"), ("DELETED", "bad"), ("ADDED", "good")]
    assert [isinstance(event.object, Malformed) for event in events] == [True, True, False]
    assert isinstance(events[0].object, Malformed)
    assert "$.spec.containers" in events[0].object.error


async def test_a_bookmark_carries_a_version_and_may_be_no_object_otherwise(
    cluster: HttpCluster, server: ApiServer
) -> None:
    bookmark = {"metadata": {"resourceVersion": "9", "creationTimestamp": None}, "spec": {"containers": None}}
    server.watch_answers = [sends(line("BOOKMARK", bookmark))]
    (event,) = await watched(cluster)
    assert (event.type, event.object.metadata.resource_version) == ("BOOKMARK", "9")


@pytest.mark.parametrize(("code", "error"), [(410, Expired), (500, Unavailable), (418, ApiError)])
async def test_an_error_in_the_stream_is_raised(
    cluster: HttpCluster, server: ApiServer, code: int, error: type[ApiError]
) -> None:
    status = {"kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": "R", "message": "too old"}
    # A Status is not so different from a Node that it could not be taken for one.
    server.watch_answers = [sends(line("ADDED", obj("a")), line("ERROR", status), line("ADDED", obj("b")))]
    events = cluster.watch(NODES, resource_version="1")
    assert (await anext(events)).object.metadata.name == "a"
    with pytest.raises(error, match="too old"):
        await anext(events)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuse(410, "Expired"), Expired),
        (refuse(403, "Forbidden"), Forbidden),
        (refuse(503), Unavailable),
        (hang_up, Unavailable),
    ],
)
async def test_a_watch_that_is_refused_raises(
    cluster: HttpCluster, server: ApiServer, answer: Answer, error: type[ApiError]
) -> None:
    server.watch_answers = [answer]
    with pytest.raises(error):
        await watched(cluster)


async def test_a_line_that_is_no_event_is_an_error(cluster: HttpCluster, server: ApiServer) -> None:
    server.watch_answers = [sends(b"<html>\n")]
    with pytest.raises(ApiError) as caught:
        await watched(cluster)
    assert caught.value.reason == "Malformed"


async def test_leaving_a_watch_closes_its_connection(cluster: HttpCluster, server: ApiServer) -> None:
    async def first() -> str:
        async with aclosing(cluster.watch(PODS, resource_version="1")) as events:
            return (await anext(events)).object.metadata.name

    reading = asyncio.create_task(first())
    stream = await server.watch()
    await stream.send("ADDED", obj("a"))
    assert await reading == "a"
    await stream.left()


async def test_thousands_of_events_in_one_piece(cluster: HttpCluster, server: ApiServer) -> None:
    burst = b"".join(line("ADDED", obj(f"pod-{number}", number)) for number in range(5000))
    server.watch_answers = [sends(burst)]
    assert names(await watched(cluster)) == [("ADDED", f"pod-{number}") for number in range(5000)]
