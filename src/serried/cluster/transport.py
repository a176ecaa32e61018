"""Requests to one API server: pooled connections, bounded concurrency, credentials that are renewed, retries.

What is retried, and when. A request is *repeatable* if doing it twice is as good as once: reads, merge patches,
deletions, bindings, and creations under a fixed name. Not repeatable are creations under a generated name: there
would be two objects.

| what happened                               | repeatable | not repeatable       |
|---------------------------------------------|------------|----------------------|
| no connection came about                    | retry      | retry                |
| 429, or 5xx with Retry-After: not processed | retry      | retry                |
| connection lost, no answer in time, 5xx     | retry      | raise `Unavailable`  |

In the last row nobody knows whether the server did it: the answer to a later attempt is then `doubtful`, and has to
be read in that light.

Writes may be fenced: each attempt of a request asks `may_send` at the moment it goes out, however long it has waited
for its turn, for credentials or for a connection. `NotLeading` says that nothing, or not all of it, was sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

import serried
from serried.cluster.codec import failure
from serried.cluster.connection import Connection, Endpoint, Fenced, NotSent, proxy_authorization
from serried.cluster.credentials import LEAST_SECONDS, Access, AccessSource, ConfigError
from serried.cluster.protocol import ApiError, Forbidden, Invalid, NotLeading, Unavailable

log = logging.getLogger(__name__)

#: Names us in the managed fields of what we write.
FIELD_MANAGER = "serried"
#: Seconds a pooled connection may idle. The API server closes its end after 90.
KEEP_ALIVE = 75.0
#: The server gives up on a request after 60 seconds.
ANSWER_TIMEOUT = 65.0

FIRST_DELAY = 0.1
LONGEST_DELAY = 30.0

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer to a request, of whatever status."""

    what: str
    status: int
    content: bytes
    #: Whether an earlier attempt may have been carried out.
    doubtful: bool

    def ok(self) -> bytes:
        """The body of a good answer. Raises the `ApiError` of any other."""
        if self.status < 300:
            return self.content
        raise failure(self.status, self.content, self.what)


@dataclass(frozen=True, slots=True)
class _Route:
    """What all requests with the same access have in common."""

    endpoint: Endpoint
    #: what comes before the path in the first line of a request
    prefix: str
    #: lines, each with its end
    headers: str


def always() -> bool:
    """The `may_send` of what anybody may send at any time."""
    return True


