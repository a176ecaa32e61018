"""scheduling.x-k8s.io/v1alpha1 PodGroup, as users of the Coscheduling plugin know it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from serried.api.core import ResourceList
from serried.api.meta import Object, Wire


class PodGroupSpec(Wire):
    min_member: int = 0
    min_resources: ResourceList = {}
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Wire, omit_defaults=False):
    #: Pending, Scheduling, Running, Unknown, Finished or Failed; "" before the first decision.
    phase: str = ""
    occupied_by: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    schedule_start_time: datetime | None = None


class PodGroup(Object):
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)
