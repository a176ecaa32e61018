from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.api import assignment
from serried.api.assignment import AssignmentError, Domain, decode, encode
from serried.api.kueue import TopologyAssignment

HOSTNAME = "kubernetes.io/hostname"


def on_wire(value: TopologyAssignment) -> dict[str, Any]:
    """What the API server is sent."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def from_wire(value: dict[str, Any]) -> TopologyAssignment:
    return msgspec.convert(value, TopologyAssignment)


def size(value: TopologyAssignment) -> int:
    return len(msgspec.json.encode(value))


def hosts(*names: str, count: int = 8) -> list[Domain]:
    return [((name,), count) for name in names]


def test_what_all_domains_share_is_written_once() -> None:
    """Two nodes of one rack: the rack is universal, the names are cut to what tells them apart."""
    domains = [(("block-1", "node-17.example"), 8), (("block-1", "node-18.example"), 8)]
    assert on_wire(encode(["block", "host"], domains)) == {
        "levels": ["block", "host"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [
                    {"universal": "block-1"},
                    {"individual": {"prefix": "node-1", "roots": ["7", "8"], "suffix": ".example"}},
                ],
                "podCounts": {"universal": 8},
            }
        ],
    }


def test_prefix_and_suffix_never_overlap() -> None:
    encoded = encode(["host"], hosts("aa", "aaa", "a"))
    assert on_wire(encoded)["slices"][0]["valuesPerLevel"] == [
        {"individual": {"prefix": "a", "roots": ["a", "aa", ""]}}
    ]
    assert decode(encoded) == hosts("aa", "aaa", "a")


def test_one_domain_is_all_universal() -> None:
    encoded = encode(["host"], hosts("n0", count=1))
    assert on_wire(encoded)["slices"] == [
        {"domainCount": 1, "valuesPerLevel": [{"universal": "n0"}], "podCounts": {"universal": 1}}
    ]


def test_no_domains_are_no_slices() -> None:
    assert on_wire(encode(["host"], [])) == {"levels": ["host"], "slices": []}
    assert decode(encode(["host"], [])) == []


def test_different_counts_are_written_one_by_one() -> None:
    domains = [(("n0",), 8), (("n1",), 3), (("n2",), 8), (("n3",), 1)]
    encoded = encode(["host"], domains)
    assert on_wire(encoded)["slices"][0]["podCounts"] == {"individual": [8, 3, 8, 1]}
    assert decode(encoded) == domains


def test_a_last_node_that_is_not_full_does_not_make_every_count_individual() -> None:
    domains = [*hosts(*(f"n{i}" for i in range(1000))), (("n1000",), 3)]
    encoded = encode(["host"], domains)
    assert [piece.pod_counts.universal for piece in encoded.slices] == [8, 3]
    assert decode(encoded) == domains


def test_slices_follow_blocks_where_that_saves_space() -> None:
    domains: list[Domain] = [
        ((f"block-{b}", f"a-node-of-block-{b}-in-place-{n}"), 8) for b in range(4) for n in range(100)
    ]
    encoded = encode(["block", "host"], domains)
    assert [piece.values_per_level[0].universal for piece in encoded.slices] == [f"block-{b}" for b in range(4)]
    assert decode(encoded) == domains


def test_few_domains_stay_in_one_slice() -> None:
    domains: list[Domain] = [((f"block-{b}", f"node-{b}-{n}"), 8) for b in range(2) for n in range(4)]
    assert len(encode(["block", "host"], domains).slices) == 1


def test_more_domains_than_a_slice_may_hold_are_split() -> None:
    domains = hosts(*(f"n{i:06}" for i in range(assignment.MAX_DOMAINS_PER_SLICE + 1)))
    encoded = encode(["host"], domains)
    assert [piece.domain_count for piece in encoded.slices] == [assignment.MAX_DOMAINS_PER_SLICE, 1]
    assert decode(encoded) == domains


def test_ten_thousand_nodes_take_less_than_a_tenth_of_a_megabyte() -> None:
    """An object in the API server's storage has at most 1.5 MiB, and is written again at each status change."""
    domains = hosts(*(f"ip-10-{i // 256}-{i % 256}.region-2.compute.internal" for i in range(10_000)))
    assert size(encode([HOSTNAME], domains)) < 100_000


@pytest.mark.parametrize(
    ("levels", "domains", "message"),
    [
        ([], [], "levels: 0 levels"),
        (["l"] * 17, [], "levels: 17 levels"),
        (["block", "host"], [(("n0",), 1)], r"domains\[0\]: 1 values for 2 levels"),
        (["host"], [(("n0",), 1), (("n1",), 0)], r"domains\[1\]: 0 pods"),
        (["host"], [(("n0",), 1), (("n0",), 2)], "domains: domain n0 appears more than once"),
        (["host"], [(("n" * 64,), 1)], "level host: 'nnn.* has more than 63 characters"),
    ],
)
def test_encode_refuses_what_the_form_cannot_say(levels: list[str], domains: list[Domain], message: str) -> None:
    with pytest.raises(AssignmentError, match=f"^{message}"):
        encode(levels, domains)


def slice_of(**changes: Any) -> dict[str, Any]:
    """A legal slice of two nodes of one block, with some fields changed."""
    legal = {
        "domainCount": 2,
        "valuesPerLevel": [{"universal": "b0"}, {"individual": {"prefix": "n", "roots": ["0", "1"]}}],
        "podCounts": {"individual": [8, 7]},
    }
    return legal | changes


