"""Bad input, as every part of Serried reports it."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing wrong with an object as it is written."""

    #: the path of the field, from the object's top or, for a part of it, from that part's
    field: str
    #: what the field holds
    found: str
    #: what it may hold
    allowed: str

    def __str__(self) -> str:
        return f"{self.field}: found {self.found}, allowed: {self.allowed}"
