"""The two clusters that every scenario runs on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from serried.api.resources import NAMESPACES
from serried.cluster.http import HttpCluster
from serried.embedded.hollow import HollowNode, HollowNodes
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster
from tests.conftest import SERRIED
from tests.scenarios.arena import ALLOCATABLE, HOST, Arena, node_labels
from tests.scenarios.kube_scheduler import StandInScheduler
from tools.controlplane import ControlPlane

_RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def prepared_control_plane(control_plane: ControlPlane) -> ControlPlane:
    """The real control plane with the rights of `serried run`."""
    for document in yaml.safe_load_all(_RBAC.read_text()):
        control_plane.create(document)
    return control_plane


class Helper(Protocol):
    """Something that plays its part beside the controller."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@pytest.fixture(params=["embedded", "real"])
async def arena(request: pytest.FixtureRequest) -> AsyncIterator[Arena]:
    """64 hollow nodes, a namespace of the scenario's own, and no controller yet."""
    number = next(_numbers)
    if request.param == "embedded":
        async for made in _embedded(number):
            yield made
    else:
        async for made in _real(number, request.getfixturevalue("prepared_control_plane")):
            yield made


NODES = [HollowNode(node_labels(i)[HOST], node_labels(i), ALLOCATABLE) for i in range(64)]


@asynccontextmanager
async def _started(*helpers: Helper) -> AsyncIterator[None]:
    """Started one after another, stopped in the opposite order."""
    async with AsyncExitStack() as stack:
        for helper in helpers:
            await helper.start()
            stack.push_async_callback(helper.stop)
        yield


async def _embedded(number: int) -> AsyncIterator[Arena]:
    cluster = EmbeddedCluster()
    await cluster.create(NAMESPACES, {"metadata": {"name": f"scenario-{number}"}})
    nodes = HollowNodes(cluster)
    await nodes.add(NODES)
    async with _started(JobController(cluster, speed=10), StandInScheduler(cluster), nodes):
        arena = Arena(cluster, cluster, f"scenario-{number}", f"q{number}", False, nodes)
        try:
            yield arena
            await arena.clean_up()
        finally:
            await arena.stop()
    await cluster.close()


async def _real(number: int, plane: ControlPlane) -> AsyncIterator[Arena]:
    async with (
        await HttpCluster.from_kubeconfig(plane.kubeconfig) as admin,
        await HttpCluster.from_kubeconfig(plane.kubeconfig_for(SERRIED.name)) as serried,
    ):
        await admin.create(NAMESPACES, {"metadata": {"name": f"scenario-{number}"}})
        nodes = HollowNodes(admin)
        await nodes.add(NODES)
        async with _started(nodes):
            arena = Arena(admin, serried, f"scenario-{number}", f"q{number}", True, nodes, plane.kubeconfig)
            try:
                yield arena
                await arena.clean_up()
            finally:
                await arena.stop()