class Transport:
    """`concurrency` requests are in flight at a time, others wait their turn; `watches` watches come on top.

    A failed request is tried `retries` more times.
    """

    def __init__(
        self, source: AccessSource, access: Access, *, concurrency: int = 32, watches: int = 64, retries: int = 5
    ) -> None:
        self.concurrency = concurrency
        self._source = source
        self._access = access
        self._route = _route(access)
        self._refreshing = asyncio.Lock()
        self._slots = asyncio.Semaphore(concurrency)
        self._watches = asyncio.Semaphore(watches)
        self._retries = retries
        self._closed = False
        self._idle: list[Connection] = []  # the one used last at the end
        self._busy: set[Connection] = set()

    async def close(self) -> None:
        """Ends all requests and watches. Nothing is open any more when it returns."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    def apart(self) -> Transport:
        """Another one to the same server, with the same credentials, and nothing else in common."""
        return Transport(self._source, self._access, concurrency=self.concurrency)

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        repeatable: bool = True,
        may_send: Callable[[], bool] = always,
    ) -> Answer:
        """One request, retried as the module says. Raises `Unavailable` when that has led to no answer."""
        what = f"{method} {path}"
        data = b"" if body is None else encode(body, what)
        if query:
            path = f"{path}?{urlencode(query)}"
        elif method in ("POST", "PATCH"):
            path = f"{path}?fieldManager={FIELD_MANAGER}"
        rest = f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        doubtful = refreshed = False
        attempt = 0
        while True:
            access = await self._current_access()
            request = f"{method} {self._route.prefix}{path} HTTP/1.1\r\n{self._route.headers}".encode() + rest
            wait = 0.0
            try:
                async with self._slots:
                    status, retry_after, content = await self._exchange(request, may_send)
            except OSError as error:
                unavailable: ApiError = _unreachable(what, error)
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise unavailable from error
                processed = not isinstance(error, NotSent)
            except Fenced:
                raise NotLeading(0, "NotLeading", f"{what}: not sent, the lease may be over") from None
            else:
                if status == 401 and not refreshed:
                    refreshed = True
                    await self._refresh(access)
                    continue
                if status < 500 and status != 429:  # else the server is busy, or has failed
                    return Answer(what, status, content, doubtful)
                unavailable = failure(status, content, what)
                wait = _seconds(retry_after)
                processed = status != 429 and not wait
            doubtful |= processed
            if attempt == self._retries or (processed and not repeatable):
                raise unavailable
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY) * random.uniform(0.5, 1.0)
            attempt += 1
            log.debug("%s; trying again", unavailable)
            await asyncio.sleep(max(delay, min(wait, LONGEST_DELAY)))

    async def stream(self, path: str, query: Mapping[str, str], seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of a watch as it comes, until it ends or breaks; that it is silent for `seconds` breaks it, too.

        Raises `ApiError` when it cannot be opened. That is not retried but for new credentials: whoever watches starts
        again anyway.
        """
        what = f"watch {path}"
        if self._watches.locked():
            raise Unavailable(0, "TooManyWatches", f"{what}: all watches this client may have are open")
        async with self._watches:
            connection = await self._open_stream(f"{path}?{urlencode(query)}", what)
            connection.patience = seconds
            try:
                async with aclosing(connection.body()) as pieces:
                    async for piece in pieces:
                        yield piece
            except OSError as error:
                log.debug("%s: ended by %r", what, error)
            finally:
                self._put(connection)

    async def _open_stream(self, path: str, what: str) -> Connection:
        """A connection on which the head of a good response has been read."""
        refreshed = False
        while True:
            access = await self._current_access()
            request = f"GET {self._route.prefix}{path} HTTP/1.1\r\n{self._route.headers}\r\n".encode()
            try:
                connection = await self._take()
                try:
                    status = (await connection.ask(request, always)).status
                    content = b"" if status == 200 else await connection.content()
                except BaseException:
                    self._put(connection)
                    raise
            except OSError as error:
                raise _unreachable(what, error) from error
            if status == 200:
                return connection
            self._put(connection)
            if status != 401 or refreshed:
                raise failure(status, content, what)
            refreshed = True
            await self._refresh(access)

    # --- Connections

    async def _exchange(self, request: bytes, may_send: Callable[[], bool]) -> tuple[int, str, bytes]:
        """One attempt: the status of the response, its Retry-After and its body."""
        connection = await self._take()
        try:
            head = await connection.ask(request, may_send)
            content = await connection.content()
        finally:
            self._put(connection)
        return head.status, head.headers.get("retry-after", ""), content

    async def _take(self) -> Connection:
        """A connection for one request, to be `_put` back."""
        connection = self._idle.pop() if self._idle else None
        while connection is not None and not self._is_fresh(connection):
            connection.close()
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = await Connection.open(self._route.endpoint)
        if self._closed:
            connection.close()
        connection.patience = ANSWER_TIMEOUT
        self._busy.add(connection)
        return connection

    @staticmethod
    def _is_fresh(connection: Connection) -> bool:
        return connection.reusable and time.monotonic() < connection.idle_since + KEEP_ALIVE

    def _put(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.reusable and connection.endpoint == self._route.endpoint:
            self._idle.append(connection)
        else:
            connection.close()

    # --- Credentials

    async def _current_access(self) -> Access:
        if self._closed:
            raise Unavailable(0, "Closed", "this client has been closed")
        now = time.monotonic()
        access = self._access
        if access.good_until is not None and now > access.good_until:
            try:
                await self._refresh(access)
            except Forbidden as error:
                # What we have may do for a while yet; if not, the server says so.
                log.warning("%s", error.message)
                self._access = replace(access, good_until=now + LEAST_SECONDS)
        return self._access

    async def _refresh(self, stale: Access) -> None:
        """Loads the access anew, unless somebody has done so since `stale`. On failure the old one stays in use."""
        async with self._refreshing:
            if self._access is not stale:
                return
            try:
                self._access = await self._source.load()
            except ConfigError as error:
                raise Forbidden(401, "Unauthorized", f"the credentials could not be renewed: {error}") from error
            self._route = _route(self._access)
            while self._idle and self._idle[0].endpoint != self._route.endpoint:
                self._idle.pop(0).close()


def encode(body: Any, what: str) -> bytes:
    """JSON of mappings, sequences, structs and scalars. Raises `Invalid` if anything else is in it."""
    try:
        return msgspec.json.encode(dict(body) if isinstance(body, Mapping) else body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(400, "BadRequest", f"{what}: cannot be written as JSON: {error}") from error


def _route(access: Access) -> _Route:
    url = urlsplit(access.server)
    proxy = urlsplit(access.proxy) if access.proxy else None
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    headers = {
        "Host": url.netloc.rpartition("@")[2],
        "Accept": JSON,
        # No compression: the server is near, and its time and ours are dearer than bytes.
        "Accept-Encoding": "identity",
        "User-Agent": f"serried/{serried.__version__}",
        **access.headers,
    }
    prefix = url.path
    if proxy is not None and access.ssl is None:
        # Such a proxy reads the request.
        prefix = access.server
        headers |= proxy_authorization(proxy)
    endpoint = Endpoint(host, port, access.ssl, access.server_hostname or host, proxy)
    return _Route(endpoint, prefix, "".join(f"{name}: {value}\r\n" for name, value in headers.items()))


def _seconds(retry_after: str) -> float:
    """Of a Retry-After header; 0 if there is none, or a date instead."""
    return float(retry_after) if retry_after.isdecimal() else 0.0


def _unreachable(what: str, error: OSError) -> Unavailable:
    return Unavailable(0, "NoAnswer", f"{what}: {str(error) or type(error).__name__}")
