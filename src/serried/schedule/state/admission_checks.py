"""Admission checks: which of them a workload has to pass, and what they put off."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.state import State

#: The controller of admission checks that make nodes.
_PROVISIONING: Final = "kueue.x-k8s.io/provisioning-request"


def required_checks(queue: ClusterQueueState, flavors: Collection[str]) -> list[str]:
    """The admission checks that a workload with these flavors has to pass, in the order of the spec."""
    strategy = queue.spec.admission_checks_strategy
    rules = strategy.admission_checks if strategy is not None else []
    return [rule.name for rule in rules if not rule.on_flavors or not set(rule.on_flavors).isdisjoint(flavors)]


def delays_places(state: State, checks: Iterable[str]) -> bool:
    """Whether nodes may still be made for the workload, so that places can be named only when its checks are ready."""
    return any(c in state.checks and state.checks[c].spec.controller_name == _PROVISIONING for c in checks)
