"""The choices between placement algorithms, made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PlaceOptions:
    """Defaults are Kueue's; `from_gates` reads them by the names of its feature gates."""

    #: TASBalancedPlacement: preferred pod sets are spread evenly over as few domains as possible
    balanced: bool = False
    #: TASProfileMixed: unconstrained pod sets take the domains with the least free capacity, all others the best fit
    least_free_when_unconstrained: bool = True
    #: TASRespectNodeAffinityPreferred: domains whose nodes match preferred affinity terms come first
    preferred_affinity: bool = False
    #: `placement: optimal`: each pod set gets the best placement there is by the three `measures`; not pod set groups,
    #: pods beside others that keep their places, or where preferred affinity ranks the nodes
    optimal: bool = False
    #: partial placements that the search for the best one may look at (ten million: about 0.1 s); then the algorithm
    #: chosen by the fields above places the pods, and the placement says so
    optimal_limit: int = 10_000_000

    @staticmethod
    def from_gates(gates: Mapping[str, bool]) -> PlaceOptions:
        """The options for a set of feature gates; gates that are not named have their default, others are ignored."""
        default = PlaceOptions()
        return PlaceOptions(
            balanced=gates.get("TASBalancedPlacement", default.balanced),
            least_free_when_unconstrained=gates.get("TASProfileMixed", default.least_free_when_unconstrained),
            preferred_affinity=gates.get("TASRespectNodeAffinityPreferred", default.preferred_affinity),
        )


DEFAULT: Final = PlaceOptions()
