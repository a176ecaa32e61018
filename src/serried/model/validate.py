"""The laws the model of nodes obeys after every event and every trial, checked from scratch."""

from __future__ import annotations

from collections import Counter

import numpy as np

from serried.model.capacity import add, amounts
from serried.model.world import World


def validate(world: World) -> None:
    """Raises AssertionError, with what contradicts what."""
    assert world.journal.checkpoint() == 0, "a trial has left changes in the journal"
    capacity = world.capacity
    free, unheld = capacity.allocatable.copy(), capacity.allocatable.copy()
    references: Counter[int] = Counter()
    landed = {}
    for key, hold in world.holds.items():
        for share in hold.shares:
            rows, counts = share.rows_and_counts()
            add(free, share.vector, rows, amounts(share.vector, counts), -1)
            references.update(rows.tolist())
            charged = Counter(row for _, row in share.landed.values())
            for expected in share.expected:
                charged.update(expected)
            assert charged == share.charged, f"{key} has charged {share.charged}, but should have {charged}"
            landed.update(dict.fromkeys(share.landed, key))
    for key, pod in world.pods.items():
        references[pod.row] += 1
        owner = landed.pop(key, None)
        assert owner is None or owner == pod.workload, f"pod {key} of {pod.workload} is covered by {owner}"
        assert pod.counted == (owner is None), f"pod {key} is counted: {pod.counted}, and covered by {owner}"
        rows, amount = np.array([pod.row]), amounts(pod.vector, np.ones(1, dtype=np.int64))
        if pod.counted:
            add(free, pod.vector, rows, amount, -1)
        if pod.workload is None:
            add(unheld, pod.vector, rows, amount, -1)
    uncovered = {pod: key for key, pods in world.uncovered.items() for pod in pods}
    counted = {pod: pod.workload for pod in world.pods.values() if pod.counted and pod.workload is not None}
    assert uncovered == counted, f"pods that no hold covers are {counted}, but {uncovered} are remembered"
    assert not landed, f"holds cover pods that are gone: {landed}"
    for name, should, array in (("free", free, capacity.free), ("unheld", unheld, capacity.unheld)):
        wrong = np.argwhere(should != array).tolist()
        assert not wrong, f"{name} is not what nodes have less what is used at (line, row) {wrong}"
    referred = np.flatnonzero(world.nodes.references).tolist()
    assert {row: int(world.nodes.references[row]) for row in referred} == +references, "references of rows are off"
