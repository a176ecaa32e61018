"""What LocalQueues have used lately: the order of admission fair sharing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from serried.quota.limits import Cell
from serried.schedule.options import AdmissionFairSharing
from serried.schedule.state import Record, State


def sample_usage(state: State, now: datetime) -> None:
    """What LocalQueues have used lately: what they used before fades, what they use now counts more and more."""
    config = state.options.admission_fair_sharing
    if config is None:
        return
    if state.sampled_at is None:
        state.sampled_at = now
        return
    elapsed = (now - state.sampled_at).total_seconds()
    if elapsed < config.sampling_interval or elapsed <= 0:
        return
    state.sampled_at = now
    keeps = 0.5 ** (elapsed / config.half_life) if config.half_life > 0 else 0.0
    for key in state.local_usage.keys() | state.local_queues.keys():
        holds = weighed(config, state.accounts[key].reserved)
        value = state.local_usage.get(key, 0.0) * keeps + holds * (1 - keeps)
        if value:
            state.local_usage[key] = value
        else:
            state.local_usage.pop(key, None)
    # Somebody else may come first now.
    for name, queue in state.cluster_queues.items():
        if queue.pending.strict and state.usage_ordered(name) and state.head(queue) is not None:
            state.awake[name] = None


def count_usage(state: State, record: Record, usage: Mapping[Cell, int]) -> None:
    """An admission counts at once, as much as it will by the next sample: so that a burst does not go to one queue."""
    config = state.options.admission_fair_sharing
    if config is None:
        return
    share = 1 - 0.5 ** (config.sampling_interval / config.half_life) if config.half_life > 0 else 1.0
    state.local_usage[record.info.queue] = state.local_usage.get(record.info.queue, 0.0) + share * weighed(
        config, usage
    )


def weighed(config: AdmissionFairSharing, usage: Mapping[Cell, int]) -> float:
    """One number for a usage: amounts in base units (cores, bytes), times the weights of their resources."""
    weights = dict(config.resource_weights)
    return sum(
        amount / (1000 if resource == "cpu" else 1) * weights.get(resource, 1.0)
        for (_, resource), amount in usage.items()
    )
