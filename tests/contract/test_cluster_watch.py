"""What Serried relies on when it watches, the informer and the election on top. The same on both clusters."""

import asyncio
import random
from typing import Any

import pytest

from serried.api.core import Lease, Pod
from serried.api.meta import Key, Object
from serried.api.resources import LEASES, PODS, Resource
from serried.cluster import http
from serried.cluster.http import HttpCluster
from serried.cluster.informer import Informer
from serried.cluster.protocol import Cluster, Conflict, Expired, NotFound, Unavailable, WatchEvent
from tests.contract.helpers import named, take, told
from tests.patience import patience, until
from tools.controlplane import ControlPlane


async def test_a_watch_tells_what_comes_after_its_version_in_order(cluster: Cluster, namespace: str) -> None:
    await cluster.create(LEASES, named("before"), namespace)
    start = (await cluster.list(LEASES, namespace)).resource_version
    made = await cluster.create(LEASES, named("a"), namespace)
    changed = await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"team": "red"}}})
    await cluster.create(LEASES, named("b"), namespace)
    await cluster.delete(LEASES, "a", namespace)
    await cluster.delete(LEASES, "before", namespace)

    events = await take(cluster.watch(LEASES, namespace, resource_version=start), 5)
    assert told(events) == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
        ("DELETED", "before"),
    ]
    assert [event.object for event in events[:2]] == [made, changed]
    assert events[3].object.metadata.labels == {"team": "red"}
    versions = [int(event.object.metadata.resource_version) for event in events]
    assert sorted(set(versions)) == versions

    for seen, event in enumerate(events[:-1], 1):
        version = event.object.metadata.resource_version
        rest = await take(cluster.watch(LEASES, namespace, resource_version=version), len(events) - seen)
        assert rest == events[seen:]


async def test_a_watch_tells_what_happens_while_it_is_open(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(LEASES, namespace)).resource_version
    watching = asyncio.create_task(take(cluster.watch(LEASES, namespace, resource_version=start), 100))
    await asyncio.gather(*(cluster.create(LEASES, named(f"lease-{number}"), namespace) for number in range(100)))
    events = await watching
    assert {event.object.metadata.name for event in events} == {f"lease-{number}" for number in range(100)}
    assert {event.type for event in events} == {"ADDED"}


async def test_a_watch_is_of_its_namespace_or_of_all(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(LEASES)).resource_version
    ours = {"of": namespace}  # there are leases of others
    await cluster.create(LEASES, named("elsewhere", labels=ours), "default")
    await cluster.create(LEASES, named("here", labels=ours), namespace)
    await cluster.delete(LEASES, "elsewhere", "default")
    assert told(await take(cluster.watch(LEASES, namespace, resource_version=start), 1)) == [("ADDED", "here")]
    everywhere = cluster.watch(LEASES, resource_version=start, label_selector=f"of={namespace}")
    assert told(await take(everywhere, 3)) == [
        ("ADDED", "elsewhere"),
        ("ADDED", "here"),
        ("DELETED", "elsewhere"),
    ]


async def test_to_a_watch_with_a_selector_objects_come_and_go_as_they_match(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(LEASES, namespace)).resource_version
    await cluster.create(LEASES, named("never", labels={"team": "blue"}), namespace)
    await cluster.create(LEASES, named("a", labels={"team": "red"}), namespace)
    await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"size": "8"}}})
    left = await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"team": "blue"}}})
    await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"size": "16"}}})
    await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"team": "red"}}})
    await cluster.delete(LEASES, "never", namespace)
    await cluster.delete(LEASES, "a", namespace)

    watch = cluster.watch(LEASES, namespace, resource_version=start, label_selector="team=red")
    events = await take(watch, 5)
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "a"), ("DELETED", "a")]
    # The object as it last matched, at the version of the change by which it no longer does.
    assert events[2].object.metadata.labels == {"team": "red", "size": "8"}
    assert events[2].object.metadata.resource_version == left.metadata.resource_version


async def test_to_a_watch_of_unbound_pods_a_binding_is_a_deletion(
    cluster: Cluster, namespace: str, node: str, pod: Any
) -> None:
    start = (await cluster.list(PODS, namespace)).resource_version
    await cluster.create(PODS, pod("a"), namespace)
    await cluster.bind(namespace, "a", node)
    watch = cluster.watch(PODS, namespace, resource_version=start, field_selector="spec.nodeName=")
    assert told(await take(watch, 2)) == [("ADDED", "a"), ("DELETED", "a")]


CRDS = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", Object, namespaced=False
)
WIDGETS = Resource("contract.example.com", "v1", "Widget", "widgets", Object)


