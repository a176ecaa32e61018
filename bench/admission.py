"""How long decisions take: on quota, and on whom to preempt.

Quota: 50,000 pending workloads over 1,000 ClusterQueues in 10 cohorts: the first full round of cycles, and the cycles
after one workload has ended.

Preemption: nodes in racks of 16, each with a job of its own; in each rack one job has priority 9, the others 0. Pending
jobs of priority 5, each of another class, require a whole rack, which no preemption can free: until all of them are
told so, and again after each job that ends. Each cycle is allowed 50 ms, as by the controller.

`python -m bench.admission [quota|fair|preemption ...]`; without an argument, all of them.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from serried.api.assignment import encode
from serried.api.core import Node, Pod
from serried.api.kueue import ClusterQueue, LocalQueue, ResourceFlavor, Topology, Workload
from serried.api.meta import Key
from serried.api.names import HOSTNAME, POD_SET, WORKLOAD
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options

_START = datetime(2026, 1, 1, tzinfo=UTC)
_NAMESPACE = "team"
_COHORTS, _QUEUES, _WORKLOADS = 10, 1000, 50_000
_PRIORITY = {1: 50, 5: 100, 20: 200}
_RACK, _GPU = "example.com/rack", "nvidia.com/gpu"
_RACK_SIZE = 16
_ALLOWED = 0.05  # seconds of a cycle


@dataclass
class Cycles:
    """What some cycles took: seconds in all, and the longest one, by the clock and of CPU."""

    number: int = 0
    total: float = 0.0
    longest: float = 0.0
    longest_cpu: float = 0.0

    def __str__(self) -> str:
        longest = f"{1000 * self.longest:.0f} ms ({1000 * self.longest_cpu:.0f} ms of CPU)"
        return f"{self.total:.2f} s in {self.number} cycles, the longest {longest}"


def _drain(engine: Engine, allowed: float | None = None) -> tuple[list[Key], list[Key], Cycles]:
    """Cycles until nothing is left to decide: who was admitted, who was told why it waits, and what that took."""
    admitted: list[Key] = []
    told: list[Key] = []
    took = Cycles()
    while engine.dirty:
        start, cpu = time.perf_counter(), time.process_time()
        cycle = engine.cycle(_START + timedelta(days=1), spent=_spent(start, allowed))
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        admitted += [decision.key for decision in cycle.decisions]
        told += [wait.key for wait in cycle.waits]
        took.number, took.total = took.number + 1, took.total + elapsed
        took.longest, took.longest_cpu = max(took.longest, elapsed), max(took.longest_cpu, cpu)
    return admitted, told, took


def _spent(start: float, allowed: float | None) -> Callable[[], bool]:
    if allowed is None:
        return lambda: False
    return lambda: time.perf_counter() - start > allowed


def _settle_memory() -> None:
    """As `serried run` does once everything is listed."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _feed_queue(engine: Engine, name: str, flavor: str, quotas: dict[str, Any], **spec: Any) -> None:
    groups = [
        {
            "coveredResources": list(quotas),
            "flavors": [{"name": flavor, "resources": [{"name": r, "nominalQuota": q} for r, q in quotas.items()]}],
        }
    ]
    spec = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
    engine.set_cluster_queue(msgspec.convert({"metadata": {"name": name}, "spec": spec}, ClusterQueue))
    meta = {"name": name, "namespace": _NAMESPACE}
    engine.set_local_queue(msgspec.convert({"metadata": meta, "spec": {"clusterQueue": name}}, LocalQueue))


def _workload(
    name: str, queue: str, second: float, priority: int, requests: dict[str, Any], status: Any = None, **pod_set: Any
) -> Workload:
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    body = {
        "metadata": {
            "name": name,
            "namespace": _NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": (_START + timedelta(seconds=second)).isoformat(),
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": spec}, **pod_set}],
        },
        "status": status or {},
    }
    return msgspec.convert(body, Workload)


# --- quota


