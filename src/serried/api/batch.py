"""batch/v1: the fields in use."""

from __future__ import annotations

from datetime import datetime

import msgspec

from serried.api.core import PodTemplateSpec
from serried.api.meta import LabelSelector, Object, PlainCondition, Wire


class JobSpec(Wire):
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = ""
    backoff_limit: int | None = None
    suspend: bool = False
    selector: LabelSelector | None = None
    managed_by: str = ""
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)


class JobStatus(Wire):
    active: int = 0
    ready: int | None = None
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: list[PlainCondition] = []


class Job(Object):
    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)
