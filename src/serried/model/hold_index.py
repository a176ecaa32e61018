"""Where workloads hold places that their pods have not taken yet: by node, and by domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from serried.model.holds import PodSetHold

K = TypeVar("K", bound=Hashable)


class HoldIndex:
    """The parts of holds of which pods are only estimated on nodes, or promised there: what the change of one node
    concerns is found without looking at all holds."""

    def __init__(self) -> None:
        #: row → parts that are charged there
        self._on: dict[int, dict[PodSetHold, None]] = {}
        #: (levels, values) of a domain larger than a host → parts that have it
        self._in: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[PodSetHold, None]] = {}
        #: levels → parts whose domains are named by them
        self._levels: Counter[tuple[str, ...]] = Counter()

    def add(self, part: PodSetHold) -> None:
        if not part.indexed:
            return
        for row in part.charged:
            self._on.setdefault(row, {})[part] = None
        if part.wide:
            self._levels[part.levels] += 1
            for values in part.domains:
                self._in.setdefault((part.levels, values), {})[part] = None

    def remove(self, part: PodSetHold) -> None:
        if not part.indexed:
            return
        for row in part.charged:
            _drop(self._on, row, part)
        if part.wide:
            self._levels[part.levels] -= 1
            if not self._levels[part.levels]:
                del self._levels[part.levels]
            for values in part.domains:
                _drop(self._in, (part.levels, values), part)

    def moved(self, part: PodSetHold, row: int) -> None:
        """A part may be charged to this row now, or not any more."""
        if not part.indexed:
            return
        if row in part.charged:
            self._on.setdefault(row, {})[part] = None
        else:
            _drop(self._on, row, part)

    def on(self, row: int) -> list[PodSetHold]:
        """The parts that are charged to a row; their order does not depend on trials."""
        return _sorted(self._on.get(row, {}))

    def around(self, row: int, labels: Mapping[str, str]) -> list[PodSetHold]:
        """Those, and the parts that have the domain of a node with these labels."""
        found = dict(self._on.get(row, {}))
        for levels in self._levels:
            found |= self._in.get((levels, tuple(labels.get(level, "") for level in levels)), {})
        return _sorted(found)


def _sorted(parts: Mapping[PodSetHold, None]) -> list[PodSetHold]:
    return sorted(parts, key=lambda part: (part.workload, part.pod_set))


def _drop(index: dict[K, dict[PodSetHold, None]], key: K, part: PodSetHold) -> None:
    parts = index.get(key, {})
    parts.pop(part, None)
    if not parts:
        index.pop(key, None)
