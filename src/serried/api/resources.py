"""The kinds Serried talks about: group, version, plural, scope and the struct that holds one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from serried.api import batch, core, coscheduling, extensions, kueue, storage
from serried.api.meta import Object

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, eq=False)
class Resource(Generic[T]):
    """One kind of object. Each exists once, so identity is equality; `type` is what its objects decode to.

    Without an `optional` kind Serried works as if there were no objects of it, until its definition is installed.
    """

    group: str
    version: str
    kind: str
    plural: str
    type: type[T]
    namespaced: bool = True
    optional: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of one object or, without a name, of the collection; without a namespace, of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return root + scope + "/" + "/".join(p for p in (self.plural, name, subresource) if p)

    def __repr__(self) -> str:
        return f"<{self.plural}.{self.group or 'core'}/{self.version}>"


NODES = Resource("", "v1", "Node", "nodes", core.Node, namespaced=False)
PODS = Resource("", "v1", "Pod", "pods", core.Pod)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", core.Namespace, namespaced=False)
EVENTS = Resource("", "v1", "Event", "events", core.Event)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", core.PriorityClass, namespaced=False
)
LIMIT_RANGES = Resource("", "v1", "LimitRange", "limitranges", core.LimitRange)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", core.RuntimeClass, namespaced=False)
CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", storage.PersistentVolumeClaim)
VOLUMES = Resource("", "v1", "PersistentVolume", "persistentvolumes", storage.PersistentVolume, namespaced=False)
_STORAGE = ("storage.k8s.io", "v1")
STORAGE_CLASSES = Resource(*_STORAGE, "StorageClass", "storageclasses", storage.StorageClass, namespaced=False)
CSI_NODES = Resource(*_STORAGE, "CSINode", "csinodes", storage.CSINode, namespaced=False)
CSI_DRIVERS = Resource(*_STORAGE, "CSIDriver", "csidrivers", storage.CSIDriver, namespaced=False)
ATTACHMENTS = Resource(*_STORAGE, "VolumeAttachment", "volumeattachments", storage.VolumeAttachment, namespaced=False)
#: What decides about pods with volumes.
STORAGE = (CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, CSI_DRIVERS, ATTACHMENTS)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases", core.Lease)
JOBS = Resource("batch", "v1", "Job", "jobs", batch.Job)

_KUEUE = ("kueue.x-k8s.io", "v1beta2")
TOPOLOGIES = Resource(*_KUEUE, "Topology", "topologies", kueue.Topology, namespaced=False, optional=True)
RESOURCE_FLAVORS = Resource(*_KUEUE, "ResourceFlavor", "resourceflavors", kueue.ResourceFlavor, namespaced=False)
CLUSTER_QUEUES = Resource(*_KUEUE, "ClusterQueue", "clusterqueues", kueue.ClusterQueue, namespaced=False)
LOCAL_QUEUES = Resource(*_KUEUE, "LocalQueue", "localqueues", kueue.LocalQueue)
COHORTS = Resource(*_KUEUE, "Cohort", "cohorts", kueue.Cohort, namespaced=False, optional=True)
WORKLOADS = Resource(*_KUEUE, "Workload", "workloads", kueue.Workload)
WORKLOAD_PRIORITY_CLASSES = Resource(
    *_KUEUE,
    "WorkloadPriorityClass",
    "workloadpriorityclasses",
    kueue.WorkloadPriorityClass,
    namespaced=False,
    optional=True,
)
ADMISSION_CHECKS = Resource(
    *_KUEUE, "AdmissionCheck", "admissionchecks", kueue.AdmissionCheck, namespaced=False, optional=True
)
COSCHEDULING_POD_GROUPS = Resource(
    "scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups", coscheduling.CoschedulingPodGroup
)

CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    extensions.CustomResourceDefinition,
    namespaced=False,
)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    Object,
    namespaced=False,
)

ALL: tuple[Resource[Any], ...] = tuple(r for r in list(globals().values()) if isinstance(r, Resource))
