"""The configuration of `serried run`: a YAML file, every field optional, unknown fields refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from serried.place.options import DEFAULT, PlaceOptions
from serried.schedule.options import FairSharing as Sharing
from serried.schedule.options import Options

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
#: Those of Kueue's feature gates that choose between ways to place pods; the others choose nothing here.
GATES: Final = ("TASBalancedPlacement", "TASProfileMixed", "TASRespectNodeAffinityPreferred")


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

    def options(self) -> Options:
        """What of it the decisions depend on, the placement left aside."""
        if self.fair_sharing is None:
            return Options()
        return Options(fair_sharing=Sharing(tuple(self.fair_sharing.preemption_strategies)))

    def place_options(self) -> PlaceOptions:
        options = PlaceOptions.from_gates(self.feature_gates)
        return replace(options, optimal=self.placement == "optimal", optimal_limit=self.placement_limit)


class ConfigurationError(Exception):
    """The configuration file cannot be used; the text says where and why."""


def load(path: str | os.PathLike[str]) -> Configuration:
    """Reads a configuration file. Raises `ConfigurationError` naming the file, the field and what is allowed."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        config = msgspec.yaml.decode(text or b"{}", type=Configuration)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if config.api_version != "config.serried.io/v1alpha1":
        raise ConfigurationError(
            f"{path}: apiVersion is {config.api_version!r}, this version reads config.serried.io/v1alpha1"
        )
    unknown = [gate for gate in config.feature_gates if gate not in GATES]
    if unknown:
        raise ConfigurationError(f"{path}: featureGates has {', '.join(unknown)}; allowed are {', '.join(GATES)}")
    return config
