"""The command line of the conformance suites."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
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
    parser.add_argument(
        "--quality", action="store_true", help="tas: another assignment passes, too, if it is valid and as good"
    )
    parser.add_argument(
        "--optimal", action="store_true", help="tas: place with `placement: optimal` instead of the default"
    )
    options = parser.parse_args(arguments)
    if options.suite != "tas" and (options.quality or options.optimal):
        parser.error("--quality and --optimal are for the suite tas")
    difference = partial(tas.difference, optimal=True) if options.optimal else SUITES[options.suite]
    passed = failed = as_good = 0
    for path in options.files:
        for line in path.read_bytes().splitlines():
            if not line.strip():
                continue
            record = msgspec.json.decode(line)
            found = difference(record)
            if found and options.quality:
                found = tas.shortfall(record, optimal=options.optimal)
                as_good += not found
            if found:
                failed += 1
                print(f"{record['id']}: {found}")
            else:
                passed += 1
    if options.quality:
        print(f"{passed - as_good} as expected, {as_good} otherwise, but valid and equal or better")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
