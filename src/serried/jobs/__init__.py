"""One file for each kind of job: how it becomes pod sets, and what starts, suspends and finishes it.

Here: pure translations between a job's own fields and pod sets, both ways.
Not here: reading or writing the job; that is `control`.
"""

from __future__ import annotations

from typing import Any, Final

from serried.jobs.job import BatchJob
from serried.jobs.kind import JobKind

#: Every kind of job. One whose objects make objects of another stands before it: a pod is of the first that claims it.
KINDS: Final[tuple[JobKind[Any], ...]] = (BatchJob(),)
