"""One control plane: which programs with which flags, in which order, and how to reach them."""

import contextlib
import http.client
import json
import re
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from tools.controlplane import programs
from tools.controlplane.assets import binaries
from tools.controlplane.credentials import (
    ADMIN,
    User,
    write_certificates,
    write_kubeconfig,
    write_private,
    write_tokens,
)
from tools.controlplane.errors import ControlPlaneError
from tools.controlplane.programs import PortTakenError, Program, Programs, free_ports

#: What jobs need. Not node-lifecycle-controller: without kubelets it would taint every node as unreachable.
#: Without clusterrole-aggregation-controller the roles view, edit and admin would be empty.
DEFAULT_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
)

#: Kubernetes 1.37's own gangs: scheduling.k8s.io Workload and PodGroup, off unless asked for.
_GANG_GATES = (
    "CompositePodGroup",
    "GenericWorkload",
    "PodGroupPreemptionPolicy",
    "TopologyAwareWorkloadScheduling",
    "WorkloadWithJob",
)
_GANG_APIS = ("scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1beta1")
#: Takes the finalizer off PodGroups, which would otherwise never go away.
_GANG_CONTROLLERS = ("podgroup-protection-controller",)

#: Requests per second of the controller manager and the scheduler, so that their clients are never the brake.
_CLIENT_QPS = 5000

#: Whole starts tried when another process takes a port we had chosen.
_STARTS = 3

_NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

_CONTROLLER_MANAGER = User("system:kube-controller-manager", ("system:masters",))
_SCHEDULER = User("system:kube-scheduler")


