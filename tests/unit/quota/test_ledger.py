"""Usage is charged and refunded through the journal, and never promised twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serried.model.journal import Journal
from serried.quota.ledger import Ledger, Shortage
from serried.quota.quotas import FlavorResource, Group, Quotas

CPU, GPU = ("spot", "cpu"), ("spot", "gpu")


def ledger(cpu: int = 10, gpu: int = 8) -> tuple[Ledger, Journal]:
    journal = Journal()
    result = Ledger(journal)
    result.set_quotas("q", Quotas((Group(("cpu", "gpu"), ("spot",)),), {CPU: cpu, GPU: gpu}))
    return result, journal


def test_what_is_charged_is_not_available_until_it_is_refunded() -> None:
    book, _ = ledger()
    book.charge("q", {CPU: 7})
    assert book.available("q", CPU) == 3
    assert book.fits("q", {CPU: 3, GPU: 8})
    assert not book.fits("q", {CPU: 4, GPU: 8})
    book.refund("q", {CPU: 7})
    assert book.usage("q") == {}


def test_a_shortage_says_what_is_missing_and_whether_it_can_ever_fit() -> None:
    assert (Shortage(CPU, 5, 3, 5, 10).missing, Shortage(CPU, 5, 3, 5, 10).never) == (3, False)
    assert (Shortage(CPU, 8, 3, 5, 10).missing, Shortage(CPU, 8, 3, 5, 10).never) == (6, True)


def test_after_a_cut_usage_stays_and_nothing_more_fits() -> None:
    book, _ = ledger()
    book.charge("q", {CPU: 8})
    book.set_quotas("q", Quotas((Group(("cpu",), ("spot",)),), {CPU: 4}))
    assert book.available("q", CPU) == -4
    assert not book.fits("q", {CPU: 1})
    assert book.fits("q", {CPU: 0})


def test_usage_outlives_its_queue() -> None:
    book, _ = ledger()
    book.charge("q", {CPU: 8})
    book.remove_quotas("q")
    assert (book.maximum("q", CPU), book.available("q", CPU)) == (0, -8)
    book.set_quotas("q", Quotas((Group(("cpu",), ("spot",)),), {CPU: 10}))
    assert book.available("q", CPU) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["charge", "refund"]),
            st.sampled_from(["q", "r"]),
            st.dictionaries(st.sampled_from([CPU, GPU]), st.integers(0, 5)),
        )
    ),
    st.integers(0, 20),
)
def test_any_sequence_rolled_back_equals_the_start(
    steps: list[tuple[str, str, dict[FlavorResource, int]]], marked_after: int
) -> None:
    book, journal = ledger()
    mark, before = 0, {q: dict(book.usage(q)) for q in ("q", "r")}
    for i, (what, queue, amounts) in enumerate(steps):
        if i == marked_after:
            mark, before = journal.checkpoint(), {q: dict(book.usage(q)) for q in ("q", "r")}
        getattr(book, what)(queue, amounts)
    journal.rollback(mark)
    assert {q: dict(book.usage(q)) for q in ("q", "r")} == before
