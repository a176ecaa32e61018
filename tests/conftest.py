"""Fixtures that all tests share."""

from collections.abc import Iterator

import pytest

from tools.controlplane import ControlPlane

_VERSION = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A real control plane for all tests of the run; each scenario works in namespaces of its own."""
    with ControlPlane() as plane:
        request.config.stash[_VERSION] = plane.version()
        yield plane


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which Kubernetes the tests ran against, if they did."""
    version = config.stash.get(_VERSION, None)
    if version is not None:
        terminalreporter.write_line(f"Kubernetes {version} (real control plane)")
