"""The two clusters that every contract test runs on, and what the tests put in them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from serried.api.resources import NAMESPACES, NODES
from serried.cluster.http import HttpCluster
from serried.cluster.protocol import Cluster, NotFound
from serried.embedded.server import EmbeddedCluster
from tests.contract.answers import Both
from tools.controlplane import ControlPlane


@pytest.fixture(params=["real", "embedded"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A client of a real API server, and the embedded cluster."""
    made: Cluster
    if request.param == "real":
        control_plane: ControlPlane = request.getfixturevalue("control_plane")
        made = await HttpCluster.from_kubeconfig(control_plane.kubeconfig)
    else:
        made = EmbeddedCluster()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    made = await cluster.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})
    yield made.metadata.name
    await cluster.delete(NAMESPACES, made.metadata.name)


@pytest.fixture
async def node(cluster: Cluster, namespace: str) -> AsyncIterator[str]:
    """A node of the test's own. No kubelet runs on it, and only pods bound to it by name are on it."""
    name = f"{namespace}-node"
    await cluster.create(NODES, {"metadata": {"name": name}})
    yield name
    with contextlib.suppress(NotFound):
        await cluster.delete(NODES, name)


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """Makes the manifest of a pod that no scheduler of the cluster's looks at."""

    def manifest(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        containers = [{"name": "main", "image": "registry.example/none"}]
        return {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"schedulerName": "nobody", "containers": containers, **spec},
        }

    return manifest


@pytest.fixture
async def both(control_plane: ControlPlane) -> AsyncIterator[Both]:
    """A real API server and the embedded one, with a namespace of the test's own on each."""
    async with await HttpCluster.from_kubeconfig(control_plane.kubeconfig) as real:
        made = await real.create(NAMESPACES, {"metadata": {"generateName": "answers-"}})
        embedded = EmbeddedCluster()
        await embedded.create(NAMESPACES, {"metadata": {"name": made.metadata.name}})
        yield Both(real, embedded, made.metadata.name)
        await embedded.close()
        await real.delete(NAMESPACES, made.metadata.name)
