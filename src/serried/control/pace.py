"""How fast writes go that can wait, such as status, events and reasons: decisions need the API server's time more."""

from __future__ import annotations

#: Writes of one sort on their way at the same time.
LANES = 4
# After each write a lane rests for so many times as long as the write took, but at most so many seconds: so it is busy
# for a tenth of the time, and a slow API server is asked for less.
_REST, _LONGEST = 9.0, 5.0


def rest(took: float) -> float:
    """Seconds of rest after a write that took so many seconds."""
    return min(_LONGEST, _REST * took)
