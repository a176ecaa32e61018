"""Watches what is bound, and whether that may be."""

from __future__ import annotations

from collections import defaultdict

from serried.api import names
from serried.api.core import Pod
from serried.api.meta import Key
from serried.api.quantity import resource_value
from tests.scenarios.arena import GPU


class Watchman:
    """Adds up what is bound on every node, with every event that the API server sends."""

    def __init__(self) -> None:
        self.used: defaultdict[str, int] = defaultdict(int)
        self.most = 0
        self.overbooked: list[str] = []

    def on_change(self, old: Pod | None, new: Pod | None) -> None:
        for pod, sign in ((old, -1), (new, +1)):
            if pod is not None and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
                gpus = sum(resource_value(GPU, c.resources.requests.get(GPU, 0)) for c in pod.spec.containers)
                self.used[pod.spec.node_name] += sign * gpus
        if new is not None and self.used[new.spec.node_name] > 8 and new.spec.node_name:
            self.overbooked.append(f"{new.spec.node_name}: {self.used[new.spec.node_name]} of 8 with {new.key}")
        self.most = max(self.most, sum(self.used.values()))


def partly_bound(pods: list[Pod]) -> dict[Key, tuple[int, int]]:
    """Gangs of which some pods have a node and some wait for one."""
    bound: defaultdict[Key, int] = defaultdict(int)
    waiting: defaultdict[Key, int] = defaultdict(int)
    for pod in pods:
        if pod.metadata.deletion_timestamp is None and pod.status.phase == "Pending" and not pod.spec.node_name:
            waiting[pod.metadata.namespace, pod.metadata.labels[names.JOB_NAME]] += 1
        elif pod.spec.node_name:
            bound[pod.metadata.namespace, pod.metadata.labels[names.JOB_NAME]] += 1
    return {k: (bound[k], waiting[k]) for k in bound if waiting[k]}
