"""What placement answers: a place for every pod, or why there is none, with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Label values from the top level down to the lowest one named, and how many pods go there.
Domain = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Placement:
    """Where the pods of one pod set go.

    `levels` and `domains` are what the Workload's topologyAssignment says: domains in path order of the full
    topology path (rank order: the pods of lower index get the earlier domains), counts > 0. When the lowest level
    is `kubernetes.io/hostname`, `levels` is that key alone.
    """

    pod_set: str
    flavor: str
    levels: tuple[str, ...]
    domains: tuple[Domain, ...]


@dataclass(frozen=True)
class NoPlacement:
    """Why a pod set has no place. `message` is the text users of Kueue know; the rest are the numbers behind it."""

    pod_set: str
    message: str
    #: the level at which the pods had to be together ("" when the request itself is wrong: then `field` names what is)
    level: str = ""
    #: pods (or slices) asked for, and how many of them the best domain holds
    needed: int = 0
    fits: int = 0
    #: the best domain at that level, top → bottom
    best_domain: tuple[str, ...] = ()
    #: how many nodes were looked at, and how many each filter or resource excluded ("resource "cpu"" → nodes)
    total_nodes: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    #: whether it would fit if all nodes were free of pods Serried can move; None: not examined
    fits_when_empty: bool | None = None
    #: the best domain and its count when everything was free ("" and 0: not examined)
    fits_empty: int = 0
    #: set for a request that can never be placed as written: which field, and what was found
    field: str = ""
