"""`python -m tests.parity [--scenes 60] [--pods 50] [--seed 1]`: our filters against the real kube-scheduler."""

from __future__ import annotations

import argparse
import sys

from tests.parity.compare import compare, compare_gangs
from tools.controlplane import ControlPlane


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=60)
    parser.add_argument("--pods", type=int, default=50, help="in each scene")
    parser.add_argument("--gangs", type=int, default=10, help="in each scene, besides")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ControlPlane(controllers=(), scheduler=False) as plane:
        version = plane.version()
        found = compare(plane, seed=options.seed, scenes=options.scenes, pods=options.pods)
        print(*found.differences, sep="\n")
        print(
            f"kube-scheduler {version}: {found.pods} pods on {options.scenes} clusters, {found.pairs} verdicts, "
            f"{found.allowed} of them yes, {found.nowhere} pods without any node, {found.handed_over} to be handed over"
        )
        listed = ", ".join(f"{name} {number}" for name, number in found.decisive.most_common())
        print(f"nodes that one filter alone excludes: {listed}")
        listed = ", ".join(f"{reason} {number}" for reason, number in found.deliberate.items())
        print(f"nodes where we put no new pod all the same: {listed}")
        print(f"unexplained differences: {len(found.differences)} pods")
        placed, pods, wrong = compare_gangs(plane, seed=options.seed, scenes=options.scenes, gangs=options.gangs)
    print(*wrong, sep="\n")
    print(f"{placed} of {options.scenes * options.gangs} gangs placed, {pods} pods; of them refused: {len(wrong)}")
    return 1 if found.differences or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
