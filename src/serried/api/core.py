"""core/v1, scheduling/v1, node.k8s.io/v1 and coordination.k8s.io/v1: the fields in use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from serried.api.meta import NO_ITEMS, ConditionStatus, LabelSelector, LabelSelectorRequirement, Object, Wire

#: A Kubernetes quantity as it stands on the wire; see `serried.api.quantity`.
Quantity = str | int
ResourceList = Mapping[str, Quantity]


class Toleration(Wire):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(Wire):
    key: str
    effect: str
    value: str = ""


class NodeSelectorTerm(Wire):
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    match_fields: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelector(Wire):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Wire):
    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Wire):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Wire):
    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Wire):
    """Of podAffinity and of podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Wire):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire):
    topology_key: str
    max_skew: int
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ResourceRequirements(Wire):
    requests: ResourceList = NO_ITEMS
    limits: ResourceList = NO_ITEMS


class ContainerPort(Wire):
    container_port: int
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class ContainerRestartRule(Wire):
    action: str = ""


class Container(Wire):
    name: str = ""
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str = ""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    ports: tuple[ContainerPort, ...] = ()


class ClaimVolumeSource(Wire):
    claim_name: str


class Volume(Wire):
    """The sources that decide about nodes; of those but the first it only matters that they are there."""

    name: str
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: dict[str, Any] | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    azure_file: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None


class PodResourceClaim(Wire):
    name: str


class PodSchedulingGate(Wire):
    name: str


class PodSpec(Wire):
    node_name: str = ""
    scheduler_name: str = ""
    priority_class_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: ResourceList = NO_ITEMS
    runtime_class_name: str = ""
    resources: ResourceRequirements | None = None
    node_selector: Mapping[str, str] = NO_ITEMS
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    host_network: bool = False


class PodStatus(Wire):
    phase: str = ""
    conditions: tuple[ConditionStatus, ...] = ()


class Pod(Object):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodTemplateMeta(Wire):
    labels: Mapping[str, str] = NO_ITEMS
    annotations: Mapping[str, str] = NO_ITEMS


class PodTemplateSpec(Wire):
    metadata: PodTemplateMeta = msgspec.field(default_factory=PodTemplateMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


class NodeSpec(Wire):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Wire):
    allocatable: ResourceList = NO_ITEMS
    conditions: tuple[ConditionStatus, ...] = ()


class Node(Object):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Namespace(Object):
    pass


class PriorityClass(Object):
    value: int = 0
    global_default: bool = False


class LimitRangeItem(Wire):
    type: str
    min: ResourceList = NO_ITEMS
    max: ResourceList = NO_ITEMS
    default: ResourceList = NO_ITEMS
    default_request: ResourceList = NO_ITEMS
    max_limit_request_ratio: ResourceList = NO_ITEMS


class LimitRangeSpec(Wire):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object):
    spec: LimitRangeSpec = msgspec.field(default_factory=LimitRangeSpec)


class Overhead(Wire):
    pod_fixed: ResourceList = NO_ITEMS


class RuntimeClassScheduling(Wire):
    node_selector: Mapping[str, str] = NO_ITEMS
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Object):
    overhead: Overhead = msgspec.field(default_factory=Overhead)
    scheduling: RuntimeClassScheduling = msgspec.field(default_factory=RuntimeClassScheduling)


class ObjectReference(Wire):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class EventSource(Wire):
    component: str = ""


class Event(Object):
    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    source: EventSource = msgspec.field(default_factory=EventSource)
    reporting_component: str = ""


class LeaseSpec(Wire):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(Object):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
