"""The configuration of `serried run`: a YAML file, every field optional, unknown fields refused."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from serried.api.core import Quantity
from serried.api.quantity import MILLI, QuantityError, parse
from serried.place.options import DEFAULT, PlaceOptions
from serried.schedule.types import options
from serried.schedule.types.options import Options

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
#: Those of Kueue's feature gates that choose between ways to place pods, and `PriorityBoost`; the others choose nothing
#: here.
GATES: Final = ("TASBalancedPlacement", "TASProfileMixed", "TASRespectNodeAffinityPreferred", "PriorityBoost")
_DURATION = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST: Final = 2_562_047 * 3600.0  # seconds, about 292 years; as in Kueue's configuration
_OFTENEST: Final = 0.001  # seconds


class Duration(float):
    """Seconds, written as in Kueue's configuration: 168h, 5m, 1h30m."""

    @classmethod
    def read(cls, value: object) -> Duration:
        """Raises ValueError saying what is allowed."""
        text = str(value)
        if text == "0":
            return cls(0.0)
        seconds, end = 0.0, 0
        while (part := _DURATION.match(text, end)) is not None:
            seconds += float(part[1]) * _UNITS[part[3]]
            end = part.end()
        if end == 0 or end < len(text):
            raise ValueError(
                f"{text!r} is not a duration; allowed are numbers with ms, s, m or h, such as 168h or 1h30m"
            )
        if seconds > _LONGEST:
            raise ValueError(f"{text!r} is too long; allowed are durations up to {_LONGEST / 3600:.0f}h")
        return cls(seconds)


class _Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class Webhook(_Section):
    """The mutating webhook for Jobs. The API server must be able to reach `url` (or, in the cluster, `service`)."""

    enabled: bool = False
    #: where to listen
    host: str = "0.0.0.0"
    port: Port = 9443
    #: how the API server reaches us; empty: https://<host>:<port>, for a server on the same machine
    url: str = ""
    #: name of the Service in `namespace` instead of a URL
    service: str = ""
    namespace: str = "serried-system"
    #: a folder with tls.crt, tls.key and ca.crt; empty: a certificate is made at start and kept in memory
    cert_dir: str = ""
    #: what the API server does with Jobs while nobody answers
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"


class LeaderElection(_Section):
    enabled: bool = False
    namespace: str = "serried-system"
    name: str = "serried"
    lease_duration: Seconds = 15
    renew_deadline: Seconds = 10
    retry_period: Seconds = 2

    def __post_init__(self) -> None:
        # Otherwise one process would still schedule on a lease that another one has taken over.
        if not self.lease_duration > self.renew_deadline > 1.2 * self.retry_period:
            raise ValueError(
                f"leaseDuration is {self.lease_duration:g}, renewDeadline {self.renew_deadline:g}, retryPeriod "
                f"{self.retry_period:g}; allowed is leaseDuration > renewDeadline > 1.2 × retryPeriod"
            )


class Client(_Section):
    """How hard the API server may be asked."""

    #: requests in flight at the same time, watches not counted
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 32


class FairSharing(_Section):
    """Queues of a cohort are served, and preempt each other, by their dominant resource shares."""

    #: tried in this order, as in Kueue
    preemption_strategies: Annotated[
        list[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]], msgspec.Meta(min_length=1)
    ] = msgspec.field(default_factory=lambda: ["LessThanOrEqualToFinalShare", "LessThanInitialShare"])


class AdmissionFairSharing(_Section):
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


class Transformation(_Section):
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

    def rule(self) -> options.Transformation:
        outputs = {
            name: Fraction(parse(str(quantity), MILLI), 1 if name == "cpu" else MILLI)
            for name, quantity in self.outputs.items()
        }
        return options.Transformation(self.input, outputs, keep=self.strategy == "Retain")


class Resources(_Section):
    """Which requests of pods count for quota, and as what. Where pods go depends on what they request."""

    exclude_resource_prefixes: list[Name] = []
    transformations: list[Transformation] = []

    def __post_init__(self) -> None:
        twice = [name for name, n in Counter(t.input for t in self.transformations).items() if n > 1]
        if twice:
            raise ValueError(f"transformations has {', '.join(twice)} more than once; allowed is one for each input")


