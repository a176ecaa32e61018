"""`python -m tools.controlplane`: up, down and path, and where the programs come from."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.controlplane import binaries
from tools.controlplane.assets import PROGRAMS

ROOT = Path(__file__).parents[2]

#: Stands in for a compiler that takes nine minutes: notes what it is asked and writes a file where one is wanted.
#: It fails for the package that the file `broken` names.
GO = """#!/bin/sh
folder=${0%/*}
echo "$@" >> "$folder/calls"
case "$1" in
env) cat "$folder/version" ;;
build)
  while [ $# -gt 0 ]; do
    [ "$1" = -o ] && output=$2
    package=$1
    shift
  done
  if [ -e "$folder/broken" ] && [ "$package" = "$(cat "$folder/broken")" ]; then echo "undefined: x"; exit 1; fi
  sleep 0.1
  echo "#!/bin/sh" > "$output"
  chmod +x "$output" ;;
esac
"""


def command(*arguments: str, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tools.controlplane", *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=600)
    return process.returncode, stdout, stderr


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder to put on PATH, with our stand-in for Go."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / "go", GO)
    (folder / "version").write_text("go1.26.8\n")
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def env(tmp_path: Path, tools: Path) -> dict[str, str]:
    """An environment with a cache of its own and little on PATH."""
    return {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def builds(tools: Path) -> list[str]:
    return [call for call in (tools / "calls").read_text().splitlines() if call.startswith("build ")]


def test_up_leaves_a_control_plane_running_until_down(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "KUBEBUILDER_ASSETS": str(binaries())}
    try:
        code, said, errors = outcome(command("up", "--no-scheduler", env=env))
        assert code == 0, errors
        kubeconfig = Path(said.splitlines()[1].strip())
        kubectl = [str(binaries() / "kubectl"), "--kubeconfig", str(kubeconfig)]
        answer = subprocess.run([*kubectl, "auth", "can-i", "*", "*"], capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == "yes"

        code, again, errors = outcome(command("up", env=env))
        assert (code, again) == (0, said)
        assert "already" in errors
    finally:
        code, said, errors = outcome(command("down", env=env))
    assert (code, said, errors) == (0, "Stopped; its data is gone.\n", "")
    assert not kubeconfig.parent.exists()
    assert outcome(command("down", env=env)) == (0, "No control plane is up.\n", "")


def test_programs_are_built_once_even_when_two_ask_at_the_same_time(env: dict[str, str], tools: Path) -> None:
    both = [outcome(process) for process in (command("path", env=env), command("path", env=env))]
    assert [code for code, _, _ in both] == [0, 0], both
    folder = {said for _, said, _ in both}
    assert len(folder) == 1
    assert sorted(path.name for path in Path(folder.pop().strip()).iterdir()) == sorted(PROGRAMS)
    assert len(builds(tools)) == len(PROGRAMS)
    assert any("building kube-apiserver (2 of 5)" in errors for _, _, errors in both)

    code, _, errors = outcome(command("path", env=env))
    assert (code, errors) == (0, "")
    assert len(builds(tools)) == len(PROGRAMS)


def test_a_build_that_failed_is_told_and_done_again(env: dict[str, str], tools: Path) -> None:
    (tools / "broken").write_text("k8s.io/kubernetes/cmd/kube-scheduler")
    code, said, errors = outcome(command("path", env=env))
    assert (code, said) == (1, "")
    assert "building kube-scheduler (4 of 5) failed" in errors
    assert "undefined: x" in errors

    (tools / "broken").unlink()
    code, said, errors = outcome(command("path", env=env))
    assert code == 0, errors
    assert sorted(path.name for path in Path(said.strip()).iterdir()) == sorted(PROGRAMS)


@pytest.mark.parametrize(("kubernetes", "taken"), [("v1.37.9", True), ("v1.36.2", False)])
def test_programs_on_path_are_taken_if_their_versions_are_right(
    env: dict[str, str], tools: Path, kubernetes: str, taken: bool
) -> None:
    for name in PROGRAMS:
        script(tools / name, f"#!/bin/sh\necho {'etcd Version: 3.7.0' if name == 'etcd' else kubernetes}\n")
    code, said, errors = outcome(command("path", env=env))
    assert code == 0, errors
    assert (Path(said.strip()) == tools) is taken
    assert (kubernetes in errors) is not taken


def test_assets_that_lack_a_program_are_refused_by_its_name(env: dict[str, str], tmp_path: Path) -> None:
    for name in PROGRAMS:
        if name != "kube-controller-manager":
            script(tmp_path / name, "")
    code, said, errors = outcome(command("path", env={**env, "KUBEBUILDER_ASSETS": str(tmp_path)}))
    assert (code, said) == (1, "")
    assert errors.startswith(f"error: KUBEBUILDER_ASSETS is {tmp_path}, which lacks kube-controller-manager.")
