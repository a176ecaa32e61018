"""Gangs under rules between pods, told on small clusters. That rules are kept, and placements found, is a property."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import PodSpec
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME, POD_GROUP, POD_SET
from serried.api.storage import PersistentVolume, PersistentVolumeClaim
from serried.model.placement import Placement
from serried.model.pod_constraints import read_constraints
from serried.model.pod_index import PodKind
from serried.model.requests import PodSetRequest
from serried.model.validate import validate
from serried.model.world import World
from serried.place.place import Replacement, place
from serried.place.result import NoPlacement
from tests.unit.model.clusters import BLOCK, GPU, RACK, node, pod, racks

WEB = {"app": "web"}
ZONE = "zone"
PORT = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]


def workers(
    count: int,
    *,
    name: str = "main",
    labels: dict[str, str] | None = None,
    wish: dict[str, Any] | None = None,
    **spec: Any,
) -> PodSetRequest:
    template = msgspec.convert({"containers": [{"name": "main"}], **spec}, PodSpec)
    given = (WEB if labels is None else labels) | {POD_SET: name, POD_GROUP: "job"}
    kind = PodKind("team", given, read_constraints(template, "team", given))
    topology = PodSetTopologyRequest(**wish) if wish is not None else PodSetTopologyRequest(unconstrained=True)
    return PodSetRequest(name, count, {GPU: 1}, topology=topology, kind=kind)


def affinity(which: str, *keys: str, app: str = "web") -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    terms = [{"topologyKey": key, "labelSelector": selector} for key in keys]
    return {which: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def apart(*keys: str, app: str = "web") -> dict[str, Any]:
    return {"affinity": affinity("podAntiAffinity", *keys, app=app)}


def together(*keys: str, app: str = "web") -> dict[str, Any]:
    return {"affinity": affinity("podAffinity", *keys, app=app)}


def spread(key: str, skew: int = 1, **more: Any) -> dict[str, Any]:
    made = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**made, "labelSelector": {"matchLabels": WEB}, **more}]}


def stands(world: World, name: str, where: str, labels: dict[str, str], **spec: Any) -> None:
    """A pod that stands on a node."""
    item = pod(name, where, {}, namespace="team")
    item.metadata.labels = labels
    template = msgspec.convert(spec, PodSpec)
    item.spec.affinity, item.spec.containers = template.affinity, template.containers
    world.set_pod(item)


def found(result: list[Placement] | NoPlacement) -> list[Placement]:
    assert not isinstance(result, NoPlacement), result.message
    return result


def places(result: list[Placement] | NoPlacement, index: int = 0) -> dict[str, int]:
    return {values[-1]: count for values, count in found(result)[index].domains}


def per(result: list[Placement] | NoPlacement, world: World, key: str, index: int = 0) -> dict[str, int]:
    """Pods by the value of a label of their nodes."""
    counts: dict[str, int] = {}
    for name, count in places(result, index).items():
        value = world.nodes.labels(world.nodes.row_of[name])[key]
        counts[value] = counts.get(value, 0) + count
    return dict(sorted(counts.items()))


def refused(result: list[Placement] | NoPlacement) -> NoPlacement:
    assert isinstance(result, NoPlacement)
    return result


def zoned(*sizes: int) -> World:
    """Racks of which every other one is in zone z1, the rest in z0: no level of the topology."""
    world = racks(*sizes)
    for name, row in list(world.nodes.row_of.items()):
        labels = dict(world.nodes.labels(row))
        world.set_node(node(name, labels=labels | {ZONE: f"z{labels[RACK][-1]}"}))
    return world


# --- apart


def test_pods_that_keep_apart_get_a_node_each() -> None:
    world = racks(2, 3)
    assert set(places(place(world, "gpu", [workers(4, **apart(HOSTNAME))])).values()) == {1}
    failed = refused(place(world, "gpu", [workers(6, **apart(HOSTNAME))]))
    assert (failed.needed, failed.fits, failed.fits_when_empty) == (6, 5, False)


def test_pods_that_keep_apart_get_a_rack_each() -> None:
    world = racks(2, 2, 2)
    assert per(place(world, "gpu", [workers(3, **apart(RACK))]), world, RACK) == {"b0-r0": 1, "b0-r1": 1, "b1-r0": 1}
    failed = refused(place(world, "gpu", [workers(4, **apart(RACK))]))
    assert failed.fits == 3
    assert failed.message.endswith(f"The pods have to be one in each {RACK} (podAntiAffinity)")


def test_within_a_block_that_is_required_too() -> None:
    world = racks(2, 2, 2, 2)
    result = place(world, "gpu", [workers(2, wish={"required": BLOCK}, **apart(RACK))])
    assert per(result, world, BLOCK) in ({"b0": 2}, {"b1": 2})
    assert isinstance(place(world, "gpu", [workers(3, wish={"required": BLOCK}, **apart(RACK))]), NoPlacement)


def test_apart_in_domains_of_a_label_that_is_no_level() -> None:
    world = zoned(1, 1, 1, 1)
    assert per(place(world, "gpu", [workers(2, **apart(ZONE))]), world, ZONE) == {"z0": 1, "z1": 1}
    assert isinstance(place(world, "gpu", [workers(3, **apart(ZONE))]), NoPlacement)


def test_nodes_without_the_label_take_any_number() -> None:
    world = zoned(1, 1)
    world.set_node(node("bare", labels={BLOCK: "b9", RACK: "b9-r9"}))
    assert places(place(world, "gpu", [workers(10, **apart(ZONE))])) == {"b0-r0-n0": 1, "b0-r1-n0": 1, "bare": 8}
    assert isinstance(place(world, "gpu", [workers(11, **apart(ZONE))]), NoPlacement)


def test_pods_keep_away_from_others_and_from_those_that_keep_away_from_them() -> None:
    world = racks(2, 2, 2)
    stands(world, "db", "b0-r0-n0", {"app": "db"})
    stands(world, "shy", "b0-r1-n0", {"app": "shy"}, **apart(RACK))
    assert per(place(world, "gpu", [workers(2, **apart(RACK, app="db"))]), world, RACK) == {"b1-r0": 2}
    world.set_node(node("b1-r0-n0", labels={BLOCK: "b1", RACK: "b1-r0"}, ready=False))
    world.set_node(node("b1-r0-n1", labels={BLOCK: "b1", RACK: "b1-r0"}, ready=False))
    failed = refused(place(world, "gpu", [workers(1, **apart(RACK, app="db"))]))
    assert failed.excluded == {"podAntiAffinity": 2, "existingPodAntiAffinity": 2}
    assert failed.total_nodes == 4


def test_what_others_are_promised_counts_as_there() -> None:
    world = racks(1, 1)
    taken = workers(1, **apart(RACK))
    world.hold(("team", "first"), [Placement("main", "gpu", (HOSTNAME,), ((("b0-r0-n0",), 1),))], [taken])
    world.journal.commit()
    assert places(place(world, "gpu", [workers(1, **apart(RACK))])) == {"b0-r1-n0": 1}
    assert isinstance(place(world, "gpu", [workers(2, **apart(RACK))]), NoPlacement)
    assert refused(place(world, "gpu", [workers(2, **apart(RACK))])).fits_when_empty is True
    # Pods that keep apart from nobody are kept off all the same.
    assert places(place(world, "gpu", [workers(1)])) == {"b0-r1-n0": 1}
    world.release(("team", "first"))
    world.journal.commit()
    assert sum(places(place(world, "gpu", [workers(2, **apart(RACK))])).values()) == 2
    validate(world)


# --- host ports and volumes


def test_pods_that_take_a_host_port_get_a_node_each_where_it_is_free() -> None:
    world = racks(3)
    stands(world, "web", "b0-r0-n1", {}, containers=PORT)
    assert places(place(world, "gpu", [workers(2, containers=PORT)])) == {"b0-r0-n0": 1, "b0-r0-n2": 1}
    failed = refused(place(world, "gpu", [workers(3, containers=PORT)]))
    assert (failed.fits, failed.excluded) == (2, {"hostPort": 1})


@pytest.mark.parametrize(("count", "mode"), [(1, "ReadWriteOncePod"), (2, "ReadWriteMany")])
def test_a_volume_decides_where(count: int, mode: str) -> None:
    world = racks(2, 2)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    failed = refused(place(world, "gpu", [workers(count, volumes=volumes)]))
    assert failed.excluded == {'persistentvolumeclaim "data" not found': 4}
    terms = [{"matchExpressions": [{"key": RACK, "operator": "In", "values": ["b0-r1"]}]}]
    claim = {
        "metadata": {"name": "data", "namespace": "team", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv", "accessModes": [mode]},
    }
    volume = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    assert world.storage.put(msgspec.convert(claim, PersistentVolumeClaim))
    world.storage.put(msgspec.convert(volume, PersistentVolume))
    assert per(place(world, "gpu", [workers(count, volumes=volumes)]), world, RACK) == {"b0-r1": count}


def test_pods_that_share_a_volume_for_one_pod_have_no_place() -> None:
    world = racks(2)
    claim = {
        "metadata": {"name": "data", "namespace": "team", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]},
    }
    world.storage.put(msgspec.convert(claim, PersistentVolumeClaim))
    world.storage.put(msgspec.convert({"metadata": {"name": "pv"}}, PersistentVolume))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    failed = refused(place(world, "gpu", [workers(2, volumes=volumes)]))
    assert failed.message == "2 pods share a volume that is for one pod (ReadWriteOncePod)"


# --- together


def test_pods_that_seek_each_other_go_to_one_domain_that_holds_all() -> None:
    world = racks(1, 2, 3)
    assert per(place(world, "gpu", [workers(20, **together(RACK))]), world, RACK) == {"b1-r0": 20}
    assert isinstance(place(world, "gpu", [workers(25, **together(RACK))]), NoPlacement)
    assert list(places(place(world, "gpu", [workers(8, **together(HOSTNAME))])).values()) == [8]


def test_pods_that_seek_others_go_where_those_are() -> None:
    world = racks(2, 2, 2)
    stands(world, "db", "b0-r1-n0", {"app": "db"})
    assert per(place(world, "gpu", [workers(3, **together(RACK, app="db"))]), world, RACK) == {"b0-r1": 3}
    failed = refused(place(world, "gpu", [workers(1, **together(RACK, app="nobody"))]))
    assert failed.excluded == {"podAffinity": 6}


def test_a_pod_set_that_seeks_another_one_is_placed_after_it() -> None:
    world = racks(2, 2, 2)
    sets = [
        workers(3, name="a", labels={"app": "a"}, **together(RACK, app="b")),
        workers(2, name="b", labels={"app": "b"}),
    ]
    result = place(world, "gpu", sets)
    assert per(result, world, RACK, 0).keys() == per(result, world, RACK, 1).keys()
    away = [
        workers(2, name="a", labels={"app": "a"}, **apart(RACK, app="b")),
        workers(2, name="b", labels={"app": "b"}),
    ]
    result = place(world, "gpu", away)
    assert not per(result, world, RACK, 0).keys() & per(result, world, RACK, 1).keys()
    validate(world)


# --- spread


def test_pods_are_spread_over_racks() -> None:
    world = racks(2, 2, 2)
    assert per(place(world, "gpu", [workers(9, **spread(RACK))]), world, RACK) == {"b0-r0": 3, "b0-r1": 3, "b1-r0": 3}
    uneven = per(place(world, "gpu", [workers(10, **spread(RACK, 2))]), world, RACK)
    assert sum(uneven.values()) == 10
    assert max(uneven.values()) - min(uneven.values()) <= 2


def test_pods_that_are_there_count() -> None:
    world = racks(2, 2, 2)
    for i in range(2):
        stands(world, f"old-{i}", "b0-r0-n0", WEB)
    assert per(place(world, "gpu", [workers(4, **spread(RACK))]), world, RACK) == {"b0-r1": 2, "b1-r0": 2}


def test_a_rack_that_is_full_keeps_the_others_down() -> None:
    world = racks(1, 2, 2)
    world.set_pod(pod("full", "b0-r0-n0", {GPU: "8"}))
    assert per(place(world, "gpu", [workers(2, **spread(RACK))]), world, RACK) == {"b0-r1": 1, "b1-r0": 1}
    assert isinstance(place(world, "gpu", [workers(3, **spread(RACK))]), NoPlacement)


def test_spread_over_zones_and_nodes_at_once() -> None:
    world = zoned(2, 2, 2, 2)
    constraints = [*spread(ZONE)["topologySpreadConstraints"], *spread(HOSTNAME)["topologySpreadConstraints"]]
    result = place(world, "gpu", [workers(12, topologySpreadConstraints=constraints)])
    assert per(result, world, ZONE) == {"z0": 6, "z1": 6}
    assert set(places(result).values()) <= {1, 2}


def test_all_pods_in_one_rack_cannot_be_spread_over_racks() -> None:
    world = racks(2, 2)
    assert isinstance(place(world, "gpu", [workers(2, wish={"required": RACK}, **spread(RACK))]), NoPlacement)
    assert sum(places(place(world, "gpu", [workers(2, wish={"required": RACK}, **spread(RACK, 2))])).values()) == 2


def test_with_too_few_domains_only_max_skew_pods_go_to_each() -> None:
    world = racks(2, 2)
    assert sum(places(place(world, "gpu", [workers(2, **spread(RACK, minDomains=3))])).values()) == 2
    assert isinstance(place(world, "gpu", [workers(3, **spread(RACK, minDomains=3))]), NoPlacement)


# --- slices, leaders, replacements


def test_slices_within_racks_of_which_each_node_takes_one_pod() -> None:
    world = racks(4, 3, 4)
    wish = {"pod_set_slice_required_topology": RACK, "pod_set_slice_size": 2}
    result = place(world, "gpu", [workers(10, wish=wish, **apart(HOSTNAME))])
    assert per(result, world, RACK) == {"b0-r0": 4, "b0-r1": 2, "b1-r0": 4}
    assert isinstance(place(world, "gpu", [workers(12, wish=wish, **apart(HOSTNAME))]), NoPlacement)


def test_slices_that_cut_across_the_domains_of_a_rule_are_told() -> None:
    world = racks(1, 1, 1, 1)
    for name, row in list(world.nodes.row_of.items()):
        labels = dict(world.nodes.labels(row))
        world.set_node(node(name, labels=labels | {ZONE: labels[RACK][-1]}))
    wish = {"pod_set_slice_required_topology": BLOCK, "pod_set_slice_size": 2}
    failed = refused(place(world, "gpu", [workers(4, wish=wish, **spread(ZONE))]))
    assert failed.message == (
        f"pods cannot keep a rule about {ZONE}: its domains cut across those of slices or of other rules"
    )


def group(count: int, **spec: Any) -> list[PodSetRequest]:
    wish = {"required": BLOCK, "pod_set_group_name": "group"}
    leader = workers(1, name="leader", labels={"app": "leader"}, wish=wish, containers=spec.get("containers", []))
    return [leader, workers(count, wish=wish, **spec)]


def test_a_leader_with_the_same_host_port_has_a_node_of_its_own() -> None:
    world = racks(2, 2, 2)
    result = place(world, "gpu", group(3, containers=PORT))
    assert per(result, world, BLOCK, 1) == {"b0": 3}
    assert not places(result, 0).keys() & places(result, 1).keys()
    assert isinstance(place(world, "gpu", group(4, containers=PORT)), NoPlacement)


def test_a_rule_between_leader_and_workers_over_more_than_a_node_is_told() -> None:
    world = racks(2, 2, 2)
    failed = refused(place(world, "gpu", group(2, **apart(RACK, app="leader"))))
    assert failed.message == f"a rule about the label {RACK} is between the leader and the others of its pod set group"


def test_a_replacement_keeps_the_rules_beside_the_pods_that_stay() -> None:
    world = racks(1, 1, 2)
    request = workers(3, **apart(RACK))
    (placed,) = found(place(world, "gpu", [request]))
    world.hold(("team", "job"), [placed], [request])
    world.journal.commit()
    lost = next(values[-1] for values, _ in placed.domains if values[-1].startswith("b1"))
    labels = world.nodes.labels(world.nodes.row_of[lost])
    world.set_node(node(lost, labels=labels, ready=False))
    replacement = Replacement(lost, {"main": placed})
    (again,) = found(place(world, "gpu", [request], replacement=replacement))
    assert per([again], world, RACK) == {"b0-r0": 1, "b0-r1": 1, "b1-r0": 1}
    assert lost not in places([again])
    validate(world)


def test_preferred_pods_and_even_spread_rank_the_nodes() -> None:
    world = racks(2, 2, 2)
    stands(world, "db", "b0-r1-n0", {"app": "db"})
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"app": "db"}}}
    preferred = [{"weight": 5, "podAffinityTerm": term}]
    near: dict[str, Any] = {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}
    far: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    }
    wish = {"required": RACK}
    assert per(place(world, "gpu", [workers(2, wish=wish, **near)]), world, RACK) == {"b0-r1": 2}
    assert per(place(world, "gpu", [workers(2, wish=wish, **far)]), world, RACK) == {"b0-r0": 2}
    stands(world, "web", "b0-r0-n0", WEB)
    soft = spread(RACK, whenUnsatisfiable="ScheduleAnyway")
    assert "b0-r0" not in per(place(world, "gpu", [workers(2, wish=wish, **soft)]), world, RACK)


def test_nodes_that_lack_the_label_of_a_level_are_named() -> None:
    world = racks(2)
    world.set_node(node("bare", labels={BLOCK: "b0"}))
    failed = refused(place(world, "gpu", [workers(17)]))
    assert failed.unlabelled == {RACK: ["bare"]}
