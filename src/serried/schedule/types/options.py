"""How the engine decides, as the administrator has set it: sections of the configuration file are taken as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Final, Literal

import msgspec

from serried.api.core import Quantity
from serried.api.duration import Duration
from serried.api.quantity import MILLI, QuantityError, parse

Name = Annotated[str, msgspec.Meta(min_length=1)]
Strategy = Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
_OFTENEST: Final = 0.001  # seconds


class Section(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A part of the configuration file. Unknown fields are refused when it is read."""


class FairSharing(Section, frozen=True):
    """Queues of a cohort are served, and preempt each other, by their dominant resource shares."""

    #: tried in this order, as in Kueue
    preemption_strategies: Annotated[tuple[Strategy, ...], msgspec.Meta(min_length=1)] = (
        "LessThanOrEqualToFinalShare",
        "LessThanInitialShare",
    )


class AdmissionFairSharing(Section, frozen=True):
    """LocalQueues of a ClusterQueue are served by what they have used lately, where its admissionScope says so."""

    #: after this time, what was used counts half; 0: nothing is remembered
    usage_half_life_time: Duration
    #: how often what was used is worked out, and written to the status of LocalQueues
    usage_sampling_interval: Duration = Duration(300)
    #: resource → how much one unit of it counts (a core, a byte, a device); 1 for those not named
    resource_weights: dict[Name, Annotated[float, msgspec.Meta(ge=0, le=1e18)]] = {}

    def __post_init__(self) -> None:
        if self.usage_sampling_interval < _OFTENEST:
            found = f"{self.usage_sampling_interval:g}s" if self.usage_sampling_interval else "0"
            raise ValueError(f"usageSamplingInterval is {found}; allowed is a duration from 1ms on, such as 5m")

    def weigh(self, amounts: Mapping[str, float]) -> float:
        """One number for amounts in base units (cores, bytes, devices), by resource."""
        return sum(amount * self.resource_weights.get(resource, 1.0) for resource, amount in sorted(amounts.items()))


class Transformation(Section, frozen=True, dict=True):
    """What quota counts for a resource that pods request."""

    input: Name
    #: whether the input itself counts, too
    strategy: Literal["Retain", "Replace"] = "Retain"
    #: resource → how much of it one unit of the input counts as
    outputs: dict[Name, Quantity | float] = {}

    def __post_init__(self) -> None:
        for name, quantity in self.outputs.items():
            try:
                amount = parse(str(quantity), MILLI)
            except QuantityError as error:
                raise ValueError(f"outputs[{name}]: {error}") from error
            if amount < 0:
                raise ValueError(f"outputs[{name}] is {quantity}; allowed is a quantity >= 0")

    @cached_property
    def factors(self) -> dict[str, Fraction]:
        """Resource → what one unit of the input counts as, in the units of the model: of cpu millicores."""
        return {
            name: Fraction(parse(str(quantity), MILLI), 1 if name == "cpu" else MILLI)
            for name, quantity in self.outputs.items()
        }


class Resources(Section, frozen=True):
    """Which requests of pods count for quota, and as what. Where pods go depends on what they request."""

    exclude_resource_prefixes: tuple[Name, ...] = ()
    transformations: tuple[Transformation, ...] = ()

    def __post_init__(self) -> None:
        twice = [name for name, n in Counter(t.input for t in self.transformations).items() if n > 1]
        if twice:
            raise ValueError(f"transformations has {', '.join(twice)} more than once; allowed is one for each input")


@dataclass(frozen=True)
class Options:
    """Everything that is not an object of the API."""

    #: whether anybody is preempted; not, where nobody carries out evictions
    preemption: bool = True
    #: None: queues are served by priority and age
    fair_sharing: FairSharing | None = None
    #: None: LocalQueues are not distinguished
    admission_fair_sharing: AdmissionFairSharing | None = None
    #: annotation kueue.x-k8s.io/priority-boost counts
    priority_boost: bool = False
    resources: Resources = field(default_factory=Resources)


DEFAULT_OPTIONS = Options()
