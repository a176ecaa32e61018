"""Which pods are where, found by labels, anti-affinity and ports, whatever came and went before."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from serried.model.pod_constraints import Constraints, HostPort, PodTerm, Requirement, Selector
from serried.model.pod_index import PodIndex, PodKind

ROWS = 5
ONE = np.ones(1, dtype=np.int64)
SELECTORS = (
    Selector(),
    Selector((Requirement("app", "In", ("a", "b")),)),
    Selector((Requirement("app", "NotIn", ("a",)),)),
    Selector((Requirement("app", "Exists"), Requirement("tier", "DoesNotExist"))),
    Selector((Requirement("nobody", "NotIn", ("x",)),)),
    Selector((Requirement("nobody", "Exists"),)),
    Selector((Requirement("app", "Gt", ("1",)),)),
)


def term(selector: Selector | None, *namespaces: str, everywhere: bool = False, key: str = "zone") -> PodTerm:
    return PodTerm(key, selector, frozenset(namespaces), Selector() if everywhere else None)


def at(*rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(rows, dtype=np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_a_list_of_pods(seed: int) -> None:
    random = Random(seed)
    index = PodIndex()
    there: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], PodKind, dict[int, int]]] = []
    for _ in range(150):
        if there and random.random() < 0.4:
            index.remove(there.pop(random.randrange(len(there)))[0])
        labels = {k: random.choice("abc") for k in ("app", "tier") if random.random() < 0.7}
        labels |= {"unique": str(random.random())} if random.random() < 0.2 else {}
        constraints = Constraints(
            anti_affinity=tuple(
                term(random.choice(SELECTORS), random.choice("xy"), key=random.choice(["zone", "host"]))
                for _ in range(random.choice([0, 0, 1, 2]))
            ),
            ports=tuple(HostPort("0.0.0.0", "TCP", random.randint(80, 82)) for _ in range(random.choice([0, 1]))),
        )
        kind = PodKind(random.choice("xy"), labels, constraints)
        pods = {row: random.randint(1, 3) for row in random.sample(range(ROWS), random.randint(1, ROWS))}
        entries = index.add(kind, at(*pods), at(*pods.values()))
        there.append((entries, kind, pods))

        selector, namespaces = random.choice(SELECTORS), random.choice([("x",), ("x", "y"), None])
        expected = [0] * ROWS
        for _, other, pods in there:
            if selector.selects(other.labels) and (namespaces is None or other.namespace in namespaces):
                for row, count in pods.items():
                    expected[row] += count
        assert index.by_row(index.selected(selector, namespaces), ROWS).tolist() == expected

        repelled = {key: set(rows.tolist()) for key, rows in index.repelled(kind, {})}
        by: dict[str, set[int]] = {}
        for _, other, pods in there:
            for t in other.constraints.anti_affinity:
                if t.selects(kind.namespace, {}, kind.labels):
                    by.setdefault(t.key, set()).update(pods)
        assert repelled == by

        used = {
            row for _, other, pods in there for row in pods if HostPort("0.0.0.0", "TCP", 80) in other.constraints.ports
        }
        assert set(index.in_use([HostPort("192.0.2.1", "TCP", 80)]).tolist()) == used


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    index = PodIndex()
    kind = PodKind(
        "team",
        {"app": "a"},
        Constraints(anti_affinity=(term(SELECTORS[1], "team"),), ports=(HostPort("0.0.0.0", "TCP", 80),)),
    )
    empty = {name: len(value) for name, value in vars(index).items() if isinstance(value, dict)}
    for _ in range(3):
        entries = index.add(kind, at(0, 1), at(1, 1))
        assert index.selected(SELECTORS[1], None).sum() == 2
        index.remove(entries)
    assert {name: len(value) for name, value in vars(index).items() if isinstance(value, dict)} == empty
    assert index.size == 2


def test_a_label_that_no_pod_has_is_not_encoded() -> None:
    index = PodIndex()
    index.add(PodKind("team", {"app": "web"}), at(0), ONE)
    for i in range(1000):
        assert not index.selected(Selector((Requirement(f"key-{i}", "Exists"),)), None).any()
    assert not index._columns


def test_an_entry_without_pods_repels_nobody() -> None:
    index = PodIndex()
    kind = PodKind("team", {"app": "a"}, Constraints(anti_affinity=(term(SELECTORS[1], "team"),)))
    entries = index.add(kind, at(2), ONE)
    index.counts[entries] = 0
    assert [rows.tolist() for _, rows in index.repelled(kind, {})] == [[]]
