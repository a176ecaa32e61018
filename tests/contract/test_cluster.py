"""What Serried relies on of an API server: objects, selectors, patches, deletion. The same on both clusters."""

import asyncio
from typing import Any

import msgspec
import pytest

from serried.api import core
from serried.api.meta import Object, ObjectMeta, Wire
from serried.api.resources import (
    ALL,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    Resource,
)
from serried.cluster.protocol import AlreadyExists, ApiError, Cluster, Conflict, Invalid, Malformed, NotFound
from tests.contract.helpers import named, take, told
from tests.patience import until

# --- Create, get, list


async def test_version_is_that_of_a_kubernetes(cluster: Cluster) -> None:
    major, minor, *_ = (await cluster.version()).split(".")
    assert (major, int(minor) >= 35) == ("v1", True)


async def test_a_created_object_is_there_with_what_the_server_adds(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(LEASES, named("a", labels={"team": "red"}), namespace)
    assert made.api_version == "coordination.k8s.io/v1"
    assert made.kind == "Lease"
    assert made.key == (namespace, "a")
    assert made.metadata.labels == {"team": "red"}
    assert made.metadata.uid
    assert made.metadata.resource_version.isdecimal()
    assert made.metadata.creation_timestamp is not None
    assert await cluster.get(LEASES, "a", namespace) == made


async def test_a_struct_can_be_created_and_its_own_namespace_counts(cluster: Cluster, namespace: str) -> None:
    event = core.Event(
        metadata=ObjectMeta(namespace=namespace, generate_name="job."),
        involved_object=core.ObjectReference(kind="Job", name="job", namespace=namespace),
        reason="Created",
        message="as a test",
        type="Normal",
    )
    made = await cluster.create(EVENTS, event)
    assert made.metadata.namespace == namespace
    assert made.metadata.name.startswith("job.")
    assert (await cluster.get(EVENTS, made.metadata.name, namespace)).message == "as a test"


async def test_what_is_not_there_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "absent", namespace)
    with pytest.raises(NotFound):
        await cluster.patch(LEASES, "absent", namespace, patch={"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(NotFound):
        await cluster.delete(LEASES, "absent", namespace)
    with pytest.raises(NotFound):
        await cluster.create(LEASES, named("a"), "absent")
    assert (await cluster.list(LEASES, "absent")).items == []


async def test_a_name_is_taken_once(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("a"), namespace)
    with pytest.raises(AlreadyExists):
        await cluster.create(LEASES, named("a"), namespace)


@pytest.mark.parametrize(
    ("resource", "manifest"),
    [
        (LEASES, named("Not_A_Name")),
        (LEASES, named("a", labels={"key": "not a value"})),
        (LEASES, {"metadata": {}}),
        (PODS, {"metadata": {"name": "a"}, "spec": {"containers": []}}),
        (PODS, {"metadata": {"name": "a"}, "spec": {"containers": "none"}}),
    ],
)
async def test_what_is_not_valid_is_refused(
    cluster: Cluster, namespace: str, resource: Resource[Any], manifest: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await cluster.create(resource, manifest, namespace)


async def test_generated_names_begin_as_asked_and_differ(cluster: Cluster, namespace: str) -> None:
    manifest = {"metadata": {"generateName": "gen-"}}
    made = await asyncio.gather(*(cluster.create(LEASES, manifest, namespace) for _ in range(20)))
    names = {lease.metadata.name for lease in made}
    assert len(names) == 20
    assert all(name.startswith("gen-") and len(name) > len("gen-") for name in names)


async def test_versions_only_grow_across_objects_and_kinds(cluster: Cluster, namespace: str) -> None:
    versions = []
    for name in "abc":
        lease = await cluster.create(LEASES, named(name), namespace)
        event = await cluster.create(EVENTS, {**named(name), "involvedObject": {"namespace": namespace}}, namespace)
        versions += [int(lease.metadata.resource_version), int(event.metadata.resource_version)]
    assert sorted(set(versions)) == versions
    assert int((await cluster.list(LEASES, namespace)).resource_version) >= versions[-1]


async def test_a_patch_that_changes_nothing_makes_no_version(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("a"), namespace)
    patch = {"metadata": {"labels": {"team": "red"}}}
    first = await cluster.patch(LEASES, "a", namespace, patch=patch)
    assert await cluster.patch(LEASES, "a", namespace, patch=patch) == first


async def test_a_list_is_whole_however_many_pages_it_takes(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_page", 3, raising=False)
    for number in range(10):
        await cluster.create(LEASES, named(f"lease-{number}"), namespace)
    listing = await cluster.list(LEASES, namespace)
    assert [lease.metadata.name for lease in listing.items] == [f"lease-{number}" for number in range(10)]
    assert listing.malformed == []
    assert namespace in {lease.metadata.namespace for lease in (await cluster.list(LEASES)).items}


@pytest.mark.parametrize(
    ("selector", "matching"),
    [
        ("team=red", "ab"),
        ("team==red", "ab"),
        ("team!=red", "cd"),
        ("team", "abc"),
        ("!team", "d"),
        ("team in (red, blue)", "abc"),
        ("team notin (red)", "cd"),
        ("team=red,size=8", "b"),
        ("size in (8),team", "b"),
        ("team=green", ""),
        ("size=", ""),
    ],
)
async def test_label_selectors(cluster: Cluster, namespace: str, selector: str, matching: str) -> None:
    await cluster.create(LEASES, named("a", labels={"team": "red"}), namespace)
    await cluster.create(LEASES, named("b", labels={"team": "red", "size": "8"}), namespace)
    await cluster.create(LEASES, named("c", labels={"team": "blue"}), namespace)
    await cluster.create(LEASES, named("d"), namespace)
    listing = await cluster.list(LEASES, namespace, label_selector=selector)
    assert "".join(lease.metadata.name for lease in listing.items) == matching


async def test_field_selectors(cluster: Cluster, namespace: str, node: str, pod: Any) -> None:
    for name in "abc":
        await cluster.create(PODS, pod(name), namespace)
    await cluster.bind(namespace, "b", node)

    async def found(selector: str) -> str:
        listing = await cluster.list(PODS, namespace, field_selector=selector)
        return "".join(found.metadata.name for found in listing.items)

    assert await found("metadata.name=a") == "a"
    assert await found(f"metadata.name!=a,metadata.namespace={namespace}") == "bc"
    assert await found(f"spec.nodeName={node}") == "b"
    assert await found("spec.nodeName=") == "ac"
    assert await found("status.phase=Pending") == "abc"
    assert await found("status.phase!=Pending") == ""


@pytest.mark.parametrize("selectors", [{"label_selector": "team in red"}, {"field_selector": "spec.color=red"}])
async def test_a_selector_that_makes_no_sense_is_refused(
    cluster: Cluster, namespace: str, selectors: dict[str, str]
) -> None:
    with pytest.raises(Invalid):
        await cluster.list(LEASES, namespace, **selectors)


# --- Patches


async def test_a_merge_patch_merges_maps_and_null_removes(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("a", labels={"keep": "1", "drop": "1", "change": "1"}), namespace)
    patched = await cluster.patch(
        LEASES,
        "a",
        namespace,
        patch={"metadata": {"labels": {"drop": None, "change": "2", "add": "1"}}, "spec": {"holderIdentity": "me"}},
    )
    assert patched.metadata.labels == {"keep": "1", "change": "2", "add": "1"}
    assert patched.spec.holder_identity == "me"
    assert await cluster.get(LEASES, "a", namespace) == patched


async def test_a_merge_patch_replaces_lists(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("a", finalizers=["example.com/one", "example.com/two"]), namespace)
    patched = await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"finalizers": ["example.com/two"]}})
    assert patched.metadata.finalizers == ("example.com/two",)
    patched = await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"finalizers": None}})
    assert patched.metadata.finalizers == ()


