"""Fixtures that all tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tools.controlplane import ControlPlane, User

# A busy machine is no fault of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_CRDS = Path(__file__).parents[1] / "deploy" / "crds"
_VERSION = pytest.StashKey[str]()

#: The account of `serried run`; scenarios give it the rights of deploy/rbac.yaml and no others.
SERRIED = User("system:serviceaccount:serried-system:serried", ("system:serviceaccounts",))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A real control plane, with our CRDs, for all tests of the run; each scenario works in a namespace of its own."""
    crds = [crd for file in sorted(_CRDS.glob("*.yaml")) for crd in yaml.safe_load_all(file.read_text()) if crd]
    with ControlPlane(crds=crds, users=[SERRIED], requests_inflight=2000) as plane:
        request.config.stash[_VERSION] = plane.version()
        yield plane


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests are spread over processes: tells the first one what this one ran against."""
    output: dict[str, str] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["kubernetes"] = session.config.stash.get(_VERSION, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if version := getattr(node, "workeroutput", {}).get("kubernetes"):
        node.config.stash[_VERSION] = version


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which Kubernetes the tests ran against, if they did."""
    version = config.stash.get(_VERSION, None)
    if version is not None:
        terminalreporter.write_line(f"Kubernetes {version} (real control plane)")
