"""Our filters agree with the real kube-scheduler on each node; `python -m tests.parity` asks about 3,000 pods."""

from __future__ import annotations

import pytest

from tests.parity.compare import compare
from tools.controlplane import ControlPlane


@pytest.mark.parametrize("seed", [11, 12])
def test_filters_are_those_of_kube_scheduler(seed: int) -> None:
    with ControlPlane(controllers=(), scheduler=False) as plane:
        found = compare(plane, seed=seed, scenes=1, pods=50)
    assert not found.differences
    assert found.pods == 50
    assert 0 < found.allowed < found.pairs
