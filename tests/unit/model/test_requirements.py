"""Who binds which pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import PodSpec
from serried.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from serried.model.pod_constraints import read_constraints
from serried.model.requirements import OURS, Requirements, by_claims, by_labels, by_spec
from serried.model.storage import Storage

BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
SELECTOR = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}


def storage() -> Storage:
    found = Storage()
    for mode in ("Immediate", "WaitForFirstConsumer"):
        made: dict[str, Any] = {"metadata": {"name": mode}, "provisioner": "x", "volumeBindingMode": mode}
        found.put(msgspec.convert(made, StorageClass))
    for name, volume, class_name in (
        ("bound", "pv", "WaitForFirstConsumer"),
        ("late", "", "WaitForFirstConsumer"),
        ("slow", "", "Immediate"),
        ("old", "disk", ""),
    ):
        made = {
            "metadata": {"name": name, "namespace": "team", "annotations": BOUND if volume else {}},
            "spec": {"volumeName": volume, "storageClassName": class_name, "accessModes": ["ReadWriteMany"]},
        }
        found.put(msgspec.convert(made, PersistentVolumeClaim))
    for name, source in (("pv", {}), ("disk", {"gcePersistentDisk": {"pdName": "d"}})):
        found.put(msgspec.convert({"metadata": {"name": name}, "spec": source}, PersistentVolume))
    return found


def ask(**spec: Any) -> Requirements:
    found = msgspec.convert({"containers": [{"name": "main"}], **spec}, PodSpec)
    constraints = read_constraints(found, "team", {"app": "web"})
    ways = (by_spec(found), by_labels(constraints), by_claims("team", constraints, storage()))
    return next((way for way in ways if way != OURS), OURS)


def claim(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


def affinity(kind: str, term: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        claim("bound"),
        # They wait until these are there, and bound.
        claim("missing"),
        claim("slow"),
        affinity("podAntiAffinity", SELECTOR),
        {"nodeName": "node-0"},
        {"volumes": [{"name": "token", "projected": {}}, {"name": "data", "emptyDir": {}}]},
    ],
)
def test_most_pods_are_bound_by_us(spec: dict[str, Any]) -> None:
    assert ask(**spec) == OURS


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (claim("late"), 'persistentvolumeclaim "late" is bound or provisioned where its first pod goes'),
        (claim("old"), 'persistentvolume "disk" is of a plugin that moved to a CSI driver'),
        (
            {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}]},
            'volume "scratch" is made for each pod, and provisioned where the pod goes',
        ),
        (
            {"volumes": [{"name": "disk", "awsElasticBlockStore": {"volumeID": "v"}}]},
            'volume "disk" is of a kind that kube-scheduler has rules of its own for',
        ),
        (
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
            'resource claim "gpu" is allocated by kube-scheduler',
        ),
        (
            {"containers": [{"name": "main", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]},
            "RestartAllContainers needs nodes that declare it, which kube-scheduler looks for",
        ),
        (
            affinity(
                "podAffinity",
                {
                    "topologyKey": "zone",
                    "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-completion-index": "0"}},
                },
            ),
            (
                'a rule about other pods names the label "batch.kubernetes.io/job-completion-index", '
                "which is not known beforehand"
            ),
        ),
    ],
)
def test_what_needs_kube_scheduler_is_handed_over(spec: dict[str, Any], reason: str) -> None:
    assert ask(**spec) == Requirements("handed over", reason)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {f"key-{i}": "x" for i in range(1001)}},
        {"tolerations": [{"key": f"key-{i}", "operator": "Exists"} for i in range(1000)]},
        affinity("podAffinity", {**SELECTOR, "namespaces": [f"team-{i}" for i in range(1000)]}),
        affinity(
            "podAntiAffinity",
            {
                "topologyKey": "zone",
                "labelSelector": {
                    "matchExpressions": [{"key": "a", "operator": "In", "values": [str(i) for i in range(1000)]}]
                },
            },
        ),
        {"containers": [{"name": "main", "resources": {"requests": {f"example.com/{i}": "1" for i in range(1000)}}}]},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": [str(i)]}]}
                            for i in range(400)
                        ]
                    }
                }
            }
        },
    ],
)
def test_more_terms_than_anybody_needs_are_refused(spec: dict[str, Any]) -> None:
    found = ask(**({"nodeSelector": {"key": "value"}} | spec))
    assert found.way == "refused"
    assert "terms about nodes, other pods and resources; at most 1000" in found.reason
