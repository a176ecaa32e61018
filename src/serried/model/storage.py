"""Claims and volumes: what keeps a pod with volumes off which nodes.

Source of the rules: kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits
(Kubernetes 1.37), for claims that are bound to volumes of CSI drivers or of no driver at all. Claims that are still to
be bound or provisioned when their pod has a node, and volumes of plugins that moved to CSI drivers, are left to
kube-scheduler: see `requirements`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from serried.api import core
from serried.api.meta import Key
from serried.api.storage import (
    CSIDriver,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    StorageClass,
    VolumeAttachment,
)
from serried.model.capacity import Bools, Ints
from serried.model.filters import matches_term
from serried.model.nodes import Nodes

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
#: Kinds of volumes whose plugins moved to CSI drivers.
MIGRATED: Final = (
    "aws_elastic_block_store",
    "azure_disk",
    "azure_file",
    "cinder",
    "gce_persistent_disk",
    "portworx_volume",
    "vsphere_volume",
)
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
_ZONES: Final = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
_REGIONS: Final = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")

StorageObject = PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode | CSIDriver | VolumeAttachment

#: Claims that are remembered as asked for.
_ASKED: Final = 4096

#: A volume of a CSI driver: (driver, handle).
Volume = tuple[str, str]


class _InUse:
    """Volumes on nodes (by name), counted by those who use them there."""

    def __init__(self) -> None:
        self.users: dict[Volume, Counter[str]] = {}
        #: driver → node → volumes of the driver there
        self.volumes: dict[str, Counter[str]] = {}

    def change(self, volume: Volume | None, node: str, sign: int) -> None:
        """One user more or fewer of a volume; None: of none."""
        if volume is None:
            return
        users = self.users.setdefault(volume, Counter())
        users[node] += sign
        if users[node] == (1 if sign > 0 else 0):  # the first, or none any more
            _add(self.volumes.setdefault(volume[0], Counter()), node, sign)
        if not users[node]:
            del users[node]
            if not users:
                del self.users[volume]


def _add(counter: Counter[str], key: str, number: int) -> None:
    counter[key] += number
    if counter[key] <= 0:
        del counter[key]


class Storage:
    """The objects about volumes, and which volume is in use on which node."""

    def __init__(self) -> None:
        self.claims: dict[Key, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.csi_nodes: dict[str, CSINode] = {}
        self.csi_drivers: dict[str, CSIDriver] = {}
        self._attachments: dict[str, VolumeAttachment] = {}
        #: PersistentVolume → claims that name it
        self._claims_of: dict[str, set[Key]] = {}
        #: claim → node → pods there that use it
        self._pods: dict[Key, Counter[str]] = {}
        #: claim in use → the volume it is counted for
        self._counted: dict[Key, Volume | None] = {}
        #: the claims of pods that were judged last, in the order of that
        self._asked: OrderedDict[Key, None] = OrderedDict()
        #: by claims of pods; and these and by attachments
        self._by_pods = _InUse()
        self._by_all = _InUse()

    # --- objects

    def put(self, obj: StorageObject) -> bool:
        """An object was added or changed. Returns whether that may matter to pods that have asked."""
        name = obj.metadata.name
        match obj:
            case PersistentVolumeClaim():
                return self._change_claim(obj.key, obj)
            case PersistentVolume():
                return self._change_volume(name, obj)
            case StorageClass():
                return self._change_class(name, obj)
            case CSINode():
                self.csi_nodes[name] = obj
            case CSIDriver():
                self.csi_drivers[name] = obj
            case VolumeAttachment():
                self._change_attachment(name, obj)
        return bool(self._asked)

    def drop(self, obj: StorageObject) -> bool:
        """An object is gone. Returns as `put`."""
        name = obj.metadata.name
        match obj:
            case PersistentVolumeClaim():
                return self._change_claim(obj.key, None)
            case PersistentVolume():
                return self._change_volume(name, None)
            case StorageClass():
                return self._change_class(name, None)
            case CSINode():
                self.csi_nodes.pop(name, None)
            case CSIDriver():
                self.csi_drivers.pop(name, None)
            case VolumeAttachment():
                self._change_attachment(name, None)
        return bool(self._asked)

    def _change_claim(self, key: Key, claim: PersistentVolumeClaim | None) -> bool:
        before = self.claims.pop(key, None)
        if before is not None and before.spec.volume_name:
            claims = self._claims_of[before.spec.volume_name]
            claims.discard(key)
            if not claims:
                del self._claims_of[before.spec.volume_name]
        if claim is not None:
            self.claims[key] = claim
            if claim.spec.volume_name:
                self._claims_of.setdefault(claim.spec.volume_name, set()).add(key)
        self._recount([key])
        return key in self._asked

    def _change_volume(self, name: str, volume: PersistentVolume | None) -> bool:
        attached = [a for a in self._attachments.values() if a.spec.source.persistent_volume_name == name]
        for attachment in attached:
            self._attach(attachment, -1)
        self.volumes.pop(name, None)
        if volume is not None:
            self.volumes[name] = volume
        for attachment in attached:
            self._attach(attachment, 1)
        claims = self._claims_of.get(name, set())
        self._recount(claims)
        return not self._asked.keys().isdisjoint(claims)

    def _change_class(self, name: str, storage_class: StorageClass | None) -> bool:
        self.classes.pop(name, None)
        if storage_class is not None:
            self.classes[name] = storage_class
        self._recount(self._pods)
        return bool(self._asked)

    def _change_attachment(self, name: str, attachment: VolumeAttachment | None) -> None:
        before = self._attachments.pop(name, None)
        if before is not None:
            self._attach(before, -1)
        if attachment is not None:
            self._attachments[name] = attachment
            self._attach(attachment, 1)

    def _attach(self, attachment: VolumeAttachment, sign: int) -> None:
        spec = attachment.spec
        volume = self.volumes.get(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            self._by_all.change((spec.attacher, volume.spec.csi.volume_handle), spec.node_name, sign)

    # --- use

    def use(self, claim: Key, node: str, pods: int) -> None:
        """So many pods more (below zero: fewer) on a node use a claim, which need not exist."""
        on = self._pods.setdefault(claim, Counter())
        before = on[node] > 0
        _add(on, node, pods)
        if claim not in self._counted:
            self._counted[claim] = self.volume_of(claim)
        if before != (on[node] > 0):
            self._count(claim, node, -1 if before else 1)
        if not on:
            del self._pods[claim], self._counted[claim]

    def _count(self, claim: Key, node: str, sign: int) -> None:
        self._by_pods.change(self._counted[claim], node, sign)
        self._by_all.change(self._counted[claim], node, sign)

    def _recount(self, claims: Iterable[Key]) -> None:
        """What claims are bound to may have changed."""
        for claim in claims:
            volume = self.volume_of(claim)
            if claim not in self._counted or volume == self._counted[claim]:
                continue
            for node in self._pods[claim]:
                self._count(claim, node, -1)
            self._counted[claim] = volume
            for node in self._pods[claim]:
                self._count(claim, node, 1)

    def in_use(self, claim: Key) -> bool:
        """Whether a pod on some node uses a claim."""
        return claim in self._pods

    def class_of(self, claim: PersistentVolumeClaim) -> str:
        annotated = claim.metadata.annotations.get(BETA_STORAGE_CLASS)
        return (claim.spec.storage_class_name or "") if annotated is None else annotated

    def volume_of(self, key: Key) -> Volume | None:
        """The CSI volume that counts for a claim: of one that is not bound yet, one that no other claim has."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is not None:
            source = volume.spec.csi
            return None if source is None else (source.driver, source.volume_handle)
        storage_class = self.classes.get(self.class_of(claim))
        if storage_class is None or storage_class.provisioner.startswith("kubernetes.io/"):
            return None
        return storage_class.provisioner, f"{key[0]}/{key[1]}"

    # --- verdicts

    def unusable(self, key: Key) -> str:
        """Why no pod can use a claim now, on whatever node; "" if it can."""
        self._asked[key] = None
        if len(self._asked) > _ASKED:
            self._asked.popitem(last=False)
        claim = self.claims.get(key)
        name = key[1]
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.status.phase == "Lost":
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if not self.is_bound(claim):
            return "" if self.waits_for_consumer(claim) else f'persistentvolumeclaim "{name}" is not bound'
        if claim.spec.volume_name not in self.volumes:
            return f'persistentvolume "{claim.spec.volume_name}" not found'
        if READ_WRITE_ONCE_POD in claim.spec.access_modes and self.in_use(key):
            return f'persistentvolumeclaim "{name}" with access mode ReadWriteOncePod is in use by another pod'
        return ""

    def needs_kube_scheduler(self, key: Key) -> str:
        """Why pods with a claim are kube-scheduler's to bind, as it is now; "" if they are not."""
        claim = self.claims.get(key)
        if claim is None:
            return ""
        if not self.is_bound(claim) and self.waits_for_consumer(claim):
            return f'persistentvolumeclaim "{key[1]}" is bound or provisioned where its first pod goes'
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is not None and has_source(volume.spec, MIGRATED):
            return f'persistentvolume "{volume.metadata.name}" is of a plugin that moved to a CSI driver'
        return ""

    @staticmethod
    def is_bound(claim: PersistentVolumeClaim) -> bool:
        return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations

    def waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a claim, not bound yet, is bound or provisioned for the first pod that uses it, where that goes."""
        storage_class = self.classes.get(self.class_of(claim))
        if claim.spec.volume_name or storage_class is None:
            return False
        return storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    def exclusions(self, nodes: Nodes, keys: Iterable[Key]) -> Iterator[tuple[str, Bools]]:
        """What claims that can be used exclude: (reason, the rows that are left)."""
        wanted: dict[str, set[Volume]] = {}
        for key in keys:
            claim = self.claims[key]
            if self.is_bound(claim):
                yield from _exclusions(nodes, self.volumes[claim.spec.volume_name])
            found = self.volume_of(key)
            if found is not None:
                wanted.setdefault(found[0], set()).add(found)
        for driver, volumes in wanted.items():
            csi = self.csi_drivers.get(driver)
            if csi is not None and csi.spec.prevent_pod_scheduling_if_missing:
                yield "csiDriver", self._with_driver(nodes, driver)
            room = self._attachable(nodes, driver, volumes)
            if room is not None:
                yield "volumeLimit", room

    def _with_driver(self, nodes: Nodes, driver: str) -> Bools:
        having = {name: 1 for name, c in self.csi_nodes.items() if any(d.name == driver for d in c.spec.drivers)}
        return _by_row(nodes, having, 0) > 0

    def _attachable(self, nodes: Nodes, driver: str, volumes: set[Volume]) -> Bools | None:
        """Which nodes can have these volumes of one driver; None: it has no limit anywhere."""
        limits = {
            name: found.allocatable.count
            for name, csi_node in self.csi_nodes.items()
            for found in csi_node.spec.drivers
            if found.name == driver and found.allocatable is not None and found.allocatable.count is not None
        }
        if not limits:
            return None
        # As kube-scheduler counts: a volume that is attached for no pod on the node counts twice.
        new = len(volumes) - sum(_by_row(nodes, dict.fromkeys(self._by_pods.users.get(v, ()), 1), 0) for v in volumes)
        has = _by_row(nodes, self._by_all.volumes.get(driver, {}), 0)
        room: Bools = (new == 0) | (has + new <= _by_row(nodes, limits, np.iinfo(np.int64).max))
        return room


def has_source(found: core.Volume | PersistentVolumeSpec, sources: Iterable[str]) -> bool:
    """Whether a volume is of one of some kinds."""
    return any(getattr(found, source) is not None for source in sources)


def _by_row(nodes: Nodes, numbers: Mapping[str, int], otherwise: int) -> Ints:
    """Numbers of nodes, by row."""
    found: Ints = np.full(len(nodes.names), otherwise, dtype=np.int64)
    rows = [(nodes.row_of[name], number) for name, number in numbers.items() if name in nodes.row_of]
    if rows:
        at, values = np.array(rows, dtype=np.int64).T
        found[at] = values
    return found


def _exclusions(nodes: Nodes, volume: PersistentVolume) -> Iterator[tuple[str, Bools]]:
    """What a volume excludes by where it is."""
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        keep = np.zeros(len(nodes.names), dtype=np.bool_)
        for term in affinity.required.node_selector_terms:
            keep |= matches_term(nodes, term, of_volume=True)
        yield "volumeNodeAffinity", keep
    zones = _in_zones(nodes, volume)
    if zones is not None:
        yield "volumeZone", zones


def _in_zones(nodes: Nodes, volume: PersistentVolume) -> Bools | None:
    """The nodes in the zones and regions that a volume's labels name; None if they name none."""
    wanted = {
        key: values
        for key in (*_ZONES, *_REGIONS)
        if "" not in (values := {v.strip() for v in volume.metadata.labels.get(key, "").split("__")})
    }
    if not wanted:
        return None
    zoned = np.zeros(len(nodes.names), dtype=np.bool_)
    for key in (*_ZONES, *_REGIONS):
        zoned |= nodes.column(key).codes >= 0
    keep = np.ones(len(nodes.names), dtype=np.bool_)
    for key, values in wanted.items():
        own = nodes.column(key)
        stable = nodes.column(_stable(key))
        keep &= np.where(own.codes >= 0, own.among(values), stable.among(values))
    return keep | ~zoned


def _stable(key: str) -> str:
    return {_ZONES[0]: _ZONES[1], _REGIONS[0]: _REGIONS[1]}.get(key, key)
