"""A control plane by hand: `python -m tools.controlplane up | down | path`."""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.controlplane.assets import binaries, cache
from tools.controlplane.errors import ControlPlaneError

_ROOT = Path(__file__).parents[2]


def _state() -> Path:
    """Says how to reach the control plane, once it is ready."""
    return cache() / "up.json"


def _log() -> Path:
    return cache() / "up.log"


def _lock() -> Path:
    """Held by the process that runs the control plane, whose process id is in it."""
    return cache() / "up.lock"


@contextlib.contextmanager
def _sole() -> Iterator[bool]:
    """Take the lock for the time of the block; False if another process has it."""
    with _lock().open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_up() -> bool:
    with _sole() as free:
        return not free


def _serve(*, scheduler: bool, native_gangs: bool) -> None:
    """Run a control plane until SIGINT or SIGTERM, or until one of its programs ends."""
    from tools.controlplane.plane import ControlPlane

    def leave(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    with _sole() as free:
        if not free:
            raise ControlPlaneError("a control plane is up already: `python -m tools.controlplane down` stops it")
        _lock().write_text(str(os.getpid()))
        try:
            with ControlPlane(scheduler=scheduler, native_gangs=native_gangs) as plane:
                state = {"kubeconfig": str(plane.kubeconfig), "version": plane.version()}
                new = _state().with_suffix(".new")
                new.write_text(json.dumps(state))
                new.rename(_state())
                print(_how_to_use(state), flush=True)
                while True:
                    time.sleep(1)
                    plane.check()
        finally:
            _state().unlink(missing_ok=True)


def _how_to_use(state: Mapping[str, str]) -> str:
    kubeconfig = state["kubeconfig"]
    return (
        f"Kubernetes {state['version']} is up, without nodes. Kubeconfig:\n"
        f"  {kubeconfig}\n"
        f"Use it:   {binaries() / 'kubectl'} --kubeconfig {kubeconfig} get namespaces\n"
        f"      or  serried run --kubeconfig {kubeconfig}\n"
        f"Stop it:  python -m tools.controlplane down"
    )


def _start_detached(arguments: argparse.Namespace) -> "subprocess.Popen[bytes]":
    options = ["--scheduler" if arguments.scheduler else "--no-scheduler"]
    if arguments.native_gangs:
        options.append("--native-gangs")
    with _log().open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tools.controlplane", "up", "--foreground", *options],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _up(arguments: argparse.Namespace) -> None:
    binaries()  # here, so that the progress of a build is seen
    if arguments.foreground:
        _serve(scheduler=arguments.scheduler, native_gangs=arguments.native_gangs)
        return
    process = None
    if _is_up():
        print("A control plane is up already; `down` stops it.", file=sys.stderr)
    else:
        _state().unlink(missing_ok=True)  # left by one that was killed
        process = _start_detached(arguments)
    while not _state().exists():
        if not _is_up() if process is None else process.poll() is not None:
            raise ControlPlaneError(f"it did not start ({_log()}):\n{_log().read_text(errors='replace').strip()}")
        time.sleep(0.05)
    print(_how_to_use(json.loads(_state().read_text())))


def _down(_arguments: argparse.Namespace) -> None:
    if not _is_up():
        print("No control plane is up.")
        return
    os.kill(int(_lock().read_text()), signal.SIGTERM)
    deadline = time.monotonic() + 30
    while _is_up():
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"it has not stopped after 30 s; what it said is in {_log()}")
        time.sleep(0.1)
    print("Stopped; its data is gone.")


def _path(_arguments: argparse.Namespace) -> None:
    print(binaries())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 1 after an error, which is told on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.controlplane", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a control plane and leave it running")
    up.add_argument("--scheduler", action=argparse.BooleanOptionalAction, default=True, help="run kube-scheduler")
    up.add_argument("--native-gangs", action="store_true", help="switch on Kubernetes' own gang scheduling")
    up.add_argument("--foreground", action="store_true", help="stay until Ctrl-C")
    up.set_defaults(run=_up)
    commands.add_parser("down", help="stop it").set_defaults(run=_down)
    commands.add_parser("path", help="print the folder with the programs").set_defaults(run=_path)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except ControlPlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
