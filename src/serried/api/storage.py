"""Volumes, as far as they decide about nodes: claims and volumes of core/v1, and storage.k8s.io/v1."""

from __future__ import annotations

from typing import Any

import msgspec

from serried.api.core import NodeSelector
from serried.api.meta import Object, Wire


class PersistentVolumeClaimSpec(Wire):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaimStatus(Wire):
    phase: str = ""


class PersistentVolumeClaim(Object):
    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)


class CSIVolumeSource(Wire):
    driver: str
    volume_handle: str


class VolumeNodeAffinity(Wire):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Wire):
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    # Sources that nodes may have migrated to CSI drivers: it only matters that they are there.
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    azure_file: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None


class PersistentVolume(Object):
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)


class StorageClass(Object):
    provisioner: str = ""
    volume_binding_mode: str = ""


class CSINodeDriverAllocatable(Wire):
    count: int | None = None


class CSINodeDriver(Wire):
    name: str
    allocatable: CSINodeDriverAllocatable | None = None


class CSINodeSpec(Wire):
    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object):
    """The CSI drivers of the node of the same name."""

    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)


class CSIDriverSpec(Wire):
    prevent_pod_scheduling_if_missing: bool = False


class CSIDriver(Object):
    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)


class VolumeAttachmentSource(Wire):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = msgspec.field(default_factory=VolumeAttachmentSource)


class VolumeAttachment(Object):
    spec: VolumeAttachmentSpec = msgspec.field(default_factory=VolumeAttachmentSpec)