async def test_a_merge_patch_can_insist_on_a_version_and_on_an_object(cluster: Cluster, namespace: str) -> None:
    old = await cluster.create(LEASES, named("a"), namespace)
    patch: dict[str, Any] = {"metadata": {"resourceVersion": old.metadata.resource_version, "labels": {"by": "one"}}}
    new = await cluster.patch(LEASES, "a", namespace, patch=patch)
    patch["metadata"]["labels"] = {"by": "two"}
    with pytest.raises(Conflict):
        await cluster.patch(LEASES, "a", namespace, patch=patch)
    with pytest.raises((Conflict, Invalid)):  # which of them is a matter of the kind
        await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"uid": "other", "labels": {"by": "two"}}})
    assert await cluster.get(LEASES, "a", namespace) == new


async def test_status_and_the_rest_are_written_apart(cluster: Cluster, node: str) -> None:
    both: dict[str, Any] = {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "8"}}}
    patched = await cluster.patch(NODES, node, patch=both)
    assert (patched.spec.unschedulable, patched.status.allocatable) == (True, {})
    both["spec"]["unschedulable"] = False
    patched = await cluster.patch(NODES, node, patch=both, subresource="status")
    assert (patched.spec.unschedulable, patched.status.allocatable) == (True, {"cpu": "8"})
    assert await cluster.get(NODES, node) == patched


async def test_generation_counts_changes_of_the_spec_alone(cluster: Cluster, namespace: str) -> None:
    # Under this name the cluster's own Job controller leaves it alone.
    spec = {
        "suspend": True,
        "managedBy": "example.com/nobody",
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}
        },
    }
    made = await cluster.create(JOBS, {**named("a"), "spec": spec}, namespace)
    assert made.metadata.generation == 1
    patched = await cluster.patch(JOBS, "a", namespace, patch={"metadata": {"labels": {"team": "red"}}})
    assert patched.metadata.generation == 1
    patched = await cluster.patch(JOBS, "a", namespace, patch={"status": {"active": 1}}, subresource="status")
    assert (patched.metadata.generation, patched.status.active) == (1, 1)
    patched = await cluster.patch(JOBS, "a", namespace, patch={"spec": {"parallelism": 2}})
    assert (patched.metadata.generation, patched.spec.parallelism) == (2, 2)


