"""The rest of the cluster, as far as the next steps of an owner depend on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from serried.api.core import PriorityClass, RuntimeClass, Toleration
from serried.api.kueue import PodSet, ResourceFlavor, WorkloadPriorityClass
from serried.api.meta import Key


class ClusterView(Protocol):
    """A handful of questions, which `ClusterState` answers."""

    def flavor(self, name: str) -> ResourceFlavor | None: ...

    def runtime_class(self, name: str) -> RuntimeClass | None: ...

    def workload_priority_class(self, name: str) -> WorkloadPriorityClass | None: ...

    def priority_class(self, name: str) -> PriorityClass | None:
        """The PriorityClass of this name; for "" the one that is the default for all pods, if any."""

    def node_of(self, host: str) -> str | None:
        """The name of the node whose label kubernetes.io/hostname has this value."""

    def is_schedulable(self, levels: Sequence[str], values: Sequence[str], tolerations: Sequence[Toleration]) -> bool:
        """Whether pods with these tolerations can still go to the domain with these values of these levels."""

    def left_to_kube_scheduler(self, pod_sets: Sequence[PodSet], namespace: str) -> str:
        """Why pods of these sets are kube-scheduler's to bind; "" if they are not."""

    def overbooked(self, workload: Key) -> Collection[str]:
        """The hosts on which the Workload holds more than there is."""
