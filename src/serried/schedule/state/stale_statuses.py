"""Whose status may differ from what was last written of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from serried.api.meta import Key


class StaleStatuses:
    """Queues and cohorts of which something has changed that their status shows."""

    def __init__(self, *, shares: bool) -> None:
        #: whether shares are reported
        self._shares = shares
        #: ("", name) of ClusterQueues, (namespace, name) of LocalQueues; oldest change first
        self._queues: dict[Key, None] = {}
        #: trees of cohorts in which what is said of Cohorts may have changed, and those in which quota has
        self._trees: dict[str, None] = {}
        self._requoted: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._queues or self._trees or self._requoted)

    def queue(self, key: Key) -> None:
        """Something that this queue reports has changed."""
        self._queues[key] = None

    def cohorts(self, trees: Iterable[str]) -> None:
        """Something that the Cohorts of these trees report has changed."""
        self._trees.update(dict.fromkeys(trees))

    def quotas(self, trees: Iterable[str]) -> None:
        """Quota in these trees has changed, and with it the shares of all of their queues."""
        if self._shares:
            self._requoted.update(dict.fromkeys(trees))

    def take_queues(self, cluster_queues: Iterable[str], tree_of: Callable[[str], str]) -> set[Key]:
        """The queues, once."""
        found = set(self._queues)
        self._queues.clear()
        if self._requoted:
            found.update(("", name) for name in cluster_queues if tree_of(name) in self._requoted)
            self._requoted.clear()
        if self._shares:
            # That of a cohort depends on all usage below it.
            self.cohorts(tree_of(name) for namespace, name in found if not namespace)
        return found

    def take_cohorts(self, cohorts: Iterable[str], tree_above: Callable[[str], str]) -> set[str]:
        """The Cohorts, once; after `take_queues`."""
        found = {name for name in cohorts if tree_above(name) in self._trees}
        self._trees.clear()
        return found
