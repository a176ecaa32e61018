"""The stream of `bench/workloads.py` through the engine alone, in simulated time: what decisions make of it.

`python -m bench.stream [--share S] [--latency SECONDS ...]` prints, for each time that a write to the API server takes
until it is seen, the wall time, the share of quota held while somebody waits, the mean time to admission per class,
and the CPU time of decisions per Workload.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from bench.workloads import CLASSES, COHORTS, FLAVOR, NAMESPACE, QUEUES, Class, Cohort, cohort_of, queue_spec, workload
from serried.api.kueue import ClusterQueue, LocalQueue, ResourceFlavor, Workload
from serried.schedule.engine import Engine

_START = datetime(2026, 1, 1, tzinfo=UTC)
T = TypeVar("T")


def _made(type_: type[T], name: str, spec: dict[str, Any], **metadata: Any) -> T:
    return msgspec.convert({"metadata": {"name": name, **metadata}, "spec": spec}, type_)


class Stream:
    """One run. Events happen at a time, in order; a decision becomes true `latency` later, an end is seen as late."""

    def __init__(self, share: float, latency: float) -> None:
        self.latency = latency
        self.now = self.cpu = 0.0
        self.cohorts = [Cohort() for _ in range(COHORTS)]
        self.waits: dict[str, list[float]] = {kind.name: [] for kind in CLASSES}
        self._created: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._engine = Engine()
        self._engine.set_namespace(NAMESPACE, {})
        self._engine.set_flavor(_made(ResourceFlavor, FLAVOR, {}))
        for i in range(QUEUES):
            self._engine.set_cluster_queue(_made(ClusterQueue, f"q{i}", queue_spec(i)))
            local = _made(LocalQueue, f"q{i}", {"clusterQueue": f"q{i}"}, namespace=NAMESPACE)
            self._engine.set_local_queue(local)
        for kind in CLASSES:
            for i in range(round(kind.count * share)):
                for queue in range(QUEUES):
                    self._at(i * kind.interval, lambda q=queue, k=kind, i=i: self._arrive(q, k, i))  # type: ignore[misc]

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def _arrive(self, queue: int, kind: Class, index: int) -> None:
        body = workload(queue, kind, index)
        name = body["metadata"]["name"]
        created = (_START + timedelta(seconds=self.now)).isoformat()
        more = {"namespace": NAMESPACE, "uid": name, "resourceVersion": "1", "creationTimestamp": created}
        self._engine.set_workload(msgspec.convert({**body, "metadata": {"name": name, **more}}, Workload))
        self._created[name] = self.now
        cohort = self.cohorts[cohort_of(queue)]
        cohort.settle(self.now)
        cohort.pending[kind.cpu] += 1

    def _admitted(self, name: str, kind: Class, cohort: Cohort) -> None:
        self.waits[kind.name].append(self.now - self._created[name])
        cohort.settle(self.now)
        cohort.pending[kind.cpu] -= 1
        cohort.free -= kind.cpu
        self._at(self.now + kind.run + self.latency, lambda: self._ended(name, kind, cohort))

    def _ended(self, name: str, kind: Class, cohort: Cohort) -> None:
        cohort.settle(self.now)
        cohort.free += kind.cpu
        self._engine.delete_workload((NAMESPACE, name))

    def run(self) -> None:
        kinds = {kind.name: kind for kind in CLASSES}
        start = time.process_time()
        while self._events:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                heapq.heappop(self._events)[2]()
            while self._engine.dirty:
                for admit in self._engine.cycle(_START + timedelta(seconds=self.now)).decisions:
                    name = admit.key[1]
                    kind, queue, _ = name.split("-")
                    seen = (name, kinds[kind], self.cohorts[cohort_of(int(queue))])
                    self._at(self.now + self.latency, lambda seen=seen: self._admitted(*seen))  # type: ignore[misc]
        self.cpu = time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the 15,000 Workloads")
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.02, 0.05, 0.1, 0.2])
    options = parser.parse_args()
    table = Table(title="simulated", title_justify="left")
    for title in ("a write takes, s", "wall, s", "quota held, %", "mean wait, s: small, medium, large", "ms CPU each"):
        table.add_column(title, justify="right")
    for latency in options.latency:
        stream = Stream(options.share, latency)
        stream.run()
        held = sum(c.held for c in stream.cohorts) / (sum(c.there for c in stream.cohorts) or 1)
        waits = ", ".join(f"{sum(all_) / len(all_):.1f}" for all_ in stream.waits.values())
        count = sum(map(len, stream.waits.values()))
        cpu = f"{1000 * stream.cpu / count:.2f}"
        table.add_row(f"{latency:g}", f"{stream.now:.1f}", f"{100 * held:.1f}", waits, cpu)
    Console().print(table)


if __name__ == "__main__":
    main()
