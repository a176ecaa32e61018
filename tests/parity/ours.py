"""Our verdict on pods, node by node, from the objects as the API server has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from serried.api.core import Namespace, Node, Pod, PodTemplateMeta, PodTemplateSpec, Taint
from serried.api.kueue import PodSet
from serried.api.meta import Object
from serried.api.storage import (
    CSIDriver,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from serried.jobs.handover import left_to_kube_scheduler
from serried.model import filters
from serried.model.capacity import Bools, fits
from serried.model.journal import Journal
from serried.model.nodes import is_ready
from serried.model.pod_constraints import read_constraints
from serried.model.pod_filters import Surroundings, judge
from serried.model.pod_index import PodKind
from serried.model.pods import pod_requests
from serried.model.world import World

KINDS: Mapping[str, type[Object]] = {
    "namespaces": Namespace,
    "nodes": Node,
    "pods": Pod,
    "persistentvolumeclaims": PersistentVolumeClaim,
    "persistentvolumes": PersistentVolume,
    "storageclasses": StorageClass,
    "csinodes": CSINode,
    "csidrivers": CSIDriver,
    "volumeattachments": VolumeAttachment,
}


class Judge:
    """Judges pods on one cluster."""

    def __init__(self, objects: Mapping[str, Iterable[Any]]) -> None:
        found = {plural: [msgspec.convert(o, KINDS[plural]) for o in objects[plural]] for plural in KINDS}
        world = self.world = World(Journal())
        world.namespaces.update({n.metadata.name: n.metadata.labels for n in found["namespaces"]})
        setters: dict[str, Callable[[Any], object]] = {"nodes": world.set_node, "pods": world.set_pod}
        for plural in KINDS:
            if plural != "namespaces":
                setter = setters.get(plural, world.storage.put)
                for obj in found[plural]:
                    setter(obj)

    def handed_over(self, pod: Pod) -> str:
        """Why a pod like this is kube-scheduler's to bind; "" if it is not."""
        pod_set = PodSet(template=PodTemplateSpec(metadata=PodTemplateMeta(labels=pod.metadata.labels), spec=pod.spec))
        return left_to_kube_scheduler([pod_set], pod.metadata.namespace, self.world.storage)

    def masks(self, pod: Pod) -> dict[str, Bools]:
        """What kube-scheduler's filters leave of the nodes, each by itself."""
        nodes, meta, spec = self.world.nodes, pod.metadata, pod.spec
        constraints = read_constraints(spec, meta.namespace, meta.labels, pod=meta.name)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        selected, required = filters.selected(nodes, spec.node_selector), filters.required(nodes, affinity)
        tolerated = filters.tolerated(nodes, spec.tolerations)
        around = Surroundings(nodes, self.world.index, self.world.storage, self.world.namespaces)
        verdict = judge(around, PodKind(meta.namespace, meta.labels, constraints), selected & required, tolerated)
        masks = {
            "nodeSelector": selected,
            "nodeAffinity": required,
            "taints": tolerated,
            "cordoned": ~self._cordoned(pod),
            "resources": self._fits(pod),
        }
        for spread in verdict.spread:
            room = np.append(spread.room(spread.least), 0)[nodes.column(spread.key).codes] > 0
            verdict.exclusions.append(("topologySpread", room))
        for reason, left in verdict.exclusions:
            name = reason.split(" ")[0]
            masks[name] = masks.get(name, left) & left
        return masks

    def names(self, rows: Bools) -> set[str]:
        return {self.world.nodes.names[row] for row in np.flatnonzero(rows & self.present)}

    @property
    def present(self) -> Bools:
        return np.array([node is not None for node in self.world.nodes.seen], dtype=np.bool_)

    def deliberate(self, pod: Pod) -> dict[str, Bools]:
        """Where we put no new pod, whatever kube-scheduler does: see docs/filters.md."""
        nodes, tolerations = self.world.nodes, pod.spec.tolerations
        untolerated = [filters.first_untolerated(nodes.taints[code], tolerations) for code in nodes.taint_code]
        seen = nodes.seen
        return {
            "not ready": np.array([n is not None and not is_ready(n) for n in seen], dtype=np.bool_),
            "cordoned": np.array([n is not None and n.spec.unschedulable for n in seen], dtype=np.bool_),
            "tolerated for some seconds": np.array([t is not None for t in untolerated], dtype=np.bool_)
            & filters.tolerated(nodes, tolerations),
        }

    def _fits(self, pod: Pod) -> Bools:
        capacity = self.world.capacity
        vector = capacity.vector(pod_requests(pod.spec))
        found: Bools = fits(lambda line: capacity.free[line].copy(), vector, capacity.rows) > 0
        return found

    def _cordoned(self, pod: Pod) -> Bools:
        """Where a pod does not go because the node is cordoned and it does not tolerate that."""
        taint = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
        tolerates = any(filters.tolerates(t, taint) for t in pod.spec.tolerations)
        seen = self.world.nodes.seen
        return np.array([n is not None and n.spec.unschedulable and not tolerates for n in seen], dtype=np.bool_)
