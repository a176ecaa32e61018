"""What `docs/getting-started.md` has people apply does what it says there."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from serried.api.core import Pod
from serried.api.names import SCHEDULER_NAME
from serried.api.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, PODS, RESOURCE_FLAVORS, TOPOLOGIES, WORKLOADS
from serried.cluster.protocol import Cluster
from serried.control.config import load
from serried.control.controller import Controller
from serried.embedded import webhook
from serried.embedded.hollow import HollowNodes
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster
from tests.patience import until
from tools.hollow_nodes import described

_DEPLOY = Path(__file__).parents[2] / "deploy"
_EXAMPLES = _DEPLOY / "examples"
_KINDS = {r.kind: r for r in (TOPOLOGIES, RESOURCE_FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, JOBS)}


async def apply(cluster: Cluster, text: str) -> None:
    for document in yaml.safe_load_all(text):
        await cluster.create(_KINDS[document["kind"]], document, document["metadata"].get("namespace"))


@pytest.mark.parametrize(("example", "hosts"), [("job.yaml", 4), ("group.yaml", None)])
async def test_an_example_is_bound_as_a_whole_in_one_rack(example: str, hosts: int | None) -> None:
    cluster = EmbeddedCluster(mutators=[webhook.mutate])
    nodes, jobs = HollowNodes(cluster), JobController(cluster)
    wanted = described((_EXAMPLES / "nodes.yaml").read_text())
    await nodes.add(wanted)
    rack_of = {n.name: n.labels["example.com/rack"] for n in wanted}
    await nodes.start()
    await jobs.start()
    running = asyncio.create_task(Controller(cluster).run())
    try:
        await apply(cluster, (_EXAMPLES / "queues.yaml").read_text())
        await apply(cluster, (_EXAMPLES / example).read_text())

        async def running_pods() -> list[Pod]:
            found = (await cluster.list(PODS, "default")).items
            return found if len(found) == 4 and all(p.status.phase == "Running" for p in found) else []

        pods = await until(running_pods)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await jobs.stop()
        await nodes.stop()
        await cluster.close()
    assert hosts is None or len({p.spec.node_name for p in pods}) == hosts
    assert len({rack_of[p.spec.node_name] for p in pods}) == 1
    assert {p.spec.scheduler_name for p in pods} == {SCHEDULER_NAME}


def test_the_configuration_in_the_deployment_is_read(tmp_path: Path) -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((_DEPLOY / "serried.yaml").read_text()))
    by_kind = {d["kind"]: d for d in documents}
    path = tmp_path / "config.yaml"
    path.write_text(by_kind["ConfigMap"]["data"]["config.yaml"])
    config = load(path)
    assert config.webhook.enabled
    assert config.webhook.service == by_kind["Service"]["metadata"]["name"]
    assert config.webhook.namespace == by_kind["Service"]["metadata"]["namespace"]
    container = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"] == [{"name": "webhook", "containerPort": config.webhook.port}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Pod", "only Nodes are expected, and there is {'kind': 'Pod'}"),
        ("- 1", "only Nodes are expected"),
        ("[1", "expected ',' or ']'"),
        ("kind: Node\nmetadata: {labels: [1]}", "metadata.labels"),
    ],
)
def test_what_is_no_node_is_not_played(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        described(text)
