"""kueue.x-k8s.io/v1beta2: the fields in use. Names, limits and defaults are those of the CRDs (`serried crds`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from serried.api.core import PodTemplateSpec, Quantity, ResourceList, Taint, Toleration
from serried.api.meta import NO_ITEMS, Condition, LabelSelector, Object, Wire

# --- Topology, ResourceFlavor, WorkloadPriorityClass, AdmissionCheck


class TopologyLevel(Wire):
    node_label: str


class TopologySpec(Wire):
    levels: tuple[TopologyLevel, ...] = ()


class Topology(Object):
    spec: TopologySpec = msgspec.field(default_factory=TopologySpec)


class ResourceFlavorSpec(Wire):
    node_labels: Mapping[str, str] = NO_ITEMS
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(Object):
    spec: ResourceFlavorSpec = msgspec.field(default_factory=ResourceFlavorSpec)


class WorkloadPriorityClass(Object):
    value: int = 0


class AdmissionCheckSpec(Wire):
    controller_name: str = ""


class ConditionsStatus(Wire):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(Object):
    spec: AdmissionCheckSpec = msgspec.field(default_factory=AdmissionCheckSpec)
    status: ConditionsStatus = msgspec.field(default_factory=ConditionsStatus)


# --- Quota


class ResourceQuota(Wire):
    name: str
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Wire):
    name: str
    resources: tuple[ResourceQuota, ...] = ()


class ResourceGroup(Wire):
    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class FairSharing(Wire):
    weight: Quantity = 1


class BorrowWithinCohort(Wire):
    policy: str = "Never"
    max_priority_threshold: int | None = None


class ClusterQueuePreemption(Wire):
    reclaim_within_cohort: str = "Never"
    within_cluster_queue: str = "Never"
    borrow_within_cohort: BorrowWithinCohort = msgspec.field(default_factory=BorrowWithinCohort)


class FlavorFungibility(Wire):
    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str = ""


class AdmissionCheckStrategyRule(Wire):
    name: str
    on_flavors: tuple[str, ...] = ()


class AdmissionChecksStrategy(Wire):
    admission_checks: tuple[AdmissionCheckStrategyRule, ...] = ()


class AdmissionScope(Wire):
    admission_mode: str = ""


class ClusterQueueSpec(Wire):
    resource_groups: tuple[ResourceGroup, ...] = ()
    cohort_name: str = ""
    queueing_strategy: str = "BestEffortFIFO"
    #: None selects no namespace, {} all of them.
    namespace_selector: LabelSelector | None = None
    flavor_fungibility: FlavorFungibility = msgspec.field(default_factory=FlavorFungibility)
    preemption: ClusterQueuePreemption = msgspec.field(default_factory=ClusterQueuePreemption)
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    admission_scope: AdmissionScope | None = None
    stop_policy: str = "None"
    fair_sharing: FairSharing | None = None


class ResourceUsage(Wire):
    name: str
    total: Quantity = 0
    borrowed: Quantity = 0


class FlavorUsage(Wire, omit_defaults=False):
    name: str
    resources: list[ResourceUsage] = []


class FairSharingStatus(Wire, omit_defaults=False):
    weighted_share: int = 0


class AdmissionFairSharingStatus(Wire, omit_defaults=False):
    #: resource → what was used lately
    consumed_resources: dict[str, Quantity] = {}
    last_update: datetime | None = None


class LocalQueueFairSharingStatus(Wire, omit_defaults=False):
    weighted_share: int = 0
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None


class ClusterQueueStatus(Wire, omit_defaults=False):
    conditions: list[Condition] = []
    flavors_reservation: list[FlavorUsage] = []
    flavors_usage: list[FlavorUsage] = []
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(Object):
    spec: ClusterQueueSpec = msgspec.field(default_factory=ClusterQueueSpec)
    status: ClusterQueueStatus = msgspec.field(default_factory=ClusterQueueStatus)


class LocalQueueSpec(Wire):
    cluster_queue: str = ""
    stop_policy: str = "None"
    fair_sharing: FairSharing | None = None


class LocalQueueStatus(Wire, omit_defaults=False):
    conditions: list[Condition] = []
    flavors_reservation: list[FlavorUsage] = []
    flavors_usage: list[FlavorUsage] = []
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    fair_sharing: LocalQueueFairSharingStatus | None = None


class LocalQueue(Object):
    spec: LocalQueueSpec = msgspec.field(default_factory=LocalQueueSpec)
    status: LocalQueueStatus = msgspec.field(default_factory=LocalQueueStatus)


class CohortSpec(Wire):
    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing | None = None


class CohortStatus(Wire, omit_defaults=False):
    conditions: list[Condition] = []
    fair_sharing: FairSharingStatus | None = None


class Cohort(Object):
    spec: CohortSpec = msgspec.field(default_factory=CohortSpec)
    status: CohortStatus = msgspec.field(default_factory=CohortStatus)


# --- Workload


class SliceConstraint(Wire):
    topology: str
    size: int


class PodSetTopologyRequest(Wire):
    required: str | None = None
    preferred: str | None = None
    unconstrained: bool | None = None
    pod_index_label: str | None = None
    pod_set_group_name: str | None = None
    pod_set_slice_required_topology: str | None = None
    pod_set_slice_size: int | None = None
    podset_slice_required_topology_constraints: tuple[SliceConstraint, ...] = ()


class PodSet(Wire):
    name: str = "main"
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)
    count: int = 1
    min_count: int | None = None
    topology_request: PodSetTopologyRequest | None = None


class PriorityClassRef(Wire):
    group: str
    kind: str
    name: str


class WorkloadSpec(Wire):
    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    priority: int | None = None
    priority_class_ref: PriorityClassRef | None = None
    active: bool = True


class TopologyAssignmentSliceLevelIndividualValues(Wire):
    roots: list[str]
    prefix: str = ""
    suffix: str = ""


class TopologyAssignmentSliceLevelValues(Wire):
    universal: str | None = None
    individual: TopologyAssignmentSliceLevelIndividualValues | None = None


class TopologyAssignmentSlicePodCounts(Wire):
    universal: int | None = None
    individual: list[int] | None = None


class TopologyAssignmentSlice(Wire):
    domain_count: int
    values_per_level: list[TopologyAssignmentSliceLevelValues]
    pod_counts: TopologyAssignmentSlicePodCounts


class TopologyAssignment(Wire):
    levels: list[str]
    slices: list[TopologyAssignmentSlice]


class PodSetAssignment(Wire):
    name: str = "main"
    #: resource → flavor
    flavors: Mapping[str, str] = NO_ITEMS
    #: resource → what all pods of the pod set use together
    resource_usage: ResourceList = NO_ITEMS
    count: int | None = None
    topology_assignment: TopologyAssignment | None = None
    delayed_topology_request: str | None = None


class Admission(Wire):
    cluster_queue: str
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class RequeueState(Wire):
    count: int | None = None
    requeue_at: datetime | None = None


class PodSetUpdate(Wire):
    name: str
    labels: Mapping[str, str] = NO_ITEMS
    annotations: Mapping[str, str] = NO_ITEMS
    node_selector: Mapping[str, str] = NO_ITEMS
    tolerations: tuple[Toleration, ...] = ()


class AdmissionCheckState(Wire, omit_defaults=False):
    name: str
    state: str
    message: str = ""
    last_transition_time: datetime | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class ReclaimablePod(Wire):
    name: str
    count: int


class UnhealthyNode(Wire):
    name: str


class PodSetResources(Wire):
    name: str
    #: resource → what all pods of the pod set would use together
    resources: ResourceList = NO_ITEMS


class EvictionCount(Wire, omit_defaults=False):
    reason: str
    underlying_cause: str = ""
    count: int = 0


class SchedulingStats(Wire):
    evictions: tuple[EvictionCount, ...] = ()


class WorkloadStatus(Wire):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    requeue_state: RequeueState | None = None
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()
    resource_requests: tuple[PodSetResources, ...] = ()
    unhealthy_nodes: tuple[UnhealthyNode, ...] = ()
    scheduling_stats: SchedulingStats | None = None


class Workload(Object):
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)
