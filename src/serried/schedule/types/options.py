"""How the engine decides, as the administrator has set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class FairSharing:
    """Queues of a cohort are served, and preempt each other, by their dominant resource shares."""

    preemption_strategies: tuple[str, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


@dataclass(frozen=True)
class AdmissionFairSharing:
    """LocalQueues of a ClusterQueue are served by what they have used lately."""

    #: after this many seconds, what was used counts half; 0: nothing is remembered
    half_life: float
    #: seconds between two updates of what counts as used
    sampling_interval: float
    #: resource → how much one unit of it counts; 1 for those not named
    resource_weights: tuple[tuple[str, float], ...] = ()

    def weigh(self, amounts: Mapping[str, float]) -> float:
        """One number for amounts in base units (cores, bytes, devices), by resource."""
        weights = dict(self.resource_weights)
        return sum(amount * weights.get(resource, 1.0) for resource, amount in sorted(amounts.items()))


@dataclass(frozen=True)
class Transformation:
    """What quota counts for a resource that pods request."""

    resource: str
    #: resource → how much of it one unit of the input counts as; cpu in millicores
    outputs: Mapping[str, int | Fraction]
    #: the input itself counts, too
    keep: bool = True


@dataclass(frozen=True)
class Options:
    """Everything that is not an object of the API."""

    #: whether anybody is preempted; not, where nobody carries out evictions
    preemption: bool = True
    fair_sharing: FairSharing | None = None
    admission_fair_sharing: AdmissionFairSharing | None = None
    #: annotation kueue.x-k8s.io/priority-boost counts
    priority_boost: bool = False
    #: for quota, never for nodes: resources by prefix that do not count, and what others count as
    excluded_resources: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()


DEFAULT_OPTIONS = Options()
