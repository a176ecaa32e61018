"""Situations that stories about the engine begin with."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.kueue import AdmissionCheck, AdmissionCheckState, Workload
from serried.schedule.cycle.cycle import Evict
from serried.schedule.engine import Engine
from serried.schedule.types.options import FairSharing, Options
from serried.schedule.types.reasons import Reason
from tests.unit.schedule.objects import (
    NS,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    with_admission,
    workload,
)

RECLAIM = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
LOWER = {"withinClusterQueue": "LowerPriority"}
CHECKS: dict[str, Any] = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}


def teams(*names: str, cohort: str = "all", fair: bool = False, **quotas: dict[str, Any]) -> Engine:
    """Teams with 10 cpu each, or as given: quota, and what else its ClusterQueue says."""
    result = Engine(options=Options(fair_sharing=FairSharing() if fair else None))
    result.set_namespace(NS, {})
    feed(result, flavor("f"))
    for name in names:
        spec: dict[str, Any] = {"cohortName": cohort, "preemption": RECLAIM, **quotas.get(name, {})}
        feed(result, cluster_queue(name, {"f": {"cpu": spec.pop("cpu", 10)}}, **spec))
        feed(result, local_queue(name, name))
    return result


def queue(**quotas: Any) -> Story:
    spec = cluster_queue(flavors={"f": quotas or {"cpu": 10}}, preemption=LOWER)
    return Story(engine(flavor("f"), spec, local_queue()))


class Story:
    """An engine whose admissions are written at once; evictions are written when the story says so."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.objects: dict[str, Workload] = {}
        self.version = 1

    def submit(self, name: str, *sets: dict[str, Any], **more: Any) -> None:
        self.version += 1
        self.objects[name] = workload(name, *sets, version=self.version, **more)
        self.engine.set_workload(self.objects[name])

    def cycle(self) -> tuple[list[str], list[Evict], dict[str, Reason]]:
        admitted: list[str] = []
        evictions: list[Evict] = []
        waits: dict[str, Reason] = {}
        for _ in range(50):
            if not self.engine.dirty:
                break
            result = self.engine.cycle(at(100))
            for admit in result.decisions:
                admitted.append(admit.key[1])
                self.version += 1
                given = with_admission(self.objects[admit.key[1]], admit.admission, version=self.version)
                self.engine.set_workload(given)
            evictions += result.evictions
            waits |= {w.key[1]: w.reason for w in result.waits}
            self.engine.validate()
        assert not self.engine.dirty
        return admitted, evictions, waits

    def leave(self, name: str) -> None:
        """The eviction of a workload is written: it waits again."""
        self.version += 1
        given = self.objects[name]
        given.metadata.resource_version = str(self.version)
        self.engine.set_workload(given)
        self.engine.validate()


def check(name: str = "budget", controller: str = "example.com/budget") -> AdmissionCheck:
    spec = {"controllerName": controller}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, AdmissionCheck)


def with_checks() -> Engine:
    given = engine(flavor("f"), cluster_queue(flavors={"f": {"cpu": 10}}, **CHECKS), local_queue())
    given.set_admission_check(check())
    return given


def reserved(given: Engine, state: str) -> Workload:
    """A workload whose quota is reserved, and whose check has come to this state."""
    pending = workload("w", cpu=4)
    feed(given, pending)
    (admit,) = given.cycle(at(0)).decisions
    assert (admit.admitted, [(c.name, c.state) for c in admit.checks]) == (False, [("budget", "Pending")])
    written = with_admission(pending, admit.admission, admitted=False)
    written.status.admission_checks = tuple(admit.checks)
    given.set_workload(written)
    assert not given.dirty
    written = msgspec.convert(msgspec.to_builtins(written), Workload)
    written.metadata.resource_version = "9"
    written.status.admission_checks = (AdmissionCheckState(name="budget", state=state),)
    given.set_workload(written)
    given.validate()
    return written
