"""The PodGroup of a gang: what its status says, from the counts of its members."""

from __future__ import annotations

from datetime import datetime

from serried.api.names import PodGroupPhase
from serried.api.podgroup import PodGroupStatus
from serried.gang.membership import Gang, Stage


def status(gang: Gang, size: int, *, occupied_by: str, started: datetime | None) -> PodGroupStatus:
    """The status a PodGroup of `size` members has; phases as users of the Coscheduling plugin know them."""
    running = gang.counts[Stage.READY] + gang.counts[Stage.BOUND]
    succeeded, failed = gang.counts[Stage.SUCCEEDED], gang.counts[Stage.FAILED]
    if not gang.members:
        phase = PodGroupPhase.PENDING
    elif succeeded >= size:
        phase = PodGroupPhase.FINISHED
    elif running + succeeded + failed < size:
        phase = PodGroupPhase.SCHEDULING
    else:
        phase = PodGroupPhase.FAILED if failed and not running else PodGroupPhase.RUNNING
    return PodGroupStatus(
        phase=phase,
        occupied_by=occupied_by,
        running=running,
        succeeded=succeeded,
        failed=failed,
        schedule_start_time=started,
    )
