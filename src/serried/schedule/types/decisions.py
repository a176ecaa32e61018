"""What a cycle decides, as values: somebody else writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from serried.api.kueue import Admission, AdmissionCheckState
from serried.api.meta import Key
from serried.schedule.types.reasons import Reason


class Admit(msgspec.Struct, frozen=True):
    """Write this admission to the Workload's status. The engine takes it for granted until it hears otherwise."""

    key: Key
    uid: str
    #: of the Workload that was decided on
    resource_version: str
    admission: Admission
    #: seconds between queueing and this decision
    waited: float
    #: it is admitted with this; otherwise only its quota is reserved, until its checks are ready and it has a place
    admitted: bool = True
    #: states of its admission checks, to be written with the admission
    checks: Sequence[AdmissionCheckState] = ()
    #: new: it had nothing. topology, replacement: it held this quota already, and gets places, or others than before.
    #: checks: it holds all of this already, and all its checks are ready.
    kind: Literal["new", "topology", "replacement", "checks"] = "new"
    #: what its owner should know of the decision, in whole sentences; "" for nothing
    note: str = ""


class Evict(msgspec.Struct, frozen=True):
    """Write to the Workload's status that it is evicted, and take its admission away once its job is stopped.

    If it is preempted, the engine counts what it holds as given away already.
    """

    key: Key
    uid: str
    resource_version: str
    #: reason of the condition Evicted
    reason: str
    message: str
    #: reason of the condition Preempted; "": it is not preempted
    preempted: str = ""
    #: the workload it has to go for
    preemptor: Key | None = None
    #: it is not to be queued again: spec.active becomes false
    deactivate: bool = False


class Wait(msgspec.Struct, frozen=True):
    """Tell this workload why it waits."""

    key: Key
    reason: Reason


class Cycle(msgspec.Struct, frozen=True):
    """What one cycle decided. `more`: it stopped at its limit, and the next cycle goes on."""

    decisions: Sequence[Admit]
    waits: Sequence[Wait]
    more: bool
    evictions: Sequence[Evict] = ()
