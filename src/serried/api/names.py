"""Names people already use: labels, annotations, gates, conditions, reasons and phases."""

from __future__ import annotations

from typing import Final

SCHEDULER_NAME: Final = "serried"
HOSTNAME: Final = "kubernetes.io/hostname"

# Labels and annotations on jobs
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
GROUP_WORKLOAD: Final = "kueue.x-k8s.io/is-group-workload"
PRIORITY_BOOST: Final = "kueue.x-k8s.io/priority-boost"
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"

# Annotations on pod templates
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
SLICE_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE: Final = "kueue.x-k8s.io/podset-slice-size"
SLICE_CONSTRAINTS: Final = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
POD_SET_GROUP_NAME: Final = "kueue.x-k8s.io/podset-group-name"

# Put on pods (labels, except WORKLOAD, which is an annotation)
POD_SET: Final = "kueue.x-k8s.io/podset"
WORKLOAD: Final = "kueue.x-k8s.io/workload"
CLUSTER_QUEUE_NAME: Final = "kueue.x-k8s.io/cluster-queue-name"
LOCAL_QUEUE_NAME: Final = "kueue.x-k8s.io/local-queue-name"
MANAGED: Final = "kueue.x-k8s.io/managed"
POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB_NAME: Final = "batch.kubernetes.io/job-name"

TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"

# Hollow nodes: how long a bound pod runs, and how it ends
RUN_SECONDS: Final = "serried.io/run-seconds"
RUN_RESULT: Final = "serried.io/run-result"
RUN_GANG_SIZE: Final = "serried.io/run-gang-size"


class WorkloadCondition:
    QUOTA_RESERVED: Final = "QuotaReserved"
    ADMITTED: Final = "Admitted"
    PODS_READY: Final = "PodsReady"
    EVICTED: Final = "Evicted"
    PREEMPTED: Final = "Preempted"
    FINISHED: Final = "Finished"


class PendingReason:
    """Reasons of QuotaReserved=False."""

    PENDING: Final = "Pending"
    WAITING_FOR_QUOTA: Final = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA: Final = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR: Final = "NoMatchingFlavor"
    TOPOLOGY_PLACEMENT_FAILED: Final = "TopologyPlacementFailed"
    WAITING_FOR_PREEMPTED: Final = "WaitingForPreemptedWorkloads"
    MISCONFIGURED: Final = "Misconfigured"
    SUSPENDED: Final = "Suspended"
    PENDING_EVALUATION: Final = "PendingEvaluation"
    INADMISSIBLE: Final = "Inadmissible"


class QueueReason:
    """Reasons of the condition Active on ClusterQueue and LocalQueue."""

    READY: Final = "Ready"
    STOPPED: Final = "Stopped"
    FLAVOR_NOT_FOUND: Final = "FlavorNotFound"
    TOPOLOGY_NOT_FOUND: Final = "TopologyNotFound"
    CLUSTER_QUEUE_NOT_FOUND: Final = "ClusterQueueDoesNotExist"
    CLUSTER_QUEUE_INACTIVE: Final = "ClusterQueueIsInactive"
    ADMISSION_CHECK_NOT_FOUND: Final = "AdmissionCheckNotFound"
    MISCONFIGURED: Final = "Misconfigured"
    TERMINATING: Final = "Terminating"
    COHORT_CYCLE: Final = "CohortCycle"
    ADMISSION_CHECK_INACTIVE: Final = "AdmissionCheckInactive"


class PreemptedReason:
    """Reasons of the condition Preempted."""

    IN_CLUSTER_QUEUE: Final = "InClusterQueue"
    RECLAMATION: Final = "InCohortReclamation"
    FAIR_SHARING: Final = "InCohortFairSharing"
    RECLAIM_WHILE_BORROWING: Final = "InCohortReclaimWhileBorrowing"


class EvictedReason:
    """Reasons of the condition Evicted."""

    PREEMPTED: Final = "Preempted"
    NODE_FAILURES: Final = "NodeFailures"
    ADMISSION_CHECK: Final = "AdmissionCheck"
    PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
    CLUSTER_QUEUE_STOPPED: Final = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED: Final = "LocalQueueStopped"
    DEACTIVATED: Final = "Deactivated"


class CheckState:
    """States of an admission check of a workload."""

    PENDING: Final = "Pending"
    READY: Final = "Ready"
    RETRY: Final = "Retry"
    REJECTED: Final = "Rejected"


class CoschedulingPhase:
    """Phases of a CoschedulingPodGroup."""

    PENDING: Final = "Pending"
    SCHEDULING: Final = "Scheduling"
    RUNNING: Final = "Running"
    UNKNOWN: Final = "Unknown"
    FINISHED: Final = "Finished"
    FAILED: Final = "Failed"
