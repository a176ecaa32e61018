"""What all job kinds share: names of Workloads, topology requests from annotations, what a start puts on pods."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import msgspec

from serried.api import names
from serried.api.core import PodTemplateSpec, Toleration
from serried.api.kueue import PodSetAssignment, PodSetTopologyRequest, ResourceFlavor, SliceConstraint, Workload
from serried.api.problem import Problem

_LABEL_LIMIT = 63  # characters of a label's value


def workload_name(kind: str, name: str, uid: str) -> str:
    """The Workload of a job: `<kind>-<name>-<hash>`, at most 63 characters so that it can be a label value.

    The hash covers the uid: a job deleted and created anew under its name gets a Workload of its own.
    """
    digest = hashlib.sha256(f"{kind}/{name}/{uid}".encode()).hexdigest()[:5]
    return f"{kind.lower()}-{name}"[: _LABEL_LIMIT - 6].rstrip("-.") + "-" + digest


def topology_request(
    annotations: Mapping[str, str], path: str, index_label: str | None
) -> tuple[PodSetTopologyRequest | None, list[Problem]]:
    """The topology request that a pod template's annotations make, or None, and what cannot be read in them.

    `path` is where the annotations stand, for messages. `index_label` names the label with a pod's rank.
    Levels are not checked here: which exist is known when the flavor is.
    """
    problems: list[Problem] = []

    def whole(key: str) -> int | None:
        text = annotations.get(key)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1 or not text.strip().isdecimal() or value > 2**31 - 1:
            problems.append(Problem(f"{path}[{key}]", repr(text), "a whole number from 1 to 2147483647"))
            return None
        return value

    request = PodSetTopologyRequest(
        required=annotations.get(names.REQUIRED_TOPOLOGY),
        preferred=annotations.get(names.PREFERRED_TOPOLOGY),
        pod_set_group_name=annotations.get(names.POD_SET_GROUP_NAME),
        pod_set_slice_required_topology=annotations.get(names.SLICE_REQUIRED_TOPOLOGY),
        pod_set_slice_size=whole(names.SLICE_SIZE),
    )
    if (unconstrained := annotations.get(names.UNCONSTRAINED_TOPOLOGY)) is not None:
        if unconstrained not in ("true", "false"):
            problems.append(
                Problem(f"{path}[{names.UNCONSTRAINED_TOPOLOGY}]", repr(unconstrained), '"true" or "false"')
            )
        request.unconstrained = unconstrained == "true" or None
    if (layers := annotations.get(names.SLICE_CONSTRAINTS)) is not None:
        try:
            request.podset_slice_required_topology_constraints = msgspec.json.decode(
                layers, type=tuple[SliceConstraint, ...]
            )
        except msgspec.MsgspecError as error:
            problems.append(
                Problem(
                    f"{path}[{names.SLICE_CONSTRAINTS}]",
                    repr(layers),
                    f'a JSON list as [{{"topology": "…", "size": 2}}] ({error})',
                )
            )
    if request == PodSetTopologyRequest():
        return None, problems
    request.pod_index_label = index_label
    return request, problems


class PodSetStart(msgspec.Struct, kw_only=True):
    """What a start adds to the pods of one pod set."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    scheduling_gates: list[str] = []


def pod_set_start(
    workload: Workload,
    assignment: PodSetAssignment,
    template: PodTemplateSpec,
    flavor_of: Callable[[str], ResourceFlavor | None],
) -> PodSetStart:
    """What the pods of an admitted pod set carry: whose they are, their flavor's nodes, and the topology gate.

    Pods bound by Serried need no gate: nobody else looks at them. Pods left to kube-scheduler wait behind the
    gate `kueue.x-k8s.io/topology` until each is given its place. A pod-group label that the author gave is kept.
    """
    start = PodSetStart(
        labels={
            names.POD_SET: assignment.name,
            names.LOCAL_QUEUE_NAME: workload.spec.queue_name,
            names.MANAGED: "true",
        },
        annotations={names.WORKLOAD: workload.metadata.name},
    )
    admission = workload.status.admission
    if admission is not None and len(admission.cluster_queue) <= _LABEL_LIMIT:  # as an object's name it may be longer
        start.labels[names.CLUSTER_QUEUE_NAME] = admission.cluster_queue
    if names.POD_GROUP not in template.metadata.labels:
        start.labels[names.POD_GROUP] = workload.metadata.name
    for name in dict.fromkeys(assignment.flavors.values()):
        flavor = flavor_of(name)
        if flavor is not None:
            start.node_selector.update(flavor.spec.node_labels)
            start.tolerations.extend(t for t in flavor.spec.tolerations if t not in start.tolerations)
    checks = workload.status.admission_checks
    for update in (u for check in checks for u in check.pod_set_updates if u.name == assignment.name):
        start.labels |= {k: v for k, v in update.labels.items() if k not in start.labels}
        start.annotations |= {k: v for k, v in update.annotations.items() if k not in start.annotations}
        start.node_selector |= update.node_selector
        start.tolerations.extend(t for t in update.tolerations if t not in start.tolerations)
    if assignment.topology_assignment is not None and not bound_by_us(template):
        start.scheduling_gates.append(names.TOPOLOGY_GATE)
    return start


def bound_by_us(template: PodTemplateSpec) -> bool:
    """Whether Serried binds these pods itself (`schedulerName` cannot change after a Job is created)."""
    return template.spec.scheduler_name == names.SCHEDULER_NAME
