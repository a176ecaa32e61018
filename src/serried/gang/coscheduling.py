"""The PodGroup of a gang: what its status says, from the counts of its members."""

from __future__ import annotations

from datetime import datetime

from serried.api.coscheduling import CoschedulingPodGroupStatus
from serried.api.names import CoschedulingPhase
from serried.gang.membership import Gang, Stage


def status(gang: Gang, size: int, *, occupied_by: str, started: datetime | None) -> CoschedulingPodGroupStatus:
    """The status a PodGroup of `size` members has; phases as users of the Coscheduling plugin know them."""
    running = gang.counts[Stage.READY] + gang.counts[Stage.BOUND]
    succeeded, failed = gang.counts[Stage.SUCCEEDED], gang.counts[Stage.FAILED]
    if not gang.members:
        phase = CoschedulingPhase.PENDING
    elif succeeded >= size:
        phase = CoschedulingPhase.FINISHED
    elif running + succeeded + failed < size:
        phase = CoschedulingPhase.SCHEDULING
    else:
        phase = CoschedulingPhase.FAILED if failed and not running else CoschedulingPhase.RUNNING
    return CoschedulingPodGroupStatus(
        phase=phase,
        occupied_by=occupied_by,
        running=running,
        succeeded=succeeded,
        failed=failed,
        schedule_start_time=started,
    )
