"""Durations as they are written in Kueue's configuration."""

from __future__ import annotations

import re
from typing import Final

_PART = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST: Final = 2_562_047 * 3600.0  # seconds, about 292 years; as in Kueue's configuration


class Duration(float):
    """Seconds, written as in Kueue's configuration: 168h, 5m, 1h30m."""

    @classmethod
    def read(cls, value: object) -> Duration:
        """Raises ValueError saying what is allowed."""
        text = str(value)
        if text == "0":
            return cls(0.0)
        seconds, end = 0.0, 0
        while (part := _PART.match(text, end)) is not None:
            seconds += float(part[1]) * _UNITS[part[3]]
            end = part.end()
        if end == 0 or end < len(text):
            raise ValueError(
                f"{text!r} is not a duration; allowed are numbers with ms, s, m or h, such as 168h or 1h30m"
            )
        if seconds > _LONGEST:
            raise ValueError(f"{text!r} is too long; allowed are durations up to {_LONGEST / 3600:.0f}h")
        return cls(seconds)
