"""A reverse proxy before the API server that sees all writes, and can call for a halt amid the bindings of a gang."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

_DROPPED = ("host", "content-length", "transfer-encoding", "connection")


class BindingProxy:
    """Passes everything on; bindings are answered `delay` seconds late.

    After `close_after`, of pod bindings only the first `let_through`; at the next one `halt` is called, and no further
    request is passed on until `open` is called."""

    def __init__(self, upstream: str, ca: Path) -> None:
        self._upstream = upstream
        self._ssl = ssl.create_default_context(cafile=str(ca))
        self._http: aiohttp.ClientSession | None = None
        self.url = ""
        self.let_through: int | None = None
        self.halt: Callable[[], None] = lambda: None
        self.halted = asyncio.Event()
        self.delay = 0.0
        #: called with the number of each binding before it is passed on
        self.at_binding: Callable[[int], None] = lambda number: None
        #: method and path of all writes that came, leases left out
        self.writes: list[str] = []
        #: (pod, status of the answer) of each binding that was passed on
        self.bindings: list[tuple[str, int]] = []
        self._passed = 0

    def close_after(self, let_through: int, halt: Callable[[], None]) -> None:
        self.let_through, self.halt, self._passed = let_through, halt, 0
        self.halted.clear()
        self.bindings.clear()

    def open(self) -> None:
        """Everything passes again."""
        self.let_through = None
        self.halted.clear()

    async def answered(self, bindings: int) -> bool:
        """Whether that many bindings have been passed on and answered."""
        return len(self.bindings) == bindings

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_binding = request.method == "POST" and request.path.endswith("/binding")
        if request.method != "GET" and "/leases" not in request.path:
            self.writes.append(f"{request.method} {request.path}")
        if is_binding:
            self.at_binding(sum(each.endswith("/binding") for each in self.writes))
        if is_binding and self.let_through is not None:
            if self._passed >= self.let_through and not self.halted.is_set():
                self.halted.set()
                self.halt()
            self._passed += 1
        if self.halted.is_set():
            raise web.HTTPBadGateway
        try:
            return await self._pass_on(request, body, is_binding=is_binding)
        except ConnectionError as error:  # the asker has been killed
            raise web.HTTPBadGateway from error

    async def _pass_on(self, request: web.Request, body: bytes, *, is_binding: bool) -> web.StreamResponse:
        assert self._http is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
        async with self._http.request(
            request.method, self._upstream + request.raw_path, data=body or None, headers=headers, ssl=self._ssl
        ) as answer:
            if is_binding:
                await asyncio.sleep(self.delay)
                self.bindings.append((request.path.split("/")[-2], answer.status))
            response = web.StreamResponse(
                status=answer.status, headers={k: v for k, v in answer.headers.items() if k.lower() not in _DROPPED}
            )
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[BindingProxy]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._http:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                await runner.cleanup()

    def kubeconfig(self, path: Path, token: str) -> Path:
        """A kubeconfig that leads through the proxy."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        return path
