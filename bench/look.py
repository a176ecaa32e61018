"""The commands that only look, on a large cluster: `serried queue` and `serried explain` as a person runs them.

    python -m bench.look [--nodes N] [--pending N] [--repeat N]

Starts a control plane of its own (no controllers, no scheduler) with full nodes, the gangs that fill them, and many
Workloads that wait, as a controller would have left them. Each command is a process of its own that lists everything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import yaml

from serried.api import names
from serried.api.assignment import encode
from serried.api.crds import crds
from serried.api.resources import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from serried.cluster.http import HttpCluster
from tools.controlplane import ControlPlane

NAMESPACE = "default"
BLOCK, RACK, GPU = "topo.example/block", "topo.example/rack", "example.com/gpu"
QUEUES = 4
GANG = 8  # pods of a gang, a node each
AT_ONCE = 64  # writes


def node(i: int) -> dict[str, Any]:
    block, rack = i // 128, i // 16
    labels = {"pool": "gpu", BLOCK: f"b{block}", RACK: f"r{rack}", names.HOSTNAME: f"n{i:04d}"}
    has = {"cpu": "96", "memory": "1000Gi", "pods": "110", GPU: "8"}
    conditions = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": f"n{i:04d}", "labels": labels},
        "status": {"allocatable": has, "capacity": has, "conditions": conditions},
    }


def pod_set(pods: int) -> dict[str, Any]:
    requests = {"cpu": "4", "memory": "64Gi", GPU: "8"}
    container = {"name": "c", "image": "train", "resources": {"requests": requests, "limits": requests}}
    spec = {"containers": [container], "restartPolicy": "Never", "schedulerName": names.SCHEDULER_NAME}
    request = {"required": RACK}
    return {"name": "main", "count": pods, "template": {"spec": spec}, "topologyRequest": request}


def workload(name: str, i: int, pods: int) -> dict[str, Any]:
    spec = {"queueName": f"q{i % QUEUES}", "priority": i % 3, "podSets": [pod_set(pods)]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def condition(type: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def fill(cluster: HttpCluster, nodes: int, pending: int) -> None:
    """A full cluster, and who waits for it."""
    levels = [{"nodeLabel": label} for label in (BLOCK, RACK, names.HOSTNAME)]
    await cluster.create(TOPOLOGIES, {"metadata": {"name": "fabric"}, "spec": {"levels": levels}})
    await cluster.create(
        RESOURCE_FLAVORS,
        {"metadata": {"name": "h100"}, "spec": {"topologyName": "fabric", "nodeLabels": {"pool": "gpu"}}},
    )
    quotas = [{"name": r, "nominalQuota": q} for r, q in (("cpu", "1M"), ("memory", "1P"), (GPU, str(8 * nodes)))]
    groups = [
        {
            "coveredResources": [q["name"] for q in quotas],
            "flavors": [{"name": "h100", "resources": quotas}],
        }
    ]
    for i in range(QUEUES):
        spec = {"namespaceSelector": {}, "resourceGroups": groups}
        await cluster.create(CLUSTER_QUEUES, {"metadata": {"name": f"q{i}"}, "spec": spec})
        meta = {"name": f"q{i}", "namespace": NAMESPACE}
        await cluster.create(LOCAL_QUEUES, {"metadata": meta, "spec": {"clusterQueue": f"q{i}"}})
    await all_of(create(cluster, NODES, node(i)) for i in range(nodes))
    await all_of(admitted(cluster, i) for i in range(nodes // GANG))
    await all_of(waiting(cluster, i) for i in range(pending))


async def create(cluster: HttpCluster, resource: Resource[Any], body: dict[str, Any]) -> None:
    status = body.pop("status", None)
    await cluster.create(resource, body)
    if status is not None:
        meta = body["metadata"]
        await cluster.patch(
            resource, meta["name"], meta.get("namespace", ""), patch={"status": status}, subresource="status"
        )


async def admitted(cluster: HttpCluster, i: int) -> None:
    hosts = [f"n{GANG * i + j:04d}" for j in range(GANG)]
    name = f"running-{i:04d}"
    body = workload(name, i, GANG)
    resources = {"cpu": "32", "memory": "512Gi", GPU: "64"}
    places = encode((names.HOSTNAME,), tuple(((host,), 1) for host in hosts))
    body["status"] = {
        "conditions": [condition(t, "True", t, "as it is") for t in ("QuotaReserved", "Admitted")],
        "admission": {
            "clusterQueue": f"q{i % QUEUES}",
            "podSetAssignments": [
                {
                    "name": "main",
                    "count": GANG,
                    "flavors": dict.fromkeys(resources, "h100"),
                    "resourceUsage": resources,
                    "topologyAssignment": places,
                }
            ],
        },
    }
    await create(cluster, WORKLOADS, body)
    for rank, host in enumerate(hosts):
        spec = {**pod_set(1)["template"]["spec"], "nodeName": host}
        meta = {
            "name": f"{name}-{rank}",
            "namespace": NAMESPACE,
            "annotations": {names.WORKLOAD: name},
            "labels": {names.POD_SET: "main"},
        }
        await create(cluster, PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})


async def waiting(cluster: HttpCluster, i: int) -> None:
    body = workload(f"waiting-{i:05d}", i, i % 16 + 1)
    why = f"couldn't assign flavors to pod set main: no rack has room for {i % 16 + 1} pods now"
    body["status"] = {"conditions": [condition("QuotaReserved", "False", "TopologyPlacementFailed", why)]}
    await create(cluster, WORKLOADS, body)


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(task: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await task

    await asyncio.gather(*map(one, work))


def kubeconfig(plane: ControlPlane) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": plane.url, "certificate-authority": str(plane.ca)}}],
        "users": [{"name": "u", "user": {"token": plane.token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def measure(path: Path, repeat: int, *arguments: str) -> None:
    """Of an installed package: its modules are compiled already, by a run that does not count."""
    command = [sys.executable, "-m", "serried.cli.main", *arguments, "--kubeconfig", str(path)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(path.parent / "compiled")
    subprocess.run(command, check=True, capture_output=True, env=env)
    walls, cpus, lines = [], [], 0
    for _ in range(repeat):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, check=True, capture_output=True, env=env)
        walls.append(time.monotonic() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        lines = done.stdout.count(b"\n")
    what, wall, cpu = " ".join(arguments), statistics.median(walls), statistics.median(cpus)
    seconds = f"{wall:.2f} s ({min(walls):.2f}-{max(walls):.2f}), {cpu:.2f} CPU seconds"
    print(f"serried {what:<32} {seconds}, {lines} lines; load {os.getloadavg()[0]:.1f}", flush=True)


async def prepare(path: Path, nodes: int, pending: int) -> None:
    async with await HttpCluster.from_kubeconfig(path, None) as cluster:
        await fill(cluster, nodes, pending)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pending", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with (
        ControlPlane(crds=crds(), scheduler=False, requests_inflight=6000) as plane,
        tempfile.TemporaryDirectory() as directory,
    ):
        path = Path(directory) / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig(plane)))
        asyncio.run(prepare(path, options.nodes, options.pending))
        for arguments in (
            ("queue",),
            ("queue", "-o", "json"),
            ("explain", f"workload/waiting-{options.pending // 2:05d}"),
            ("explain", "workload/running-0000"),
        ):
            measure(path, options.repeat, *arguments)


if __name__ == "__main__":
    main()
