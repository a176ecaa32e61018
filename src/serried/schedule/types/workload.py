"""A Workload as the decision sees it: read once when it arrives, checked where it stands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache

import msgspec

from serried.api.core import PodSpec, Quantity
from serried.api.kueue import PodSet, PodSetTopologyRequest, Workload
from serried.api.meta import Key, condition_is, find_condition
from serried.api.names import (
    GROUP_WORKLOAD,
    JOB_UID,
    LOCAL_QUEUE_NAME,
    MANAGED,
    POD_GROUP,
    POD_SET,
    PRIORITY_BOOST,
    SCHEDULER_NAME,
    EvictedReason,
    WorkloadCondition,
)
from serried.api.problem import Problem
from serried.api.quantity import LIMIT, MILLI, QuantityError, format_quantity, parse, resource_value
from serried.model.pod_constraints import NO_CONSTRAINTS, read_constraints
from serried.model.pod_index import PodKind
from serried.model.pods import pod_requests
from serried.model.requests import PodSetRequest
from serried.model.requirements import by_labels, by_spec

#: Where a workload stands in a ClusterQueue, smallest first: higher priority, then longer in the queue, then by name.
#: (-priority, seconds since 1970 at which it queued, uid, namespace, name); no two are equal.
Order = tuple[int, float, str, str, str]

#: Counts as queued before everything else: an object without a creation time.
_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_PODS = "pods"
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def key_of(order: Order) -> Key:
    return order[3], order[4]


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """What of a Workload decides about its admission. Equal values are decided alike."""

    key: Key
    uid: str
    #: (namespace, name) of its LocalQueue; the name is "" when it has none
    queue: Key
    priority: int
    queued_at: datetime
    active: bool
    pod_sets: tuple[PodSetRequest, ...]
    #: least counts of pod sets with which it may be admitted; None: the whole count only
    min_counts: tuple[int | None, ...] = ()
    #: it is being evicted, whoever decided it
    evicted: bool = False
    #: it is not to be looked at before
    not_before: datetime | None = None
    #: of its labels and owners, what decides or is reported
    job_uid: str = ""
    lone_pod: bool = False
    #: what is wrong with it as written; not empty: it cannot be admitted until it is changed
    problems: tuple[Problem, ...] = ()
    #: where it stands in a ClusterQueue
    order: Order = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", (-self.priority, self.queued_at.timestamp(), self.uid, *self.key))

    @property
    def equivalence_class(self) -> bytes:
        """Workloads of one ClusterQueue with the same value fit, or do not fit, alike; but for pods that others keep
        off (see `PendingQueue.separate`)."""
        return msgspec.msgpack.encode(
            [
                self.priority,
                self.min_counts,
                *(
                    (
                        p.name,
                        p.count,
                        p.requests,
                        p.topology,
                        p.node_selector,
                        p.node_affinity,
                        p.tolerations,
                        p.bound_by_us,
                        p.kind.constraints and (p.kind.namespace, p.kind.constraints, p.kind.labels_asked_for),
                    )
                    for p in self.pod_sets
                ),
            ],
            order="deterministic",
        )


def total_requests(pod_set: PodSetRequest) -> dict[str, int]:
    """What all pods of the pod set ask for together, `pods` included; held at the largest quantity there is."""
    totals = {name: min(LIMIT, amount * pod_set.count) for name, amount in pod_set.requests.items()}
    totals[_PODS] = pod_set.count
    return totals


def read_weight(quantity: Quantity) -> Fraction:
    """A weight of fair sharing; what cannot be read, or is below zero, counts as 1."""
    try:
        thousandths = parse(quantity, MILLI)
    except QuantityError:
        return Fraction(1)
    return Fraction(thousandths, MILLI) if thousandths >= 0 else Fraction(1)


def priority_boost(workload: Workload) -> int:
    """What annotation kueue.x-k8s.io/priority-boost adds to the priority; 0 if it is no number of 32 bits."""
    text = workload.metadata.annotations.get(PRIORITY_BOOST, "")
    if not _NUMBER.fullmatch(text):
        return 0
    value = int(text)
    return value if -(2**31) <= value < 2**31 else 0


def read_workload(workload: Workload, *, boost: bool = False) -> WorkloadInfo:
    """The workload as the decision sees it. Never raises: what is wrong with it is in `problems`.

    `boost`: the annotation that raises or lowers the priority counts.
    """
    meta, spec, status = workload.metadata, workload.spec, workload.status
    problems: list[Problem] = []
    given_back = {r.name: max(0, r.count) for r in status.reclaimable_pods}
    pod_sets = [
        _read_pod_set(workload, pod_set, f"spec.podSets[{i}]", given_back.get(pod_set.name, 0), problems)
        for i, pod_set in enumerate(spec.pod_sets)
    ]
    for name, times in Counter(p.name for p in spec.pod_sets).items() if len(spec.pod_sets) > 1 else ():
        if times > 1:
            problems.append(Problem("spec.podSets[].name", f"{name} ({times} times)", "a different name for each"))
    return WorkloadInfo(
        key=meta.key,
        uid=meta.uid,
        queue=(meta.namespace, spec.queue_name),
        priority=(spec.priority or 0) + (priority_boost(workload) if boost else 0),
        queued_at=_queued_at(workload),
        active=spec.active,
        pod_sets=tuple(pod_sets),
        min_counts=tuple(p.min_count for p in spec.pod_sets),
        evicted=condition_is(status.conditions, WorkloadCondition.EVICTED),
        not_before=status.requeue_state.requeue_at if status.requeue_state is not None else None,
        job_uid=meta.labels.get(JOB_UID, ""),
        lone_pod=len(meta.owner_references) == 1
        and (meta.owner_references[0].api_version, meta.owner_references[0].kind) == ("v1", "Pod")
        and meta.annotations.get(GROUP_WORKLOAD) != "true",
        problems=tuple(problems),
    )


def _queued_at(workload: Workload) -> datetime:
    """Since when it counts as waiting: its creation, or the eviction that sent it to the back of the queue."""
    evicted = find_condition(workload.status.conditions, WorkloadCondition.EVICTED)
    sent_back = (EvictedReason.PODS_READY_TIMEOUT, EvictedReason.ADMISSION_CHECK)
    if evicted is not None and evicted.status == "True" and evicted.reason in sent_back:
        return evicted.last_transition_time or workload.metadata.creation_timestamp or _ALWAYS
    return workload.metadata.creation_timestamp or _ALWAYS


#: What of a pod set is read.
_PodSet = tuple[str, int, PodSetTopologyRequest | None, PodSpec]


def _read_pod_set(
    workload: Workload, pod_set: PodSet, path: str, given_back: int, problems: list[Problem]
) -> PodSetRequest:
    spec, namespace, labels = pod_set.template.spec, workload.metadata.namespace, _pod_labels(workload, pod_set)
    what: _PodSet = (pod_set.name, pod_set.count, pod_set.topology_request, spec)
    request, wrong = _read_alike(msgspec.json.encode(what))
    constraints = NO_CONSTRAINTS if wrong else read_constraints(spec, namespace, labels)
    if request.bound_by_us and (reason := by_labels(constraints).reason):
        wrong = (*wrong, _not_ours(reason))
    problems += (Problem(f"{path}.{p.field}", p.found, p.allowed) for p in wrong)
    return replace(request, count=max(0, request.count - given_back), kind=PodKind(namespace, labels, constraints))


def _pod_labels(workload: Workload, pod_set: PodSet) -> dict[str, str]:
    """The labels that its pods will have, as far as they are known: see `jobs.podset.pod_set_start`."""
    given = pod_set.template.metadata.labels
    ours = {POD_SET: pod_set.name, LOCAL_QUEUE_NAME: workload.spec.queue_name, MANAGED: "true"}
    return {POD_GROUP: workload.metadata.name, **given, **ours}


def _not_ours(reason: str) -> Problem:
    return Problem("template.spec.schedulerName", SCHEDULER_NAME, f"default-scheduler: {reason}")


@lru_cache(maxsize=1024)
def _read_alike(encoded: bytes) -> tuple[PodSetRequest, tuple[Problem, ...]]:
    """A pod set, and what is wrong with it: read once, and shared, for the many Workloads that are made alike."""
    name, count, topology, spec = msgspec.json.decode(encoded, type=_PodSet)
    wrong = [Problem(f"template.spec.{p.field}", p.found, p.allowed) for p in _quantity_problems(spec)]
    bound_by_us, needs = spec.scheduler_name == SCHEDULER_NAME, by_spec(spec)
    if needs.way == "refused":
        wrong.append(Problem("template.spec", *needs.reason.split("; ", 1)))
    elif needs.way == "handed over" and bound_by_us:
        wrong.append(_not_ours(needs.reason))
    if count < 0:
        wrong.append(Problem("count", str(count), "a number >= 0"))
    request = PodSetRequest(
        name=name,
        count=max(0, count),
        requests={} if wrong else pod_requests(spec),
        topology=topology,
        node_selector=spec.node_selector,
        node_affinity=spec.affinity.node_affinity if spec.affinity else None,
        tolerations=tuple(spec.tolerations),
        bound_by_us=bound_by_us,
    )
    return request, tuple(wrong)


def _quantity_problems(spec: PodSpec) -> Iterator[Problem]:
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for i, container in enumerate(containers):
            resources = container.resources
            yield from _check_resources(resources.requests, resources.limits, f"{kind}[{i}].resources")
    if spec.resources is not None:
        yield from _check_resources(spec.resources.requests, spec.resources.limits, "resources")
    yield from _check_quantities(spec.overhead, "overhead")


def _check_resources(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    wrong = [*_check_quantities(requests, f"{path}.requests"), *_check_quantities(limits, f"{path}.limits")]
    yield from wrong
    if wrong:
        return
    for name in requests.keys() & limits.keys():
        request, limit = resource_value(name, requests[name]), resource_value(name, limits[name])
        if request > limit:
            most = f"at most {format_quantity(name, limit)}, its limit"
            yield Problem(f"{path}.requests[{name}]", str(requests[name]), most)


def _check_quantities(quantities: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    for name, quantity in quantities.items():
        try:
            value = resource_value(name, quantity)
        except QuantityError as error:
            yield Problem(f"{path}[{name}]", repr(quantity), f"a quantity >= 0 ({error})")
        else:
            if value < 0:
                yield Problem(f"{path}[{name}]", str(quantity), "a quantity >= 0")
