"""Objects that the engine must not see again, because it has failed over them twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from serried.api.meta import Key, Object
from serried.api.resources import JOBS, NODES, PODS, Resource

#: The kinds whose status is others' affair: a change of it is a reason to try the object again.
_WITH_STATUS = (JOBS, NODES, PODS)


class Quarantine:
    """Counts over which objects engines have failed. One that did it again is held back until its author changes it."""

    def __init__(self) -> None:
        self._failures: Counter[tuple[str, Key]] = Counter()
        #: what is held back, as it was when it was: its essence, and the fault in words
        self._held: dict[tuple[str, Key], tuple[bytes, str]] = {}

    def failed_over(self, resource: Resource[Any], obj: Object, error: BaseException) -> bool:
        """An engine has failed over this object. Returns whether the object is held back from now on."""
        name = (resource.kind, obj.key)
        self._failures[name] += 1
        if self._failures[name] < 2:
            return False
        self._held[name] = (_essence(resource, obj), f"{type(error).__name__}: {error}")
        return True

    def holds(self, resource: Resource[Any], obj: Object) -> str | None:
        """What is wrong with the object if it is held back. One that was changed is tried once more."""
        if not self._held:
            return None
        name = (resource.kind, obj.key)
        held = self._held.get(name)
        if held is None:
            return None
        essence, error = held
        if essence == _essence(resource, obj):
            return error
        del self._held[name]
        self._failures[name] = 1
        return None

    def is_unspeakable(self, resource: Resource[Any], key: Key) -> bool:
        """Whether engines fail even over being told that the object is held back."""
        return self._failures[resource.kind, key] > 2


def _essence(resource: Resource[Any], obj: Object) -> bytes:
    """What its author has said: all but the status that we write, and what the server counts."""
    plain = msgspec.to_builtins(obj)
    meta = obj.metadata
    plain["metadata"] = [meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp]
    if resource not in _WITH_STATUS:
        plain.pop("status", None)
    return msgspec.json.encode(plain)
