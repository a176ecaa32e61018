"""End to end on a real API server: runs a driver script against `serried run` and counts what each process used.

    python bench/end_to_end.py [--driver FILE] [--stack serried|floor] [--repeat N] [--heavy] [-- ARG...]

The driver is a Python script called as `FILE STACK ARG…` with API_URL and API_TOKEN set; it submits the work, sees it
through and prints one JSON line: `bench/gangs.py` (by default) gangs of pods, `bench/workloads.py` a stream of
Workloads. For the stack `floor` the driver also does what Serried would, knowing the answer, and `serried run` is not
started: that is the least time this API server needs. Each run has a control plane of its own. Prints a JSON line a
run: what the driver printed, with CPU seconds and peak memory of `serried run`, CPU seconds of the other programs, and
the writes of each kind that the API server has counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.crd_weight import Client, variants  # noqa: E402
from serried.api.crds import crds  # noqa: E402
from tools.controlplane import ControlPlane, User  # noqa: E402

_RARE = 10
SERRIED = User("system:serviceaccount:serried-system:serried", ("system:serviceaccounts",))


def run(driver: Path, stack: str, arguments: list[str], *, heavy: bool = False) -> dict[str, Any]:
    """One run on a fresh control plane."""
    with ControlPlane(crds=crds(), users=[SERRIED], scheduler=False, requests_inflight=6000) as plane:
        for document in yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text()):
            plane.create(document)
        if heavy:
            weigh_down(plane)
        scheduler = start(plane) if stack == "serried" else None
        try:
            before = plane.cpu_seconds()
            env = {**os.environ, "API_URL": plane.url, "API_TOKEN": plane.token}
            command = [sys.executable, str(driver), stack, *arguments]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode or not done.stdout.strip():
                raise SystemExit(f"the driver failed: {done.stderr[-2000:]}")
            result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
            after = plane.cpu_seconds()
            for program in ("kube-apiserver", "kube-controller-manager", "etcd"):
                result[f"{program}_cpu_s"] = round(after[program] - before[program], 1)
            result["writes"] = writes(plane)
            if scheduler is not None:
                result |= usage(scheduler.pid)
            return result
        finally:
            if scheduler is not None:
                scheduler.terminate()
                scheduler.wait(10)


def start(plane: ControlPlane) -> subprocess.Popen[bytes]:
    """`serried run` with no more rights than deploy/rbac.yaml gives; returns once it is ready."""
    log = plane.directory / "serried.log"
    kubeconfig = plane.kubeconfig_for(SERRIED.name)
    with log.open("wb") as out:
        command = [sys.executable, "-m", "serried.cli.main", "run", "--kubeconfig", str(kubeconfig)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    deadline = time.monotonic() + 30
    while b"listed" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"serried run did not get ready: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return process


def weigh_down(plane: ControlPlane) -> None:
    """Gives Workload the heaviest schema of `bench/crd_weight.py`: full pod templates and rules."""
    client = Client(plane)
    *_, (_, schema) = variants(client).items()
    definition = next(crd for crd in crds() if crd["spec"]["names"]["kind"] == "Workload")
    (version,) = definition["spec"]["versions"]
    versions = [version | {"schema": {"openAPIV3Schema": schema}}]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    client.send("PATCH", path, {"spec": {"versions": versions}})


def writes(plane: ControlPlane) -> dict[str, int]:
    """Writes of each kind that the API server has answered since its start, the rare ones left out."""
    counted: Counter[str] = Counter()
    for line in plane.request("GET", "/metrics")[1].splitlines():
        found = re.fullmatch(r"apiserver_request_total\{(.*)\} (\S+)", line)
        if found is None:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
        if labels["verb"] in ("POST", "PATCH", "PUT", "DELETE"):
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            counted[f"{labels['verb']} {what} {labels['code']}"] += int(float(found[2]))
    return {what: count for what, count in counted.most_common() if count >= _RARE}


def usage(pid: int) -> dict[str, float]:
    """CPU seconds and peak memory of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {"serried_cpu_s": round(ticks / os.sysconf("SC_CLK_TCK"), 1), "serried_peak_mb": round(peak / 1024)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", type=Path, default=Path(__file__).with_name("gangs.py"))
    parser.add_argument("--stack", action="append", choices=["serried", "floor"])
    parser.add_argument("--heavy", action="store_true", help="Workloads with a schema of full pod templates and rules")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("arguments", nargs="*", default=["1024", "16", "64", "1"])
    options = parser.parse_args()
    for _ in range(options.repeat):
        for stack in options.stack or ["floor", "serried"]:
            print(json.dumps(run(options.driver, stack, options.arguments, heavy=options.heavy)), flush=True)


if __name__ == "__main__":
    main()
