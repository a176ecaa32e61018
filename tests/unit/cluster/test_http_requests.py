"""Requests on a bad line: what is tried again, what is not, and which error comes of it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from serried.api.resources import LEASES, NODES, PODS
from serried.cluster.http import HttpCluster
from serried.cluster.protocol import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from tests.unit.cluster.server import Answer, ApiServer, hang_up, kubeconfig, obj, page, refuse, reply

# --- Trying again


async def test_a_busy_server_is_given_the_time_it_asks_for(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [refuse(429, "TooManyRequests", headers={"Retry-After": "1"}), reply(obj("a"))]
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert (await cluster.get(LEASES, "a", "default")).metadata.name == "a"
    assert loop.time() - start >= 1.0
    assert len(server.seen) == 2


@pytest.mark.parametrize("trouble", [refuse(500), refuse(503), reply(b"<html>bad gateway</html>", 502), hang_up])
async def test_trouble_that_passes_is_not_seen(cluster: HttpCluster, server: ApiServer, trouble: Answer) -> None:
    server.answers = [trouble, trouble, reply(obj("a"))]
    assert (await cluster.get(LEASES, "a", "default")).metadata.name == "a"


async def test_trouble_that_stays_makes_it_unavailable(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [refuse(500, "InternalError", "etcd is on fire")]
    with pytest.raises(Unavailable, match=r"GET .*/leases/a: etcd is on fire") as caught:
        await cluster.get(LEASES, "a", "default")
    assert (caught.value.status, caught.value.reason) == (500, "InternalError")
    assert len(server.seen) == 4


async def test_no_server_makes_it_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
    async with await HttpCluster.from_kubeconfig(config, retries=1) as cluster:
        with pytest.raises(Unavailable, match=str(port)) as caught:
            await cluster.version()
    assert caught.value.status == 0
    with pytest.raises(Unavailable):
        await cluster.version()  # closed


Request = Callable[[HttpCluster], Awaitable[Any]]

REPEATABLE: dict[str, Request] = {
    "merge patch": lambda c: c.patch(LEASES, "a", "default", patch={"metadata": {"labels": {"a": "b"}}}),
    "create with a name": lambda c: c.create(LEASES, {"metadata": {"name": "a"}}, "default"),
    "list": lambda c: c.list(LEASES),
    "delete": lambda c: c.delete(LEASES, "a", "default"),
    "bind": lambda c: c.bind("default", "a", "node"),
}
NOT_REPEATABLE: dict[str, Request] = {
    "create with a generated name": lambda c: c.create(LEASES, {"metadata": {"generateName": "a-"}}, "default"),
}


@pytest.mark.parametrize("trouble", [hang_up, refuse(500), refuse(504)])
@pytest.mark.parametrize("request_", REPEATABLE.values(), ids=REPEATABLE)
async def test_what_may_be_done_twice_is_tried_again(
    cluster: HttpCluster, server: ApiServer, request_: Request, trouble: Answer
) -> None:
    server.answers = [trouble, trouble, page(version=1)]
    await request_(cluster)
    assert len(server.seen) == 3


@pytest.mark.parametrize("trouble", [hang_up, refuse(500), refuse(504)])
@pytest.mark.parametrize("request_", NOT_REPEATABLE.values(), ids=NOT_REPEATABLE)
async def test_what_must_not_be_done_twice_is_not(
    cluster: HttpCluster, server: ApiServer, request_: Request, trouble: Answer
) -> None:
    server.answers = [trouble, reply(obj("a"))]
    with pytest.raises(Unavailable):
        await request_(cluster)
    assert len(server.seen) == 1


@pytest.mark.parametrize("not_done", [refuse(429), refuse(503, headers={"Retry-After": "1"})])
@pytest.mark.parametrize("request_", NOT_REPEATABLE.values(), ids=NOT_REPEATABLE)
async def test_what_was_certainly_not_done_is_tried_again(
    cluster: HttpCluster, server: ApiServer, request_: Request, not_done: Answer
) -> None:
    server.answers = [not_done, reply(obj("a"))]
    await request_(cluster)
    assert len(server.seen) == 2


# --- What the answer to a second try means


async def test_a_deletion_that_finds_nothing_the_second_time_has_succeeded(
    cluster: HttpCluster, server: ApiServer
) -> None:
    server.answers = [refuse(504), refuse(404, "NotFound")]
    await cluster.delete(LEASES, "a", "default")
    with pytest.raises(NotFound):
        await cluster.delete(LEASES, "a", "default")


async def test_a_creation_that_finds_its_name_taken_the_second_time_says_so(
    cluster: HttpCluster, server: ApiServer
) -> None:
    server.answers = [hang_up, refuse(409, "AlreadyExists")]
    with pytest.raises(AlreadyExists):
        await cluster.create(LEASES, {"metadata": {"name": "a"}}, "default")


async def test_a_binding_that_was_done_the_first_time_has_succeeded(cluster: HttpCluster, server: ApiServer) -> None:
    bound = reply(obj("a", spec={"nodeName": "node"}))
    server.answers = [hang_up, refuse(409, "Conflict"), bound]
    await cluster.bind("default", "a", "node", uid="uid-a")
    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("POST", "/api/v1/namespaces/default/pods/a/binding"),
        ("POST", "/api/v1/namespaces/default/pods/a/binding"),
        ("GET", "/api/v1/namespaces/default/pods/a"),
    ]


@pytest.mark.parametrize(("node", "uid"), [("another", "uid-a"), ("node", "uid-b"), ("", "uid-a")])
async def test_a_binding_that_somebody_else_did_is_a_conflict(
    cluster: HttpCluster, server: ApiServer, node: str, uid: str
) -> None:
    server.answers = [hang_up, refuse(409, "Conflict"), reply(obj("a", uid=uid, spec={"nodeName": node}))]
    with pytest.raises(Conflict):
        await cluster.bind("default", "a", "node", uid="uid-a")


async def test_a_binding_refused_the_first_time_is_a_conflict(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [refuse(409, "Conflict"), reply(obj("a", spec={"nodeName": "node"}))]
    with pytest.raises(Conflict):
        await cluster.bind("default", "a", "node")
    assert len(server.seen) == 1


# --- Errors


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Expired),
        (413, "RequestEntityTooLarge", Invalid),
        (422, "Invalid", Invalid),
        (302, "", ApiError),
    ],
)
async def test_each_refusal_has_its_error(
    cluster: HttpCluster, server: ApiServer, status: int, reason: str, error: type[ApiError]
) -> None:
    server.answers = [refuse(status, reason, "because I say so")]
    with pytest.raises(ApiError, match="/api/v1/nodes/a: because I say so") as caught:
        await cluster.get(NODES, "a")
    assert type(caught.value) is error
    assert caught.value.status == status


async def test_an_answer_that_is_no_status_is_quoted(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply(b"<html>go away</html>", 404)]
    with pytest.raises(NotFound, match="<html>go away</html>") as caught:
        await cluster.get(NODES, "a")
    assert caught.value.reason == "HTTP404"


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"", b'{"metadata": 7}'])
async def test_an_answer_that_is_no_object_is_an_error(cluster: HttpCluster, server: ApiServer, body: bytes) -> None:
    server.answers = [reply(body)]
    for request in (cluster.get(NODES, "a"), cluster.list(NODES), cluster.version()):
        with pytest.raises(ApiError) as caught:
            await request
        assert caught.value.reason == "Malformed"


async def test_names_do_not_lead_astray(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply(obj("a"))]
    await cluster.get(PODS, "../secrets/a?b", "name/space")
    assert server.seen[0].path == "/api/v1/namespaces/name%2Fspace/pods/..%2Fsecrets%2Fa%3Fb"
    with pytest.raises(Invalid):
        await cluster.get(PODS, "", "default")


async def test_what_json_cannot_hold_is_refused(cluster: HttpCluster) -> None:
    with pytest.raises(Invalid, match="JSON"):
        await cluster.patch(PODS, "a", "default", patch={"spec": {"containers": object()}})
    with pytest.raises(Invalid, match="JSON"):
        await cluster.create(PODS, {"metadata": {"name": object()}}, "default")


# --- What is sent


async def test_writes_say_what_they_are(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply(obj("a"))]
    await cluster.create(LEASES, {"metadata": {"name": "a", "namespace": "ns"}})
    await cluster.patch(LEASES, "a", "ns", patch={"spec": {}}, subresource="status")
    created, merged = server.seen
    assert (created.method, created.path) == ("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases")
    assert created.body == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "a", "namespace": "ns"},
    }
    assert created.headers["Content-Type"] == "application/json"
    assert created.headers["User-Agent"].startswith("serried/")
    assert (merged.method, merged.path) == ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/a/status")
    assert merged.headers["Content-Type"] == "application/merge-patch+json"
    assert {seen.query["fieldManager"] for seen in server.seen} == {"serried"}


async def test_a_deletion_says_what_it_insists_on(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply()]
    await cluster.delete(PODS, "a", "ns", uid="u", grace_period_seconds=0)
    await cluster.delete(NODES, "a")
    assert server.seen[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
    }
    assert server.seen[1].body == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


# --- Lists


async def test_pages_are_one_list(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [page(obj("a"), version=7, token="t&1"), page(obj("b"), version=7)]
    listing = await cluster.list(PODS, "ns", label_selector="team in (red,blue)", field_selector="spec.nodeName=")
    assert [pod.metadata.name for pod in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"
    selectors = {"labelSelector": "team in (red,blue)", "fieldSelector": "spec.nodeName=", "limit": "500"}
    assert [seen.query for seen in server.seen] == [selectors, {**selectors, "continue": "t&1"}]


async def test_a_list_whose_pages_have_expired_is_read_in_one_piece(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [
        page(obj("a"), version=7, token="t"),
        refuse(410, "Expired"),
        page(obj("b"), obj("c"), version=9),
    ]
    listing = await cluster.list(PODS)
    assert [pod.metadata.name for pod in listing.items] == ["b", "c"]
    assert listing.resource_version == "9"
    assert server.seen[2].query == {}


async def test_a_list_may_be_null(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply({"metadata": {"resourceVersion": "7"}, "items": None})]
    assert (await cluster.list(PODS)).items == []


async def test_malformed_items_are_set_apart(cluster: HttpCluster, server: ApiServer) -> None:
    bad = obj("bad", 5, spec={"containers": "none"})
    worse = {"metadata": "none"}
    server.answers = [page(obj("a"), bad, obj("b"), worse, version=7)]
    listing = await cluster.list(PODS)
    assert [pod.metadata.name for pod in listing.items] == ["a", "b"]
    assert [found.key for found in listing.malformed] == [("default", "bad"), ("", "")]
    assert listing.malformed[0].metadata.resource_version == "5"
    assert "$.spec.containers" in listing.malformed[0].error


# --- Concurrency


async def test_requests_in_flight_are_bounded_and_watches_have_their_own_room(
    server: ApiServer, tmp_path: Path
) -> None:
    flying = most = 0

    async def slow(_request: web.Request) -> web.StreamResponse:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.02)
        flying -= 1
        return web.json_response(obj("a"))

    server.answers = [slow]
    config = kubeconfig(tmp_path / "config", server.url)
    async with await HttpCluster.from_kubeconfig(config, concurrency=4, watches=6) as cluster:

        async def watch() -> None:
            async with aclosing(cluster.watch(PODS, resource_version="1")) as events:
                await anext(events)

        await asyncio.gather(*(cluster.get(PODS, "a", "default") for _ in range(20)))
        assert most == 4
        watching = [asyncio.create_task(watch()) for _ in range(6)]
        streams = [await server.watch() for _ in range(6)]
        await asyncio.gather(*(cluster.get(PODS, "a", "default") for _ in range(20)))
        assert most == 4
        with pytest.raises(Unavailable, match="watches"):
            await watch()
        for stream in streams:
            await stream.send("ADDED", obj("a"))
        await asyncio.gather(*watching)


async def test_warming_opens_connections_that_are_used_then(cluster: HttpCluster, server: ApiServer) -> None:
    server.answers = [reply({"gitVersion": "v1.37.2"})]
    await cluster.warm(16)
    assert len(server.connections) == 16
    server.answers = [reply(obj("a"))]
    await asyncio.gather(*(cluster.get(PODS, "a", "default") for _ in range(16)))
    assert len(server.connections) == 16
