"""The command line of the conformance suites."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance import cycle, preempt, tas
from tests.conformance.tas_record import without_nulls

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
            record = without_nulls(msgspec.json.decode(line))
            found = _checked(difference, record)
            if found and options.quality:
                found = _checked(partial(tas.shortfall, optimal=options.optimal), record)
                as_good += not found
            if found:
                failed += 1
                print(f"{record.get('id', '(no id)')}: {found}")
            else:
                passed += 1
    if options.quality:
        print(f"{passed - as_good} as expected, {as_good} otherwise, but valid and equal or better")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _checked(check: Callable[[dict[str, Any]], str], record: dict[str, Any]) -> str:
    """What a check finds; if it fails itself, where. One case never ends the run."""
    try:
        return check(record)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({where})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
