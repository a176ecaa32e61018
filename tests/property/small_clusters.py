"""Small clusters full of jobs, as strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from serried.api.kueue import ClusterQueue, Workload
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    with_admission,
    workload,
)

POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any")
TOPOLOGIES: tuple[dict[str, Any] | None, ...] = (None, {"required": RACK}, {"preferred": RACK}, {"required": BLOCK})


@st.composite
def jobs(draw: st.DrawFn) -> tuple[str, int, dict[str, Any]]:
    """(queue, priority, pod set)."""
    queue, priority = draw(st.sampled_from("ab")), draw(st.integers(0, 3))
    pods, gpus, where = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from(TOPOLOGIES))
    return queue, priority, pod_set(pods, gpu=gpus, topology=where, ours=where is None)


@dataclass(frozen=True)
class Story:
    """Two racks in each of two blocks, and two ClusterQueues in a cohort whose quota may be less than the nodes hold,
    full of jobs. It can be told to any number of engines."""

    fair: bool
    nodes: int
    queues: Mapping[str, ClusterQueue]
    running: Sequence[Workload]
    #: job → when its quota was reserved
    since: Sequence[float]

    def tell(self) -> Engine:
        """An engine in which nobody waits, and nobody has been preempted so far."""
        fair = FairSharing() if self.fair else None
        engine = Engine(options=Options(fair_sharing=fair, preemption=False))
        engine.set_namespace(NS, {})
        nodes = (node(f"n{i}", block=f"b{i // 2 % 2}", rack=f"r{i % 4}", gpus=4) for i in range(self.nodes))
        queues = (local_queue(name, name) for name in self.queues)
        for item in (*nodes, topology(), flavor("f", "fabric"), *self.queues.values(), *queues):
            feed(engine, item)
        for job, since in zip(self.running, self.since, strict=True):
            feed(engine, job)
            for admit in engine.cycle(at(9)).decisions:
                if admit.key == job.key:
                    admitted = with_admission(job, admit.admission)
                    admitted.status.conditions[0].last_transition_time = at(since)
                    feed(engine, admitted)
        for job in self.running:
            if not engine.holds(job.key):
                engine.delete_workload(job.key)
        engine._state.options = replace(engine._state.options, preemption=True)
        return engine


@st.composite
def stories(draw: st.DrawFn, policies: Sequence[str] = POLICIES) -> Story:
    """`policies`: of reclaimWithinCohort."""
    fair = draw(st.booleans())
    queues = {}
    for name in "ab":
        policy: dict[str, Any] = {
            "withinClusterQueue": draw(st.sampled_from(POLICIES[:3])),
            "reclaimWithinCohort": draw(st.sampled_from(policies)),
        }
        if not fair and draw(st.booleans()):
            policy["borrowWithinCohort"] = {"policy": "LowerPriority", "maxPriorityThreshold": draw(st.integers(0, 2))}
        quota = draw(st.integers(4, 20))
        queues[name] = cluster_queue(name, flavors={"f": {GPU: quota}}, cohortName="c", preemption=policy)
    drawn = draw(st.lists(st.tuples(jobs(), st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=14))
    running = [
        workload(f"w{i}", pods, queue=queue, priority=priority, created=created)
        for i, ((queue, priority, pods), created, _) in enumerate(drawn)
    ]
    return Story(fair, draw(st.sampled_from((4, 8))), queues, running, [since for _, _, since in drawn])