class ControlPlane:
    """etcd and kube-apiserver, with kube-controller-manager and kube-scheduler, on free ports of 127.0.0.1.

    Use it as a context manager, or call `start` and `stop`:

        with ControlPlane(users=[User("alice")]) as plane:
            plane.request("GET", "/api/v1/nodes")
            plane.kubeconfig                # a file; full rights
            plane.kubeconfig_for("alice")   # none, until RBAC says so

    RBAC is on. Pods need no service account. There is no kubelet: nodes and pod status are the caller's to write,
    and a node created without a status carries a not-ready taint to be removed once its status is written.
    Everything is in one temporary directory and is gone after `stop`, also when this process is killed.

    Arguments:
        assets: folder of the programs; by default what `binaries()` finds or builds.
        controllers: what kube-controller-manager runs; none leaves it out.
        scheduler: whether to run kube-scheduler.
        native_gangs: switch on Kubernetes' own gang scheduling (scheduling.k8s.io), in all three programs.
        crds: CustomResourceDefinitions to have from the start. The garbage collector looks for new kinds only
            every 30 s: dependants of a kind created later are not collected before that.
        users: who can sign in besides the administrator.
        requests_inflight: requests served at once; a third of them may be mutating. Kubernetes' default is 600.
            The administrator (system:masters) is never held back by it.
        timeout: seconds each start may take in all.
    """

    def __init__(
        self,
        *,
        assets: Path | None = None,
        controllers: Sequence[str] = DEFAULT_CONTROLLERS,
        scheduler: bool = True,
        native_gangs: bool = False,
        crds: Iterable[Mapping[str, Any]] = (),
        users: Iterable[User] = (),
        requests_inflight: int = 600,
        timeout: float = 300.0,
    ) -> None:
        self._assets = assets
        self._controllers = (*controllers, *_GANG_CONTROLLERS) if controllers and native_gangs else tuple(controllers)
        self._scheduler = scheduler
        self._native_gangs = native_gangs
        self._crds = tuple(crds)
        self._admin = User(ADMIN, ("system:masters",))
        self._users = {user.name: user for user in (*users, self._admin, _CONTROLLER_MANAGER, _SCHEDULER)}
        self._requests_inflight = requests_inflight
        self._timeout = timeout
        self._programs: Programs | None = None
        self._http = urllib.request.OpenerDirector()
        #: Address of the API server, once started.
        self.url = ""

    def start(self) -> Self:
        """Start everything and wait until it is ready.

        Raises ControlPlaneError, with the end of the log of the program at fault; nothing is left running then.
        """
        if self._programs is not None:
            raise ControlPlaneError("this control plane is running already")
        assets = self._assets if self._assets is not None else binaries()
        for attempt in range(1, _STARTS + 1):
            try:
                self._start(assets)
                return self
            except PortTakenError as error:
                self.stop()
                if attempt == _STARTS:
                    raise ControlPlaneError(f"{error} found its port taken, {_STARTS} times over") from error
            except BaseException:
                self.stop()
                raise
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Stop all programs, last started first, and remove their directory. Does nothing if not running."""
        if self._programs is not None:
            self._programs.stop()
            self._programs = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """Where the data, keys and logs (`NAME.log`) are. Raises ControlPlaneError when not running."""
        return self._running.directory

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the administrator, a member of system:masters."""
        return self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig of one of the `users`."""
        if user not in self._users:
            raise ControlPlaneError(f"no user {user!r}; there are: {', '.join(sorted(self._users))}")
        # A colon in its name would make it a list of kubeconfigs.
        path = self.directory / f"{re.sub('[/:]', '-', user)}.kubeconfig"
        if not path.exists():
            write_kubeconfig(path, self.url, self.directory / "ca.crt", self._users[user])
        return path

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self._admin.token

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the API server's."""
        return self.directory / "ca.crt"

    def version(self) -> str:
        """The API server's version, such as `v1.37.2`."""
        _, body = self.request("GET", "/version")
        return str(body["gitVersion"])

    def request(
        self, method: str, path: str, body: object = None, *, token: str | None = None, content_type: str | None = None
    ) -> tuple[int, Any]:
        """One request, as the administrator unless `token` says who: the status code and the decoded answer.

        A refusal is an answer too (its body is a Status object), not an error. What is not JSON comes as text.
        `content_type` is needed for a patch, such as `application/merge-patch+json`.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.token}",
                "Accept": "application/json",
                "Content-Type": content_type or "application/json",
            },
        )
        try:
            with self._http.open(request, timeout=30) as response:
                return response.status, _decode(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decode(error)

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Creates what a manifest describes, unless it is there. For kinds whose plural is their name and an s."""
        group, _, _ = manifest["apiVersion"].rpartition("/")
        root = f"/apis/{manifest['apiVersion']}" if group else "/api/v1"
        namespace = manifest["metadata"].get("namespace")
        scope = f"/namespaces/{namespace}" if namespace else ""
        path = f"{root}{scope}/{manifest['kind'].lower()}s"
        status, body = self.request("POST", path, manifest)
        if status not in (201, 409):
            raise ControlPlaneError(f"the API server refuses {path}: {body['message']}")

    @contextlib.contextmanager
    def another_scheduler(
        self, settings: Mapping[str, Any], gates: Mapping[str, bool] | None = None
    ) -> Iterator[programs.Program]:
        """A kube-scheduler while the block lasts, for a control plane without one.

        `settings`: further fields of its KubeSchedulerConfiguration. `gates`: feature gates. What was in the cluster
        before it starts is known to it when it looks at the first pod.
        """
        running = self._running
        (port,) = free_ports(1)
        assets = self._assets if self._assets is not None else binaries()
        flags = self._kube_scheduler(running.directory, port, settings)
        if gates:
            flags.append("--feature-gates=" + ",".join(f"{gate}={str(on).lower()}" for gate, on in gates.items()))
        program = running.start(assets / "kube-scheduler", flags)
        try:
            self._wait(program, f"https://127.0.0.1:{port}/readyz", time.monotonic() + self._timeout)
            yield program
        finally:
            running.stop_one(program)

    def check(self) -> None:
        """Raise ControlPlaneError, with the end of its log, if a program has ended by itself."""
        for program in self._running.running.values():
            program.check()

    def pids(self) -> dict[str, int]:
        """Process id of each program."""
        return {name: program.process.pid for name, program in self._running.running.items()}

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time, user and system, that each program has used since it started (Linux only)."""
        return {name: programs.cpu_seconds(pid) for name, pid in self.pids().items()}

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of each program (Linux only)."""
        return {name: programs.memory_bytes(pid) for name, pid in self.pids().items()}

    @property
    def _running(self) -> Programs:
        if self._programs is None:
            raise ControlPlaneError("this control plane is not running: call start(), or use it in a with statement")
        return self._programs

    def _start(self, assets: Path) -> None:
        deadline = time.monotonic() + self._timeout
        directory = Path(tempfile.mkdtemp(prefix="serried-controlplane-"))
        try:
            self._programs = running = Programs(directory)
        except BaseException:
            shutil.rmtree(directory)
            raise
        server_port, manager_port, scheduler_port = free_ports(3)
        write_certificates(directory)
        write_tokens(directory / "tokens.csv", self._users.values())
        tls = ssl.create_default_context(cafile=directory / "ca.crt")
        # Without the proxies of the environment, which cannot reach this machine's own address.
        self._http = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )
        self.url = f"https://127.0.0.1:{server_port}"

        # The API server waits for etcd by itself, so the two start together.
        running.start(assets / "etcd", _ETCD)
        server = running.start(assets / "kube-apiserver", [*self._api_server(directory, server_port), *self._gates()])
        self._wait(server, f"{self.url}/readyz", deadline)
        # The API server makes it a moment after it is ready, and everybody expects it.
        self._wait(server, f"{self.url}/api/v1/namespaces/default", deadline)
        for crd in self._crds:
            self._create_crd(crd, server, deadline)

        others = {}
        if self._controllers:
            flags = [*self._controller_manager(directory, manager_port), *self._gates()]
            manager = running.start(assets / "kube-controller-manager", flags)
            others[f"https://127.0.0.1:{manager_port}/healthz"] = manager
        if self._scheduler:
            flags = [*self._kube_scheduler(directory, scheduler_port), *self._gates()]
            scheduler = running.start(assets / "kube-scheduler", flags)
            others[f"https://127.0.0.1:{scheduler_port}/readyz"] = scheduler
        for url, program in others.items():
            self._wait(program, url, deadline)

    def _create_crd(self, crd: Mapping[str, Any], server: Program, deadline: float) -> None:
        """Create a CustomResourceDefinition and wait until its kind is served."""
        status, body = self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        if status != 201:
            name = crd.get("metadata", {}).get("name", "without a name")
            raise ControlPlaneError(f"the API server refuses the CRD {name}: {body['message']}")
        spec = body["spec"]
        version = next(version["name"] for version in spec["versions"] if version["served"])
        self._wait(server, f"{self.url}/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=1", deadline)

    def _wait(self, program: Program, url: str, deadline: float) -> None:
        """Wait until a program answers 200 at a URL of its own; PortTakenError if it lost its port to another."""
        # No token for the others: they would ask the API server about it, and let anyone ask for their health.
        headers = {"Authorization": f"Bearer {self.token}"} if program.name == "kube-apiserver" else {}
        request = urllib.request.Request(url, headers=headers)
        while True:
            try:
                with self._http.open(request, timeout=2):
                    return
            except urllib.error.HTTPError as error:
                error.close()
            except (OSError, http.client.HTTPException):
                pass  # not listening yet
            self.check()
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{program.name} is not ready {self._timeout:.0f} s after the start; "
                    f"the end of its log:\n{program.tail()}"
                )
            time.sleep(0.05)

    def _gates(self) -> list[str]:
        if not self._native_gangs:
            return []
        return ["--feature-gates=" + ",".join(f"{gate}=true" for gate in _GANG_GATES)]

    def _api_server(self, directory: Path, port: int) -> list[str]:
        flags: dict[str, object] = {
            "etcd-servers": _ETCD_URL,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "advertise-address": "127.0.0.1",
            # There is one server, and a loopback address is not allowed in an Endpoints object.
            "endpoint-reconciler-type": "none",
            "tls-cert-file": directory / "server.crt",
            "tls-private-key-file": directory / "server.key",
            "authorization-mode": "RBAC",
            "token-auth-file": directory / "tokens.csv",
            "service-account-issuer": self.url,
            "service-account-key-file": directory / "service-account.key",
            "service-account-signing-key-file": directory / "service-account.key",
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": "ServiceAccount",
            "max-requests-inflight": self._requests_inflight - self._requests_inflight // 3,
            "max-mutating-requests-inflight": self._requests_inflight // 3,
        }
        if self._native_gangs:
            flags["runtime-config"] = ",".join(f"{api}=true" for api in _GANG_APIS)
        return _flags(flags)

    def _controller_manager(self, directory: Path, port: int) -> list[str]:
        kubeconfig = self.kubeconfig_for(_CONTROLLER_MANAGER.name)
        return _flags(
            {
                "kubeconfig": kubeconfig,
                "bind-address": "127.0.0.1",
                "secure-port": port,
                "tls-cert-file": directory / "server.crt",
                "tls-private-key-file": directory / "server.key",
                "leader-elect": "false",
                "controllers": ",".join(self._controllers),
                "kube-api-qps": _CLIENT_QPS,
                "kube-api-burst": _CLIENT_QPS,
            }
        )

    def _kube_scheduler(self, directory: Path, port: int, settings: Mapping[str, Any] = _NO_SETTINGS) -> list[str]:
        config = {
            **settings,
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig_for(_SCHEDULER.name)),
                "qps": _CLIENT_QPS,
                "burst": _CLIENT_QPS,
            },
        }
        write_private(directory / "scheduler.json", json.dumps(config, indent=1))
        return _flags(
            {
                "config": directory / "scheduler.json",
                "bind-address": "127.0.0.1",
                "secure-port": port,
                "tls-cert-file": directory / "server.crt",
                "tls-private-key-file": directory / "server.key",
            }
        )


def _decode(response: http.client.HTTPResponse | urllib.error.HTTPError) -> Any:
    content = response.read()
    return json.loads(content) if response.headers.get_content_type() == "application/json" else content.decode()


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


# etcd needs no ports: it listens on two sockets in its working directory, where the API server starts as well.
_ETCD_URL, _PEER_URL = "unix://etcd:0", "unix://peer:0"
_ETCD = [
    *_flags(
        {
            "name": "test",
            "data-dir": "etcd-data",
            "listen-client-urls": _ETCD_URL,
            "advertise-client-urls": _ETCD_URL,
            "listen-peer-urls": _PEER_URL,
            "initial-advertise-peer-urls": _PEER_URL,
            "initial-cluster": f"test={_PEER_URL}",
        }
    ),
    "--unsafe-no-fsync",
]
