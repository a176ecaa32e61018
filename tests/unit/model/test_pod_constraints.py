"""What is read from a pod or its template."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serried.api.core import PodSpec
from serried.model.pod_constraints import (
    NO_CONSTRAINTS,
    HostPort,
    PodTerm,
    Requirement,
    Selector,
    SpreadTerm,
    read_constraints,
)


def spec(**fields: Any) -> PodSpec:
    return msgspec.convert({"containers": [{"name": "main"}], **fields}, PodSpec)


def apart(**term: Any) -> PodSpec:
    terms = [{"topologyKey": "zone", **term}]
    return spec(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def port(number: int, address: str = "0.0.0.0", protocol: str = "TCP") -> HostPort:
    return HostPort(address, protocol, number)


def test_a_plain_pod_has_none() -> None:
    token = {"name": "token", "projected": {"sources": []}}
    assert read_constraints(spec(volumes=[token], affinity={}), "team", {}) is NO_CONSTRAINTS


def test_label_keys_are_added_to_the_selectors_of_templates_only() -> None:
    term = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["version", "absent"],
        "mismatchLabelKeys": ["tenant"],
    }
    labels = {"version": "2", "tenant": "red"}
    app = Requirement("app", "In", ("web",))
    added = Requirement("version", "In", ("2",)), Requirement("tenant", "NotIn", ("red",))
    of_template = read_constraints(apart(**term), "team", labels).anti_affinity
    of_pod = read_constraints(apart(**term), "team", labels, pod="pod-0").anti_affinity
    assert of_template == (PodTerm("zone", Selector((app, *added)), frozenset(["team"]), None),)
    assert of_pod == (PodTerm("zone", Selector((app,)), frozenset(["team"]), None),)


@pytest.mark.parametrize(
    ("term", "namespaces", "selector"),
    [
        ({}, {"team"}, None),
        ({"namespaces": ["other"]}, {"other"}, None),
        ({"namespaceSelector": {}}, set(), Selector()),
        (
            {"namespaceSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["other"]},
            {"other"},
            Selector((Requirement("a", "In", ("b",)),)),
        ),
    ],
)
def test_a_term_is_about_its_own_namespace_unless_it_names_others(
    term: dict[str, Any], namespaces: set[str], selector: Selector | None
) -> None:
    (found,) = read_constraints(apart(labelSelector={}, **term), "team", {}).anti_affinity
    assert found == PodTerm("zone", Selector(), frozenset(namespaces), selector)


def test_without_a_selector_a_term_selects_nobody() -> None:
    (found,) = read_constraints(apart(), "team", {}).anti_affinity
    assert found.selector is None
    assert not found.selects("team", {}, {"app": "web"})


def test_spread_constraints_have_the_defaults_of_kubernetes() -> None:
    constraints = [
        {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"},
        {
            "topologyKey": "rack",
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "nodeAffinityPolicy": "Ignore",
            "nodeTaintsPolicy": "Honor",
            "minDomains": 3,
        },
    ]
    found = read_constraints(spec(topologySpreadConstraints=constraints), "team", {})
    assert found.spread == (SpreadTerm("zone", None, 2, 1, True, False),)
    assert found.preferred_spread == (SpreadTerm("rack", None, 1, 3, False, True),)


def test_host_ports_are_those_of_containers_and_sidecars() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]
    more = [{"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "192.0.2.1"}]
    once = [{"containerPort": 9, "hostPort": 9}]
    found = read_constraints(
        spec(
            containers=[{"name": "main", "ports": ports}],
            initContainers=[
                {"name": "sidecar", "restartPolicy": "Always", "ports": more},
                {"name": "init", "ports": once},
            ],
        ),
        "team",
        {},
    )
    assert found.ports == (port(53, "192.0.2.1", "UDP"), port(8080))


def test_the_ports_of_templates_on_the_hosts_network_are_host_ports() -> None:
    on_host = spec(hostNetwork=True, containers=[{"name": "main", "ports": [{"containerPort": 80}]}])
    assert read_constraints(on_host, "team", {}).ports == (port(80),)
    # The API server has given those of pods theirs.
    assert read_constraints(on_host, "team", {}, pod="pod-0").ports == ()


@pytest.mark.parametrize(
    ("a", "b", "conflict"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80), port(80, "192.0.2.1"), True),
        (port(80, "192.0.2.2"), port(80, "192.0.2.1"), False),
        (port(80, "::"), port(80, "192.0.2.1"), False),
    ],
)
def test_ports_conflict_at_the_same_or_at_any_address(a: HostPort, b: HostPort, conflict: bool) -> None:
    assert a.conflicts(b) is b.conflicts(a) is conflict


def test_claims_are_named_or_made_for_the_pod() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "dataset"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "dataset"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
    ]
    assert read_constraints(spec(volumes=volumes), "team", {}).claims == ("dataset",)
    assert read_constraints(spec(volumes=volumes), "team", {}, pod="pod-0").claims == ("dataset", "pod-0-scratch")
