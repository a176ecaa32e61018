"""The configuration of `serried run`: a YAML file, every field optional, unknown fields refused."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from serried.api.duration import Duration
from serried.place.options import DEFAULT, PlaceOptions
from serried.schedule.types.options import AdmissionFairSharing, FairSharing, Options, Resources, Section

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
#: Those of Kueue's feature gates that choose between ways to place pods, and `PriorityBoost`; the others choose nothing
#: here.
GATES: Final = ("TASBalancedPlacement", "TASProfileMixed", "TASRespectNodeAffinityPreferred", "PriorityBoost")


class Webhook(Section, frozen=True):
    """The mutating webhook for jobs. The API server must be able to reach `url` (or, in the cluster, `service`)."""

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
    #: what the API server does with jobs while nobody answers
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"


class LeaderElection(Section, frozen=True):
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


class Client(Section, frozen=True):
    """How hard the API server may be asked."""

    #: requests in flight at the same time, watches not counted
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 32


class Configuration(Section, frozen=True):
    """What `serried run --config FILE` reads."""

    api_version: str = "config.serried.io/v1alpha1"
    kind: Literal["Configuration"] = "Configuration"
    #: who binds the pods of jobs that the webhook sees: Serried itself, or kube-scheduler behind a scheduling gate
    binding: Literal["serried", "kube-scheduler"] = "serried"
    #: seconds between two writes of the same queue's, PodGroup's or waiting Workload's status
    status_interval: Seconds = 1.0
    webhook: Webhook = Webhook()
    leader_election: LeaderElection = LeaderElection()
    client: Client = Client()
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
    #: which requests of pods count for quota, and as what
    resources: Resources = Resources()

    def options(self) -> Options:
        """What the decisions depend on, the placement left aside."""
        return Options(
            fair_sharing=self.fair_sharing,
            admission_fair_sharing=self.admission_fair_sharing,
            priority_boost=self.feature_gates.get("PriorityBoost", False),
            resources=self.resources,
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
