"""Under fair sharing the shares of queues that all have work waiting come together, whoever was there first."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.kueue import Workload, WorkloadStatus
from serried.api.meta import Condition, Key
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options
from tests.unit.schedule.objects import NS, at, cluster_queue, feed, flavor, local_queue, with_admission, workload

#: (nominal quota, weight) of each queue
QUEUES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=2, max_size=4)
RECLAIM = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}


class Cohort:
    """Queues that share a cohort, each with more work of one CPU each than there is quota."""

    def __init__(self, queues: list[tuple[int, int]], *, preemption: bool) -> None:
        self.queues = queues
        self.total = sum(nominal for nominal, _ in queues)
        self.engine = Engine(options=Options(fair_sharing=FairSharing()))
        self.engine.set_namespace(NS, {})
        feed(self.engine, flavor("default"))
        self.running: dict[Key, int] = {}
        self.stored: dict[Key, Workload] = {}
        self.clock = self.versions = 0
        for i, (nominal, weight) in enumerate(queues):
            quota = {"default": {"cpu": nominal}}
            more: dict[str, Any] = {"cohortName": "all", "fairSharing": {"weight": str(weight)}}
            more["preemption"] = RECLAIM if preemption else {}
            feed(self.engine, cluster_queue(f"q{i}", flavors=quota, **more))
            feed(self.engine, local_queue(f"l{i}", f"q{i}"))

    def submit(self, queue: int) -> None:
        for _ in range(2 * self.total + 1):  # so that some still wait when as many have ended as run at a time
            self.clock += 1
            self._store(workload(f"w{self.clock}", queue=f"l{queue}", created=self.clock, cpu=1))

    def _store(self, given: Workload) -> None:
        self.stored[given.key] = given
        self.engine.set_workload(given)

    def settle(self) -> int:
        """Cycles, and all that they decide is carried out at once, until nothing is left; how many were preempted."""
        preempted = 0
        for _ in range(200):
            if not self.engine.dirty:
                return preempted
            cycle = self.engine.cycle(at(self.clock))
            for admit in cycle.decisions:
                self.versions += 1
                queue = int(admit.admission.cluster_queue[1:])
                self.running[admit.key] = queue
                version = 10 + self.versions
                self._store(with_admission(self.stored[admit.key], admit.admission, version=version))
            for evict in cycle.evictions:
                preempted += 1
                self.versions += 1
                del self.running[evict.key]
                waits = msgspec.convert(msgspec.to_builtins(self.stored[evict.key]), Workload)
                waits.metadata.resource_version = str(10 + self.versions)
                gone = Condition(type="Evicted", status="True", reason="Preempted", last_transition_time=at(self.clock))
                waits.status = WorkloadStatus(conditions=(gone,))
                self._store(waits)
        raise AssertionError("it never comes to rest")

    def end(self, key: Key) -> None:
        del self.running[key]
        self.engine.delete_workload(key)

    def assert_fair(self) -> None:
        """Nobody who would share less with one more CPU stands behind one who shares more."""
        self.engine.validate()
        use = [list(self.running.values()).count(i) for i in range(len(self.queues))]
        assert sum(use) == self.total

        def share(queue: int, cpus: int) -> Fraction:
            nominal, weight = self.queues[queue]
            return Fraction(max(0, cpus - nominal), weight)

        for i in range(len(self.queues)):
            for j in range(len(self.queues)):
                if i != j and use[i] > self.queues[i][0]:
                    assert share(j, use[j] + 1) >= share(i, use[i]), (use, self.queues)


@settings(max_examples=100, deadline=None)
@given(queues=QUEUES, order=st.permutations(range(4)), data=st.data())
def test_without_preemption_shares_come_together_as_workloads_end(
    queues: list[tuple[int, int]], order: list[int], data: st.DataObject
) -> None:
    cohort = Cohort(queues, preemption=False)
    for queue in [i for i in order if i < len(queues)]:
        cohort.submit(queue)
        assert cohort.settle() == 0
    before = sorted(cohort.running)
    for key in data.draw(st.permutations(before)):  # once all have ended that were there before the others came
        cohort.end(key)
        cohort.settle()
    cohort.assert_fair()


@settings(max_examples=150, deadline=None)
@given(queues=QUEUES, order=st.permutations(range(4)))
def test_with_preemption_shares_come_together_at_once(queues: list[tuple[int, int]], order: list[int]) -> None:
    cohort = Cohort(queues, preemption=True)
    for queue in [i for i in order if i < len(queues)]:
        cohort.submit(queue)
        cohort.settle()
    cohort.assert_fair()
    assert cohort.settle() == 0
