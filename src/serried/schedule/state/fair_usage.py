"""What LocalQueues have used lately: the order of admission fair sharing.

What was used before fades by half in every half-life, what is held now counts more and more; both are one exponential
average, so it does not matter how often it is worked out. It is kept in the status of LocalQueues, and read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from serried.api.core import ResourceList
from serried.api.kueue import AdmissionFairSharingStatus
from serried.api.meta import Key
from serried.api.quantity import MILLI, QuantityError, format_quantity, parse
from serried.quota.quotas import FlavorResource
from serried.schedule.state.records import LocalUsage, Record
from serried.schedule.state.state import State

#: amounts below this (of cores, bytes, devices) are not worth remembering: a status shows thousandths
_LEAST = 0.0005
#: amounts from here on are written in whole units
_MANY = 1_000_000


def sample_usage(state: State, now: datetime) -> None:
    """Works out, once every sampling interval, what each LocalQueue has used by now."""
    config = state.options.admission_fair_sharing
    if config is None:
        return
    due = sample_due(state)
    if due is not None and state.sampled_at is not None and state.sampled_at <= now < due:
        return  # a clock that was set back has not sampled yet: nothing would be until it is where it was
    state.sampled_at = now
    for key in state.local_queues:
        held = _by_resource(state.accounts[key].reserved)
        usage = state.local_usage.get(key)
        before = usage.amounts if usage is not None else None
        if usage is None:
            # Nothing is known of before: it counts as if it had always held what it holds.
            after = dict(held) if config.half_life > 0 else {}
        else:
            elapsed = (now - usage.at).total_seconds() if usage.at is not None else 0.0
            after = _faded(usage.amounts, held, elapsed, config.half_life)
        state.local_usage[key] = LocalUsage(now, after)
        if after != before:
            state.stale.queue(key)
    # Somebody else may come first now.
    for name, queue in state.cluster_queues.items():
        if queue.pending.strict and state.usage_ordered(name) and state.head(queue) is not None:
            state.requeue.activate(name)


def sample_due(state: State) -> datetime | None:
    """When usage is to be worked out again; None: at once, if admission fair sharing is on at all."""
    config = state.options.admission_fair_sharing
    if config is None or state.sampled_at is None:
        return None
    return state.sampled_at + timedelta(seconds=config.sampling_interval)


def count_usage(state: State, record: Record, usage: Mapping[FlavorResource, int], sign: int = 1) -> None:
    """An admission counts at once, as much as it will by the next sample: so that a burst does not go to one queue.

    `sign`: -1 takes that back, for an admission that the API refused.
    """
    config = state.options.admission_fair_sharing
    if config is None or config.half_life <= 0:
        return
    share = 1 - 0.5 ** (config.sampling_interval / config.half_life)
    amounts = state.local_usage.setdefault(record.info.queue, LocalUsage()).amounts
    for resource, amount in _by_resource(usage).items():
        amounts[resource] = max(0.0, amounts.get(resource, 0.0) + sign * share * amount)


def usage_status(usage: LocalUsage) -> AdmissionFairSharingStatus | None:
    """What is remembered, as the status of a LocalQueue keeps it; None: it has not been worked out yet."""
    if usage.at is None:
        return None
    consumed: ResourceList = {r: _format(amount) for r, amount in sorted(usage.amounts.items()) if amount >= _LEAST}
    return AdmissionFairSharingStatus(consumed_resources=consumed, last_update=usage.at.replace(microsecond=0))


def recall_usage(state: State, key: Key, status: AdmissionFairSharingStatus) -> None:
    """Takes what a LocalQueue's status remembers, unless it is known better. What cannot be read counts as nothing."""
    if state.options.admission_fair_sharing is None or key in state.local_usage:
        return
    amounts = {}
    for resource, quantity in status.consumed_resources.items():
        try:
            amounts[resource] = max(0, parse(quantity, MILLI)) / MILLI
        except QuantityError:
            continue
    state.local_usage[key] = LocalUsage(status.last_update, amounts)


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
