"""Connections: responses in any form, servers that hang up, proxies, and that nothing is sent late."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvloop
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.resources import LEASES, PODS
from serried.cluster import connection as connections
from serried.cluster.connection import Connection, Endpoint, Fenced, NotSent
from serried.cluster.http import HttpCluster
from serried.cluster.http1 import LONGEST_LINE, Chunks, Lost, parse_head
from serried.cluster.protocol import NotLeading, Unavailable
from serried.cluster.transport import always
from tests.patience import PATIENCE, patience
from tests.unit.cluster.server import ApiServer, kubeconfig, obj, page, refuse, reply

# --- Bytes


@settings(deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40)),
    cuts=st.lists(st.integers(0, 400)),
    extension=st.sampled_from([b"", b";name=value"]),
    trailer=st.sampled_from([b"", b"Audit-Id: 7\r\n"]),
)
def test_a_chunked_body_is_the_same_however_it_is_cut(
    pieces: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    whole = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    whole += b"0\r\n" + trailer + b"\r\n" + b"next"
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    chunks = Chunks()
    found = b""
    after = b""
    for start, end in pairwise(places):
        if chunks.complete:
            after += whole[start:end]
        else:
            found += b"".join(chunks.feed(whole[start:end]))
    assert chunks.complete
    assert found == b"".join(pieces)
    assert chunks.rest + after == b"next"


@pytest.mark.parametrize("body", [b"zz\r\n", b"-5\r\n", b"\r\n", b"x" * (LONGEST_LINE + 1)])
def test_what_is_no_chunked_body_is_an_error(body: bytes) -> None:
    with pytest.raises(Lost, match="not an HTTP response"):
        Chunks().feed(body)


@pytest.mark.parametrize("head", ["", "hello", "HTTP/2 200 OK", "HTTP/1.1 abc", "HTTP/1.1 200 OK\r\nContent-Length: x"])
def test_what_is_no_head_is_an_error(head: str) -> None:
    with pytest.raises(Lost, match="not an HTTP response"):
        parse_head(head.encode())


# --- Responses


Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answers) -> AsyncIterator[Endpoint]:
    """A server of raw bytes; `answer` has each connection to itself."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