# --- Deletion


async def test_a_deletion_can_insist_on_an_object(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(LEASES, named("a"), namespace)
    with pytest.raises(Conflict):
        await cluster.delete(LEASES, "a", namespace, uid="other")
    await cluster.delete(LEASES, "a", namespace, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "a", namespace)


async def test_a_finalizer_holds_an_object_until_it_is_taken_off(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("a", finalizers=["example.com/hold"]), namespace)
    await cluster.delete(LEASES, "a", namespace)
    held = await cluster.get(LEASES, "a", namespace)
    assert held.metadata.deletion_timestamp is not None
    with pytest.raises(AlreadyExists):
        await cluster.create(LEASES, named("a"), namespace)
    with pytest.raises(Invalid):
        await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"finalizers": ["example.com/another"]}})
    # A second deletion changes nothing.
    await cluster.delete(LEASES, "a", namespace)
    assert await cluster.get(LEASES, "a", namespace) == held
    await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"finalizers": []}})
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "a", namespace)


def _owned_by(*owners: core.Lease, blocking: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
            "blockOwnerDeletion": blocking,
        }
        for owner in owners
    ]


async def _gone(cluster: Cluster, name: str, namespace: str) -> bool:
    try:
        await cluster.get(LEASES, name, namespace)
    except NotFound:
        return True
    return False


async def test_what_is_owned_goes_with_its_last_owner(cluster: Cluster, namespace: str) -> None:
    one = await cluster.create(LEASES, named("one"), namespace)
    two = await cluster.create(LEASES, named("two"), namespace)
    await cluster.create(LEASES, named("of-one", ownerReferences=_owned_by(one)), namespace)
    await cluster.create(LEASES, named("of-both", ownerReferences=_owned_by(one, two)), namespace)
    await cluster.delete(LEASES, "one", namespace)
    await until(lambda: _gone(cluster, "of-one", namespace))
    assert not await _gone(cluster, "of-both", namespace)
    await cluster.delete(LEASES, "two", namespace)
    await until(lambda: _gone(cluster, "of-both", namespace))


async def test_what_is_owned_by_an_owner_that_never_was_goes(cluster: Cluster, namespace: str) -> None:
    absent = core.Lease(metadata=ObjectMeta(name="absent", uid="00000000-0000-0000-0000-000000000000"))
    await cluster.create(LEASES, named("of-absent", ownerReferences=_owned_by(absent)), namespace)
    await until(lambda: _gone(cluster, "of-absent", namespace))


# --- Objects that are not as they should be


class _NumberedSpec(Wire):
    holder_identity: int = 0


class _Numbered(Object):
    """A Lease whose holder is a number, which in a real one it never is."""

    spec: _NumberedSpec = msgspec.field(default_factory=_NumberedSpec)


NUMBERED = Resource("coordination.k8s.io", "v1", "Lease", "leases", _Numbered)


async def test_one_object_that_does_not_decode_stops_no_list_and_no_watch(cluster: Cluster, namespace: str) -> None:
    held = {"spec": {"holderIdentity": "me"}}
    version = (await cluster.create(LEASES, named("a"), namespace)).metadata.resource_version
    bad = await cluster.create(LEASES, named("bad") | held, namespace)
    await cluster.create(LEASES, named("c"), namespace)

    listing = await cluster.list(NUMBERED, namespace)
    assert [lease.metadata.name for lease in listing.items] == ["a", "c"]
    assert [found.metadata for found in listing.malformed] == [bad.metadata]
    assert "holderIdentity" in listing.malformed[0].error

    events = await take(cluster.watch(NUMBERED, namespace, resource_version=version), 2)
    assert told(events) == [("ADDED", "bad"), ("ADDED", "c")]
    assert [isinstance(event.object, Malformed) for event in events] == [True, False]

    with pytest.raises(ApiError) as caught:
        await cluster.get(NUMBERED, "bad", namespace)
    assert caught.value.reason == "Malformed"
    assert "holderIdentity" in caught.value.message


async def test_a_server_says_which_kinds_it_has(cluster: Cluster) -> None:
    for resource in ALL:
        if resource not in (CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS):
            assert resource.plural in await cluster.served(resource.group, resource.version), resource
    assert "cohorts" not in await cluster.served("", "v1")
    assert await cluster.served("kueue.x-k8s.io", "v1alpha0") == frozenset()
    assert await cluster.served("nothing.example", "v1") == frozenset()
