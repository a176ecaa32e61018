"""Which workloads wait for what, and which hold what: found without looking at all of them."""

from __future__ import annotations

from typing import TypeVar

from serried.api.meta import Key
from serried.quota.quotas import FlavorResource

K = TypeVar("K")


class WorkloadIndex:
    """Only `transitions` changes it."""

    def __init__(self) -> None:
        #: LocalQueue (there or not) → the active workloads that wait for it, pending or inadmissible
        self.waiting: dict[Key, dict[Key, None]] = {}
        #: ClusterQueue (there or not) → the workloads that hold its quota
        self.holders: dict[str, dict[Key, None]] = {}
        #: ClusterQueue → who holds most of a flavor's resource, in words, as long as that is so; see `assigner`
        self.top_holders: dict[str, dict[FlavorResource, str]] = {}

    def set_waiting(self, local_queue: Key, workload: Key, *, waits: bool) -> bool:
        """Whether a workload waits for a LocalQueue. Returns whether that is new."""
        return _set(self.waiting, local_queue, workload, there=waits)

    def set_holder(self, cluster_queue: str, workload: Key, *, holds: bool) -> None:
        """Whether a workload holds quota of a ClusterQueue; also that it holds more or less than before."""
        self.top_holders.pop(cluster_queue, None)
        _set(self.holders, cluster_queue, workload, there=holds)


def _set(index: dict[K, dict[Key, None]], of: K, workload: Key, *, there: bool) -> bool:
    found = index.get(of, {})
    if (workload in found) == there:
        return False
    if there:
        index.setdefault(of, {})[workload] = None
    else:
        del found[workload]
        if not found:
            del index[of]
    return True
