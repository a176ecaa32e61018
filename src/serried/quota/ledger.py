"""Who uses how much of what: usage cells per ClusterQueue, and whether more fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serried.model.journal import Journal
from serried.quota.limits import Cell, Limits


@dataclass(frozen=True)
class Shortage:
    """One cell that does not hold what is asked for. Amounts are in the units of `Limits.nominal`."""

    cell: Cell
    #: what the pod set asks for, and what earlier pod sets of the same workload take of the same cell
    requested: int
    before: int
    #: what is left in the cell now (below zero after quota was cut), and what it can hold at most
    available: int
    maximum: int

    @property
    def missing(self) -> int:
        return self.requested - self.available

    @property
    def never(self) -> bool:
        """Whether this cannot fit even when nobody else uses anything."""
        return self.before + self.requested > self.maximum


class Ledger:
    """Usage per (ClusterQueue, flavor, resource) against its limits.

    Charging and refunding go through the journal. Limits are the administrator's: an edit may leave usage above them,
    and then nothing more fits until enough is refunded. Usage outlives its queue, so that a ClusterQueue that is
    deleted and comes back still knows its running workloads.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._limits: dict[str, Limits] = {}
        #: only cells in use: values > 0
        self._usage: dict[str, dict[Cell, int]] = {}

    def set_limits(self, queue: str, limits: Limits) -> None:
        self._limits[queue] = limits

    def remove_limits(self, queue: str) -> None:
        self._limits.pop(queue, None)

    def usage(self, queue: str) -> Mapping[Cell, int]:
        """The cells in use, including those the queue no longer declares."""
        return self._usage.get(queue, {})

    def maximum(self, queue: str, cell: Cell) -> int:
        """The most the cell can hold when nobody else uses anything."""
        limits = self._limits.get(queue)
        return limits.nominal.get(cell, 0) if limits else 0

    def available(self, queue: str, cell: Cell) -> int:
        """What may still be charged; below zero if usage exceeds the limits."""
        return self.maximum(queue, cell) - self.usage(queue).get(cell, 0)

    def shortages(self, queue: str, amounts: Mapping[Cell, int], before: Mapping[Cell, int]) -> list[Shortage]:
        """The cells that do not hold `amounts`, in the order given. Nothing asked for always fits.

        Args:
            queue: name of the ClusterQueue.
            amounts: what is to be charged.
            before: what the same workload has charged already; it is in the usage, too.
        """
        short = []
        for cell, amount in amounts.items():
            available = self.available(queue, cell)
            if amount > 0 and amount > available:
                short.append(Shortage(cell, amount, before.get(cell, 0), available, self.maximum(queue, cell)))
        return short

    def charge(self, queue: str, amounts: Mapping[Cell, int]) -> None:
        """Adds to the usage, whether it fits or not (what runs, runs)."""
        self._add(queue, amounts, 1)

    def refund(self, queue: str, amounts: Mapping[Cell, int]) -> None:
        """Takes back what was charged with the same amounts."""
        self._add(queue, amounts, -1)

    def _add(self, queue: str, amounts: Mapping[Cell, int], sign: int) -> None:
        cells = self._usage.setdefault(queue, {})
        old = {cell: cells.get(cell, 0) for cell in amounts}
        self._journal.record(lambda: _restore(cells, old))
        _restore(cells, {cell: old[cell] + sign * amount for cell, amount in amounts.items()})


def _restore(cells: dict[Cell, int], values: Mapping[Cell, int]) -> None:
    for cell, value in values.items():
        if value:
            cells[cell] = value
        else:
            cells.pop(cell, None)
