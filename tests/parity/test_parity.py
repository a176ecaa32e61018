"""Our filters agree with the real kube-scheduler on each node; `python -m tests.parity` asks about 3,000 pods."""

from __future__ import annotations

import pytest

from tests.parity.compare import compare, compare_gangs
from tools.controlplane import ControlPlane


@pytest.mark.parametrize("seed", [11, 12])
def test_filters_are_those_of_kube_scheduler(seed: int) -> None:
    with ControlPlane(controllers=(), scheduler=False) as plane:
        found = compare(plane, seed=seed, scenes=1, pods=50)
    assert not found.differences
    assert found.pods == 50
    assert 0 < found.allowed < found.pairs


def test_each_pod_of_a_gang_passes_with_the_others_in_place() -> None:
    with ControlPlane(controllers=(), scheduler=False) as plane:
        placed, pods, wrong = compare_gangs(plane, seed=11, scenes=2, gangs=10)
    assert not wrong
    assert pods > placed > 0
