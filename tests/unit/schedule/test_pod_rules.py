"""Rules between pods and volumes, in the decisions of the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.core import Pod
from serried.api.storage import PersistentVolume, PersistentVolumeClaim
from serried.schedule.engine import Engine
from tests.unit.schedule.objects import (
    BLOCK,
    GPU,
    HOST,
    NS,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    run,
    topology,
    workload,
)
from tests.unit.schedule.stories import LOWER, Story

NOISY = {"matchLabels": {"app": "noisy"}}


def apart(selector: dict[str, Any], key: str = HOST) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": selector}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def pods(count: int = 1, labels: dict[str, str] | None = None, *, gpu: int = 1, **pod: Any) -> dict[str, Any]:
    made = pod_set(count, ours=True, pod=pod, gpu=gpu)
    made["template"]["metadata"] = {"labels": labels or {}}
    return made


def fabric(*hosts: str) -> Engine:
    queue = cluster_queue(flavors={"f": {GPU: 100}}, preemption=LOWER)
    return engine(*map(node, hosts), topology(), flavor("f", "fabric"), queue, local_queue())


def resident(name: str, on: str, **spec: Any) -> Pod:
    given = {"metadata": {"name": name, "namespace": NS, "uid": name}, "spec": {"nodeName": on, **spec}}
    return msgspec.convert(given, Pod)


def test_a_workload_that_others_keep_off_holds_up_none_that_is_equal_but_for_labels() -> None:
    given = fabric("n0")
    feed(given, resident("quiet", "n0", **apart(NOISY)))
    feed(given, workload("first", pods(labels={"app": "noisy"}), created=1))
    for i in range(3):
        feed(given, workload(f"w{i}", pods(labels={"app": "calm"}), created=2 + i))
    assert run(given) == ["w0", "w1", "w2"]
    given.delete_pod((NS, "quiet"))
    assert run(given) == ["first"]


def test_victims_leave_with_their_rules() -> None:
    """Nodes have room for all; what the preemptor needs is that nobody keeps it off."""
    story = Story(fabric("n0", "n1"))
    story.submit("calm", pods(2))
    story.submit("quiet", pods(2, {"app": "quiet"}, gpu=5, **apart(NOISY)))
    assert story.cycle()[0] == ["calm", "quiet"]
    story.submit("noisy", pods(1, {"app": "noisy"}), priority=5)
    admitted, evictions, waits = story.cycle()
    assert (admitted, [e.key[1] for e in evictions]) == ([], ["quiet"])
    assert waits["noisy"].code == "WaitingForPreemptedWorkloads"
    story.leave("quiet")
    admitted, _, waits = story.cycle()
    assert admitted == ["noisy"]
    # One of its pods would be at peace on the other node.
    assert "podAntiAffinity: 1" in waits["quiet"].message


def test_affinity_to_pods_that_stay_counts_in_preemption() -> None:
    story = Story(fabric("n0"))
    story.submit("companion", pods(1, {"app": "companion"}, gpu=4), priority=9)
    story.submit("filler", pods(1, gpu=4))
    assert len(story.cycle()[0]) == 2
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "companion"}}}
    beside: dict[str, Any] = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    story.submit("beside", pods(1, gpu=4, **beside), priority=5)
    _, evictions, _ = story.cycle()
    assert [e.key[1] for e in evictions] == ["filler"]


def test_a_claim_that_is_bound_wakes_who_waits_for_it() -> None:
    given = fabric("n0", "n1")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    feed(given, workload("reader", pods(1, volumes=volumes)))
    (waits,) = given.cycle(at(0)).waits
    assert 'All are excluded by persistentvolumeclaim "data" not found.' in waits.reason.message
    assert run(given) == []
    claim: dict[str, Any] = {
        "metadata": {"name": "data", "namespace": NS},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    where = {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n1"]}]}]}
    volume = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": where}}}
    given.set_storage(msgspec.convert(claim, PersistentVolumeClaim))
    given.set_storage(msgspec.convert(volume, PersistentVolume))
    (decision,) = given.cycle(at(1)).decisions
    (assignment,) = decision.admission.pod_set_assignments
    assert assignment.topology_assignment is not None
    assert "n1" in str(assignment.topology_assignment)


def test_nodes_without_a_label_of_the_topology_are_named() -> None:
    bare = node("bare")
    labels = {key: value for key, value in bare.metadata.labels.items() if key != BLOCK}
    bare = msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, labels=labels))
    given = fabric("n0")
    feed(given, bare)
    feed(given, workload("large", pods(2, gpu=8)))
    (waits,) = given.cycle(at(0)).waits
    assert f"Not looked at, since the label {BLOCK} is missing: bare." in waits.reason.message


def test_pods_that_are_kube_schedulers_to_bind_are_misconfigured_when_they_are_said_to_be_ours() -> None:
    given = fabric("n0")
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    feed(given, workload("ours", pods(1, resourceClaims=claims)))
    (waits,) = given.cycle(at(0)).waits
    assert waits.reason.code == "Misconfigured"
    assert "spec.podSets[0].template.spec.schedulerName: found serried" in waits.reason.message
