"""What ClusterQueues and LocalQueues report: counts and usage, kept up to date with each admission and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serried.api.kueue import FlavorUsage, ResourceUsage
from serried.api.meta import Key
from serried.api.quantity import format_quantity
from serried.quota.quotas import FlavorResource
from serried.schedule.state.stale_statuses import StaleStatuses


@dataclass
class Account:
    """The workloads of one queue that hold quota, and what they hold (only what is in use)."""

    reserving: int = 0
    admitted: int = 0
    reserved: dict[FlavorResource, int] = field(default_factory=dict)
    used: dict[FlavorResource, int] = field(default_factory=dict)

    def count(self, usage: Mapping[FlavorResource, int], sign: int, *, admitted: bool) -> None:
        self.reserving += sign
        _add(self.reserved, usage, sign)
        if admitted:
            self.admitted += sign
            _add(self.used, usage, sign)


class Accounts:
    """One account per queue: the key is ("", name) for a ClusterQueue, (namespace, name) for a LocalQueue."""

    def __init__(self, stale: StaleStatuses) -> None:
        self._accounts: dict[Key, Account] = {}
        self._stale = stale

    def __getitem__(self, queue: Key) -> Account:
        return self._accounts.get(queue) or Account()

    def count(self, queue: Key, usage: Mapping[FlavorResource, int], sign: int, *, admitted: bool) -> None:
        """A workload gets its quota (sign 1) or gives it back (-1); it is admitted with it, or not."""
        account = self._accounts.setdefault(queue, Account())
        account.count(usage, sign, admitted=admitted)
        if not account.reserving:
            del self._accounts[queue]
        self._stale.queue(queue)

    def items(self) -> list[tuple[Key, Account]]:
        return list(self._accounts.items())


def flavor_usage(
    declared: Mapping[FlavorResource, int],
    amounts: Mapping[FlavorResource, int],
    *,
    borrows: bool,
    in_cohort: bool = False,
) -> list[FlavorUsage]:
    """Amounts as a status shows them: everything declared, zeros too, in the order of the spec.

    `borrows`: whether the status has a field for what is borrowed (a LocalQueue's has not). `in_cohort`: whether what
    is beyond the quota declared is borrowed from others; alone, there is nobody to borrow from.
    """
    flavors: dict[str, list[ResourceUsage]] = {}
    for flavor, resource in declared:
        total = format_quantity(resource, amounts.get((flavor, resource), 0))
        over = max(0, amounts.get((flavor, resource), 0) - declared[flavor, resource]) if in_cohort else 0
        borrowed = format_quantity(resource, over) if borrows else 0
        flavors.setdefault(flavor, []).append(ResourceUsage(name=resource, total=total, borrowed=borrowed))
    return [FlavorUsage(name=name, resources=resources) for name, resources in flavors.items()]


def _add(amounts: dict[FlavorResource, int], usage: Mapping[FlavorResource, int], sign: int) -> None:
    for fr, amount in usage.items():
        value = amounts.get(fr, 0) + sign * amount
        if value:
            amounts[fr] = value
        else:
            amounts.pop(fr, None)
