"""Kubernetes quantities, read exactly and once into integers: "1500m", "2", "1.5Gi", "1e3".

Inside Serried a quantity is an int: cpu in millicores, every other resource in units (bytes, devices, pods).
The grammar is that of Kubernetes' `resource.Quantity`: a sign, digits with at most one point, and a suffix
(n u m k M G T P E; Ki Mi Gi Ti Pi Ei; or an exponent such as e3 or E-3).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: The largest magnitude a quantity can have, in whatever unit it is read; more than that is held at this.
LIMIT: Final = 2**63 - 1

#: Scales for `parse`: what one whole unit counts as.
UNITS: Final = 1
MILLI: Final = 1000

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

#: 1/(2**60 * 1000), the finest step any suffix and scale can resolve, has 63 decimal places: digits after this
#: many places can no longer decide more than whether something is left to round up.
_PLACES = 64
#: A number with more digits before its point is beyond LIMIT, in whatever unit.
_DIGITS = 22
#: Texts longer than this are not worth a place in the cache.
_CACHED_LENGTH = 32


class QuantityError(ValueError):
    """A text is not a Kubernetes quantity.

    Attributes:
        text: what was found.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        shown = text if len(text) <= 40 else text[:37] + "..."
        super().__init__(
            f"{shown!r} is not a quantity: expected a number such as 2, 500m, 1.5Gi or 1e3 "
            "(suffixes n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent)"
        )


def parse(quantity: str | int, scale: int = UNITS) -> int:
    """A quantity as a whole number of `scale`-ths: UNITS for units, MILLI for thousandths.

    What is less than one step is rounded away from zero, as Kubernetes does ("0.1m" of cpu is one millicore),
    and the result stays within ±LIMIT instead of growing without bound.

    Raises:
        QuantityError: the text is not a quantity.
    """
    if isinstance(quantity, int):
        return max(-LIMIT, min(LIMIT, quantity * scale))
    if len(quantity) <= _CACHED_LENGTH:
        return _parse_cached(quantity, scale)
    return _parse_text(quantity, scale)


def _parse_text(text: str, scale: int) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise QuantityError(text)
    whole, fraction, suffix = match["whole"], match["fraction"] or "", match["suffix"] or ""
    if not whole and not fraction:
        raise QuantityError(text)

    # The value is digits * 10**exponent * 2**shift; `before` digits of it stand before the decimal point.
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return 0
    shift = _BINARY.get(suffix, 0)
    exponent = (0 if shift else _decimal_exponent(suffix)) - len(fraction)
    before = len(digits) + exponent
    if before > _DIGITS:
        magnitude = LIMIT
    elif before < -_PLACES:
        magnitude = 1
    else:
        # Only now, with few enough digits left, is it safe and cheap to compute with numbers.
        kept = digits[: max(0, before + _PLACES)]
        exponent += len(digits) - len(kept)
        numerator = int(kept or "0") * scale << shift
        if exponent >= 0:
            magnitude, rest = numerator * 10**exponent, 0
        else:
            magnitude, rest = divmod(numerator, 10**-exponent)
        if rest or digits[len(kept) :].strip("0"):
            magnitude += 1
        magnitude = min(magnitude, LIMIT)
    return -magnitude if match["sign"] == "-" else magnitude


_parse_cached = lru_cache(maxsize=4096)(_parse_text)


def _decimal_exponent(suffix: str) -> int:
    """The power of ten a decimal suffix or exponent stands for; a hopelessly large one is cut short."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    sign = -1 if suffix[1] == "-" else 1
    power = suffix[1:].lstrip("+-").lstrip("0")
    return sign * (int(power or "0") if len(power) <= 10 else 10**10)


def resource_value(name: str, quantity: str | int) -> int:
    """A quantity of the named resource: millicores for cpu, units for everything else.

    Raises:
        QuantityError: the text is not a quantity.
    """
    return parse(quantity, MILLI if name == "cpu" else UNITS)


def format_quantity(name: str, value: int) -> str:
    """The inverse of `resource_value`, for status fields: "1500m", "2", "1Gi", "1k".

    In the canonical form of Kubernetes: without a point, with the largest suffix that leaves a whole number; binary
    suffixes for resources measured in bytes, decimal ones for the others (and for less than 1 Ki).
    """
    if value == 0:
        return "0"
    if _in_bytes(name) and abs(value) >= 1024:
        powers = min((value & -value).bit_length() - 1, 60) // 10
        return f"{value >> 10 * powers}{('', *_BINARY)[powers]}"
    suffixes = ("m", "", "k", "M", "G", "T", "P", "E") if name == "cpu" else ("", "k", "M", "G", "T", "P", "E")
    last = 0
    while last < len(suffixes) - 1 and value % 1000 == 0:
        value //= 1000
        last += 1
    return f"{value}{suffixes[last]}"


def _in_bytes(name: str) -> bool:
    return name in ("memory", "ephemeral-storage", "storage") or name.startswith("hugepages-")
