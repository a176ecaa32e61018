"""What placement answers: a place for every pod, or why there is none, with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serried.model.placement import Domain, Placement

__all__ = ["Domain", "NoPlacement", "Placement"]


@dataclass(frozen=True)
class NoPlacement:
    """Why a pod set has no place. `message` is the text users of Kueue know; the rest are the numbers behind it."""

    pod_set: str
    message: str
    #: the level at which the search failed: that at which the pods had to be together, or (preferred, unconstrained)
    #: the one whose domains do not hold them together; "" when it did not come to a search
    level: str = ""
    #: slices asked for, and how many of them the best domain holds (without `best_domain`: all domains together);
    #: a slice is one pod unless the request is for larger ones, see `slice_size`
    needed: int = 0
    fits: int = 0
    #: pods per slice
    slice_size: int = 1
    #: `fits` is what a domain holds beside the leader of the group, which has to be placed with them
    beside_leader: bool = False
    #: the best domain at that level, top → bottom; () when the pods may spread over all of them, or none holds any
    best_domain: tuple[str, ...] = ()
    #: which resource lets no more pods onto how many of the nodes in the best domain (without one: in all)
    limited_by: Mapping[str, int] = field(default_factory=dict)
    #: how many nodes were looked at, and how many each filter or resource excluded ("resource "cpu"" → nodes)
    total_nodes: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    #: label of a level → nodes that lack it, and were not looked at
    unlabelled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: whether it would fit if all nodes were free of pods Serried can move; None: not examined
    fits_when_empty: bool | None = None
    #: how many slices the best domain (or all together) would hold then, at most `needed`, and which one that is
    fits_empty: int = 0
    best_domain_empty: tuple[str, ...] = ()
    #: set for a request that can never be placed as written: which field is wrong
    field: str = ""
