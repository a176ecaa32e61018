"""A local copy of one kind of object, kept up to date by list and watch, and told of our own writes at once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar, cast

from serried.api.meta import Key, Object
from serried.api.resources import Resource
from serried.cluster.protocol import ApiError, Cluster, Expired, Listing, Malformed, NotFound, WatchEvent

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

OnChange = Callable[[T | None, T | None], None]
OnMalformed = Callable[[Malformed], None]

FIRST_DELAY = 0.2
LONGEST_DELAY = 30.0
#: Deletions remembered. A late response is seconds late, so the last few thousand are plenty.
TOMBSTONES = 4096
#: Seconds between looks whether a kind that was not served is served now.
LOOK_FOR_KIND = 10.0
#: Changes taken in one go before the others on the loop get their turn.
BATCH = 100


class Informer(Generic[T]):
    """The objects of a resource that match the selectors, in `store`, from the first list on and for ever after.

    `on_change(old, new)` is called for each change, in the order of the object's versions, with the store already
    changed: (None, new) for a new object, (old, new) for a change, (old, None) for a deletion. Both are the same
    object: one that was deleted and made again under its name is a deletion and then a new object.

    A callback must not raise. If one does, the informer has failed: it ends, and calls back no more, because whoever
    has missed one change cannot make sense of the next. `synced` and `stop` raise what the callback did.

    What is older than the store, or not newer than the object's deletion, is ignored, wherever it comes from.
    Versions are compared as integers, as Kubernetes 1.35 allows; those that are not integers are taken as they come.

    An object that does not decode is given to `on_malformed` (by default it is logged). If an earlier version of it
    is in the store, that stays: what it holds of the cluster is still the best that is known.

    As long as the server does not have an optional kind, the store is empty.

    `keep` says what of an object is kept, and so what callbacks see of it; by default all.

    Failures of the server are logged once for each kind of them until it works again, and never end the informer.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        on_change: OnChange[T],
        on_malformed: OnMalformed | None = None,
        keep: Callable[[T], T] | None = None,
    ) -> None:
        self.store: dict[Key, T] = {}
        self.resource = resource
        self._cluster = cluster
        self._namespace = namespace
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._on_change = on_change
        self._on_malformed = on_malformed or self._log_malformed
        self._keep = keep
        #: The last version seen: where to watch from, unless a list is due.
        self._version = ""
        self._list_due = True
        self._missing = False  # the server does not have the kind
        self._tombstones: dict[Key, str] = {}
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failed: Exception | None = None  # what a callback raised
        self._complaints: set[tuple[type[ApiError], int]] = set()
        self._failures = 0

    def start(self) -> None:
        """Begin to list and watch. The informer lives until `stop`."""
        if self._task is None and self._failed is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"informer {self.resource!r}")

    async def stop(self) -> None:
        """No callback comes after this. The store stays as it is; `start` goes on from there.

        Raises what a callback has raised.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._failed is not None:
            raise self._failed

    async def synced(self) -> None:
        """Waits until the first list is in the store and all its callbacks have been called.

        Raises what a callback has raised.
        """
        await self._synced.wait()
        if self._failed is not None:
            raise self._failed

    async def caught_up(self) -> None:
        """Waits until all that the server holds at this moment has been seen. It lists everything: for tests.

        Raises `ApiError`, or what a callback has raised.
        """
        listing = await self._cluster.list(self.resource, self._namespace, **self._selectors)
        while not self._has(listing):  # noqa: ASYNC110 an event for each change would be for this alone
            await asyncio.sleep(0.002)
        await self.synced()

    def _has(self, listing: Listing[T]) -> bool:
        """Whether the store is no older than the list."""
        listed = {obj.key: obj.metadata.resource_version for obj in listing.items}
        seen = {key: obj.metadata.resource_version for key, obj in self.store.items()}
        return self._failed is not None or (
            all(not _newer(version, seen.get(key) or self._tombstones.get(key, "0")) for key, version in listed.items())
            and all(key in listed or _newer(version, listing.resource_version) for key, version in seen.items())
        )

    def observe(self, obj: T) -> None:
        """Takes the response to a write of our own as the event that will come of it, now.

        With selectors, only objects that are in the store: whether others match is for the server to say.
        """
        if self._namespace and obj.metadata.namespace != self._namespace:
            return
        if any(self._selectors.values()) and obj.key not in self.store:
            return
        self._put(obj)

    # --- List and watch

    async def _run(self) -> None:
        while True:
            try:
                if self._list_due:
                    if self.resource.optional and not await self._is_served():
                        await self._do_without()
                        continue
                    await self._list()
                await self._watch()
            except Expired as error:
                # Nothing wrong the first time; a server that says so again and again is not to be hurried.
                log.info("%r: the watch expired, listing again", self.resource)
                self._list_due = True
                if self._failures:
                    self._complain(error)
                    await self._back_off()
                else:
                    self._failures = 1
            except ApiError as error:
                gone = self.resource.optional and isinstance(error, NotFound)
                if not gone:
                    self._complain(error)
                if gone or error.status == 504:
                    # 504 is the answer for a version it has not reached, as after its data were restored.
                    self._list_due = True
                await self._back_off()
            except Exception:
                log.exception("%r: unexpected; listing again", self.resource)
                self._list_due = True
                await self._back_off()

    async def _is_served(self) -> bool:
        return self.resource.plural in await self._cluster.served(self.resource.group, self.resource.version)

    async def _do_without(self) -> None:
        """The server does not have the kind: there are no objects of it, until a later look finds it."""
        if not self._missing:
            self._missing = True
            log.warning("%r is not served: without what depends on it, until it is", self.resource)
        self._clear()
        self._synced.set()
        await asyncio.sleep(LOOK_FOR_KIND)

    async def _list(self) -> None:
        listing = await self._cluster.list(self.resource, self._namespace, **self._selectors)
        if self._missing:
            self._missing = False
            log.info("%r is served now", self.resource)
        await self._replace(listing)
        self._version = listing.resource_version
        self._list_due = False
        self._synced.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        opened = loop.time()
        count = 0
        events = self._cluster.watch(self.resource, self._namespace, resource_version=self._version, **self._selectors)
        # Every implementation is an async generator; closing it at once gives the connection back.
        async with aclosing(cast(Any, events)):
            async for event in events:
                self._take(event)
                count += 1
                if count == 1:
                    self._recovered()
                if count % BATCH == 0:
                    await asyncio.sleep(0)
        if not count and loop.time() - opened < 1.0:
            # Ended as soon as it began: not to be repeated as fast as we can.
            await self._back_off()
        else:
            self._recovered()

    def _take(self, event: WatchEvent[T]) -> None:
        obj = event.object
        if event.type == "BOOKMARK":
            pass
        elif event.type == "DELETED":
            self._remove(obj.key, obj.metadata.resource_version)
        elif isinstance(obj, Malformed):
            self._report(obj)
        else:
            self._put(obj)
        self._version = obj.metadata.resource_version or self._version

    async def _replace(self, listing: Listing[T]) -> None:
        """Makes the store what the list says, but for what is newer in it. Deletions first: they free things."""
        if _newer(self._version, listing.resource_version, unknown=False):
            log.warning(
                "%r: the server's data have gone back to an earlier state; taking everything anew", self.resource
            )
            self._clear()
        bad = {found.key: found.metadata.uid for found in listing.malformed}
        listed = {obj.key for obj in listing.items}
        for key, old in list(self.store.items()):
            if key not in listed and bad.get(key) != old.metadata.uid:
                # What we wrote ourselves while the list was on its way is newer than the list.
                self._remove(key, listing.resource_version)
        for count, obj in enumerate(listing.items, 1):
            self._put(obj)
            if count % BATCH == 0:
                await asyncio.sleep(0)
        for found in listing.malformed:
            self._report(found)

    # --- The store

    def _put(self, new: T) -> None:
        key, version = new.key, new.metadata.resource_version
        old = self.store.get(key)
        if old is not None and not _newer(version, old.metadata.resource_version):
            return
        buried = self._tombstones.get(key)
        if buried is not None:
            if not _newer(version, buried):
                return
            del self._tombstones[key]
        if old is not None and old.metadata.uid != new.metadata.uid:
            del self.store[key]
            self._call(old, None)
            old = None
        if self._keep is not None:
            new = self._keep(new)
        self.store[key] = new
        self._call(old, new)

    def _remove(self, key: Key, version: str) -> None:
        old = self.store.get(key)
        # An object that stops matching a selector is deleted at the version of the change that did it, which
        # our own response may have brought already: only what is really newer outlives its deletion.
        if old is not None and _newer(old.metadata.resource_version, version, unknown=False):
            return
        self._tombstones.pop(key, None)
        self._tombstones[key] = version
        if len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]
        if old is not None:
            del self.store[key]
            self._call(old, None)

    def _clear(self) -> None:
        """Nothing that was known is true any more."""
        self._tombstones.clear()
        self._version = ""
        for key, old in list(self.store.items()):
            del self.store[key]
            self._call(old, None)

    def _call(self, old: T | None, new: T | None) -> None:
        if self._failed is None:
            try:
                self._on_change(old, new)
            except Exception as error:  # noqa: BLE001 whatever it is, the callback is lost
                self._fail(cast(T, new or old).key, error)

    def _report(self, found: Malformed) -> None:
        if self._failed is None:
            try:
                self._on_malformed(found)
            except Exception as error:  # noqa: BLE001 whatever it is, the callback is lost
                self._fail(found.key, error)

    def _fail(self, key: Key, error: Exception) -> None:
        log.critical("%r %s/%s: a callback failed, nothing more is watched", self.resource, *key, exc_info=error)
        self._failed = error
        self._synced.set()
        if self._task is not None:
            self._task.cancel()

    def _log_malformed(self, found: Malformed) -> None:
        log.warning("%r %s/%s is ignored: %s", self.resource, *found.key, found.error)

    # --- Failures

    def _complain(self, error: ApiError) -> None:
        kind = (type(error), error.status)
        if kind not in self._complaints:
            self._complaints.add(kind)
            log.warning("%r cannot be watched, will keep trying: %s", self.resource, error)

    def _recovered(self) -> None:
        if self._complaints:
            log.info("%r is watched again", self.resource)
            self._complaints.clear()
        self._failures = 0

    async def _back_off(self) -> None:
        delay = min(FIRST_DELAY * 2**self._failures, LONGEST_DELAY) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        await asyncio.sleep(delay)


def _newer(version: str, than: str, *, unknown: bool = True) -> bool:
    """Whether a version is later; `unknown` if they cannot be compared."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return unknown