def test_any_legal_form_is_read() -> None:
    """Forms that `encode` would not choose: individual where universal would do, no prefix, several slices."""
    wire = {
        "levels": ["block", "host"],
        "slices": [
            slice_of(),
            slice_of(
                valuesPerLevel=[{"individual": {"roots": ["b0", "b0"]}}, {"individual": {"roots": ["n2", "n3"]}}],
                podCounts={"universal": 1},
            ),
            slice_of(
                domainCount=1,
                valuesPerLevel=[{"universal": "b1"}, {"individual": {"prefix": "n", "roots": ["4"], "suffix": "x"}}],
                podCounts={"individual": [2]},
            ),
        ],
    }
    assert decode(from_wire(wire)) == [
        (("b0", "n0"), 8),
        (("b0", "n1"), 7),
        (("b0", "n2"), 1),
        (("b0", "n3"), 1),
        (("b1", "n4x"), 2),
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (slice_of(domainCount=0), "slices[0].domainCount: 0; it must be between 1 and 100000"),
        (slice_of(domainCount=100_001), "slices[0].domainCount: 100001"),
        (slice_of(domainCount=3), "slices[0].valuesPerLevel[1].individual.roots: 2 values for 3 domains"),
        (slice_of(valuesPerLevel=[{"universal": "b0"}]), "slices[0].valuesPerLevel: 1 entries for 2 levels"),
        (slice_of(valuesPerLevel=[{}, {"universal": "n"}]), "slices[0].valuesPerLevel[0]: exactly one of"),
        (
            slice_of(valuesPerLevel=[{"universal": "b"}, {"universal": "n", "individual": {"roots": ["0", "1"]}}]),
            "slices[0].valuesPerLevel[1]: exactly one of universal and individual",
        ),
        (slice_of(podCounts={}), "slices[0].podCounts: exactly one of universal and individual"),
        (slice_of(podCounts={"universal": 1, "individual": [1, 1]}), "slices[0].podCounts: exactly one of"),
        (slice_of(podCounts={"universal": 0}), "slices[0].podCounts.universal: 0 pods"),
        (slice_of(podCounts={"individual": [1]}), "slices[0].podCounts.individual: 1 counts for 2 domains"),
        (slice_of(podCounts={"individual": [1, -1]}), "slices[0].podCounts.individual[1]: -1 pods"),
        (
            slice_of(domainCount=50_000, valuesPerLevel=[{"universal": "b"}, {"universal": "n"}]),
            "slices[0]: one domain 50000 times",
        ),
        (
            slice_of(valuesPerLevel=[{"universal": "b"}, {"individual": {"roots": ["n", "n"]}}]),
            "slices: domain b/n appears more than once",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_an_illegal_form_is_refused_with_the_field_at_fault(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(AssignmentError) as caught:
        decode(from_wire({"levels": ["block", "host"], "slices": [bad]}))
    assert str(caught.value).startswith(message)
    assert str(caught.value).startswith(caught.value.field)


def test_a_domain_in_two_slices_is_refused() -> None:
    with pytest.raises(AssignmentError, match=r"^slices: domain b0/n0 appears more than once"):
        decode(from_wire({"levels": ["block", "host"], "slices": [slice_of(), slice_of()]}))


def test_too_many_slices_or_no_levels_are_refused() -> None:
    with pytest.raises(AssignmentError, match=r"^slices: 1001 slices; at most 1000"):
        decode(from_wire({"levels": ["block", "host"], "slices": [slice_of()] * 1001}))
    with pytest.raises(AssignmentError, match=r"^levels: 0 levels"):
        decode(from_wire({"levels": [], "slices": []}))


values = st.text("ab-1", max_size=8) | st.text(max_size=assignment.MAX_VALUE_LENGTH)


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[str], list[Domain]]:
    """Domains of one to three levels, often sorted, as they come, and often with many alike."""
    depth = draw(st.integers(1, 3))
    paths = draw(st.lists(st.tuples(*[values] * depth), unique=True, max_size=40))
    if draw(st.booleans()):
        paths.sort()
    counts = draw(st.lists(st.integers(1, 3), min_size=len(paths), max_size=len(paths)))
    return [f"level-{i}" for i in range(depth)], list(zip(paths, counts, strict=True))


@given(assignments())
def test_what_is_written_reads_back_the_same(case: tuple[list[str], list[Domain]]) -> None:
    levels, domains = case
    raw = msgspec.json.encode(encode(levels, domains))
    read = msgspec.json.decode(raw, type=TopologyAssignment)
    assert read.levels == levels
    assert decode(read) == domains


@given(assignments())
def test_what_is_written_keeps_the_limits_of_the_api(case: tuple[list[str], list[Domain]]) -> None:
    levels, domains = case
    encoded = encode(levels, domains)
    assert len(encoded.slices) <= assignment.MAX_SLICES
    for piece in encoded.slices:
        assert 1 <= piece.domain_count <= assignment.MAX_DOMAINS_PER_SLICE
        for level in piece.values_per_level:
            assert (level.universal is None) != (level.individual is None)
            if level.individual is not None:
                texts = [level.individual.prefix, level.individual.suffix, *level.individual.roots]
                assert max(map(len, texts)) <= assignment.MAX_VALUE_LENGTH