class Configuration(_Section):
    """What `serried run --config FILE` reads."""

    api_version: str = "config.serried.io/v1alpha1"
    kind: Literal["Configuration"] = "Configuration"
    #: who binds the pods of Jobs that the webhook sees: Serried itself, or kube-scheduler behind a scheduling gate
    binding: Literal["serried", "kube-scheduler"] = "serried"
    #: seconds between two writes of the same queue's, PodGroup's or waiting Workload's status
    status_interval: Seconds = 1.0
    webhook: Webhook = msgspec.field(default_factory=Webhook)
    leader_election: LeaderElection = msgspec.field(default_factory=LeaderElection)
    client: Client = msgspec.field(default_factory=Client)
    #: how pods are placed: as Kueue does, by the gates below; or `optimal`, the best placement that there is
    placement: Literal["default", "optimal"] = "default"
    #: partial placements that the search for the best one may look at, per pod set; ten million take about 0.1 s
    placement_limit: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = DEFAULT.optimal_limit
    #: some of Kueue's feature gates, see `GATES`; those that are not named have Kueue's default
    feature_gates: dict[str, bool] = {}

    #: switches fair sharing on; without it, queues are served by priority and age
    fair_sharing: FairSharing | None = None

    #: orders workloads by what their LocalQueues have used lately, in ClusterQueues that ask for it
    admission_fair_sharing: AdmissionFairSharing | None = None
    resources: Resources = msgspec.field(default_factory=Resources)

    def options(self) -> Options:
        """What of it the decisions depend on, the placement left aside."""
        fair, usage = self.fair_sharing, self.admission_fair_sharing
        return Options(
            fair_sharing=None if fair is None else options.FairSharing(tuple(fair.preemption_strategies)),
            admission_fair_sharing=None
            if usage is None
            else options.AdmissionFairSharing(
                usage.usage_half_life_time,
                usage.usage_sampling_interval,
                tuple(usage.resource_weights.items()),
            ),
            priority_boost=self.feature_gates.get("PriorityBoost", False),
            excluded_resources=tuple(self.resources.exclude_resource_prefixes),
            transformations=tuple(t.rule() for t in self.resources.transformations),
        )

    def place_options(self) -> PlaceOptions:
        options = PlaceOptions.from_gates(self.feature_gates)
        return replace(options, optimal=self.placement == "optimal", optimal_limit=self.placement_limit)


def _read(type: type, value: Any) -> Any:
    if type is Duration:
        return Duration.read(value)
    raise NotImplementedError(f"nothing reads a {type}")


def _allowed(error: str) -> str:
    """What may be there, for an error that names only what is."""
    known = re.match(r"(Invalid enum value|Object contains unknown field) .*?( - at `\$(.*)`)?$", error)
    if known is None:
        return ""
    found: Any = msgspec.inspect.type_info(Configuration)
    for part in re.findall(r"\w+|\[[^]]*\]", known[3] or ""):
        if part.startswith("["):
            found = found.item_type
        else:
            found = next(f.type for f in found.fields if f.encode_name == part)
        if isinstance(found, msgspec.inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, msgspec.inspect.NoneType))
        if isinstance(found, msgspec.inspect.Metadata):
            found = found.type
    allowed = [f.encode_name for f in found.fields] if known[1].startswith("Object") else found.values
    return f"; allowed are {', '.join(allowed)}"


class ConfigurationError(Exception):
    """The configuration file cannot be used; the text says where and why."""


def load(path: str | os.PathLike[str]) -> Configuration:
    """Reads a configuration file. Raises `ConfigurationError` naming the file, the field and what is allowed."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        config = msgspec.yaml.decode(text or b"{}", type=Configuration, dec_hook=_read)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {error}{_allowed(str(error))}") from error
    if config.api_version != "config.serried.io/v1alpha1":
        raise ConfigurationError(
            f"{path}: apiVersion is {config.api_version!r}, this version reads config.serried.io/v1alpha1"
        )
    unknown = [gate for gate in config.feature_gates if gate not in GATES]
    if unknown:
        raise ConfigurationError(f"{path}: featureGates has {', '.join(unknown)}; allowed are {', '.join(GATES)}")
    return config
