"""A server that misbehaves as told, and a client of it that does not wait long between tries."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serried.cluster import transport
from serried.cluster.http import HttpCluster
from tests.unit.cluster.server import ApiServer, kubeconfig


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    monkeypatch.setattr(transport, "FIRST_DELAY", 0.001)
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "config", server.url), retries=3) as made:
        yield made
