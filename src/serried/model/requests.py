"""What a pod set asks for, in the integers the model calculates with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serried.api.core import NodeAffinity, Toleration
from serried.api.kueue import PodSetTopologyRequest
from serried.model.pod_index import NO_KIND, PodKind


@dataclass(frozen=True)
class PodSetRequest:
    """One pod set of a workload, as placement sees it."""

    name: str
    count: int
    #: what one pod requests: cpu in millicores, memory in bytes, everything else in units, all >= 0;
    #: `pods` is not among them
    requests: Mapping[str, int]
    #: None: no topology request (the implicit default of topology-only queues)
    topology: PodSetTopologyRequest | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: NodeAffinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    #: its pods carry `schedulerName: serried`: the placement must name the node of every pod
    bound_by_us: bool = False
    #: what other pods see of them, and they of others
    kind: PodKind = NO_KIND
