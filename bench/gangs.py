"""Drives `bench/end_to_end.py`: submits gangs as Jobs, lets hollow nodes run them, and says when each was complete.

    API_URL=… API_TOKEN=… python bench/gangs.py serried|floor NODES GANGS PODS RUN

GANGS indexed Jobs of PODS pods with 8 GPUs each, on NODES nodes of 8 GPUs (racks of 8 nodes, blocks of 16 racks), each
required in one block; a complete gang runs for RUN seconds. `floor` binds the pods itself, knowing the answer: what
remains is what the API server needs. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
import yaml

from serried.api import names
from serried.api.core import Pod
from serried.api.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, NAMESPACES, PODS, RESOURCE_FLAVORS, TOPOLOGIES
from serried.cluster.http import HttpCluster
from serried.cluster.informer import Informer
from serried.embedded.hollow import HollowNode, HollowNodes

BLOCK, RACK, GPU, NAMESPACE = "topo.example/block", "topo.example/rack", "example.com/gpu", "bench"
LIMIT = 300.0  # seconds until the driver gives up
CAPACITY = {"cpu": "96", "memory": "1000Gi", "pods": "110", GPU: "8"}


def nodes(count: int) -> list[HollowNode]:
    def labels(i: int) -> dict[str, str]:
        return {BLOCK: f"b{i // 128}", RACK: f"b{i // 128}-r{i // 8 % 16}", "pool": "gpu"}

    return [HollowNode(f"n{i:05d}", labels(i), CAPACITY) for i in range(count)]


def job(gang: int, pods: int, run: float, scheduler: str) -> dict[str, Any]:
    resources = {"requests": {GPU: "8"}, "limits": {GPU: "8"}}
    template = {
        "metadata": {"annotations": {names.REQUIRED_TOPOLOGY: BLOCK, names.RUN_SECONDS: str(run)}},
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": scheduler,
            "containers": [{"name": "train", "image": "train", "resources": resources}],
        },
    }
    queued = scheduler == names.SCHEDULER_NAME
    return {
        "metadata": {"name": f"g{gang}", "labels": {names.QUEUE_NAME: "lq"} if queued else {}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "suspend": queued,
            "template": template,
        },
    }


async def set_up(cluster: HttpCluster, count: int) -> None:
    async def make(resource: Any, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
        await cluster.create(resource, body, namespace)

    levels = [{"nodeLabel": x} for x in (BLOCK, RACK, names.HOSTNAME)]
    flavor = {"name": "gpu", "resources": [{"name": GPU, "nominalQuota": str(8 * count)}]}
    group = {"coveredResources": [GPU], "flavors": [flavor]}
    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await make(TOPOLOGIES, "net", {"levels": levels})
    await make(RESOURCE_FLAVORS, "gpu", {"nodeLabels": {"pool": "gpu"}, "topologyName": "net"})
    await make(CLUSTER_QUEUES, "cq", {"namespaceSelector": {}, "resourceGroups": [group]})
    await make(LOCAL_QUEUES, "lq", {"clusterQueue": "cq"}, NAMESPACE)


class Watcher:
    """Sees pods appear, be bound and end; for `floor`, gives each gang its block as soon as it exists."""

    def __init__(self, cluster: HttpCluster, stack: str, count: int, pods: int) -> None:
        self.cluster, self.stack, self.pods = cluster, stack, pods
        self.free = list(range(count // pods))
        self.slots: dict[str, int] = {}
        self.waiting: defaultdict[str, list[str]] = defaultdict(list)
        self.whole: list[str] = []
        self.bound: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.ended: defaultdict[str, set[str]] = defaultdict(set)
        self.complete: dict[str, float] = {}
        self.over: dict[str, float] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def change(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        gang, name = new.metadata.labels[names.JOB_NAME], new.metadata.name
        if old is None and self.stack == "floor" and not new.spec.node_name:
            self.waiting[gang].append(name)
            if len(self.waiting[gang]) == self.pods:
                self.whole.append(gang)
                self.assign()
        if new.spec.node_name and name not in self.bound[gang]:
            self.bound[gang][name] = new.spec.node_name
            if len(self.bound[gang]) == self.pods:
                self.complete[gang] = time.monotonic()
        if new.status.phase == "Succeeded":
            self.ended[gang].add(name)
            if len(self.ended[gang]) == self.pods and gang not in self.over:
                self.over[gang] = time.monotonic()
                if self.stack == "floor":
                    self.free.append(self.slots.pop(gang))
                    self.assign()

    def assign(self) -> None:
        while self.whole and self.free:
            gang = self.whole.pop(0)
            slot = self.slots[gang] = self.free.pop()
            for i, pod in enumerate(self.waiting[gang]):
                work = self.cluster.bind(NAMESPACE, pod, f"n{slot * self.pods + i:05d}")
                task = asyncio.create_task(work)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)


async def main(stack: str, count: int, gangs: int, pods: int, run: float) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig()))
        async with await HttpCluster.from_kubeconfig(path, concurrency=64) as cluster:
            hollow = HollowNodes(cluster)
            await set_up(cluster, count)
            await hollow.add(nodes(count))
            await hollow.start()
            watcher = Watcher(cluster, stack, count, pods)
            informer = Informer(cluster, PODS, namespace=NAMESPACE, on_change=watcher.change)
            informer.start()
            await informer.synced()
            await asyncio.sleep(2)  # whoever schedules has seen the nodes by then
            start = time.monotonic()
            scheduler = names.SCHEDULER_NAME if stack == "serried" else "nobody"
            await asyncio.gather(*(cluster.create(JOBS, job(g, pods, run, scheduler), NAMESPACE) for g in range(gangs)))
            while len(watcher.over) < gangs and time.monotonic() - start < LIMIT:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await informer.stop()
            await hollow.stop()
    times = sorted(t - start for t in watcher.complete.values())
    blocks = {g: {int(n[1:]) // 128 for n in bound.values()} for g, bound in watcher.bound.items()}
    return {
        "stack": stack,
        "nodes": count,
        "gangs": gangs,
        "pods": pods,
        "complete": len(times),
        "ended": len(watcher.over),
        "wall_s": round(max(watcher.over.values()) - start, 2) if len(watcher.over) == gangs else None,
        "first_gang_s": round(times[0], 2) if times else None,
        "last_gang_s": round(times[-1], 2) if times else None,
        "one_block": sum(len(b) == 1 for b in blocks.values()),
    }


def kubeconfig() -> dict[str, Any]:
    """Of the API server that the environment names; it is one of our own on this machine, made for this run."""
    server = {"server": os.environ["API_URL"], "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": os.environ["API_TOKEN"]}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


if __name__ == "__main__":
    stack, *numbers = sys.argv[1:]
    count, gangs, pods, run = map(float, numbers)
    print(json.dumps(uvloop.run(main(stack, int(count), int(gangs), int(pods), run))))
