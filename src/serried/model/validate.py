"""The laws the model of nodes obeys after every event and every trial, checked from scratch."""

from __future__ import annotations

from collections import Counter

import numpy as np

from serried.model.capacity import add, amounts
from serried.model.holds import PodSetHold
from serried.model.pod_index import NO_KIND
from serried.model.world import World


def validate(world: World) -> None:
    """Raises AssertionError, with what contradicts what."""
    assert world.journal.checkpoint() == 0, "a trial has left changes in the journal"
    capacity = world.capacity
    free, unheld = capacity.allocatable.copy(), capacity.allocatable.copy()
    references: Counter[int] = Counter()
    indexed: dict[int, set[PodSetHold]] = {}
    bound = {}
    seen: Counter[int] = Counter()
    for key, hold in world.holds.items():
        for part in hold.parts:
            rows, counts = part.rows_and_counts()
            add(free, part.vector, rows, amounts(part.vector, counts), -1)
            references.update(rows.tolist())
            charged = Counter(row for _, row in part.bound.values())
            for expected in part.expected:
                charged.update(expected)
            assert charged == part.charged, f"{key} has charged {part.charged}, but should have {charged}"
            bound.update(dict.fromkeys(part.bound, key))
            for row, number in part.awaited().items() if part.kind is not NO_KIND else ():
                seen[row] += number
                assert world.index.counts[part.entries[row]] == number, f"{key} is expected on row {row} otherwise"
            for row in part.charged if part.indexed else ():
                indexed.setdefault(row, set()).add(part)
    for row in range(len(world.nodes.names)):
        found = world.estimated_on(row)
        assert set(found) == indexed.get(row, set()), f"row {row} is said to have {found}"
    for key, pod in world.pods.items():
        seen[pod.row] += 1
        references[pod.row] += 1
        owner = bound.pop(key, None)
        assert owner is None or owner == pod.workload, f"pod {key} of {pod.workload} is covered by {owner}"
        assert pod.counted == (owner is None), f"pod {key} is counted: {pod.counted}, and covered by {owner}"
        rows, amount = np.array([pod.row]), amounts(pod.vector, np.ones(1, dtype=np.int64))
        if pod.counted:
            add(free, pod.vector, rows, amount, -1)
        if pod.workload is None:
            add(unheld, pod.vector, rows, amount, -1)
    uncovered = {pod: key for key, pods in world.uncovered.items() for pod in pods}
    counted = {pod: pod.workload for pod in world.pods.values() if pod.counted and pod.workload is not None}
    assert uncovered == counted, f"pods that no hold accounts for are {counted}, but {uncovered} are remembered"
    assert not bound, f"holds cover pods that are gone: {bound}"
    for name, should, array in (("free", free, capacity.free), ("unheld", unheld, capacity.unheld)):
        wrong = np.argwhere(should != array).tolist()
        assert not wrong, f"{name} is not what nodes have less what is used at (line, row) {wrong}"
    by_row = world.index.by_row(world.index.counts[: world.index.size] > 0, len(world.nodes.names))
    assert {row: int(by_row[row]) for row in np.flatnonzero(by_row).tolist()} == +seen, "the index of pods is off"
    referred = np.flatnonzero(world.nodes.references).tolist()
    assert {row: int(world.nodes.references[row]) for row in referred} == +references, "references of rows are off"