async def test_a_version_from_before_the_server_remembers_has_expired(control_plane: ControlPlane) -> None:
    """It remembers a kind since the kind's definition. What the embedded cluster remembers is tested there."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    definition = {
        "metadata": {"name": "widgets.contract.example.com"},
        "spec": {
            "group": "contract.example.com",
            "names": {"kind": "Widget", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    async with await HttpCluster.from_kubeconfig(control_plane.kubeconfig) as cluster:
        await cluster.create(CRDS, definition)
        try:

            async def served() -> bool:
                try:
                    await cluster.list(WIDGETS)
                except NotFound:
                    return False
                return True

            async def expired() -> bool:
                try:
                    await take(cluster.watch(WIDGETS, resource_version="1"), 1)
                except Unavailable:  # its storage is being set up
                    return False
                except Expired:
                    return True
                raise AssertionError("an event before the first version")

            await until(served)
            await until(expired)
        finally:
            await cluster.delete(CRDS, "widgets.contract.example.com")


async def test_a_quiet_watch_moves_on_by_bookmarks(
    control_plane: ControlPlane, pod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it can be resumed although nothing it would tell has happened for long."""
    # The server sends one shortly before the end of a watch. It promises none, so there are more watches than one.
    monkeypatch.setattr(http, "WATCH_SECONDS", (4, 4))
    async with await HttpCluster.from_kubeconfig(control_plane.kubeconfig) as cluster:
        start = (await cluster.list(PODS, "kube-public")).resource_version

        async def be_busy_elsewhere() -> None:
            while not events:
                await cluster.create(PODS, pod("elsewhere"), "default")
                await cluster.delete(PODS, "elsewhere", "default")
                await asyncio.sleep(0.2)

        events: list[WatchEvent[Pod]] = []
        busy = asyncio.create_task(be_busy_elsewhere())
        async with patience():
            while not events:
                events = [event async for event in cluster.watch(PODS, "kube-public", resource_version=start)]
        await busy
        assert {event.type for event in events} == {"BOOKMARK"}
        assert int(events[-1].object.metadata.resource_version) > int(start)


# --- Informers


class _Recorder:
    """Keeps its own copy from the changes it is told of, and minds that they make sense."""

    def __init__(self) -> None:
        self.known: dict[Key, Lease] = {}

    def __call__(self, old: Lease | None, new: Lease | None) -> None:
        some = new or old
        assert some is not None
        assert self.known.get(some.key) == old
        if new is None:
            del self.known[some.key]
        else:
            assert old is None or old.metadata.uid == new.metadata.uid
            self.known[some.key] = new


async def test_an_informer_follows_whatever_is_done(cluster: Cluster, namespace: str) -> None:
    """Two writers, one of which tells the informer of its own writes; none of it is ever told twice or backwards."""
    await cluster.create(LEASES, named("lease-0"), namespace)
    recorder = _Recorder()
    informer = Informer(cluster, LEASES, namespace=namespace, on_change=recorder)
    informer.start()
    await informer.synced()
    assert set(informer.store) == {(namespace, "lease-0")}

    async def write(seed: int, observe: bool) -> None:
        rng = random.Random(seed)
        for step in range(100):
            name = f"lease-{rng.randrange(8)}"
            try:
                match rng.randrange(3):
                    case 0:
                        done = await cluster.create(LEASES, named(name), namespace)
                    case 1:
                        patch = {"metadata": {"labels": {"step": f"{seed}-{step}"}}}
                        done = await cluster.patch(LEASES, name, namespace, patch=patch)
                    case _:
                        await cluster.delete(LEASES, name, namespace)
                        continue
            except (Conflict, NotFound):
                continue
            if observe:
                informer.observe(done)

    await asyncio.gather(write(1, True), write(2, False))

    async def same() -> bool:
        listed = {lease.key: lease for lease in (await cluster.list(LEASES, namespace)).items}
        return _plain(listed) == _plain(informer.store) == _plain(recorder.known)

    await until(same)
    await informer.stop()


def _plain(leases: dict[Key, Lease]) -> dict[Key, Any]:
    """What matters of them: items of a list are without kind and apiVersion."""
    return {key: lease.metadata for key, lease in leases.items()}


async def test_an_informer_knows_a_write_of_ours_at_once(cluster: Cluster, namespace: str) -> None:
    informer = Informer(cluster, LEASES, namespace=namespace, on_change=lambda _old, _new: None)
    informer.start()
    await informer.synced()
    made = await cluster.create(LEASES, named("a"), namespace)
    informer.observe(made)
    assert informer.store == {made.key: made}
    await informer.stop()


async def test_an_informer_with_a_selector_sees_what_matches(cluster: Cluster, namespace: str) -> None:
    informer = Informer(
        cluster, LEASES, namespace=namespace, label_selector="team=red", on_change=lambda _old, _new: None
    )
    informer.start()
    await informer.synced()
    informer.observe(await cluster.create(LEASES, named("a", labels={"team": "red"}), namespace))
    informer.observe(await cluster.create(LEASES, named("b", labels={"team": "blue"}), namespace))

    async def holds(*names: str) -> bool:
        return set(informer.store) == {(namespace, name) for name in names}

    await until(lambda: holds("a"))
    informer.observe(await cluster.patch(LEASES, "a", namespace, patch={"metadata": {"labels": {"team": "blue"}}}))
    await until(holds)
    await cluster.patch(LEASES, "b", namespace, patch={"metadata": {"labels": {"team": "red"}}})
    await until(lambda: holds("b"))
    await informer.stop()
