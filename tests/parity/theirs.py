"""kube-scheduler's verdict on pods: the nodes that pass its filters, as it hands them to an extender."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.parity.objects import Manifest, Scene
from tests.patience import Deadline
from tools.controlplane import ControlPlane

Key = tuple[str, str]


class Api:
    """Many requests on few connections."""

    def __init__(self, plane: ControlPlane) -> None:
        self._address = urlsplit(plane.url).netloc
        self._token = plane.token
        self._tls = ssl.create_default_context(cafile=plane.ca)
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []
        self._pool = ThreadPoolExecutor(4)

    def close(self) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPSConnection(
                self._address, context=self._tls, timeout=300
            )
            self._connections.append(connection)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status not in (200, 201, 202) and not (method == "DELETE" and response.status == 404):
            raise RuntimeError(f"{method} {path}: {response.status} {answer.get('message')}")
        return answer

    def each(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Many calls side by side."""
        for _ in self._pool.map(lambda call: self.call(*call), list(calls)):
            pass

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Creates objects of any kinds."""
        self.each(("POST", path_of(m), m) for m in manifests)

    def list(self, plural: str) -> list[Manifest]:
        found: list[Manifest] = self.call("GET", f"{_ROOTS.get(plural, '/api/v1')}/{plural}")["items"]
        return found


_STORAGE = "/apis/storage.k8s.io/v1"
_ROOTS = dict.fromkeys(("storageclasses", "csinodes", "csidrivers", "volumeattachments"), _STORAGE)
_PLURALS = {"StorageClass": "storageclasses"}


def path_of(manifest: Manifest, *, named: bool = False) -> str:
    plural = _PLURALS.get(manifest["kind"], manifest["kind"].lower() + "s")
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    name = f"/{manifest['metadata']['name']}" if named else ""
    return f"{_ROOTS.get(plural, '/api/v1')}{scope}/{plural}{name}"


_MERGE = "application/merge-patch+json"


def put_up(api: Api, scene: Scene) -> None:
    """Creates what a scene consists of, the pods to be judged included."""
    api.each(("POST", path_of(n), n) for n in scene.namespaces)
    api.each(("POST", path_of(n), {k: v for k, v in n.items() if k != "status"}) for n in scene.nodes)
    # A new node is tainted as not ready.
    api.each(("PATCH", path_of(n, named=True), {"spec": {"taints": n["spec"]["taints"]}}, _MERGE) for n in scene.nodes)
    api.each(("PATCH", path_of(n, named=True) + "/status", {"status": n["status"]}, _MERGE) for n in scene.nodes)
    for manifests in (scene.storage, scene.bound):
        api.each(("POST", path_of(m), m) for m in manifests)
    api.each(
        ("PATCH", path_of(m, named=True) + "/status", {"status": m["status"]}, _MERGE)
        for m in scene.storage
        if "status" in m
    )
    for pod in scene.bound:
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if key in scene.ended:
            api.call("PATCH", path_of(pod, named=True) + "/status", {"status": {"phase": "Succeeded"}}, _MERGE)
        elif key in scene.leaving:
            api.call("DELETE", path_of(pod, named=True))
    api.each(("POST", path_of(p), p) for p in scene.pods)


def take_down(api: Api, scene: Scene) -> None:
    """Removes all that could be of influence on another scene."""
    now = {"gracePeriodSeconds": 0}
    api.each(("DELETE", path_of(p, named=True), now) for p in (*scene.pods, *scene.bound))
    api.each(("DELETE", path_of(n, named=True)) for n in scene.nodes)
    drivers = [m for m in scene.storage if m["kind"] == "CSIDriver"]
    api.each(("DELETE", path_of(m, named=True)) for m in drivers)


class Recorder:
    """A scheduler extender that notes which nodes are left of those in the cluster, and lets no pod have any."""

    def __init__(self) -> None:
        self.passed: dict[Key, set[str]] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                meta = asked["Pod"]["metadata"]
                recorder.passed.setdefault((meta["namespace"], meta["name"]), set(asked["NodeNames"]))
                answer = json.dumps({"Error": "noted"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()


def settings(url: str) -> Mapping[str, Any]:
    """kube-scheduler looks at each pod once, at all nodes, and preempts nobody."""
    return {
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 600,
        "podMaxBackoffSeconds": 600,
        "extenders": [{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "20s"}],
        "profiles": [{"plugins": {"postFilter": {"disabled": [{"name": "*"}]}}}],
    }


def verdicts(plane: ControlPlane, api: Api, scene: Scene) -> dict[Key, tuple[set[str], str]]:
    """Per pod of a scene: the nodes that pass all filters, and what kube-scheduler says if there are none."""
    recorder = Recorder()
    wanted = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in scene.pods}
    said: dict[Key, str] = {}
    gates = {"OpportunisticBatching": False}
    with recorder.serving(), plane.another_scheduler(settings(recorder.url), gates):
        deadline = Deadline(120)
        while wanted - recorder.passed.keys() - said.keys():
            if deadline.passed():
                raise TimeoutError(f"no verdict on {sorted(wanted - recorder.passed.keys() - said.keys())}")
            plane.check()
            for pod in api.list("pods"):
                key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
                scheduled = [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
                if key in wanted and scheduled and scheduled[0].get("reason") == "Unschedulable":
                    said[key] = scheduled[0]["message"]
            time.sleep(0.05)
    return {key: (recorder.passed.get(key, set()), said.get(key, "")) for key in wanted}
