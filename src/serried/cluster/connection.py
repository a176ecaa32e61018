"""One HTTP/1.1 connection to an API server: a non-blocking socket, and as much of the protocol as such a client needs.

Not a library's, because a leader must send nothing after its lease (`serried.cluster.election`): here the question
whether it may is asked right before the system call that sends, and nothing stands in a buffer in between, which a
process that was stopped would send when it wakes. It also costs a third of what aiohttp's client does.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, unquote

from serried.cluster.http1 import LONGEST_LINE, Chunks, Head, Lost, parse_head

CONNECT_TIMEOUT = 10.0
#: Bytes taken from a socket at once: as much as a TLS record holds.
_RECORD = 1 << 14
#: Records taken in one go before others on the loop get their turn.
_ROUND = 64
#: Bytes read ahead of the reader. The server ends a watch whose reader falls behind.
_AHEAD = 4 << 20
#: How a stream ends that is not broken.
_END = "the server closed the connection"

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NotSent(ConnectionError):
    """No connection came about, or it was lost before a byte of the request was sent."""


class Fenced(Exception):
    """Nothing may be sent any more."""


@dataclass(frozen=True)
class Endpoint:
    """Where a connection leads. Connections of equal endpoints can serve for each other."""

    host: str
    port: int
    #: None: no TLS
    tls: ssl.SSLContext | None = None
    #: the name that the server's certificate must have
    server_hostname: str = ""
    #: asked to pass on what is sent; `CONNECT` where there is TLS
    proxy: SplitResult | None = None


class Connection:
    """Made by `open`. For each request: `ask`, then the body of the response to its end by `content` or `body`.

    They raise `Lost`, also when it is closed meanwhile, and TimeoutError after `patience` seconds without a byte.
    """

    def __init__(self, sock: socket.socket, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.patience = 60.0
        #: When its last response was read, in seconds of `time.monotonic()`.
        self.idle_since = 0.0
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._arrived: list[bytes] = []  # not read yet
        self._ahead = 0  # bytes in it
        self._paused = False
        self._over: str | None = None  # why nothing more arrives
        self._waiter: asyncio.Future[None] | None = None
        self._idle = True
        self._asked = True  # the whole of the last request was sent
        self._head = Head(0, {}, None, False, True)  # of the last response
        self._loop.add_reader(sock.fileno(), self._receive)

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Self:
        """Connects, through the proxy if there is one. Raises `NotSent`, or ssl.SSLCertVerificationError."""
        proxy = endpoint.proxy
        host, port = (proxy.hostname or "", proxy.port or 80) if proxy is not None else (endpoint.host, endpoint.port)
        try:
            sock = await _connect(host, port)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    if endpoint.tls is not None:
                        if proxy is not None:
                            await _tunnel(sock, endpoint, proxy)
                        sock = await _secure(sock, endpoint.tls, endpoint.server_hostname)
            except BaseException:
                sock.close()
                raise
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            why = error.strerror or str(error) or "no answer in time"
            raise NotSent(f"cannot connect to {host}:{port}: {why}") from error
        return cls(sock, endpoint)

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent: the last response was read, and the server holds the line."""
        return self._idle and self._over is None and not self._arrived

    def close(self) -> None:
        """At once. Whoever waits for something of it gets `Lost`."""
        if self._sock.fileno() != -1:
            self._end("it was closed")
            self._sock.close()

    async def ask(self, request: bytes, may_send: Callable[[], bool]) -> Head:
        """Sends a request; returns the head of the response.

        Raises `Fenced` as soon as `may_send` says no, and `NotSent` as long as nothing was sent. The connection has to
        be closed then: a request of which a part is missing is not carried out.
        """
        self._idle = False
        await self._send(request, may_send)
        self._head = await self._read_head()
        return self._head

    async def _send(self, request: bytes, may_send: Callable[[], bool]) -> None:
        rest = memoryview(request)
        while rest and not self._arrived:  # a server that has answered already does not want the rest
            if self._over is not None:
                raise Lost(self._over) if len(rest) < len(request) else NotSent(self._over)
            try:
                if not may_send():
                    raise Fenced
                # Nothing may come between that question and this answer.
                sent = self._sock.send(rest)
            except _WOULD_BLOCK:
                await self._until_writable()
            except OSError as error:
                self._end(str(error))
            else:
                rest = rest[sent:]
        self._asked = not rest

    async def _read_head(self) -> Head:
        data = b""
        while True:
            while (end := data.find(b"\r\n\r\n")) < 0:
                if len(data) > LONGEST_LINE:
                    raise Lost("not an HTTP response: its head is too long")
                data += await self._some()
            head = parse_head(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:  # or it is an interim one, and the real one follows
                self._put_back(data)
                return head

    async def content(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.body()])

    async def body(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        head = self._head
        if head.chunked:
            chunks = Chunks()
            while not chunks.complete:
                for piece in chunks.feed(await self._some()):
                    yield piece
            self._put_back(chunks.rest)
        elif head.length is not None:
            left = head.length
            while left:
                data = await self._some()
                yield data[:left]
                self._put_back(data[left:])
                left -= min(left, len(data))
        else:
            while data := await self._some(or_end=True):
                yield data
        self._idle = head.persistent and self._asked
        self.idle_since = time.monotonic()

    async def _some(self, *, or_end: bool = False) -> bytes:
        """What has arrived, at least a byte; b"" at the end of the stream if that is asked for."""
        while not self._arrived:
            if self._over is None:
                await self._woken()
            elif or_end and self._over == _END:
                return b""
            else:
                raise Lost(self._over)
        data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        self._ahead = 0
        if self._paused and self._over is None:
            self._paused = False
            self._loop.add_reader(self._sock.fileno(), self._receive)
        return data

    def _put_back(self, data: bytes) -> None:
        if data:
            self._arrived.insert(0, data)
            self._ahead += len(data)

    # --- The socket

    def _receive(self) -> None:
        """Takes what there is."""
        try:
            for _ in range(_ROUND):
                data = self._sock.recv(_RECORD)
                if not data:
                    self._end(_END)
                    break
                self._arrived.append(data)
                self._ahead += len(data)
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self._end(str(error))
        if self._ahead > _AHEAD and self._over is None:
            self._paused = True
            self._loop.remove_reader(self._sock.fileno())
        if self._arrived:
            self._wake()
        if self._idle and self._over is not None:
            self._sock.close()

    async def _until_writable(self) -> None:
        self._loop.add_writer(self._sock.fileno(), self._wake)
        try:
            await self._woken()
        finally:
            if self._over is None:
                self._loop.remove_writer(self._sock.fileno())

    async def _woken(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(self.patience, _give_up, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, why: str) -> None:
        if self._over is None:
            self._over = why
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._wake()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("no answer in time"))


# --- Making a connection


async def _connect(host: str, port: int) -> socket.socket:
    """A connected socket; of several addresses, the first that answers."""
    loop = asyncio.get_running_loop()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    why = OSError("it has no address")
    for *kind, _name, address in found:
        sock = _socket(*kind)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT / len(found)):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            why = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise why


