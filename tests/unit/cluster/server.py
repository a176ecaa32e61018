"""An HTTP server in process that answers what a test tells it to, well or badly."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.patience import patience

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Answers with JSON, or with the bytes given."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return web.Response(body=content, status=status, headers=headers, content_type="application/json")

    return answer


def refuse(status: int, reason: str = "", message: str = "because", **more: Any) -> Answer:
    """Answers with a Status object."""
    headers = more.pop("headers", None)
    return reply(
        {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message, **more},
        status,
        headers,
    )


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def obj(name: str, version: int = 1, *, uid: str = "", namespace: str = "default", **more: Any) -> dict[str, Any]:
    """An object as the server tells of it."""
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata | more.pop("metadata", {}), **more}


def page(*objects: dict[str, Any], version: int, token: str = "") -> Answer:
    """Answers with a page of a list."""
    return reply({"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(objects)})


@dataclass
class Seen:
    """One request that came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Stream:
    """A watch that is open."""

    def __init__(self, request: web.Request) -> None:
        self.query = dict(request.query)
        self._request = request
        self._response = web.StreamResponse()
        self._ended = asyncio.Event()

    async def serve(self) -> web.StreamResponse:
        await self._response.prepare(self._request)
        try:
            await self._ended.wait()
        finally:
            self._ended.set()
        return self._response

    async def send(self, type: str, some: dict[str, Any]) -> None:
        await self.send_raw(json.dumps({"type": type, "object": some}).encode() + b"\n")

    async def send_raw(self, content: bytes) -> None:
        await self._response.write(content)

    def end(self) -> None:
        """Ends it as a server does whose time is up, without a word."""
        self._ended.set()

    def cut(self) -> None:
        """Ends it as a broken line does."""
        assert self._request.transport is not None
        self._request.transport.abort()
        self._ended.set()

    async def left(self) -> None:
        """Waits until the client has gone away."""
        async with patience():
            await self._ended.wait()


class ApiServer:
    """Gives the `answers` one after the other, the last one for ever. Watches are handed to the test instead,
    unless there are `watch_answers`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.watch_answers: list[Answer] = []
        self.seen: list[Seen] = []
        self.connections: set[object] = set()
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()
        app = web.Application(client_max_size=1 << 26, handler_args={"handler_cancellation": True})
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._server = TestServer(app)

    async def start(self) -> None:
        await self._server.start_server()

    async def stop(self) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("")).rstrip("/")

    async def watch(self) -> Stream:
        """The next watch that is opened."""
        async with patience():
            return await self._streams.get()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        content = await request.read()
        self.seen.append(
            Seen(
                request.method,
                request.raw_path.split("?", maxsplit=1)[0],
                dict(request.query),
                dict(request.headers),
                json.loads(content) if content else None,
            )
        )
        if request.query.get("watch") != "true":
            return await self._next(self.answers)(request)
        if self.watch_answers:
            return await self._next(self.watch_answers)(request)
        stream = Stream(request)
        self._streams.put_nowait(stream)
        return await stream.serve()

    @staticmethod
    def _next(answers: list[Answer]) -> Answer:
        return answers.pop(0) if len(answers) > 1 else answers[0]


def kubeconfig(
    path: Path, url: str, *, user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None
) -> Path:
    """Writes a kubeconfig (as JSON, which is YAML)."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(config))
    return path
