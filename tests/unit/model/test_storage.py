"""What keeps pods with volumes off nodes. Whether kube-scheduler agrees is asked in tests/parity."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest

from serried.api.meta import Object
from serried.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from serried.model.nodes import Nodes
from serried.model.storage import Storage
from tests.unit.model.clusters import node

CLAIM = ("team", "data")
DRIVER = "csi.example.com"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
T = TypeVar("T", bound=Object)


def made(kind: type[T], name: str, **fields: Any) -> T:
    metadata = {"name": name, **fields.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, **fields}, kind)


def claim(name: str = "data", volume: str = "pv", **fields: Any) -> PersistentVolumeClaim:
    metadata = {"namespace": "team", "annotations": BOUND if volume else {}, **fields.pop("metadata", {})}
    spec = {"volumeName": volume, "accessModes": ["ReadWriteMany"], **fields.pop("spec", {})}
    return made(PersistentVolumeClaim, name, metadata=metadata, spec=spec, **fields)


def volume(
    name: str = "pv", handle: str = "", *, labels: dict[str, str] | None = None, **spec: Any
) -> PersistentVolume:
    if handle:
        spec["csi"] = {"driver": DRIVER, "volumeHandle": handle}
    return made(PersistentVolume, name, metadata={"labels": labels or {}}, spec=spec)


def limit(name: str, count: int | None) -> CSINode:
    driver = {"name": DRIVER} | ({} if count is None else {"allocatable": {"count": count}})
    return made(CSINode, name, spec={"drivers": [driver]})


def cluster() -> Nodes:
    nodes = Nodes(8)
    for name, zone in (("a", "1"), ("b", "2"), ("c", "")):
        labels = {"zone": zone, "topology.kubernetes.io/zone": f"z{zone}"} if zone else {}
        nodes.put(nodes.claim(name), node(name, labels=labels))
    return nodes


def left(storage: Storage, nodes: Nodes, *keys: tuple[str, str]) -> dict[str, str]:
    """By reason, the nodes that are left."""
    found = {}
    for reason, rows in storage.exclusions(nodes, keys or (CLAIM,)):
        found[reason] = "".join(sorted(name for name, row in nodes.row_of.items() if rows[row]))
    return found


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([claim(), volume()], ""),
        ([claim()], 'persistentvolume "pv" not found'),
        ([claim(volume="")], 'persistentvolumeclaim "data" is not bound'),
        ([claim(metadata={"annotations": {}}), volume()], 'persistentvolumeclaim "data" is not bound'),
        (
            [claim(status={"phase": "Lost"})],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
        ),
        (
            [claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), volume()],
            'persistentvolumeclaim "data" is being deleted',
        ),
    ],
)
def test_why_a_claim_cannot_be_used(objects: list[Object], reason: str) -> None:
    storage = Storage()
    for obj in objects:
        assert isinstance(obj, PersistentVolume | PersistentVolumeClaim)
        storage.put(obj)
    assert storage.unusable(CLAIM) == reason


def test_a_claim_that_waits_for_its_first_pod_is_not_unusable() -> None:
    storage = Storage()
    storage.put(made(StorageClass, "late", provisioner=DRIVER, volumeBindingMode="WaitForFirstConsumer"))
    late = claim(volume="", spec={"storageClassName": "late"})
    storage.put(late)
    assert storage.unusable(CLAIM) == ""
    assert storage.waits_for_consumer(late)
    assert not storage.waits_for_consumer(claim(volume="pv", spec={"storageClassName": "late"}))


def test_a_volume_for_one_pod_is_free_again_when_its_pod_is_gone() -> None:
    storage = Storage()
    storage.put(volume())
    storage.put(claim(spec={"accessModes": ["ReadWriteOncePod"]}))
    assert storage.unusable(CLAIM) == ""
    storage.use(CLAIM, "a", 1)
    assert "in use by another pod" in storage.unusable(CLAIM)
    storage.use(CLAIM, "a", -1)
    assert storage.unusable(CLAIM) == ""


def test_volumes_are_where_their_node_affinity_says() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2", "3"]}]}]
    storage, nodes = Storage(), cluster()
    storage.put(claim())
    storage.put(volume(nodeAffinity={"required": {"nodeSelectorTerms": terms}}))
    assert left(storage, nodes) == {"volumeNodeAffinity": "b"}


@pytest.mark.parametrize(
    ("labels", "nodes"),
    [
        ({"topology.kubernetes.io/zone": "z1"}, "ac"),
        ({"topology.kubernetes.io/zone": "z1__z2"}, "abc"),
        ({"failure-domain.beta.kubernetes.io/zone": "z2"}, "bc"),
        ({"topology.kubernetes.io/region": "r1"}, "c"),
    ],
)
def test_volumes_in_zones_are_for_nodes_there_and_for_nodes_without_zones(labels: dict[str, str], nodes: str) -> None:
    storage = Storage()
    storage.put(claim())
    storage.put(volume(labels=labels))
    assert left(storage, cluster()) == {"volumeZone": nodes}


def test_zones_that_cannot_be_read_are_ignored() -> None:
    storage = Storage()
    storage.put(claim())
    storage.put(volume(labels={"topology.kubernetes.io/zone": "z1__"}))
    assert left(storage, cluster()) == {}


class TestLimits:
    """Node a has room for one volume of the driver, b for two, c for any number."""

    def setup_method(self) -> None:
        self.nodes, self.storage = cluster(), Storage()
        for name, count in (("a", 1), ("b", 2), ("c", None)):
            self.storage.put(limit(name, count))
        for i in range(3):
            self.storage.put(claim(f"data-{i}", f"pv-{i}"))
            self.storage.put(volume(f"pv-{i}", f"handle-{i}"))

    def left(self, *numbers: int) -> str:
        found = left(self.storage, self.nodes, *(("team", f"data-{i}") for i in numbers))
        return found["volumeLimit"]

    def test_as_many_new_volumes_as_there_is_room_for(self) -> None:
        assert self.left(0) == "abc"
        assert self.left(0, 1) == "bc"
        assert self.left(0, 1, 2) == "c"

    def test_a_volume_that_a_pod_has_there_is_not_new(self) -> None:
        self.storage.use(("team", "data-0"), "a", 2)
        assert self.left(0) == "abc"
        assert self.left(1) == "bc"
        self.storage.use(("team", "data-0"), "a", -1)
        assert self.left(1) == "bc"
        self.storage.use(("team", "data-0"), "a", -1)
        assert self.left(1) == "abc"

    def test_two_claims_of_the_same_volume_count_once(self) -> None:
        self.storage.put(claim("data-9", "pv-0"))
        self.storage.use(("team", "data-0"), "a", 1)
        self.storage.use(("team", "data-9"), "a", 1)
        self.storage.use(("team", "data-0"), "a", -1)
        assert self.left(1) == "bc"
        assert self.left(0) == "abc"

    def test_what_a_claim_in_use_is_bound_to_may_change(self) -> None:
        self.storage.use(("team", "data-0"), "a", 1)
        self.storage.drop(volume("pv-0"))
        assert self.left(1) == "abc"
        self.storage.put(volume("pv-0", "handle-0"))
        assert self.left(1) == "bc"
        self.storage.put(claim("data-0", "pv-1"))
        assert self.left(1) == "abc"

    def test_attached_volumes_count_whoever_uses_them(self) -> None:
        spec = {"attacher": DRIVER, "nodeName": "a", "source": {"persistentVolumeName": "pv-0"}}
        attached = made(VolumeAttachment, "attached", spec=spec)
        self.storage.put(attached)
        assert self.left(1) == "bc"
        # As kube-scheduler counts: of no use to a pod that wants this very volume.
        assert self.left(0) == "bc"
        self.storage.use(("team", "data-0"), "a", 1)
        assert self.left(0) == "abc"
        self.storage.use(("team", "data-0"), "a", -1)
        self.storage.drop(attached)
        assert self.left(1) == "abc"

    def test_nothing_is_kept_of_what_is_gone(self) -> None:
        spec = {"attacher": DRIVER, "nodeName": "a", "source": {"persistentVolumeName": "pv-0"}}
        attached = made(VolumeAttachment, "attached", spec=spec)
        self.storage.put(attached)
        self.storage.use(("team", "data-0"), "a", 1)
        self.storage.use(("team", "data-0"), "a", -1)
        self.storage.drop(attached)
        for use in (self.storage._by_pods, self.storage._by_all):
            assert not use.users
            assert not any(use.volumes.values())
