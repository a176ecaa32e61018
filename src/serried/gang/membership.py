"""Who belongs to a gang and how far each member is, updated with each event of a pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from serried.api import names
from serried.api.core import Pod
from serried.api.meta import Key, condition_is


class Stage(Enum):
    """How far a pod is."""

    HELD = "held"  # behind a scheduling gate that is not ours to open
    WAITING = "waiting"  # for its place
    RELEASED = "released"  # given its place, for kube-scheduler to bind
    BOUND = "bound"  # on a node, not ready
    READY = "ready"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (Stage.SUCCEEDED, Stage.FAILED)

    @property
    def is_standing(self) -> bool:
        """Takes up a place."""
        return self in (Stage.RELEASED, Stage.BOUND, Stage.READY)


@dataclass(frozen=True)
class Member:
    """One pod of a gang."""

    name: str
    uid: str
    pod_set: str
    #: index within its pod set, or None for pods without one
    rank: int | None
    stage: Stage
    #: the node it is bound to; of a released pod the value of kubernetes.io/hostname it is steered to; or ""
    node: str
    #: names of its scheduling gates
    gates: tuple[str, ...]
    deleting: bool

    @property
    def is_placed(self) -> bool:
        """Whether it has taken its place, for kube-scheduler to bind or on a node, and is not about to leave it."""
        return self.stage.is_standing and not self.deleting

    @property
    def is_present(self) -> bool:
        """Whether the gang can begin with it: it stays, and no gate that is not ours to open holds it back."""
        return self.stage is not Stage.HELD and not self.deleting


@dataclass
class Gang:
    """The pods of one Workload, by name, with counts kept beside them."""

    members: dict[str, Member] = field(default_factory=dict)
    #: members by stage; those being deleted are counted too
    counts: dict[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 0))
    #: members by pod set that are neither being deleted nor behind a gate that is not ours to open
    present: Counter[str] = field(default_factory=Counter)
    #: members that are being deleted
    deleting: int = 0
    #: members that have their place and stay there
    placed: int = 0
    #: pods whose binding or release is on its way to the API server or back, by uid
    in_flight: set[str] = field(default_factory=set)
    #: names of members that still wait for their place
    waiting: set[str] = field(default_factory=set)

    def set(self, member: Member) -> None:
        self.remove(member.name, keep_in_flight=member.uid)
        self.members[member.name] = member
        self.counts[member.stage] += 1
        self.deleting += member.deleting
        self.placed += member.is_placed
        self.present[member.pod_set] += member.is_present
        if member.stage is Stage.WAITING and not member.deleting:
            self.waiting.add(member.name)
        else:
            self.in_flight.discard(member.uid)

    def remove(self, name: str, keep_in_flight: str = "") -> None:
        old = self.members.pop(name, None)
        if old is not None:
            self.counts[old.stage] -= 1
            self.deleting -= old.deleting
            self.placed -= old.is_placed
            self.present[old.pod_set] -= old.is_present
            if not self.present[old.pod_set]:
                del self.present[old.pod_set]
            self.waiting.discard(name)
            if old.uid != keep_in_flight:
                self.in_flight.discard(old.uid)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())


#: One way to tell to which gang a pod belongs: the key of its Workload, or None.
GroupOf = Callable[[Pod], Key | None]


def annotated_workload(pod: Pod) -> Key | None:
    """The Workload that the pod names in the annotation kueue.x-k8s.io/workload, as a start makes it do."""
    name = pod.metadata.annotations.get(names.WORKLOAD)
    return (pod.metadata.namespace, name) if name else None


#: All ways to tell, in the order in which they are tried.
GROUPS: Final[tuple[GroupOf, ...]] = (annotated_workload,)


def workload_of(pod: Pod) -> Key | None:
    """The Workload whose gang this pod belongs to."""
    return next((key for group_of in GROUPS if (key := group_of(pod)) is not None), None)


def member(pod: Pod, rank: int | None) -> Member:
    """What a gang needs to know of a pod. `rank`: its index within its pod set, as its kind of job numbers them."""
    return Member(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        pod_set=pod.metadata.labels.get(names.POD_SET, ""),
        rank=rank,
        stage=_stage(pod),
        node=pod.spec.node_name or pod.spec.node_selector.get(names.HOSTNAME, ""),
        gates=tuple(g.name for g in pod.spec.scheduling_gates),
        deleting=pod.metadata.deletion_timestamp is not None,
    )


def completion_index(pod: Pod) -> int | None:
    """The rank of a pod of an Indexed Job, also where the Workload is not this Job's own."""
    text = pod.metadata.annotations.get(names.COMPLETION_INDEX) or pod.metadata.labels.get(names.COMPLETION_INDEX)
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else None


def _stage(pod: Pod) -> Stage:
    if pod.status.phase == "Succeeded":
        return Stage.SUCCEEDED
    if pod.status.phase == "Failed":
        return Stage.FAILED
    if not pod.spec.node_name:
        if pod.spec.scheduler_name == names.SCHEDULER_NAME:
            return Stage.HELD if pod.spec.scheduling_gates else Stage.WAITING
        gated = any(g.name == names.TOPOLOGY_GATE for g in pod.spec.scheduling_gates)
        return Stage.WAITING if gated else Stage.RELEASED
    ready = condition_is(pod.status.conditions, "Ready")
    return Stage.READY if ready else Stage.BOUND
