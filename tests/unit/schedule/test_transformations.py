"""What quota counts for what pods request, by the administrator's configuration."""

from __future__ import annotations

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from serried.schedule.flavors.assigner import counted
from serried.schedule.types.options import Options, Resources, Transformation


def rule(resource: str, keep: bool = False, **outputs: int) -> Transformation:
    return Transformation(input=resource, outputs=dict(outputs), strategy="Retain" if keep else "Replace")


@pytest.mark.parametrize(
    ("rules", "requests", "counts"),
    [
        # What comes of one rule is not an input of the next: it is not requested.
        ((rule("a", b=2), rule("b", c=3)), {"a": 5}, {"b": 10}),
        ((rule("b", c=3), rule("a", b=2)), {"a": 5}, {"b": 10}),
        # … and does not go with what is.
        ((rule("a", b=2), rule("b", c=3)), {"a": 5, "b": 1}, {"b": 10, "c": 3}),
        ((rule("b", c=3), rule("a", b=2)), {"a": 5, "b": 1}, {"b": 10, "c": 3}),
        ((rule("a", b=1), rule("b", a=1)), {"a": 5, "b": 3}, {"b": 5, "a": 3}),
        ((rule("a", keep=True, a=1),), {"a": 5}, {"a": 10}),
        ((rule("cpu", b=2),), {"cpu": 1500}, {"b": 3}),
        ((rule("a"),), {"a": 5, "b": 1}, {"b": 1}),
    ],
)
def test_rules_are_for_what_pods_request(
    rules: tuple[Transformation, ...], requests: dict[str, int], counts: dict[str, int]
) -> None:
    assert counted(Options(resources=Resources(transformations=rules)), requests) == counts


names = st.sampled_from("abcd")
rules = st.builds(
    Transformation,
    input=names,
    outputs=st.dictionaries(names, st.integers(0, 2**70), max_size=3),
    strategy=st.sampled_from(["Retain", "Replace"]),
)


@each(st.lists(rules, unique_by=lambda r: r.input), st.dictionaries(names, st.integers(0, 2**63 - 1)), st.data())
def test_the_order_of_rules_and_requests_does_not_matter(
    given: list[Transformation], requests: dict[str, int], data: st.DataObject
) -> None:
    resources = Resources(transformations=tuple(given), exclude_resource_prefixes=("d",))
    want = counted(Options(resources=resources), requests)
    assert "d" not in want or any("d" in r.outputs for r in given)
    shuffled = tuple(data.draw(st.permutations(given)))
    order = dict(data.draw(st.permutations(list(requests.items()))))
    resources = Resources(transformations=shuffled, exclude_resource_prefixes=("d",))
    assert counted(Options(resources=resources), order) == want