def quota(*, fair: bool) -> None:
    engine = Engine(options=Options(fair_sharing=FairSharing() if fair else None))
    engine.set_namespace(_NAMESPACE, {})
    engine.set_flavor(msgspec.convert({"metadata": {"name": "default"}}, ResourceFlavor))
    for i in range(_QUEUES):
        preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
        _feed_queue(
            engine,
            f"q{i}",
            "default",
            {"cpu": 20},
            cohortName=f"cohort-{i % _COHORTS}",
            preemption=preemption,
        )
    choose = random.Random(1)
    sizes = [choose.choice([1, 5, 20]) for _ in range(_WORKLOADS)]
    workloads = [_workload(f"w{i}", f"q{i % _QUEUES}", i, _PRIORITY[n], {"cpu": n}) for i, n in enumerate(sizes)]
    start = time.perf_counter()
    for workload in workloads:
        engine.set_workload(workload)
    print(f"{'fair' if fair else 'quota'}: {_WORKLOADS} workloads arrive in {time.perf_counter() - start:.2f} s")
    _settle_memory()
    admitted, _, took = _drain(engine)
    print(f"  first full round: {len(admitted)} admitted in {took}")
    times = []
    for key in admitted[-50:]:
        engine.delete_workload(key)
        times.append(_drain(engine)[2].total)
    print(f"  after one ends: {1000 * statistics.median(times):.1f} ms (median of {len(times)})")


# --- preemption


def preemption(nodes: int, classes: int) -> None:
    engine = _full_cluster(nodes)
    for i in range(classes):
        requests = {_GPU: 8, "cpu": f"{i + 1}m"}
        request = {"topologyRequest": {"required": _RACK}}
        engine.set_workload(_workload(f"pending{i}", "main", nodes + i, 5, requests, count=_RACK_SIZE, **request))
    _settle_memory()
    _, told, took = _drain(engine, _ALLOWED)
    print(f"preemption: {nodes} nodes, {classes} classes: all {len(set(told))} told in {took}")
    whole = Cycles()
    ends = range(1, nodes, max(1, nodes // 20))
    for i in ends:
        engine.delete_pod((_NAMESPACE, f"w{i}-0"))
        engine.delete_workload((_NAMESPACE, f"w{i}"))
        took = _drain(engine, _ALLOWED)[2]
        whole.number, whole.total = whole.number + took.number, whole.total + took.total
        whole.longest = max(whole.longest, took.longest)
        whole.longest_cpu = max(whole.longest_cpu, took.longest_cpu)
    print(f"  after each of {len(ends)} jobs that end: {1000 * whole.total / len(ends):.0f} ms; {whole}")


def _full_cluster(nodes: int) -> Engine:
    engine = Engine()
    engine.set_namespace(_NAMESPACE, {})
    levels = {"levels": [{"nodeLabel": _RACK}, {"nodeLabel": HOSTNAME}]}
    engine.set_topology(msgspec.convert({"metadata": {"name": "fabric"}, "spec": levels}, Topology))
    flavor = {"metadata": {"name": "h100"}, "spec": {"topologyName": "fabric"}}
    engine.set_flavor(msgspec.convert(flavor, ResourceFlavor))
    _feed_queue(
        engine, "main", "h100", {_GPU: 100 * nodes, "cpu": 10**6}, preemption={"withinClusterQueue": "LowerPriority"}
    )
    for i in range(nodes):
        engine.set_node(_node(i))
        place = encode((HOSTNAME,), [((f"n{i}",), 1)])
        main = {
            "name": "main",
            "flavors": {_GPU: "h100"},
            "resourceUsage": {_GPU: "8"},
            "count": 1,
            "topologyAssignment": msgspec.to_builtins(place),
        }
        conditions = [{"type": t, "status": "True"} for t in ("QuotaReserved", "Admitted")]
        status = {"admission": {"clusterQueue": "main", "podSetAssignments": [main]}, "conditions": conditions}
        priority = 9 if i % _RACK_SIZE == 0 else 0
        engine.set_workload(_workload(f"w{i}", "main", i, priority, {_GPU: 8}, status))
        engine.set_pod(_pod(i))
    return engine


def _node(i: int) -> Node:
    labels = {_RACK: f"r{i // _RACK_SIZE}", HOSTNAME: f"n{i}"}
    status = {
        "allocatable": {_GPU: "8", "cpu": "96", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return msgspec.convert({"metadata": {"name": f"n{i}", "labels": labels}, "status": status}, Node)


def _pod(i: int) -> Pod:
    meta = {
        "name": f"w{i}-0",
        "namespace": _NAMESPACE,
        "annotations": {WORKLOAD: f"w{i}"},
        "labels": {POD_SET: "main"},
    }
    spec = {"nodeName": f"n{i}", "containers": [{"name": "c", "resources": {"requests": {_GPU: 8}}}]}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Pod)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admission", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=["quota", "fair", "preemption", []], default=[])
    cases = parser.parse_args().cases or ["quota", "fair", "preemption"]
    for case in cases:
        if case == "preemption":
            preemption(1024, 32)
            preemption(5000, 256)
        else:
            quota(fair=case == "fair")


if __name__ == "__main__":
    main()
