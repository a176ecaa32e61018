"""One record of the suite `tas`: absent fields, and null, mean empty."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.core import NodeAffinity, ResourceList, Taint, Toleration
from serried.api.kueue import PodSetTopologyRequest


class _Part(msgspec.Struct, rename="camel", kw_only=True):
    pass


class Domain(_Part):
    values: list[str] = []
    count: int = 0


class Assignment(_Part):
    levels: list[str] = []
    domains: list[Domain] = []


class PodSetBody(_Part):
    name: str = ""
    count: int = 0
    requests: dict[str, int] = {}
    topology_request: PodSetTopologyRequest | None = None
    pod_set_group_name: str | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] = {}
    node_affinity: NodeAffinity | None = None
    previous_assignment: Assignment | None = None


class Expected(_Part):
    assignment: Assignment | None = None
    reason: str = ""


class NodeBody(_Part):
    name: str = ""
    labels: dict[str, str] = {}
    allocatable: ResourceList = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class PodBody(_Part):
    node_name: str = ""
    requests: ResourceList = {}
    phase: str = ""


class Usage(_Part):
    values: list[str] = []
    requests: dict[str, int] = {}


class PodSetAssignment(_Part):
    name: str = ""
    topology_assignment: Assignment = msgspec.field(default_factory=Assignment)


class Owner(_Part):
    api_version: str = ""
    kind: str = ""


class Admitted(_Part):
    """The admitted workload whose node failed."""

    owner_references: list[Owner] = []
    annotations: dict[str, str] = {}
    pod_set_assignments: list[PodSetAssignment] = []
    unhealthy_nodes: list[str] = []


class Record(_Part):
    id: str = ""
    feature_gates: dict[str, bool] = {}
    topology_name: str = ""
    levels: list[str] = []
    node_labels: dict[str, str] = {}
    flavor_tolerations: tuple[Toleration, ...] = ()
    nodes: list[NodeBody] = []
    pods: list[PodBody] = []
    tas_usage: list[Usage] = []
    workload: Admitted | None = None
    pod_sets: list[PodSetBody] = []
    expected: list[Expected] = []


def read(record: Any) -> Record:
    return msgspec.convert(without_nulls(record), Record)


def without_nulls(value: Any) -> Any:
    """The same with null entries of objects left out."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
