"""What LocalQueues have used lately: the order of admission fair sharing.

What was used before fades by half in every half-life, what is held now counts more and more; both are one exponential
average, so it does not matter how often it is worked out. It is kept in the status of LocalQueues, and read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from serried.api.core import Quantity
from serried.api.kueue import AdmissionFairSharingStatus, LocalQueueFairSharingStatus
from serried.api.meta import Key
from serried.api.quantity import LIMIT, MILLI, QuantityError, format_quantity, parse
from serried.quota.quotas import FlavorResource
from serried.schedule.state.queue_usage import Accounts
from serried.schedule.state.records import ClusterQueueState, LocalQueueState
from serried.schedule.types.options import AdmissionFairSharing
from serried.schedule.types.workload import read_weight

#: amounts below this (of cores, bytes, devices) are not worth remembering: a status shows thousandths
_LEAST = 0.0005
#: amounts from here on are written in whole units
_MANY = 1_000_000


@dataclass
class LocalUsage:
    """What one LocalQueue has used lately."""

    #: when it was worked out; None: not yet
    at: datetime | None = None
    #: resource → amount in base units (cores, bytes, devices)
    amounts: dict[str, float] = field(default_factory=dict)


class FairUsage:
    """What LocalQueues have used lately, and in which ClusterQueues that decides who comes first.

    Arguments:
        config: None: it decides nowhere, and nothing is worked out.
        cluster_queues, local_queues: those there are.
    """

    def __init__(
        self,
        config: AdmissionFairSharing | None,
        cluster_queues: Mapping[str, ClusterQueueState],
        local_queues: Mapping[Key, LocalQueueState],
    ) -> None:
        self._config = config
        self._cluster_queues = cluster_queues
        self._local_queues = local_queues
        #: LocalQueue → what it has used
        self.used: dict[Key, LocalUsage] = {}
        self._sampled_at: datetime | None = None

    def orders(self, cluster_queue: str) -> bool:
        """Whether the workloads of a ClusterQueue are ordered by what their LocalQueues have used lately."""
        queue = self._cluster_queues.get(cluster_queue)
        scope = queue.spec.admission_scope if queue is not None and self._config is not None else None
        return scope is not None and scope.admission_mode == "UsageBasedAdmissionFairSharing"

    def of(self, local_queue: Key) -> float:
        """What a LocalQueue has used lately, resources by their weights, divided by the weight of its own."""
        usage = self.used.get(local_queue)
        used = self._config.weigh(usage.amounts) if self._config is not None and usage is not None else 0.0
        queue = self._local_queues.get(local_queue)
        fair = queue.spec.fair_sharing if queue is not None else None
        weight = read_weight(fair.weight if fair is not None else 1)
        if not weight:
            return float("inf")
        return used / float(weight)

    @property
    def next_sample(self) -> datetime | None:
        """When usage is to be worked out again; None: at once, if it is at all."""
        if self._config is None or self._sampled_at is None:
            return None
        return self._sampled_at + timedelta(seconds=self._config.usage_sampling_interval)

    def sample(self, now: datetime, accounts: Accounts) -> list[Key] | None:
        """Works out, once every sampling interval, what each LocalQueue has used by now.

        Returns the LocalQueues whose usage has changed; None: it is not time yet.
        """
        config, due = self._config, self.next_sample
        if config is None:
            return None
        if due is not None and self._sampled_at is not None and self._sampled_at <= now < due:
            return None  # a clock that was set back has not sampled yet: nothing would be until it is where it was
        self._sampled_at = now
        changed = []
        for key in self._local_queues:
            held = _by_resource(accounts[key].reserved)
            usage = self.used.get(key)
            before = usage.amounts if usage is not None else None
            if usage is None:
                # Nothing is known of before: it counts as if it had always held what it holds.
                after = dict(held) if config.usage_half_life_time > 0 else {}
            else:
                elapsed = (now - usage.at).total_seconds() if usage.at is not None else 0.0
                after = _faded(usage.amounts, held, elapsed, config.usage_half_life_time)
            self.used[key] = LocalUsage(now, after)
            if after != before:
                changed.append(key)
        return changed

    def count(self, local_queue: Key, usage: Mapping[FlavorResource, int], sign: int = 1) -> None:
        """An admission counts at once, as much as it will by the next sample: so that a burst does not go to one queue.

        `sign`: -1 takes that back, for an admission that the API refused.
        """
        config = self._config
        if config is None or config.usage_half_life_time <= 0:
            return
        share = 1 - 0.5 ** (config.usage_sampling_interval / config.usage_half_life_time)
        amounts = self.used.setdefault(local_queue, LocalUsage()).amounts
        for resource, amount in _by_resource(usage).items():
            amounts[resource] = max(0.0, amounts.get(resource, 0.0) + sign * share * amount)

    def recall(self, local_queue: Key, status: AdmissionFairSharingStatus) -> None:
        """Takes what a LocalQueue's status remembers, unless it is known better. What cannot be read counts as
        nothing."""
        if self._config is None or local_queue in self.used:
            return
        amounts = {}
        for resource, quantity in status.consumed_resources.items():
            try:
                amounts[resource] = max(0, parse(quantity, MILLI)) / MILLI
            except QuantityError:
                continue
        self.used[local_queue] = LocalUsage(status.last_update, amounts)

    def forget(self, local_queue: Key) -> None:
        """The LocalQueue is gone."""
        self.used.pop(local_queue, None)

    def status(self, local_queue: Key) -> LocalQueueFairSharingStatus | None:
        """What decides the order, and what is remembered for it; None: nothing."""
        usage = self.used.get(local_queue)
        if self._config is None or usage is None:
            return None
        share = min(self.of(local_queue), float(LIMIT))
        remembered = None
        if usage.at is not None:
            amounts = sorted(usage.amounts.items())
            consumed: dict[str, Quantity] = {r: _format(amount) for r, amount in amounts if amount >= _LEAST}
            at = usage.at.replace(microsecond=0)
            remembered = AdmissionFairSharingStatus(consumed_resources=consumed, last_update=at)
        return LocalQueueFairSharingStatus(
            weighted_share=min(round(share), LIMIT), admission_fair_sharing_status=remembered
        )


def _faded(
    amounts: Mapping[str, float], held: Mapping[str, float], elapsed: float, half_life: float
) -> dict[str, float]:
    """`elapsed` seconds later, in which `held` was held all the time. A half-life of 0 remembers nothing."""
    if half_life <= 0:
        return {}
    keeps = 0.5 ** (max(0.0, elapsed) / half_life)
    after = {r: amounts.get(r, 0.0) * keeps + held.get(r, 0.0) * (1 - keeps) for r in {**amounts, **held}}
    return {r: amount for r, amount in after.items() if amount >= _LEAST or r in held}


def _by_resource(usage: Mapping[FlavorResource, int]) -> dict[str, float]:
    """Amounts in base units, flavors added up."""
    result: dict[str, float] = {}
    for (_, resource), amount in usage.items():
        result[resource] = result.get(resource, 0.0) + amount / (MILLI if resource == "cpu" else 1)
    return result


def _format(amount: float) -> str:
    thousandths = round(amount) * MILLI if amount >= _MANY else round(amount * MILLI)
    return format_quantity("cpu", thousandths)
