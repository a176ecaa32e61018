"""scheduling.x-k8s.io/v1alpha1 PodGroup, as users of the Coscheduling plugin know it.

Three APIs have a PodGroup or a Workload. A bare `Workload` is Kueue's (`api.kueue`), this is `CoschedulingPodGroup`;
Kubernetes' own, of scheduling.k8s.io, would be `NativeWorkload` and `NativePodGroup` in a module `api.scheduling`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from serried.api.meta import Object, Wire


class CoschedulingPodGroupSpec(Wire):
    min_member: int = 0


class CoschedulingPodGroupStatus(Wire, omit_defaults=False):
    #: Pending, Scheduling, Running, Unknown, Finished or Failed; "" before the first decision.
    phase: str = ""
    occupied_by: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    schedule_start_time: datetime | None = None


class CoschedulingPodGroup(Object):
    spec: CoschedulingPodGroupSpec = msgspec.field(default_factory=CoschedulingPodGroupSpec)
    status: CoschedulingPodGroupStatus = msgspec.field(default_factory=CoschedulingPodGroupStatus)
