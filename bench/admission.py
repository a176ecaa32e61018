"""How long decisions on quota take: 50,000 pending workloads over 1,000 ClusterQueues in 10 cohorts.

`python -m bench.admission [--fair] [--queues N] [--workloads N]` prints the time of the first full round of cycles, of
the longest single cycle, and of the cycles after one workload has ended.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from datetime import UTC, datetime, timedelta

import msgspec

from serried.api.kueue import ClusterQueue, LocalQueue, ResourceFlavor, Workload
from serried.api.meta import Key
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options

_START = datetime(2026, 1, 1, tzinfo=UTC)
_NAMESPACE = "team"
_COHORTS = 10
_PRIORITY = {1: 50, 5: 100, 20: 200}


def _queues(engine: Engine, count: int) -> None:
    engine.set_namespace(_NAMESPACE, {})
    engine.set_flavor(msgspec.convert({"metadata": {"name": "default"}}, ResourceFlavor))
    quota = {"name": "cpu", "nominalQuota": 20}
    for i in range(count):
        spec = {
            "cohortName": f"cohort-{i % _COHORTS}",
            "namespaceSelector": {},
            "resourceGroups": [
                {"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]},
            ],
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        }
        engine.set_cluster_queue(msgspec.convert({"metadata": {"name": f"q{i}"}, "spec": spec}, ClusterQueue))
        meta = {"name": f"q{i}", "namespace": _NAMESPACE}
        engine.set_local_queue(msgspec.convert({"metadata": meta, "spec": {"clusterQueue": f"q{i}"}}, LocalQueue))


def _workload(index: int, queues: int, cpu: int) -> Workload:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    body = {
        "metadata": {
            "name": f"w{index}",
            "namespace": _NAMESPACE,
            "uid": f"uid-{index}",
            "resourceVersion": "1",
            "creationTimestamp": (_START + timedelta(seconds=index)).isoformat(),
        },
        "spec": {
            "queueName": f"q{index % queues}",
            "priority": _PRIORITY[cpu],
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}],
        },
    }
    return msgspec.convert(body, Workload)


def _drain(engine: Engine) -> tuple[list[Key], float, float]:
    """Cycles until nothing is left to decide: who was admitted, seconds in all, seconds of the longest cycle."""
    admitted: list[Key] = []
    total = longest = 0.0
    while engine.dirty:
        start = time.perf_counter()
        cycle = engine.cycle(_START + timedelta(days=1))
        took = time.perf_counter() - start
        admitted += [decision.key for decision in cycle.decisions]
        total, longest = total + took, max(longest, took)
    return admitted, total, longest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admission", description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--fair", action="store_true", help="with fair sharing")
    options = parser.parse_args()
    engine = Engine(options=Options(fair_sharing=FairSharing() if options.fair else None))
    _queues(engine, options.queues)
    choose = random.Random(1)
    workloads = [_workload(i, options.queues, choose.choice([1, 5, 20])) for i in range(options.workloads)]
    start = time.perf_counter()
    for workload in workloads:
        engine.set_workload(workload)
    print(f"{len(workloads)} workloads arrive in {time.perf_counter() - start:.2f} s")
    admitted, total, longest = _drain(engine)
    print(f"first full round: {len(admitted)} admitted in {total:.2f} s, the longest cycle {1000 * longest:.0f} ms")
    times = []
    for key in admitted[-50:]:
        engine.delete_workload(key)
        times.append(_drain(engine)[1])
    print(f"after one ends: {1000 * statistics.median(times):.1f} ms (median of {len(times)})")


if __name__ == "__main__":
    main()