def answers(*responses: bytes) -> Answers:
    """Gives these one after another, each in pieces of a few bytes, to requests without a body; then hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(response), 7):
                writer.write(response[at : at + 7])
                await writer.drain()
                await asyncio.sleep(0)

    return answer


async def ask(connection: Connection) -> tuple[int, bytes]:
    head = await connection.ask(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n", always)
    return head.status, await connection.content()


@pytest.mark.parametrize(
    ("response", "found", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, b"hello"), True),
        (b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:0\r\n\r\n", (200, b""), True),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", (200, b"hello"), True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok", (201, b"ok"), True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", (200, b"ok"), False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok"), False),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", (200, b"to the end"), False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", (200, b"ok"), False),
    ],
)
async def test_responses_of_any_form(response: bytes, found: tuple[int, bytes], reusable: bool) -> None:
    until_end = b"to the end" in response
    async with serving(answers(*[response] * (1 if until_end else 2))) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            assert await ask(connection) == found
            assert connection.reusable == reusable
            if reusable:
                assert await ask(connection) == found


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (LONGEST_LINE + 10),
    ],
)
async def test_a_response_that_is_cut_off_or_none_is_an_error(response: bytes) -> None:
    async with serving(answers(response)) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            with pytest.raises(Lost):
                await ask(connection)
            assert not connection.reusable


async def test_a_server_may_answer_before_it_has_read_all() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"

    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1000)
        writer.write(refusal)
        await writer.drain()
        await done.wait()

    done = asyncio.Event()
    async with serving(refuse_early) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            assert (await connection.ask(bytes(32 << 20), always)).status == 413
            assert await connection.content() == b"no"
            assert not connection.reusable
        done.set()


async def test_a_server_that_is_silent_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            connection.patience = 0.05
            with pytest.raises(TimeoutError):
                await ask(connection)


async def test_closing_ends_what_waits() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as endpoint:
        connection = await Connection.open(endpoint)
        asking = asyncio.create_task(ask(connection))
        await asyncio.sleep(0.01)
        connection.close()
        connection.close()
        with pytest.raises(Lost, match="closed"):
            await asking


async def test_a_server_that_hangs_up_an_idle_connection_is_not_asked_over_it() -> None:
    hung_up = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(reader, writer)
        writer.close()
        hung_up.set()

    async with serving(once) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            await ask(connection)
            await hung_up.wait()
            async with patience():
                while connection.reusable:
                    await asyncio.sleep(0)


async def test_much_that_nobody_reads_is_left_to_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_AHEAD", 1 << 16)
    body = bytes(range(256)) * (1 << 14)  # 4 MB
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await reader.read()

    async with serving(much) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            await connection.ask(b"GET / HTTP/1.1\r\n\r\n", always)
            async with patience():
                while not connection._paused:
                    await asyncio.sleep(0)
            assert connection._ahead < len(body)
            assert await connection.content() == body


# --- Making connections


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_where_nobody_listens_is_named(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(NotSent, match=f"cannot connect to {host}:{port}: "):
        await Connection.open(Endpoint(host, port))


async def test_a_server_that_speaks_no_tls_is_told_so() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(plain) as endpoint:
        with pytest.raises(NotSent, match="SSL"):
            await Connection.open(Endpoint("127.0.0.1", endpoint.port, ssl.create_default_context(), "127.0.0.1"))


async def test_a_proxy_is_asked_with_its_password_and_may_refuse(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    async with serving(proxy) as endpoint:
        way = urlsplit(f"http://me:p%40ss@127.0.0.1:{endpoint.port}")
        with pytest.raises(NotSent, match="the proxy answers 407"):
            await Connection.open(Endpoint("api.example", 6443, ssl.create_default_context(), "api.example", way))
    assert seen[0].split(b"\r\n") == [
        b"CONNECT api.example:6443 HTTP/1.1",
        b"Host: api.example:6443",
        b"Proxy-Authorization: Basic bWU6cEBzcw==",
        b"",
        b"",
    ]


async def test_a_proxy_reads_requests_to_a_server_without_tls(tmp_path: Path, server: ApiServer) -> None:
    server.answers = [reply(obj("a"))]
    config = kubeconfig(tmp_path / "config", "http://api.example/prefix", cluster={"proxy-url": server.url})
    async with await HttpCluster.from_kubeconfig(config) as cluster:
        await cluster.get(PODS, "a", "default")
    (seen,) = server.seen
    assert seen.headers["Host"] == "api.example"
    assert seen.path.endswith("/prefix/api/v1/namespaces/default/pods/a")


# --- The fence


class Fence:
    """Open until it is closed."""

    def __init__(self) -> None:
        self.open = True

    def __call__(self) -> bool:
        return self.open


WRITES: dict[str, Callable[[HttpCluster], Awaitable[object]]] = {
    "create": lambda c: c.create(LEASES, {"metadata": {"name": "a"}}, "default"),
    "patch": lambda c: c.patch(LEASES, "a", "default", patch={}),
    "delete": lambda c: c.delete(LEASES, "a", "default"),
    "bind": lambda c: c.bind("default", "a", "node"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_behind_a_closed_fence_nothing_is_written_and_all_is_read(
    cluster: HttpCluster, server: ApiServer, write: Callable[[HttpCluster], Awaitable[object]]
) -> None:
    fence = Fence()
    fenced = cluster.fenced(fence)
    server.answers = [page(version=1)]
    await write(fenced)
    fence.open = False
    with pytest.raises(NotLeading, match="the lease may be over"):
        await write(fenced)
    await fenced.list(LEASES)
    await write(cluster)  # the client itself has no fence
    assert [seen.method == "GET" for seen in server.seen] == [False, True, False]


async def test_a_write_that_waited_for_its_turn_is_not_sent(server: ApiServer, tmp_path: Path) -> None:
    fence, arrived, go_on = Fence(), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        arrived.set()
        await go_on.wait()
        return await reply(obj("a"))(request)

    server.answers = [slow]
    config = kubeconfig(tmp_path / "config", server.url)
    async with await HttpCluster.from_kubeconfig(config, concurrency=1) as made:
        cluster = made.fenced(fence)
        first, second = (asyncio.create_task(cluster.patch(LEASES, "a", "default", patch={})) for _ in range(2))
        await arrived.wait()
        fence.open = False
        go_on.set()
        await first  # sent in time
        with pytest.raises(NotLeading):
            await second
    assert len(server.seen) == 1


async def test_a_write_is_not_repeated_after_the_fence_has_closed(cluster: HttpCluster, server: ApiServer) -> None:
    fence = Fence()

    async def closes(request: web.Request) -> web.StreamResponse:
        fence.open = False
        return await refuse(503)(request)

    server.answers = [closes, reply(obj("a"))]
    with pytest.raises(NotLeading):
        await cluster.fenced(fence).patch(LEASES, "a", "default", patch={})
    assert len(server.seen) == 1


async def test_of_a_write_that_is_being_sent_the_rest_is_not() -> None:
    """Not the whole body comes, so the server does not carry it out."""
    fence, go_on, received = Fence(), asyncio.Event(), bytearray()
    length = 32 << 20

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        while data := await reader.read(1 << 20):
            received.extend(data)

    async with serving(slow) as endpoint:
        with closing(await Connection.open(endpoint)) as connection:
            asking = asyncio.create_task(connection.ask(bytes(length), fence))
            async with patience():
                while connection._waiter is None:
                    await asyncio.sleep(0)
            fence.open = False
            go_on.set()
            with pytest.raises(Fenced):
                await asking
        async with patience():
            while not received:
                await asyncio.sleep(0)
    assert 0 < len(received) < length


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_request_has_left_when_the_loop_turns_to_something_else(
    listening: socket.socket, run: Callable[..., None]
) -> None:
    """Else it would stand in a buffer, and leave whenever a stopped process wakes."""
    request, arrived = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", threading.Event()

    def serve() -> None:
        accepted, _ = listening.accept()
        with accepted:
            data = b""
            while len(data) < len(request):
                data += accepted.recv(1 << 16)
            arrived.set()
            accepted.recv(1)

    async def main() -> None:
        with closing(await Connection.open(Endpoint("127.0.0.1", listening.getsockname()[1]))) as connection:
            asking = asyncio.create_task(connection.ask(request, always))
            asyncio.get_running_loop().call_soon(lambda: held.append(arrived.wait(PATIENCE)))
            await asyncio.sleep(0.01)
            asking.cancel()

    held: list[bool] = []
    thread = threading.Thread(target=serve)
    thread.start()
    run(main())
    thread.join()
    assert held == [True]


async def test_a_closed_client_says_so(cluster: HttpCluster, server: ApiServer) -> None:
    await cluster.close()
    with pytest.raises(Unavailable, match="closed"):
        await cluster.get(PODS, "a", "default")
