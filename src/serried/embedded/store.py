"""What the embedded API server keeps: objects by kind, their recent changes, and who owns whom. No rules.

A version of an object is never changed once stored; the next one shares with it what did not change. So history is
cheap, and all readers of one kind share one decoded struct per version.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import msgspec

from serried.api.meta import Key, Object, ObjectMeta
from serried.api.resources import Resource
from serried.cluster.protocol import Malformed

T = TypeVar("T", bound=Object)

Json = dict[str, Any]


class Stored:
    """One version of one object."""

    __slots__ = ("_decoded", "data", "resource", "version")

    def __init__(self, resource: Resource[Any], data: Json, version: int) -> None:
        self.resource = resource
        #: As JSON, with all its fields, also those that Serried does not know. Not to be changed.
        self.data = data
        self.version = version
        self._decoded: dict[type[Object], Object] = {}

    @property
    def metadata(self) -> Json:
        metadata: Json = self.data["metadata"]
        return metadata

    @property
    def key(self) -> Key:
        return (self.metadata.get("namespace", ""), self.metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    def decoded(self, type: type[T]) -> T | Malformed:
        """As a struct of this type, or `Malformed`; the same one for all who ask for that type."""
        found = self._decoded.get(type)
        if found is None:
            try:
                found = msgspec.convert(self.data, type)
            except msgspec.ValidationError as error:
                found = Malformed(metadata=msgspec.convert(self.metadata, ObjectMeta), error=str(error))
            self._decoded[type] = found
        return cast("T | Malformed", found)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object. `old` is what there was before (None when it is new)."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    new: Stored
    old: Stored | None


class Log:
    """The latest changes of one kind, in order, numbered from the first ever."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changes: list[Change] = []
        #: the number of the first change still there
        self._first = 0
        #: the version of the last change that is no longer there: who has seen less cannot be brought up to date
        self.forgotten = 0
        self._arrived = asyncio.Event()

    @property
    def end(self) -> int:
        """The number the next change will get."""
        return self._first + len(self._changes)

    def append(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * self._limit:
            self.forget(keep=self._limit)
        self.wake()

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self._arrived.set()
        self._arrived.clear()

    def forget(self, keep: int = 0) -> None:
        """Drops all changes but the last `keep`."""
        dropped = len(self._changes) - keep
        if dropped > 0:
            self.forgotten = self._changes[dropped - 1].new.version
            del self._changes[:dropped]
            self._first += dropped

    def after(self, version: int) -> int:
        """The number of the first change later than `version`, which must not be less than `forgotten`."""
        return self._first + bisect_right(self._changes, version, key=lambda change: change.new.version)

    def get(self, number: int) -> Change | None:
        """The change of that number; None when it has been forgotten. Must be less than `end`."""
        return self._changes[number - self._first] if number >= self._first else None

    async def wait(self, seconds: float) -> None:
        """Until there is something new, or that time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass


class Table:
    """All objects of one kind."""

    def __init__(self, resource: Resource[Any], history: int, indexed_field: str = "") -> None:
        self.resource = resource
        self.log = Log(history)
        #: dotted path of the field there is an index of, if any
        self.indexed_field = indexed_field
        self._spaces: defaultdict[str, dict[str, Stored]] = defaultdict(dict)
        self._index: defaultdict[str, dict[Key, Stored]] = defaultdict(dict)

    def get(self, key: Key) -> Stored | None:
        return self._spaces[key[0]].get(key[1]) if key[0] in self._spaces else None

    def all(self, namespace: str = "") -> Iterable[Stored]:
        """Those of one namespace, or all, in no particular order."""
        if namespace:
            return self._spaces[namespace].values() if namespace in self._spaces else ()
        return (stored for space in self._spaces.values() for stored in space.values())

    def indexed(self, value: str) -> Iterable[Stored]:
        """Those whose `indexed_field` has this value, which must not be ""."""
        return self._index[value].values() if value in self._index else ()

    def _indexed_value(self, stored: Stored) -> str:
        value: Any = stored.data
        for part in self.indexed_field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value or ""

    def put(self, new: Stored, old: Stored | None) -> None:
        namespace, name = new.key
        self._spaces[namespace][name] = new
        if self.indexed_field:
            before, now = self._indexed_value(old) if old else "", self._indexed_value(new)
            if before and before != now:
                self._index[before].pop(new.key, None)
            if now:
                self._index[now][new.key] = new
        self.log.append(Change("MODIFIED" if old else "ADDED", new, old))

    def pop(self, last: Stored, old: Stored) -> None:
        namespace, name = old.key
        del self._spaces[namespace][name]
        if not self._spaces[namespace]:
            del self._spaces[namespace]
        if self.indexed_field and (value := self._indexed_value(old)):
            del self._index[value][old.key]
            if not self._index[value]:
                del self._index[value]
        self.log.append(Change("DELETED", last, old))


class Store:
    """All tables, one version counter, and the owners' relation.

    `history` is how many changes of each kind can be watched from, at least.
    """

    def __init__(self, history: int, indexed_fields: Mapping[Resource[Any], str]) -> None:
        self.version = 0
        self._history = history
        self._indexed_fields = indexed_fields
        self._tables: dict[Resource[Any], Table] = {}
        self._by_uid: dict[str, Stored] = {}
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)

    def table(self, resource: Resource[Any]) -> Table:
        """The table of a kind; empty at first."""
        found = self._tables.get(resource)
        if found is None:
            found = self._tables[resource] = Table(resource, self._history, self._indexed_fields.get(resource, ""))
        return found

    def tables(self) -> Iterator[Table]:
        return iter(list(self._tables.values()))

    def put(self, resource: Resource[Any], data: Json, old: Stored | None) -> Stored:
        """Stores a version under the next number, which it notes in its metadata."""
        self.version += 1
        data["metadata"]["resourceVersion"] = str(self.version)
        new = Stored(resource, data, self.version)
        if old is None or new.metadata.get("ownerReferences") != old.metadata.get("ownerReferences"):
            self._own(old, new)
        self._by_uid[new.uid] = new
        self.table(resource).put(new, old)
        return new

    def remove(self, old: Stored) -> Stored:
        """Removes an object; what is reported is its last content with the version of its removal."""
        self.version += 1
        metadata = {**old.metadata, "resourceVersion": str(self.version)}
        last = Stored(old.resource, {**old.data, "metadata": metadata}, self.version)
        self._own(old, None)
        del self._by_uid[old.uid]
        self.table(old.resource).pop(last, old)
        return last

    def current(self, stored: Stored) -> Stored | None:
        """The latest version of that object; None when it is gone."""
        return self._by_uid.get(stored.uid)

    def by_uid(self, uid: str) -> Stored | None:
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[Stored]:
        """All objects that name this uid as an owner, oldest version first."""
        found = (self._by_uid[each] for each in self._dependents.get(uid, ()))
        return sorted(found, key=lambda stored: stored.version)

    def _own(self, old: Stored | None, new: Stored | None) -> None:
        for stored, change in ((old, set.discard), (new, set.add)):
            if stored is not None:
                for owner in stored.metadata.get("ownerReferences") or ():
                    change(self._dependents[owner["uid"]], stored.uid)
                    if not self._dependents[owner["uid"]]:
                        del self._dependents[owner["uid"]]
