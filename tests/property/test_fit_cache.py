"""The fit cache answers what computing it anew would, whatever has happened in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.model import fit_cache
from serried.model.capacity import Capacity, Ints, Vector, add, amounts, fits, fits_beside
from serried.model.fit_cache import FitCache

RESOURCES = ("cpu", "memory", "gpu")
requests = st.dictionaries(st.sampled_from([*RESOURCES, "nobody has it"]), st.integers(0, 5), max_size=3)
change = st.tuples(st.integers(0, 70), st.sampled_from(RESOURCES), st.integers(-3, 40))
step = st.one_of(
    st.tuples(st.just("allocatable"), change),
    st.tuples(st.just("charge"), st.tuples(requests, st.sets(st.integers(0, 63), max_size=9), st.integers(0, 4))),
    st.tuples(st.just("look"), st.tuples(requests, st.none() | requests, st.booleans())),
)


def agrees(capacity: Capacity, rooms: FitCache, vector: Vector, other: Vector | None, *, empty: bool) -> None:
    array = capacity.unheld if empty else capacity.free

    def free(line: int) -> Ints:
        found: Ints = array[line].copy()
        return found

    if other is None:
        want = fits(free, vector, capacity.rows)
        assert rooms.of(vector, assume_empty=empty).tolist() == want.tolist()
        return
    pods, beside, welcome = fits_beside(free, vector, other, capacity.rows)
    got = rooms.beside(vector, other, assume_empty=empty)
    assert [x.tolist() for x in got] == [pods.tolist(), beside.tolist(), welcome.astype(int).tolist()]


@settings(max_examples=300)
@given(st.lists(step, max_size=40), st.sampled_from([1, 64, 16_384]))
def test_what_is_remembered_is_what_there_is(steps: list[tuple[str, tuple]], few: int) -> None:  # type: ignore[type-arg]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_cache, "_FEW", few)
        patch.setattr(fit_cache, "_KINDS", 3)
        capacity = Capacity()
        rooms = FitCache(capacity)
        seen: list[tuple[dict[str, int], dict[str, int] | None, bool]] = []
        for what, details in steps:
            if what == "allocatable":
                row, name, amount = details
                while capacity.rows <= row:
                    capacity.grow()
                capacity.set_allocatable(row, {name: amount, "pods": 9})
                rooms.touch(np.array([row]))
            elif what == "charge":
                asked, at, count = details
                vector, rows = capacity.vector(asked), np.array(sorted(at), dtype=np.int64)
                taken = amounts(vector, np.full(len(rows), count, dtype=np.int64))
                add(capacity.free, vector, rows, taken, -1)
                rooms.touch(rows)
            else:
                seen.append(details)
            for asked, beside, empty in seen[-4:]:
                other = None if beside is None else capacity.vector(beside)
                agrees(capacity, rooms, capacity.vector(asked), other, empty=empty)
