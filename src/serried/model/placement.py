"""A place for every pod of a pod set: what placement answers, and what a workload then holds."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Label values from the top level down to the lowest one named, and how many pods go there.
Domain = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Placement:
    """Where the pods of one pod set go.

    `levels` and `domains` are what the Workload's topologyAssignment says: domains in path order of the full
    topology path (rank order: the pods of lower index get the earlier domains), counts > 0. When the lowest level
    is `kubernetes.io/hostname`, `levels` is that key alone. Without levels nothing is said: the pods of this pod set
    need no place named, since their flavor has no topology and kube-scheduler finds their nodes.
    """

    pod_set: str
    flavor: str
    levels: tuple[str, ...]
    domains: tuple[Domain, ...]
    #: optimal placement was asked for, and this is not known to be optimal: why; "" otherwise. It is told, but not part
    #: of the plan.
    fallback: str = field(default="", compare=False)
