"""`EmbeddedCluster`: a Kubernetes API server in memory, behind the same protocol as a real one.

It refuses, fills in, counts and reports as kube-apiserver does, as far as the kinds and fields in
`serried.api.resources` go; the garbage collector and the namespace controller are built in. Nothing schedules, runs
pods or completes Jobs here: see `serried.embedded.jobs` and `serried.embedded.hollow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from serried.api.label_selector import SelectorError
from serried.api.meta import Object, ObjectMeta
from serried.api.resources import NAMESPACES, PODS, Resource
from serried.cluster.protocol import (
    ApiError,
    Cluster,
    Expired,
    Forbidden,
    Invalid,
    Listing,
    Malformed,
    MergePatch,
    NotFound,
    NotLeading,
    WatchEvent,
)
from serried.embedded import selectors
from serried.embedded.deletion import Deletion
from serried.embedded.patch import merge
from serried.embedded.selectors import Predicate
from serried.embedded.store import Change, Store, Stored, Table
from serried.embedded.writes import Mutator, Writes

__all__ = ["HISTORY", "VERSION", "EmbeddedCluster", "Mutator"]

T = TypeVar("T", bound=Object)

#: The Kubernetes version whose behaviour is followed.
VERSION: Final = "v1.37.2-embedded"
#: Changes of each kind that can be watched from, at least.
HISTORY: Final = 10_000
#: Seconds after which a watch without news gets a bookmark.
BOOKMARK_SECONDS: Final = 60.0

#: There from the start. Only kube-node-lease may be deleted.
_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_LASTING_NAMESPACES = ("default", "kube-public", "kube-system")


class EmbeddedCluster:
    """A `Cluster` in process. Make it, and use it, on one event loop; `close` it at the end.

    Arguments:
        mutators: applied to every object at its creation, in order, before defaults are filled in.
        seed: of generated names and uids: the same calls give the same ones.
        history: changes of each kind that can be watched from, at least; beyond it a watch is `Expired`.
        now: the clock that objects are stamped with.

    The structs it returns are shared between all callers: they are to be read, not changed. A kind can also be read
    through a `Resource` of one's own, with another struct.
    """

    def __init__(
        self,
        *,
        mutators: Sequence[Mutator] = (),
        seed: int = 0,
        history: int = HISTORY,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = Store(history, indexed_fields={PODS: "spec.nodeName"})
        self._deletion = Deletion(self._store, now)
        self._writes = Writes(self._store, self._deletion, now, seed, mutators)
        #: counts up when all open watches are to end
        self._watch_generation = 0
        for name in _NAMESPACES:
            self._writes.create(NAMESPACES, {"metadata": {"name": name}}, "")

    # --- Reading

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        await _turn()
        return _returned(resource, self._writes.find(resource, name, namespace))

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[T]:
        await _turn()
        table = self._table(resource)
        terms = self._terms(resource, field_selector)
        candidates = table.all(namespace)
        for path, equal, value in terms:
            if path == table.indexed_field and equal and value:
                candidates = table.indexed(value)
        selected = _selection(namespace, label_selector, terms)
        items: list[T] = []
        malformed: list[Malformed] = []
        for stored in sorted(candidates, key=lambda each: each.key):
            if selected is None or selected(stored.data):
                found = stored.decoded(resource.type)
                if isinstance(found, Malformed):
                    malformed.append(found)
                else:
                    items.append(found)
        return Listing(items, malformed, str(self._store.version))

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        await _turn()
        table = self._table(resource)
        log = table.log
        selected = _selection(namespace, label_selector, self._terms(resource, field_selector))
        if resource_version in ("", "0"):
            position = log.end
            for stored in sorted(table.all(namespace), key=lambda each: each.key):
                if selected is None or selected(stored.data):
                    yield WatchEvent("ADDED", stored.decoded(resource.type))
        else:
            version = _version(resource_version)
            if version < log.forgotten:
                raise Expired(410, "Expired", f"watch {resource!r}: version {version} is before {log.forgotten}")
            position = log.after(version)
        generation = self._watch_generation
        while generation == self._watch_generation:
            if position == log.end:
                await log.wait(BOOKMARK_SECONDS)
                if position == log.end and generation == self._watch_generation:
                    yield _bookmark(resource, self._store.version)
                continue
            change = log.get(position)
            if change is None:
                # The reader fell too far behind: the stream just ends, and will be found expired when resumed.
                return
            position += 1
            seen = _seen(change, selected)
            if seen is not None:
                yield WatchEvent(seen[0], seen[1].decoded(resource.type))

    async def served(self, group: str, version: str) -> frozenset[str]:
        await _turn()
        return self._writes.served(group, version)

    async def version(self) -> str:
        await _turn()
        return VERSION

    # --- Writing

    async def create(self, resource: Resource[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        await _turn()
        return _returned(resource, self._writes.create(resource, _over_the_wire(obj), namespace))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch,
        subresource: Literal["", "status"] = "",
    ) -> T:
        await _turn()
        kind = self._writes.kind(resource)
        if subresource == "status" and not kind.has_status:
            raise NotFound(404, "NotFound", f"{resource!r} has no status subresource")
        old = self._writes.find(resource, name, namespace)
        new = merge(old.data, _over_the_wire(patch))
        return _returned(resource, self._writes.change(old, new, subresource))

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        await _turn()
        stored = self._writes.find(resource, name, namespace)
        if stored.resource is NAMESPACES and name in _LASTING_NAMESPACES:
            raise Forbidden(403, "Forbidden", f"namespace {name} may not be deleted")
        self._deletion.delete(
            stored,
            uid=uid,
            grace=grace_period_seconds,
        )

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        await _turn()
        self._writes.bind(self._writes.find(PODS, pod, namespace), node, uid)

    async def close(self) -> None:
        """Ends all watches. Nothing runs afterwards."""
        self.end_watches()
        self._deletion.close()

    def apart(self) -> Cluster:
        """See `LeaderCluster.apart`: what is asked there is done here, on this loop."""
        return cast(Cluster, _FromAnotherThread(self, asyncio.get_running_loop()))

    def fenced(self, may_write: Callable[[], bool]) -> Cluster:
        """See `LeaderCluster.fenced`."""
        return cast(Cluster, _Fenced(self, may_write))

    # --- What a real server does by itself, for tests to bring about

    def end_watches(self) -> None:
        """Ends all watches without a word, as a real server does from time to time."""
        self._watch_generation += 1
        for table in self._store.tables():
            table.log.wake()

    def remove_kind(self, resource: Resource[Any]) -> None:
        """Removes a kind with all its objects, as when its CustomResourceDefinition is deleted."""
        table = self._table(resource)
        for stored in list(table.all("")):
            self._store.remove(stored)
        self._writes.remove_kind(resource)
        self.end_watches()

    def add_kind(self, resource: Resource[Any], definition: Mapping[str, Any]) -> None:
        """Serves a kind from now on, as when its CustomResourceDefinition is installed."""
        self._writes.add_kind(resource, definition)

    def compact(self) -> None:
        """Forgets all changes so far: who has not seen them cannot resume a watch."""
        for table in self._store.tables():
            table.log.forget()

    # --- Behind the protocol

    def _table(self, resource: Resource[Any]) -> Table:
        return self._store.table(self._writes.kind(resource).resource)

    def _terms(self, resource: Resource[Any], field_selector: str) -> selectors.Terms:
        try:
            return selectors.fields(field_selector, self._writes.kind(resource).fields)
        except SelectorError as error:
            raise Invalid(400, "BadRequest", str(error)) from error


class _FromAnotherThread:
    """An embedded cluster for a loop that is not its own."""

    def __init__(self, cluster: EmbeddedCluster, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster = cluster
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **more: Any) -> Any:
            work = getattr(self._cluster, name)(*args, **more)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

        return call

    async def close(self) -> None:
        """The cluster goes on."""


class _Fenced:
    """An embedded cluster that is written to as long as `may_write` says so."""

    def __init__(self, cluster: EmbeddedCluster, may_write: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_write = may_write

    def __getattr__(self, name: str) -> Any:
        if name in ("create", "patch", "delete", "bind") and not self._may_write():
            raise NotLeading(0, "NotLeading", f"{name}: the lease may be over")
        return getattr(self._cluster, name)


async def _turn() -> None:
    """Lets others run first: no server answers at once, and no caller may keep the loop to itself."""
    await asyncio.sleep(0)


def _over_the_wire(content: object) -> Any:
    """The same in JSON's types, as a copy: what is stored shares nothing with the caller."""
    return msgspec.json.decode(msgspec.json.encode(content))


