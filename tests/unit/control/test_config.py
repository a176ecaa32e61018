"""The configuration file: what it may say, and how it says no."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried.control.config import Configuration, ConfigurationError, load
from serried.place.options import PlaceOptions


def write(folder: Path, text: str) -> Path:
    path = folder / "serried.yaml"
    path.write_text(text)
    return path


def test_everything_has_a_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == Configuration()


def test_sections_are_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, "binding: kube-scheduler\nleaderElection: {enabled: true, leaseDuration: 5}\n"))
    assert config.binding == "kube-scheduler"
    assert (config.leader_election.enabled, config.leader_election.lease_duration) == (True, 5)
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
