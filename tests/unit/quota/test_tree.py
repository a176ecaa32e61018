"""The tree of cohorts: what a node lends, passes on and may still use."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from serried.api.quantity import LIMIT
from serried.model.journal import Journal
from serried.quota.ledger import Ledger
from serried.quota.quotas import Quotas
from serried.quota.tree import QuotaNode

CPU = ("f", "cpu")
QUEUES, COHORTS = ("a", "b", "c"), ("x", "y", "z")
AMOUNT = st.integers(0, 9)
LIMITS = st.tuples(AMOUNT, st.one_of(st.none(), AMOUNT), st.one_of(st.none(), AMOUNT))


def limits(nominal: int, borrowing: int | None = None, lending: int | None = None) -> Quotas:
    return Quotas(
        nominal={CPU: nominal},
        borrowing={} if borrowing is None else {CPU: borrowing},
        lending={} if lending is None else {CPU: lending},
    )


def ledger(**queues: tuple[str, Quotas]) -> Ledger:
    book = Ledger(Journal())
    for name, (cohort, found) in queues.items():
        book.set_quotas(name, found, cohort)
    return book


def test_what_is_not_lent_stays_with_its_owner() -> None:
    book = ledger(a=("x", limits(10, lending=4)), b=("x", limits(5)))
    assert (book.available("b", CPU), book.available("a", CPU)) == (9, 15)
    book.charge("b", {CPU: 9})
    assert (book.available("b", CPU), book.available("a", CPU)) == (0, 6)
    cohort = book.cohort("x")
    assert cohort is not None
    assert (cohort.subtree, cohort.usage) == ({CPU: 9}, {CPU: 9})


def test_borrowing_ends_at_its_limit_on_every_level() -> None:
    book = ledger(a=("x", limits(2)), b=("y", limits(20)))
    book.set_cohort("x", limits(3, borrowing=4), "top")
    book.set_cohort("y", limits(0), "top")
    assert (book.available("a", CPU), book.maximum("a", CPU)) == (9, 9)


def test_a_subtree_that_holds_the_need_is_found_from_below() -> None:
    book = ledger(a=("x", limits(2)), b=("x", limits(3)), c=("top", limits(20)))
    book.set_cohort("x", limits(0), "top")
    node = book.queue("a")
    assert [node.lowest_fit(CPU, n) for n in (2, 4, 9, 99)] == [(0, True), (1, True), (2, False), (2, False)]


def test_unlimited_stays_unlimited() -> None:
    book = ledger(a=("x", limits(LIMIT)), b=("x", limits(5)))
    book.charge("a", {CPU: 10**6})
    assert book.available("b", CPU) == LIMIT


def test_a_share_is_the_largest_part_borrowed_divided_by_the_weight() -> None:
    book = Ledger(Journal())
    book.set_quotas("a", limits(2), "x", Fraction(2))
    book.set_quotas("b", limits(8), "x")
    book.charge("a", {CPU: 5})
    share = book.queue("a").share()
    assert (share.key, share.rounded, share.resource, share.borrowing) == ((0, Fraction(150)), 150, "cpu", True)
    assert book.queue("a").share({CPU: 2}).rounded == 250
    book.set_quotas("a", limits(2), "x", Fraction(0))
    assert book.queue("a").share() > share
    assert book.queue("b").share().rounded == 0


def test_a_deep_tree_is_no_trouble() -> None:
    book = ledger(a=("c0", limits(1)))
    for i in range(3000):
        book.set_cohort(f"c{i}", limits(1), f"c{i + 1}")
    assert book.available("a", CPU) == 3001
    book.set_cohort("c3000", limits(1), "c0")
    assert len(book.cycle_above("c0")) == 3001


@given(
    trees=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    quotas=st.lists(LIMITS, min_size=6, max_size=6),
    charges=st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, 5)), max_size=12),
)
def test_charging_step_by_step_is_the_same_as_counting_from_the_queues(
    trees: list[int], quotas: list[tuple[int, int | None, int | None]], charges: list[tuple[str, int]]
) -> None:
    journal = Journal()
    book = Ledger(journal)
    above = ["" if i == 3 else COHORTS[i] for i in trees]
    for name, parent, quota in zip(COHORTS, above, quotas, strict=False):
        book.set_cohort(name, limits(*quota), parent)
    for name, parent, quota in zip(QUEUES, above[3:], quotas[3:], strict=True):
        book.set_quotas(name, limits(*quota), parent)
    start = usage(book)
    for name, amount in charges:
        book.charge(name, {CPU: amount})
    for node in book.cohorts():
        assert node.usage.get(CPU, 0) == sum(passed(child) for child in node.children)
        assert node.available(CPU) <= node.potential(CPU)
    for name in QUEUES:
        assert book.available(name, CPU) <= book.maximum(name, CPU)
    journal.rollback(0)
    assert usage(book) == start


def passed(child: QuotaNode) -> int:
    return max(0, child.usage.get(CPU, 0) - child.guaranteed.get(CPU, 0))


def usage(book: Ledger) -> list[dict[tuple[str, str], int]]:
    return [dict(node.usage) for node in (*map(book.queue, QUEUES), *book.cohorts())]


def test_of_unlimited_quota_only_the_lending_limit_is_lent() -> None:
    book = ledger(a=("x", limits(LIMIT, lending=3)), b=("x", limits(1)))
    assert (book.available("b", CPU), book.maximum("b", CPU), book.available("a", CPU)) == (4, 4, LIMIT)
    book.charge("a", {CPU: 1000})
    book.charge("b", {CPU: 4})
    assert (book.available("b", CPU), book.available("a", CPU)) == (0, LIMIT)
