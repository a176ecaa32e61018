"""Why flavors are refused: a class for each cause, with its numbers. `wording` has the sentences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from serried.api.problem import Problem
from serried.place.result import NoPlacement
from serried.quota.ledger import Shortage


class RefusalKind(IntEnum):
    """How far an attempt came. The one that came furthest is the reason told."""

    MISMATCH = 0
    BAD_REQUEST = 1
    NEVER_QUOTA = 2
    NEVER_PLACE = 3
    WAITS_QUOTA = 4
    WAITS_PLACE = 5

    @property
    def never(self) -> bool:
        """Whether it cannot fit on the quota and nodes there are, even if all were free."""
        return self < RefusalKind.WAITS_QUOTA


@dataclass(frozen=True)
class Cause:
    """Why a flavor is refused."""

    #: the flavor; "" where all of them are refused alike
    flavor: str


class FlavorNotFound(Cause):
    """There is no such ResourceFlavor."""


@dataclass(frozen=True)
class Untolerated(Cause):
    """The flavor has a taint that the pods do not tolerate."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class WrongLabel(Cause):
    """The pods' node selector wants another value of a label than the flavor's nodes have; None: they have none."""

    key: str
    wanted: str
    has: str | None


class AffinityMismatch(Cause):
    """The pods' required node affinity does not match the labels of the flavor."""


class TopologyOnly(Cause):
    """The flavor is for pods with a topology request, and these have none."""


class WithoutTopology(Cause):
    """The flavor has no topology, which the pods request."""


@dataclass(frozen=True)
class NoTopologyChosen(Cause):
    """None of the flavors chosen for the pods has a topology, which they need."""

    chosen: tuple[str, ...]
    #: whether another flavor of the queue has one
    in_queue: bool


@dataclass(frozen=True)
class SeveralTopologies(Cause):
    """Several of the flavors chosen for the pods have a topology each."""

    chosen: tuple[str, ...]


@dataclass(frozen=True)
class BadRequest(Cause):
    """A topology request that the levels of the flavor cannot meet as it is written."""

    problem: Problem


@dataclass(frozen=True)
class NotCovered(Cause):
    """The ClusterQueue has no quota for a resource."""

    resource: str
    amount: int
    covered: tuple[str, ...]


@dataclass(frozen=True)
class QuotaShort(Cause):
    """There is not enough quota, now or ever."""

    shortage: Shortage


@dataclass(frozen=True)
class NoPlace(Cause):
    """There is quota, but no place on the nodes."""

    failed: NoPlacement


@dataclass(frozen=True)
class Refusal:
    """What stands against a flavor for a pod set."""

    kind: RefusalKind
    pod_set: str
    cause: Cause
