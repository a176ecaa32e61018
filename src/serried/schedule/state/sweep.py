"""One look at everyone who may be looked at, in as many cycles as the time allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serried.quota.quotas import FlavorResource
from serried.schedule.types.workload import Order


@dataclass
class Sweep:
    """Candidates that do not fit are looked at again after each change they are blocked on. In a large cluster changes
    come faster than everyone can be looked at: if those at the front came first each time, nobody behind them would
    ever be looked at. So who was looked at in a sweep and is woken meanwhile has to wait for the next one.
    """

    number: int = 1
    #: It began anew for a candidate that fits, since somebody ahead had been woken after the look at them. It does so
    #: once: somebody may be woken again at any time.
    repeated: bool = False
    #: candidates whose turn has not come when they were looked at: what they asked for, and the level of borrowing
    seen: dict[Order, tuple[int, Mapping[FlavorResource, int]]] = field(default_factory=dict)

    def end(self) -> None:
        """Everyone was looked at; whoever is woken from now on is looked at in order."""
        self._next(repeated=False)

    def repeat(self) -> None:
        """Everyone who was woken is looked at first."""
        self._next(repeated=True)

    def _next(self, *, repeated: bool) -> None:
        self.number += 1
        self.repeated = repeated
        self.seen.clear()
