"""Requests to one API server: pooled connections, bounded concurrency, credentials that are renewed, retries.

What is retried, and when. A request is *repeatable* if doing it twice is as good as once: reads, merge patches,
deletions, bindings, evictions, and creations under a fixed name. Not repeatable are creations under a generated
name (there would be two objects) and JSON patches (there would be two entries in a list).

| what happened                               | repeatable | not repeatable       |
|---------------------------------------------|------------|----------------------|
| no connection came about                    | retry      | retry                |
| 429, or 5xx with Retry-After: not processed | retry      | retry                |
| connection lost, no answer in time, 5xx     | retry      | raise `Unavailable`  |

In the last row nobody knows whether the server did it: the answer to a later attempt is then `doubtful`, and has to
be read in that light. (aiohttp by itself repeats, once, a GET or DELETE that failed on a pooled connection; a DELETE
that had been carried out then answers `NotFound`.)
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

import serried
from serried.cluster.codec import disruption_forbidden, failure, read_status
from serried.cluster.credentials import LEAST_SECONDS, Access, AccessSource, ConfigError
from serried.cluster.protocol import ApiError, Forbidden, Invalid, Unavailable

log = logging.getLogger(__name__)

#: Names us in the managed fields of what we write.
FIELD_MANAGER = "serried"
#: Seconds a pooled connection may idle. The API server closes its end after 90.
KEEP_ALIVE = 75.0
#: The server gives up on a request after 60 seconds.
ANSWER_TIMEOUT = 65.0
#: Seconds that connections may take to end.
CLOSE_TIMEOUT = 2.0
CONNECT_TIMEOUT = 10.0
#: Bytes of a watch to read ahead of its reader. The server ends a watch whose reader falls behind.
WATCH_BUFFER = 4 << 20

FIRST_DELAY = 0.1
LONGEST_DELAY = 30.0

JSON = "application/json"
#: Not reached at all: nothing was sent.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
#: What aiohttp raises, at any time of a request, when the connection is no good.
LOST = (aiohttp.ClientError, OSError, TimeoutError)


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


class Transport:
    """`concurrency` requests are in flight at a time, others wait their turn; `watches` watches come on top.

    A failed request is tried `retries` more times.
    """

    def __init__(
        self, source: AccessSource, access: Access, *, concurrency: int = 32, watches: int = 64, retries: int = 5
    ) -> None:
        self.concurrency = concurrency
        self.watches = asyncio.Semaphore(watches)
        self._source = source
        self._access = access
        self._refreshing = asyncio.Lock()
        self._slots = asyncio.Semaphore(concurrency)
        self._retries = retries
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=concurrency + watches, keepalive_timeout=KEEP_ALIVE, socket_factory=self._open_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_TIMEOUT),
            # No compression: the server is near, and its time and ours are dearer than bytes.
            headers={"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": f"serried/{serried.__version__}"},
        )

    async def close(self) -> None:
        """Ends all requests and watches. Nothing is open any more when it returns."""
        await self._session.close()
        # TLS says good-bye in turns of the loop; whoever is in a hurry to end the loop has to wait for it.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT
        while any(opened.fileno() != -1 for opened in self._sockets) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    def _open_socket(self, address: tuple[Any, ...]) -> socket.socket:
        opened = _socket(address)
        self._sockets.add(opened)
        return opened

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = JSON,
        repeatable: bool = True,
    ) -> Answer:
        """One request, retried as the module says. Raises `Unavailable` when that has led to no answer."""
        what = f"{method} {path}"
        data = None if body is None else encode(body, what)
        if method in ("POST", "PATCH"):
            query = {**(query or {}), "fieldManager": FIELD_MANAGER}
        doubtful = refreshed = False
        attempt = 0
        while True:
            access = await self._current_access()
            wait = 0.0
            try:
                async with (
                    self._slots,
                    self._session.request(
                        method, _url(access, path, query), data=data, **_options(access, content_type)
                    ) as response,
                ):
                    content = await response.read()
            except LOST as error:
                unavailable: ApiError = _unreachable(what, error)
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    raise unavailable from error
                processed = not isinstance(error, _NOT_SENT)
            else:
                status = response.status
                if status == 401 and not refreshed:
                    refreshed = True
                    await self._refresh(access)
                    continue
                if not _is_passing(status, content):
                    return Answer(what, status, content, doubtful)
                unavailable = failure(status, content, what)
                wait = _seconds(response.headers.get("Retry-After"))
                processed = status != 429 and not wait
            doubtful |= processed
            if attempt == self._retries or (processed and not repeatable):
                raise unavailable
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY) * random.uniform(0.5, 1.0)
            attempt += 1
            log.debug("%s; trying again", unavailable)
            await asyncio.sleep(max(delay, min(wait, LONGEST_DELAY)))

    async def open_watch(self, path: str, query: Mapping[str, str], what: str, seconds: int) -> aiohttp.ClientResponse:
        """The open response. Not retried here but for new credentials: whoever watches starts again anyway."""
        timeout = aiohttp.ClientTimeout(total=seconds + 30, sock_connect=CONNECT_TIMEOUT)
        for last in (False, True):
            access = await self._current_access()
            try:
                response = await self._session.request(
                    "GET", _url(access, path, query), **_options(access), timeout=timeout, read_bufsize=WATCH_BUFFER
                )
                if response.status == 200:
                    return response
                async with response:
                    content = await response.read()
            except LOST as error:
                raise _unreachable(what, error) from error
            if response.status != 401 or last:
                raise failure(response.status, content, what)
            await self._refresh(access)
        raise AssertionError("unreachable")

    async def _current_access(self) -> Access:
        if self._session.closed:
            raise Unavailable(0, "Closed", "this client has been closed")
        now = asyncio.get_running_loop().time()
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


def encode(body: Any, what: str) -> bytes:
    """JSON of mappings, sequences, structs and scalars. Raises `Invalid` if anything else is in it."""
    try:
        return msgspec.json.encode(dict(body) if isinstance(body, Mapping) else body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(400, "BadRequest", f"{what}: cannot be written as JSON: {error}") from error


def _url(access: Access, path: str, query: Mapping[str, str] | None) -> URL:
    return URL(access.server + path + ("?" + urlencode(query) if query else ""), encoded=True)


def _options(access: Access, content_type: str = JSON) -> dict[str, Any]:
    return {
        "headers": {**access.headers, "Content-Type": content_type},
        "ssl": access.ssl or True,
        "server_hostname": access.server_hostname,
        "proxy": access.proxy,
        "allow_redirects": False,
    }


def _is_passing(status: int, content: bytes) -> bool:
    """Whether the same request may succeed later: the server is busy, or has failed."""
    return status >= 500 or (status == 429 and not disruption_forbidden(read_status(content)))


def _seconds(retry_after: str | None) -> float:
    """Of a Retry-After header; 0 if there is none, or a date instead."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _unreachable(what: str, error: Exception) -> Unavailable:
    why = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        why = f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror}"
    return Unavailable(0, "NoAnswer", f"{what}: {why}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within two minutes that the other end is gone: a watch may be silent for long."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
