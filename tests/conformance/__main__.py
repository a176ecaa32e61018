"""The command line of the conformance suites."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance import cycle, preempt, tas

#: Suite → what is different from the expected answer of one record; "" when nothing is.
SUITES: dict[str, Callable[[dict[str, Any]], str]] = {
    "cycle": cycle.difference,
    "preempt": preempt.difference,
    "tas": tas.difference,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    passed = failed = 0
    for path in options.files:
        for line in path.read_bytes().splitlines():
            if not line.strip():
                continue
            record = msgspec.json.decode(line)
            found = SUITES[options.suite](record)
            if found:
                failed += 1
                print(f"{record['id']}: {found}")
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
