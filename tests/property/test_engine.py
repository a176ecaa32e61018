"""Whatever happens in whatever order, the engine keeps its promises."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serried.api.assignment import decode
from serried.api.kueue import Admission, Workload
from serried.api.meta import Condition, Key
from serried.api.names import POD_SET, WORKLOAD
from serried.api.quantity import resource_value
from serried.quota.quotas import FlavorResource, read_quotas
from serried.schedule.engine import Engine
from serried.schedule.state.records import WorkloadState
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    NS,
    RACK,
    at,
    cluster_queue,
    finished,
    flavor,
    local_queue,
    node,
    pod,
    pod_set,
    topology,
    with_admission,
    workload,
)

QUEUES = ("open", "strict", "mixed")
NODES = 6


def quota(name: str, gpus: int) -> Any:
    match name:
        case "open":
            return cluster_queue(name, {"h100": {GPU: gpus, "cpu": 40, "pods": 20}})
        case "strict":
            return cluster_queue(name, {"h100": {GPU: gpus, "cpu": 40, "pods": 20}}, strict=True)
    flavors = {"h100": {GPU: gpus // 2, "cpu": 8, "pods": 8}, "spot": {GPU: gpus, "cpu": 40, "pods": 20}}
    return cluster_queue(name, flavors)


def gpu_node(index: int, gpus: int) -> Any:
    return node(f"n{index}", rack=f"r{index % 2}", gpus=gpus)


class EngineStory(RuleBasedStateMachine):
    """A cluster, its API server reduced to a dictionary of Workloads, and an engine that hears of each change."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.history: list[tuple[str, tuple[Any, ...]]] = []
        self.outcomes: list[bytes] = []
        self.objects: dict[str, Workload] = {}
        self.version = self.submitted = 0
        #: admissions that are decided but not written
        self.in_flight: dict[Key, tuple[Workload, Admission]] = {}
        self.gpus = dict.fromkeys(QUEUES, 0)
        self.node_gpus = dict.fromkeys(range(NODES), 8)
        self.shrunk = False
        #: the pods of our workloads that are on nodes
        self.pods: dict[Key, None] = {}

    def tell(self, what: str, *arguments: Any) -> None:
        """One event into the engine, and into the history."""
        self.history.append((what, arguments))
        getattr(self.engine, what)(*arguments)

    def write(self, given: Workload) -> None:
        self.version += 1
        given.metadata.resource_version = str(self.version)
        self.objects[given.metadata.name] = given
        self.tell("set_workload", given)

    @initialize()
    def start(self) -> None:
        self.tell("set_namespace", NS, {})
        self.tell("set_topology", topology())
        self.tell("set_flavor", flavor("h100", "fabric"))
        self.tell("set_flavor", flavor("spot"))
        for index in range(NODES):
            self.tell("set_node", gpu_node(index, 8))
        for name in QUEUES:
            self.set_quota(name, 32)
            self.tell("set_local_queue", local_queue(name, name))

    # --- what users and administrators do

    @rule(queue=st.sampled_from([*QUEUES, "missing"]), shapes=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def submit(self, queue: str, shapes: list[int]) -> None:
        for shape in shapes:
            self.submit_one(queue, shape, count=3, priority=0)

    @rule(
        queue=st.sampled_from(QUEUES),
        shape=st.integers(0, 9),
        count=st.integers(0, 4),
        priority=st.integers(-1, 1),
    )
    def submit_one(self, queue: str, shape: int, count: int, priority: int) -> None:
        sets = {
            0: [pod_set(count, required=RACK, ours=True, gpu=8)],
            1: [pod_set(count, required=RACK, ours=True, gpu=4, cpu=1)],
            2: [pod_set(count, ours=True, gpu=1, cpu="500m")],
            3: [pod_set(count, gpu=2)],
            4: [pod_set(count, cpu=3)],
            5: [pod_set(1, "driver", ours=True, cpu=2), pod_set(count, "workers", ours=True, gpu=8)],
            6: [pod_set(count, required=BLOCK, gpu=4), pod_set(1, "tail", required=RACK, ours=True, gpu=8)],
            7: [pod_set(count, required=RACK, ours=True, gpu=30)],
            8: [pod_set(count, gpu="many")],
            9: [pod_set(count, required="nowhere", gpu=1)],
        }[shape]
        self.submitted += 1
        name = f"w{self.submitted}"
        created = self.submitted // 2 if shape else 0
        self.write(workload(name, *sets, queue=queue, created=created, priority=priority))

    @precondition(lambda self: self.objects)
    @rule(data=st.data(), what=st.sampled_from(["delete", "finish", "touch", "evict", "deactivate", "activate"]))
    def change(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.objects)))
        changed = copy(self.objects[name])
        match what:
            case "delete":
                return self.delete(name)
            case "finish":
                self.in_flight.pop((NS, name), None)
                changed = finished(changed)
            case "evict" if changed.status.admission is not None:
                changed.status.admission = None
                changed.status.conditions = (Condition(type="QuotaReserved", status="False"),)
            case "deactivate" | "activate" if (NS, name) not in self.in_flight:
                changed.spec.active = what == "activate"
        # Nothing new, else; for an admission in flight it is an older version that arrives.
        return self.write(changed)

    def delete(self, name: str) -> None:
        del self.objects[name]
        self.in_flight.pop((NS, name), None)
        self.tell("delete_workload", (NS, name))

    @rule(
        what=st.sampled_from(["quota", "stop", "start", "delete queue", "label", "node", "delete node", "pod"]),
        name=st.sampled_from(QUEUES),
        index=st.integers(0, NODES - 1),
        amount=st.integers(0, 5),
    )
    def administer(self, what: str, name: str, index: int, amount: int) -> None:
        match what:
            case "quota":
                self.set_quota(name, amount * 8)
            case "stop" | "start":
                policy = "Hold" if what == "stop" else "None"
                self.tell("set_local_queue", local_queue(name, name, stopPolicy=policy))
            case "delete queue":
                self.tell("delete_cluster_queue", name)
            case "label":
                self.tell("set_namespace", NS, {"amount": str(amount)})
            case "node":
                gpus = (8, 4, 8, 0, 8, 8)[amount]
                self.shrunk = self.shrunk or gpus < self.node_gpus[index]
                self.node_gpus[index] = gpus
                self.tell("set_node", gpu_node(index, gpus))
            case "delete node":
                self.shrunk = True
                self.node_gpus[index] = 0
                self.tell("delete_node", f"n{index}")
            case "pod":
                self.shrunk = True
                phase = "Running" if amount else "Succeeded"
                self.tell("set_pod", pod(f"p{index}", f"n{index}", amount, phase))

    def set_quota(self, name: str, gpus: int) -> None:
        self.shrunk = self.shrunk or gpus < self.gpus[name]
        self.gpus[name] = gpus
        self.tell("set_cluster_queue", quota(name, gpus))

    # --- what the kubelet does

    @precondition(lambda self: any(o.status.admission for o in self.objects.values()))
    @rule(data=st.data(), share=st.integers(1, 2))
    def run_pods(self, data: st.DataObject, share: int) -> None:
        """Pods of an admitted workload (all, or every other) appear on the nodes they were assigned."""
        admitted = sorted(name for name, o in self.objects.items() if o.status.admission is not None)
        given = self.objects[data.draw(st.sampled_from(admitted))]
        assert given.status.admission is not None
        for wanted, assignment in zip(given.spec.pod_sets, given.status.admission.pod_set_assignments, strict=True):
            if assignment.topology_assignment is None or wanted.template.spec.scheduler_name != "serried":
                continue
            places = [v[-1] for v, count in decode(assignment.topology_assignment) for _ in range(count)]
            for rank, host in list(enumerate(places))[::share]:
                running = pod(f"{given.metadata.name}-{assignment.name}-{rank}", host)
                running.metadata.namespace = NS
                running.metadata.annotations = {WORKLOAD: given.metadata.name}
                running.metadata.labels = {POD_SET: assignment.name}
                running.spec.containers = wanted.template.spec.containers
                self.pods[running.key] = None
                self.tell("set_pod", running)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def stop_pods(self, data: st.DataObject) -> None:
        for key in data.draw(st.lists(st.sampled_from(sorted(self.pods)), unique=True)):
            del self.pods[key]
            self.tell("delete_pod", key)

    # --- what the controller does

    @rule(limit=st.sampled_from([1, 2, 100]))
    def cycle(self, limit: int) -> None:
        self.record_cycle(limit)

    def record_cycle(self, limit: int) -> None:
        self.history.append(("cycle", (at(100), limit)))
        result = self.engine.cycle(at(100), limit=limit)
        self.outcomes.append(msgspec.json.encode([result.decisions, result.waits, result.more]))
        for decision in result.decisions:
            given = self.objects[decision.key[1]]
            assert (given.metadata.uid, given.metadata.resource_version) == (decision.uid, decision.resource_version)
            assert given.status.admission is None
            assert decision.key not in self.in_flight, "decided twice"
            self.in_flight[decision.key] = (given, decision.admission)
            self.within_limits(decision.admission)

    def within_limits(self, admission: Admission) -> None:
        """Right after a decision, nothing it takes is above its limit, whatever was cut before."""
        nominal = self.nominal(admission.cluster_queue)
        used = self.used(admission.cluster_queue)
        world = self.engine.world
        for assignment in admission.pod_set_assignments:
            for resource, quantity in assignment.resource_usage.items():
                fr = (assignment.flavors[resource], resource)
                assert not resource_value(resource, quantity) or used[fr] <= nominal[fr], f"{fr} is exceeded"
            if assignment.topology_assignment is None:
                continue
            domains = decode(assignment.topology_assignment)
            assert sum(count for _, count in domains) == assignment.count, "not every pod has a place"
            for values, _ in domains:
                row = world.nodes.row_of[values[-1]]
                for resource in assignment.resource_usage:
                    assert world.capacity.free[world.capacity.lines[resource], row] >= 0, f"{values} is promised twice"

    def nominal(self, name: str) -> dict[FlavorResource, int]:
        limits, _ = read_quotas(quota(name, self.gpus[name]).spec)
        return dict(limits.nominal)

    def used(self, name: str) -> dict[FlavorResource, int]:
        status = self.engine.status(("", name))
        assert status is not None
        return {
            (f.name, r.name): resource_value(r.name, r.total) for f in status.flavors_reservation for r in f.resources
        }

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), accepted=st.booleans(), heard=st.booleans())
    def answer(self, data: st.DataObject, accepted: bool, heard: bool) -> None:
        """The API server takes an admission, or refuses it."""
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        _, admission = self.in_flight.pop(key)
        if accepted:
            self.write(with_admission(self.objects[key[1]], admission))
            if heard:
                self.write(copy(self.objects[key[1]]))
        else:
            self.tell("withdraw", key)

    @rule()
    def restart(self) -> None:
        """A new engine reads everything from the API server, in another order."""
        self.in_flight.clear()
        queues = [e for e in self.history if e[0] in ("set_cluster_queue", "delete_cluster_queue")]
        others = [e for e in self.history if e[0] not in ("set_workload", "delete_workload", "cycle", "withdraw")]
        self.engine, self.history = Engine(), []
        for what, arguments in [*(e for e in others if e not in queues), *queues]:
            self.tell(what, *arguments)
        self.outcomes.clear()
        for given in self.objects.values():
            self.tell("set_workload", given)

    # --- the laws

    @invariant()
    def laws(self) -> None:
        self.engine.validate()
        free = self.engine.world.capacity.free
        assert self.shrunk or (free >= 0).all(), "a node is promised twice"
        for name in QUEUES:
            status = self.engine.status(("", name))
            if status is None or self.shrunk:
                continue
            nominal, used = self.nominal(name), self.used(name)
            assert used.keys() == nominal.keys()
            assert all(used[fr] <= nominal[fr] for fr in used), f"{name} is above its quota: {used}"

    @invariant()
    def explanations_change_nothing(self) -> None:
        before = self.engine.dirty
        for name in self.objects:
            found = self.engine.explain((NS, name), at(100))
            assert found is not None
            assert found.state != "pending" or found.reason is not None
        assert self.engine.dirty == before
        self.engine.validate()

    def teardown(self) -> None:
        if not self.history:
            return
        self.dry()
        for name in list(self.objects):
            if self.engine.holds((NS, name)):
                self.delete(name)
                self.dry()
        self.same_again()
        self.all_gone()

    def dry(self) -> None:
        """Cycles end; then nobody who could be admitted waits where nobody has to wait for others."""
        for _ in range(100):
            if not self.engine.dirty:
                break
            self.record_cycle(3)
        assert not self.engine.dirty, "the cycles never run dry"
        for found in self.engine.inspect().workloads():
            if found.state is not WorkloadState.PENDING:
                continue
            why = self.engine.explain(found.key, at(100))
            assert why is not None
            assert found.held_back_by is not None or not why.fits_now, f"{found.key} waits for nothing"
            assert found.reason is not None, f"{found.key} was never told why it waits"

    def same_again(self) -> None:
        """The same events in the same order give the same decisions and reasons."""
        other, outcomes = Engine(), []
        for what, arguments in self.history:
            if what == "cycle":
                result = other.cycle(arguments[0], limit=arguments[1])
                outcomes.append(msgspec.json.encode([result.decisions, result.waits, result.more]))
            else:
                getattr(other, what)(*arguments)
        assert outcomes == self.outcomes

    def all_gone(self) -> None:
        for name in list(self.objects):
            self.delete(name)
        self.engine.validate()
        for name in QUEUES:
            for key in (("", name), (NS, name)):
                status = self.engine.status(key)
                if status is not None:
                    assert (status.pending_workloads, status.reserving_workloads, status.admitted_workloads) == (
                        0,
                        0,
                        0,
                    )
                    assert {r.total for f in status.flavors_reservation for r in f.resources} <= {"0"}
        assert not self.engine.world.holds
        for key in self.pods:
            self.engine.delete_pod(key)
        capacity = self.engine.world.capacity
        assert (capacity.free == capacity.unheld).all()


def copy(given: Workload) -> Workload:
    return msgspec.convert(msgspec.to_builtins(given), Workload)


TestEngine = EngineStory.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
