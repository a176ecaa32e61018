"""The custom resource definitions: kueue.x-k8s.io/v1beta2 and the PodGroup of scheduling.x-k8s.io/v1alpha1.

Names, columns, limits and defaults are those that users of these APIs know. The schemas here are the one source:
`serried crds` prints them, and the files under `deploy/crds/` are written by

    python -m serried.api.crds deploy/crds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from serried.api import resources
from serried.api.crds import quota
from serried.api.crds.coscheduling import pod_group
from serried.api.crds.schema import Schema
from serried.api.crds.workload import workload

#: The annotation of a definition that says which of two is newer, and its value here: raise it with every change of a
#: schema. A definition without it was not made by Serried.
REVISION_ANNOTATION: Final = "serried.io/crd-revision"
REVISION: Final = 2


@dataclass(frozen=True)
class _Kind:
    resource: resources.Resource[Any]
    schema: Schema
    short_names: tuple[str, ...]
    #: Printer columns, in order.
    columns: tuple[dict[str, Any], ...] = ()


def _column(name: str, type: str, path: str, *, wide: bool = False) -> dict[str, Any]:
    """A printer column; a `wide` one is seen with `kubectl get -o wide` only."""
    return {"name": name, "type": type, "jsonPath": path} | ({"priority": 1} if wide else {})


_AGE = _column("Age", "date", ".metadata.creationTimestamp")


def crds() -> list[dict[str, Any]]:
    """The definitions, as the API takes them, those of one group together and in alphabetical order."""
    return [_definition(kind) for kind in _kinds()]


def to_yaml(definition: dict[str, Any]) -> str:
    """One definition as a YAML document without its leading `---`."""
    return yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def files() -> dict[str, str]:
    """The files of `deploy/crds/`: name and content of each."""
    return {f"{d['spec']['group']}_{d['spec']['names']['plural']}.yaml": to_yaml(d) for d in crds()}


def _kinds() -> list[_Kind]:
    return [
        _Kind(resources.ADMISSION_CHECKS, quota.admission_check(), ("ac",)),
        _Kind(
            resources.CLUSTER_QUEUES,
            quota.cluster_queue(),
            ("cq",),
            columns=(
                _column("Cohort", "string", ".spec.cohortName"),
                _column("Strategy", "string", ".spec.queueingStrategy", wide=True),
                _column("Pending Workloads", "integer", ".status.pendingWorkloads"),
                _column("Admitted Workloads", "integer", ".status.admittedWorkloads", wide=True),
            ),
        ),
        _Kind(resources.COHORTS, quota.cohort(), ("co",)),
        _Kind(
            resources.LOCAL_QUEUES,
            quota.local_queue(),
            ("queue", "queues", "lq"),
            columns=(
                _column("ClusterQueue", "string", ".spec.clusterQueue"),
                _column("Pending Workloads", "integer", ".status.pendingWorkloads"),
                _column("Admitted Workloads", "integer", ".status.admittedWorkloads"),
            ),
        ),
        _Kind(resources.RESOURCE_FLAVORS, quota.resource_flavor(), ("flavor", "flavors", "rf")),
        _Kind(resources.TOPOLOGIES, quota.topology(), ("topo",)),
        _Kind(
            resources.WORKLOAD_PRIORITY_CLASSES,
            quota.workload_priority_class(),
            ("wpc",),
            columns=(_column("Value", "integer", ".value"),),
        ),
        _Kind(
            resources.WORKLOADS,
            workload(),
            ("kwl", "kueueworkload", "kueueworkloads"),
            columns=(
                _column("Queue", "string", ".spec.queueName"),
                _column("Reserved in", "string", ".status.admission.clusterQueue"),
                _column("Admitted", "string", ".status.conditions[?(@.type=='Admitted')].status"),
                _column("Finished", "string", ".status.conditions[?(@.type=='Finished')].status"),
                _AGE,
            ),
        ),
        _Kind(
            resources.COSCHEDULING_POD_GROUPS,
            pod_group(),
            ("pg", "pgs"),
            columns=(
                _column("Phase", "string", ".status.phase"),
                _column("MinMember", "integer", ".spec.minMember"),
                _column("Running", "integer", ".status.running"),
                _column("Succeeded", "integer", ".status.succeeded"),
                _column("Failed", "integer", ".status.failed"),
                _AGE,
            ),
        ),
    ]


def _definition(kind: _Kind) -> dict[str, Any]:
    resource = kind.resource
    version: dict[str, Any] = {"name": resource.version, "served": True, "storage": True}
    if kind.columns:
        version["additionalPrinterColumns"] = list(kind.columns)
    if "status" in kind.schema["properties"]:
        version["subresources"] = {"status": {}}
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    version["schema"] = {"openAPIV3Schema": kind.schema | {"properties": common | kind.schema["properties"]}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "annotations": {REVISION_ANNOTATION: str(REVISION)},
        },
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(kind.short_names),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write shared pieces out in full: anchors are legal, but nobody expects them in a manifest."""
        return True
