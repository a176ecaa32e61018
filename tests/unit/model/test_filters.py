"""Which nodes a pod may go to."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from serried.api.core import NodeAffinity, Taint, Toleration
from serried.api.names import HOSTNAME
from serried.model.filters import Mask, mask, selected, tolerated, tolerates
from serried.model.nodes import Nodes
from serried.model.topology import build
from tests.unit.model.clusters import node

GPU_TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


def cluster() -> Nodes:
    nodes = Nodes(16)
    for name, labels, taints in (
        ("a", {"zone": "east", "cores": "8"}, []),
        ("b", {"zone": "west", "cores": "64"}, [GPU_TAINT]),
        ("c", {"cores": "many"}, [Taint(key="soft", effect="PreferNoSchedule")]),
        ("d", {"zone": "east", "cores": "-3"}, [Taint(key="down", effect="NoExecute"), GPU_TAINT]),
    ):
        nodes.put(nodes.claim(name), node(name, labels=labels, taints=taints))
    return nodes


def masked(affinity: object = None, *tolerations: Toleration, selector: dict[str, str] | None = None) -> Mask:
    nodes = cluster()
    tree = build(nodes, (HOSTNAME,), {})
    wanted = None if affinity is None else msgspec.convert(affinity, NodeAffinity)
    return mask(nodes, tree, tolerations, selector or {}, wanted)


def allowed(found: Mask) -> str:
    return "".join(name for name, yes in zip("abcd", found.allowed, strict=True) if yes)


ALL = Toleration(operator="Exists")


def test_taints_that_are_not_tolerated_exclude_and_the_first_is_named() -> None:
    found = masked()
    assert allowed(found) == "ac"
    assert [found.names[i] for i in found.excluded_by] == [
        "",
        'taint "gpu=yes:NoSchedule"',
        "",
        'taint "down:NoExecute"',
    ]
    assert allowed(masked(None, Toleration(key="gpu", value="yes"))) == "abc"
    assert allowed(masked(None, ALL)) == "abcd"


@pytest.mark.parametrize(
    ("toleration", "answer"),
    [
        (Toleration(key="gpu", operator="Equal", value="yes", effect="NoSchedule"), True),
        (Toleration(key="gpu", value="no"), False),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="cpu", operator="Exists"), False),
        (Toleration(operator="Exists", effect="NoSchedule"), True),
        (Toleration(operator="Equal", value="yes"), False),
        (Toleration(key="gpu", operator="Sometimes", value="yes"), False),
    ],
)
def test_tolerations(toleration: Toleration, answer: bool) -> None:
    assert tolerates(toleration, GPU_TAINT) is answer


def test_taints_come_before_the_selector_and_that_before_affinity() -> None:
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "cores", "operator": "In", "values": ["0"]}]}]
        }
    }
    found = masked(affinity, selector={"zone": "east"})
    assert [found.names[i] for i in found.excluded_by] == [
        "affinity",
        'taint "gpu=yes:NoSchedule"',
        "nodeSelector",
        'taint "down:NoExecute"',
    ]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ({"key": "zone", "operator": "In", "values": ["east", "north"]}, "ad"),
        ({"key": "zone", "operator": "NotIn", "values": ["east"]}, "bc"),
        ({"key": "zone", "operator": "Exists"}, "abd"),
        ({"key": "zone", "operator": "DoesNotExist"}, "c"),
        ({"key": "cores", "operator": "Gt", "values": ["8"]}, "b"),
        ({"key": "cores", "operator": "Lt", "values": ["8"]}, "d"),
        ({"key": "cores", "operator": "Gt", "values": ["eight"]}, ""),
        ({"key": "cores", "operator": "Gt", "values": []}, ""),
        ({"key": "cores", "operator": "Lt", "values": ["9223372036854775807"]}, "abd"),
        ({"key": "cores", "operator": "Lt", "values": ["9223372036854775808"]}, ""),
        ({"key": "cores", "operator": "Gt", "values": ["0000000000000000000000008"]}, "b"),
        ({"key": "zone", "operator": "Near", "values": ["east"]}, ""),
        ({"key": "zone", "operator": "NotIn", "values": []}, ""),
        ({"key": "zone", "operator": "Exists", "values": ["east"]}, ""),
        ({"key": "zone", "operator": "DoesNotExist", "values": ["east"]}, ""),
    ],
)
def test_operators(expression: object, names: str) -> None:
    term = {"matchExpressions": [expression]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert allowed(masked(required, ALL)) == names


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ({"key": "metadata.name", "operator": "NotIn", "values": ["c"]}, "abd"),
        ({"key": "metadata.name", "operator": "Exists"}, ""),
        ({"key": "metadata.name", "operator": "In", "values": ["a", "b"]}, ""),
        ({"key": "metadata.uid", "operator": "NotIn", "values": ["c"]}, ""),
    ],
)
def test_fields(field: object, names: str) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    assert allowed(masked(required, ALL)) == names


def test_terms_are_alternatives_and_requirements_of_a_term_are_not() -> None:
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]},
        {
            "matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["east"]},
                {"key": "cores", "operator": "Gt", "values": ["0"]},
            ]
        },
        {},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert allowed(masked(required, ALL)) == "ac"


def test_preferred_terms_add_their_weights() -> None:
    def term(weight: int, key: str, value: str) -> object:
        expression = {"key": key, "operator": "In", "values": [value]}
        return {"weight": weight, "preference": {"matchExpressions": [expression]}}

    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [term(10, "zone", "east"), term(3, "cores", "8")]}
    assert masked(preferred).score.tolist() == [13, 0, 0, 0]
    assert masked(preferred, ALL).score.tolist() == [13, 0, 0, 10]


def test_no_new_pod_goes_where_it_could_only_stay_for_a_while() -> None:
    a_while = Toleration(key="down", operator="Exists", effect="NoExecute", toleration_seconds=300)
    gpu = Toleration(key="gpu", operator="Exists")
    assert allowed(masked(None, gpu, a_while)) == "abc"
    assert allowed(masked(None, gpu, a_while, Toleration(key="down", operator="Exists"))) == "abcd"
    # kube-scheduler, whose comparisons between domains are followed, finds the taint tolerated.
    nodes = cluster()
    assert tolerated(nodes, (gpu, a_while))[[nodes.row_of[name] for name in "abcd"]].all()


def test_labels_that_no_node_has_are_not_remembered() -> None:
    nodes = cluster()
    columns = len(nodes._columns)
    for i in range(1000):
        assert not selected(nodes, {f"key-{i}": "x"}).any()
    assert len(nodes._columns) == columns
    row = nodes.row_of["a"]
    nodes.put(row, node("a", labels={"key-7": "x"}))
    assert np.flatnonzero(selected(nodes, {"key-7": "x"})).tolist() == [row]
    nodes.put(row, node("a"))
    assert not selected(nodes, {"key-7": "x"}).any()
    assert len(nodes._columns) == columns