def _selection(namespace: str, label_selector: str, terms: selectors.Terms) -> Predicate | None:
    """What is selected by namespace, labels and fields together; None for everything."""
    try:
        by_labels = selectors.labels(label_selector)
    except SelectorError as error:
        raise Invalid(400, "BadRequest", str(error)) from error
    in_namespace: Predicate | None = None
    if namespace:
        in_namespace = lambda obj: obj["metadata"].get("namespace") == namespace  # noqa: E731
    predicates = [each for each in (in_namespace, by_labels, selectors.by_fields(terms)) if each is not None]
    if len(predicates) <= 1:
        return predicates[0] if predicates else None
    return lambda obj: all(predicate(obj) for predicate in predicates)


def _seen(change: Change, selected: Predicate | None) -> tuple[Literal["ADDED", "MODIFIED", "DELETED"], Stored] | None:
    """A change as a watcher with this selection sees it, if at all.

    An object that is selected no longer is deleted for that watcher, with the content that it last saw.
    """
    if selected is None:
        return change.type, change.new
    is_in = change.type != "DELETED" and selected(change.new.data)
    was_in = change.old is not None and selected(change.old.data)
    if is_in:
        return "MODIFIED" if was_in else "ADDED", change.new
    if not was_in or change.old is None:
        return None
    if change.type == "DELETED":
        return "DELETED", change.new
    metadata = {**change.old.metadata, "resourceVersion": str(change.new.version)}
    return "DELETED", Stored(change.old.resource, {**change.old.data, "metadata": metadata}, change.new.version)


def _bookmark(resource: Resource[T], version: int) -> WatchEvent[T]:
    return WatchEvent("BOOKMARK", resource.type(metadata=ObjectMeta(resource_version=str(version))))


def _returned(resource: Resource[T], stored: Stored) -> T:
    """An object for the caller. Raises `ApiError` when it does not decode as its kind, as over HTTP."""
    found = stored.decoded(resource.type)
    if isinstance(found, Malformed):
        raise ApiError(200, "Malformed", f"{resource.kind} {stored.key[1]}: {found.error}")
    return found


def _version(resource_version: str) -> int:
    if not (resource_version.isascii() and resource_version.isdigit()):
        raise Invalid(400, "BadRequest", f"resourceVersion {resource_version!r} is not a whole number")
    return int(resource_version)
