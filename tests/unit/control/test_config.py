"""The configuration file: what it may say, and how it says no."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from serried.api.duration import Duration
from serried.control.config import Configuration, ConfigurationError, load
from serried.place.options import PlaceOptions
from serried.schedule.types.options import AdmissionFairSharing


def write(folder: Path, text: str) -> Path:
    path = folder / "serried.yaml"
    path.write_text(text)
    return path


def test_everything_has_a_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == Configuration()


def test_sections_are_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, "binding: kube-scheduler\nleaderElection: {enabled: true, leaseDuration: 20}\n"))
    assert config.binding == "kube-scheduler"
    assert (config.leader_election.enabled, config.leader_election.lease_duration) == (True, 20)
    assert not config.webhook.enabled


def test_placement_is_chosen(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")).place_options() == PlaceOptions()
    text = "placement: optimal\nplacementLimit: 5\nfeatureGates: {TASBalancedPlacement: true, TASProfileMixed: false}\n"
    options = load(write(tmp_path, text)).place_options()
    assert options == PlaceOptions(balanced=True, least_free_when_unconstrained=False, optimal=True, optimal_limit=5)


def test_fair_sharing_is_on_where_it_is_named(tmp_path: Path) -> None:
    assert Configuration().options().fair_sharing is None
    shared = load(write(tmp_path, "fairSharing: {}")).options().fair_sharing
    assert shared is not None
    assert shared.preemption_strategies == ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


def test_admission_fair_sharing_is_written_as_in_kueue(tmp_path: Path) -> None:
    assert Configuration().options().admission_fair_sharing is None
    text = "admissionFairSharing: {usageHalfLifeTime: 168h, resourceWeights: {cpu: 0, example.com/gpu: 1.5}}"
    usage = load(write(tmp_path, text)).options().admission_fair_sharing
    assert usage == AdmissionFairSharing(
        usage_half_life_time=Duration(168 * 3600), resource_weights={"cpu": 0.0, "example.com/gpu": 1.5}
    )
    text = "admissionFairSharing: {usageHalfLifeTime: 0, usageSamplingInterval: 1h2m3.5s}"
    usage = load(write(tmp_path, text)).options().admission_fair_sharing
    assert usage == AdmissionFairSharing(usage_half_life_time=Duration(0), usage_sampling_interval=Duration(3723.5))


def test_what_counts_for_quota_is_written_as_in_kueue(tmp_path: Path) -> None:
    text = """
resources:
  excludeResourcePrefixes: [example.com/]
  transformations:
  - input: nvidia.com/mig-1g.5gb
    strategy: Replace
    outputs: {example.com/memory: 5Gi, credits: 500m, cpu: 2}
  - input: memory
    outputs: {weight: 1.5}
"""
    resources = load(write(tmp_path, text)).options().resources
    assert resources.exclude_resource_prefixes == ("example.com/",)
    assert [(t.input, t.strategy, t.factors) for t in resources.transformations] == [
        (
            "nvidia.com/mig-1g.5gb",
            "Replace",
            {"example.com/memory": 5 * 2**30, "credits": Fraction(1, 2), "cpu": 2000},
        ),
        ("memory", "Retain", {"weight": Fraction(3, 2)}),
    ]


def test_priority_boost_is_a_feature_gate(tmp_path: Path) -> None:
    assert not Configuration().options().priority_boost
    assert load(write(tmp_path, "featureGates: {PriorityBoost: true}")).options().priority_boost


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bindings: serried", "bindings"),
        ("binding: kubelet", "binding"),
        ("webhook: {port: 70000}", "webhook.port"),
        ("client: {concurrency: 0}", "client.concurrency"),
        ("statusInterval: 0", "statusInterval"),
        ("placement: best", "placement"),
        ("placementLimit: 0", "placementLimit"),
        ("placementLimit: 100000001", "placementLimit"),
        ("featureGates: {TASBalanced: true}", "TASBalanced; allowed are TASBalancedPlacement"),
        ("apiVersion: config.kueue.x-k8s.io/v1beta1", "config.serried.io/v1alpha1"),
        ("fairSharing: {preemptionStrategies: [Random]}", "preemptionStrategies"),
        ("fairSharing: {preemptionStrategies: [Random]}", "allowed are LessThanInitialShare, LessThanOrEqualTo"),
        ("binding: kubelet", "allowed are kube-scheduler, serried"),
        ("admissionFairSharing: {}", "admissionFairSharing"),
        ("admissionFairSharing: {usageHalfLifeTime: 5 min}", "168h or 1h30m.*usageHalfLifeTime"),
        ("admissionFairSharing: {usageHalfLifeTime: 5m, usageSamplingInterval: 0s}", "usageSamplingInterval is 0"),
        ("admissionFairSharing: {usageHalfLifeTime: 5m, resourceWeights: {cpu: -1}}", "resourceWeights"),
        ("resources: {excludeResourcePrefixes: ['']}", "excludeResourcePrefixes"),
        ("resources: {transformations: [{input: a, strategy: Drop}]}", "strategy.*allowed are Replace, Retain"),
        ("resources: {transformations: [{input: a}, {input: a}]}", "transformations has a more than once"),
        ("resources: {transformations: [{input: a, outputs: {b: 1x}}]}", "outputs.b.: '1x' is not a quantity"),
        ("resources: {transformations: [{input: a, outputs: {b: -1}}]}", "outputs.b. is -1; allowed is"),
        ("resources: {transformations: [{outputs: {b: 1}}]}", "input"),
        ("bindings: serried", "allowed are apiVersion, kind, binding"),
        ("webhook: {prot: 1}", "webhook`; allowed are enabled, host, port"),
        ("fairSharing: {enable: true}", "allowed are preemptionStrategies"),
        ("resources: {transformations: [{input: a, output: {}}]}", "allowed are input, strategy, outputs"),
        ("resources: {transformations: [{input: a, outputs: {'': 1}}]}", "outputs"),
        ("statusInterval: .inf", "<= 86400.*statusInterval"),
        ("leaderElection: {leaseDuration: 5}", "allowed is leaseDuration > renewDeadline > 1.2 × retryPeriod"),
        ("admissionFairSharing: {usageHalfLifeTime: 99999999h}", "allowed are durations up to 2562047h.*HalfLife"),
        ("admissionFairSharing: {usageHalfLifeTime: 5m, usageSamplingInterval: 1ns}", "is 1e-09s; allowed is .* 1ms"),
        ("admissionFairSharing: {usageHalfLifeTime: 5m, resourceWeights: {cpu: .inf}}", "<= 1e.18.*resourceWeights"),
        ("a: [", "line"),
        ("- 1", "object"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as error:
        load(write(tmp_path, text))
    assert "serried.yaml" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        load(tmp_path / "nowhere.yaml")