def _socket(*kind: Any) -> socket.socket:
    """A socket that sends at once, and notices within two minutes that the other end is gone: a watch may be silent
    for long."""
    made = socket.socket(*kind)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def _tunnel(sock: socket.socket, endpoint: Endpoint, proxy: SplitResult) -> None:
    """Has the proxy connect to the endpoint."""
    loop = asyncio.get_running_loop()
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    lines = [f"CONNECT {host}:{endpoint.port} HTTP/1.1", f"Host: {host}:{endpoint.port}"]
    lines += [f"{name}: {value}" for name, value in proxy_authorization(proxy).items()]
    await loop.sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = await loop.sock_recv(sock, 4096)
        if not more or len(answer) > LONGEST_LINE:
            raise Lost("the proxy gives no answer")
        answer += more
    head = parse_head(answer.split(b"\r\n\r\n", 1)[0])
    if head.status != 200:
        raise Lost(f"the proxy answers {head.status} to CONNECT {host}:{endpoint.port}")


def proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    """The header that a proxy with a name and a password in its URL wants."""
    if not proxy.username:
        return {}
    credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


async def _secure(sock: socket.socket, tls: ssl.SSLContext, server_hostname: str) -> ssl.SSLSocket:
    """Shakes hands. The old socket object is of no use afterwards."""
    secured = tls.wrap_socket(sock, server_hostname=server_hostname, do_handshake_on_connect=False)
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                await _once(secured, loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _once(secured, loop.add_writer, loop.remove_writer)
    except BaseException:
        secured.close()
        raise


async def _once(sock: socket.socket, add: Callable[..., None], remove: Callable[..., object]) -> None:
    """Waits until the socket is ready."""
    ready = asyncio.Event()
    add(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        remove(sock.fileno())
