"""Which keys belong to a name."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)
K = TypeVar("K", bound=Hashable)


class Index(Generic[N, K]):
    """Name → the keys that belong to it; a key may belong to several names. Names without keys are not kept."""

    def __init__(self) -> None:
        self._keys: dict[N, set[K]] = {}

    def __getitem__(self, name: N) -> Set[K]:
        """Empty for a name that is not there. It may change with the next move."""
        return self._keys.get(name, frozenset())

    def move(self, key: K, before: Iterable[N], after: Iterable[N]) -> None:
        """The key belongs to the names `after` from now on, and no longer to the others of `before`."""
        before, after = set(before), set(after)
        for name in before - after:
            if (keys := self._keys.get(name)) is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[name]
        for name in after - before:
            self._keys.setdefault(name, set()).add(key)
