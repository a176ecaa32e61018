"""The control plane for tests is a real one, with RBAC, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import Deadline
from tools.controlplane import ControlPlane, ControlPlaneError, User, binaries
from tools.controlplane.programs import free_ports

ROOT = Path(__file__).parents[2]
ALL = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


def eventually(ready: Callable[[], Any]) -> Any:
    """The first true value of `ready`, asked again and again."""
    deadline = Deadline()
    while not (value := ready()):
        assert not deadline.passed(), f"{ready} was not true in time"
        time.sleep(0.05)
    return value


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def add_node(plane: ControlPlane, name: str, cpus: int, labels: dict[str, str] | None = None) -> None:
    """A node that is ready and untainted, as a kubelet would leave it."""
    status, body = plane.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels or {}}})
    assert status == 201, body
    room = {"cpu": str(cpus), "memory": "8Gi", "pods": "10"}
    ready = [{"type": "Ready", "status": "True"}]
    for path, patch in (
        (f"/api/v1/nodes/{name}/status", {"status": {"capacity": room, "allocatable": room, "conditions": ready}}),
        (f"/api/v1/nodes/{name}", {"spec": {"taints": None}}),
    ):
        status, body = plane.request("PATCH", path, patch, content_type="application/merge-patch+json")
        assert status == 200, body


CONTAINERS = [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}]


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    status, body = control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert status == 201, body
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_it_is_the_kubernetes_that_was_asked_for(control_plane: ControlPlane) -> None:
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        assert control_plane.version().startswith("v1.37.")
    assert sorted(control_plane.pids()) == ALL
    control_plane.check()


def test_its_programs_can_be_measured(control_plane: ControlPlane) -> None:
    assert control_plane.cpu_seconds()["kube-apiserver"] > 0
    assert min(control_plane.memory_bytes().values()) > 1 << 20


def test_kubectl_works_with_the_kubeconfig(control_plane: ControlPlane) -> None:
    kubectl = [str(binaries() / "kubectl"), "--kubeconfig", str(control_plane.kubeconfig)]
    answer = subprocess.run([*kubectl, "get", "namespace", "default", "-o", "name"], capture_output=True, check=True)
    assert answer.stdout == b"namespace/default\n"


def test_a_job_gets_pods_and_takes_them_with_it(control_plane: ControlPlane, namespace: str) -> None:
    """The Job controller, the scheduler and the garbage collector are at work."""
    node = f"node-{namespace}"
    add_node(control_plane, node, 4, {"for": namespace})
    try:
        template = {"restartPolicy": "Never", "nodeSelector": {"for": namespace}, "containers": CONTAINERS}
        job = {
            "metadata": {"name": "train"},
            "spec": {"parallelism": 2, "completions": 2, "template": {"spec": template}},
        }
        jobs, pods = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/pods"
        status, body = control_plane.request("POST", jobs, job)
        assert status == 201, body

        def nodes() -> list[str | None]:
            return [pod["spec"].get("nodeName") for pod in control_plane.request("GET", pods)[1]["items"]]

        eventually(lambda: nodes() == [node, node])
        status, body = control_plane.request("DELETE", f"{jobs}/train", {"propagationPolicy": "Background"})
        assert status == 200, body
        # No kubelet ends them, so the pods are only asked to go.
        eventually(
            lambda: all("deletionTimestamp" in p["metadata"] for p in control_plane.request("GET", pods)[1]["items"])
        )
    finally:
        for pod in control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")[1]["items"]:
            control_plane.request(
                "DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0}
            )
        control_plane.request("DELETE", f"/api/v1/nodes/{node}")


def test_rbac_decides_for_everyone_but_the_administrator_and_stop_leaves_nothing() -> None:
    alice = User("alice", ("researchers", "night-shift"))
    plane = ControlPlane(users=[alice], controllers=(), scheduler=False)
    with plane:
        pids, directory = plane.pids(), plane.directory
        port = int(plane.url.rpartition(":")[2])
        assert sorted(pids) == ["etcd", "kube-apiserver"]

        status, body = plane.request("GET", "/api/v1/nodes", token=alice.token)
        assert (status, body["reason"]) == (403, "Forbidden")
        assert plane.request("GET", "/api/v1/nodes", token="nobody's")[0] == 401

        role = {
            "metadata": {"name": "look-at-pods"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        }
        status, body = plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
        assert status == 201, body
        binding = {
            "metadata": {"name": "night-shift-looks"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "look-at-pods"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "night-shift"}],
        }
        status, body = plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        assert status == 201, body
        eventually(lambda: plane.request("GET", "/api/v1/pods", token=alice.token)[0] == 200)
        assert plane.request("GET", "/api/v1/secrets", token=alice.token)[0] == 403
        assert plane.kubeconfig_for("alice").stat().st_mode & 0o077 == 0
    assert not [name for name, pid in pids.items() if alive(pid)]
    assert not directory.exists()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))
    with pytest.raises(ControlPlaneError, match="not running"):
        plane.pids()
    plane.stop()  # the second time nothing happens


def test_nothing_is_left_when_the_process_that_started_it_is_killed() -> None:
    code = (
        "from tools.controlplane import ControlPlane\n"
        "plane = ControlPlane(controllers=(), scheduler=False).start()\n"
        "print(plane.directory, *plane.pids().values(), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        directory, *pids = owner.stdout.readline().split()
        assert len(pids) == 2
        assert all(alive(int(pid)) for pid in pids)
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not any(alive(int(pid)) for pid in pids) and not Path(directory).exists())


def test_native_gangs_are_scheduled_whole_when_switched_on() -> None:
    with ControlPlane(native_gangs=True) as plane:
        kinds = {
            resource["kind"]
            for version in ("v1beta1", "v1alpha3")
            for resource in plane.request("GET", f"/apis/scheduling.k8s.io/{version}")[1]["resources"]
        }
        assert kinds == {"Workload", "PodGroup", "CompositePodGroup"}

        group = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        status, body = plane.request("POST", "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups", group)
        assert status == 201, body
        add_node(plane, "n1", cpus=1)
        for name in ("a", "b"):
            pod = {
                "metadata": {"name": name},
                "spec": {"containers": CONTAINERS, "schedulingGroup": {"podGroupName": "gang"}},
            }
            status, body = plane.request("POST", "/api/v1/namespaces/default/pods", pod)
            assert status == 201, body

        def pods() -> list[dict[str, Any]]:
            return list(plane.request("GET", "/api/v1/namespaces/default/pods")[1]["items"])

        # One of the two would fit.
        eventually(lambda: all("conditions" in pod["status"] for pod in pods()))
        assert [pod["spec"].get("nodeName") for pod in pods()] == [None, None]
        add_node(plane, "n2", cpus=1)
        eventually(lambda: {pod["spec"].get("nodeName") for pod in pods()} == {"n1", "n2"})
        # The controller manager has the gates too: one that does not know a gate ends at once.
        assert sorted(plane.pids()) == ALL
        plane.check()


def test_a_program_that_ends_is_named_with_the_end_of_its_log() -> None:
    plane = ControlPlane(controllers=["no-such-controller"], scheduler=False)
    with pytest.raises(ControlPlaneError, match=r"(?s)kube-controller-manager ended .*no-such-controller"):
        plane.start()
    with pytest.raises(ControlPlaneError, match="not running"):
        plane.pids()


def test_a_program_that_is_not_ready_in_time_is_named() -> None:
    plane = ControlPlane(controllers=(), scheduler=False, timeout=0.2)
    with pytest.raises(ControlPlaneError, match="kube-apiserver is not ready"):
        plane.start()


def test_another_port_is_tried_when_one_was_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        taken = occupant.getsockname()[1]
        choices = iter([[taken, *free_ports(2)], free_ports(3)])
        monkeypatch.setattr("tools.controlplane.plane.free_ports", lambda _count: next(choices))
        with ControlPlane(controllers=(), scheduler=False) as plane:
            assert not plane.url.endswith(f":{taken}")
            assert plane.version()


def test_objects_of_a_kind_given_at_the_start_are_collected_with_their_owner() -> None:
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    things = "/apis/example.com/v1/namespaces/default/things"
    with ControlPlane(crds=[crd], scheduler=False) as plane:
        _, owner = plane.request("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "owner"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        thing = {
            "apiVersion": "example.com/v1",
            "kind": "Thing",
            "metadata": {"name": "thing", "ownerReferences": [reference]},
        }
        status, body = plane.request("POST", things, thing)
        assert status == 201, body
        plane.request("DELETE", "/api/v1/namespaces/default/configmaps/owner")
        eventually(lambda: plane.request("GET", f"{things}/thing")[0] == 404)


def test_a_crd_that_is_refused_stops_the_start() -> None:
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "nothing"}}
    with pytest.raises(ControlPlaneError, match=r"refuses the CRD nothing: .*spec\.group"):
        ControlPlane(crds=[crd], controllers=(), scheduler=False).start()
