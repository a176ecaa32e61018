"""`python -m tests.parity [--scenes 60] [--pods 50] [--seed 1]`: our filters against the real kube-scheduler."""

from __future__ import annotations

import argparse
import sys

from tests.parity.compare import compare
from tools.controlplane import ControlPlane


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=60)
    parser.add_argument("--pods", type=int, default=50, help="in each scene")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ControlPlane(controllers=(), scheduler=False) as plane:
        version = plane.version()
        found = compare(plane, seed=options.seed, scenes=options.scenes, pods=options.pods)
    for difference in found.differences:
        print(difference)
    print(
        f"kube-scheduler {version}: {found.pods} pods on {options.scenes} clusters, {found.pairs} verdicts, "
        f"{found.allowed} of them yes, {found.nowhere} pods without any node"
    )
    listed = ", ".join(f"{name} {number}" for name, number in found.decisive.most_common())
    print(f"nodes that one filter alone excludes: {listed}")
    listed = ", ".join(f"{reason} {number}" for reason, number in found.deliberate.items())
    print(f"nodes where we put no new pod all the same: {listed}")
    print(f"unexplained differences: {len(found.differences)} pods")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
