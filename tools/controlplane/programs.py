"""Child processes that cannot outlive us: start, watch, measure, stop."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.controlplane.errors import ControlPlaneError

#: What the programs write when a port was taken between our choosing it and their binding it.
PORT_TAKEN = "address already in use"

#: Seconds between a request to stop and the kill.
GRACE = 5.0

# The guard reads a process group's number, then waits for our end of the pipe to close: that happens when this
# process ends in whatever way, kill -9 included. PR_SET_PDEATHSIG would not do: it follows the starting thread.
_GUARD = 'read -r group; cat >/dev/null; kill -KILL "-$group" 2>/dev/null; sleep 0.1; rm -rf -- "$1"'


class PortTakenError(Exception):
    """A program found its port in use; the whole start can be tried again with other ports."""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports of 127.0.0.1 that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass(frozen=True)
class Program:
    """One started program and its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check(self) -> None:
        """Raise ControlPlaneError with the end of the log (PortTakenError for a lost race) if it has ended."""
        code = self.process.poll()
        if code is None:
            return
        if PORT_TAKEN in self.log.read_text(errors="replace"):
            raise PortTakenError(self.name)
        raise ControlPlaneError(f"{self.name} ended with exit code {code}; the end of its log:\n{self.tail()}")


class Programs:
    """The programs of one control plane, in the order they were started, and the directory they live in.

    They share a process group of their own, so Ctrl-C in a terminal reaches only us, and a guard process
    kills the group and removes the directory if we die without having called `stop`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, Program] = {}
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def start(self, path: Path, arguments: Sequence[str]) -> Program:
        """Start one program with its output in `NAME.log`. Raises ControlPlaneError if it cannot be executed."""
        log = self.directory / f"{path.name}.log"
        first = next(iter(self.running.values()), None)
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [path, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    process_group=first.process.pid if first else 0,
                )
        except OSError as error:
            raise ControlPlaneError(f"cannot start {path}: {error}") from error
        if first is None:
            assert self._guard.stdin is not None
            self._guard.stdin.write(b"%d\n" % process.pid)
            self._guard.stdin.flush()
        program = self.running[path.name] = Program(path.name, process, log)
        return program

    def stop_one(self, program: Program) -> None:
        """Stop one program; the others go on."""
        _stop(program.process)
        del self.running[program.name]

    def stop(self) -> None:
        """Stop all, last started first, and remove the directory. Does nothing the second time."""
        for program in reversed(self.running.values()):
            _stop(program.process)
        if self._guard.poll() is None:
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self.running.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far (Linux: fields 14 and 15 of /proc/PID/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Resident memory of a process (Linux: field 2 of /proc/PID/statm, in pages)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
