"""Cases for both clusters, where the embedded one has all of them and the real one a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def on_both(cases: Iterable[tuple[Any, ...]], sample: Callable[..., bool]) -> list[Any]:
    """Parameters of a test (the backend, to be passed to `arena`, then those of the case).

    Cases outside the `sample` run on the real cluster only with `make test-all`.
    """
    found = []
    for case in cases:
        name = "-".join(getattr(value, "__name__", str(value)).replace(" ", "-") for value in case)
        found.append(pytest.param("embedded", *case, id=f"embedded-{name}"))
        marks = () if sample(*case) else (pytest.mark.exhaustive,)
        found.append(pytest.param("real", *case, id=f"real-{name}", marks=marks))
    return found
