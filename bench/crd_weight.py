"""What the Workload schema costs the API server: CPU time of one status patch, with schemas of different weight.

    python -m bench.crd_weight

Starts a control plane of its own (no controllers, no scheduler) and serves the same Workload under several
definitions, which differ only in their schema. The patch changes the message of one condition, the commonest write.
"""

import copy
import http.client
import json
import ssl
import statistics
import urllib.parse
from typing import Any

import msgspec

from serried.api import assignment
from serried.api.crds import crds
from tools.controlplane import ControlPlane

Schema = dict[str, Any]

ROUNDS = 5
PATCHES = 150
#: Patches before each round that are not counted: the API server still cleans up after the round before.
LEAD = 30
NODES = (8, 1000)

#: Rules of the kind that definitions of such objects carry: about what may change when, and which fields go together.
RULES: dict[str, list[str]] = {
    "": [
        (
            "!has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, "
            "c.type == 'QuotaReserved' && c.status == 'True') || self.spec.podSets == oldSelf.spec.podSets"
        ),
        (
            "!has(oldSelf.status) || !has(oldSelf.status.admission) || !has(self.status) || "
            "!has(self.status.admission) || self.status.admission == oldSelf.status.admission"
        ),
        (
            "!has(self.status) || !has(self.status.admission) || !has(self.status.admission.podSetAssignments) || "
            "self.status.admission.podSetAssignments.all(a, self.spec.podSets.exists(p, p.name == a.name))"
        ),
        (
            "!has(self.status) || !has(self.status.reclaimablePods) || self.status.reclaimablePods.all(r, "
            "self.spec.podSets.exists(p, p.name == r.name && r.count <= p.count))"
        ),
        "!has(oldSelf.spec.priorityClassRef) || has(self.spec.priorityClassRef)",
    ],
    "spec": ["self.podSets.filter(p, has(p.minCount)).size() <= 1"],
    "spec.priorityClassRef": [
        "self.group != 'scheduling.k8s.io' || self.kind == 'PriorityClass'",
        "self.group != 'kueue.x-k8s.io' || self.kind == 'WorkloadPriorityClass'",
    ],
    "status": ["!has(self.clusterName) || !has(self.nominatedClusterNames)"],
    "status.admission.podSetAssignments[].topologyAssignment": [
        "self.slices.all(s, s.valuesPerLevel.size() == self.levels.size())"
    ],
    "status.admission.podSetAssignments[].topologyAssignment.slices[].podCounts": [
        "has(self.universal) != has(self.individual)"
    ],
    "status.admission.podSetAssignments[].topologyAssignment.slices[].valuesPerLevel[]": [
        "has(self.universal) != has(self.individual)"
    ],
}


class Client:
    """One kept-alive connection, so that no TLS handshake is measured."""

    def __init__(self, plane: ControlPlane) -> None:
        address = urllib.parse.urlsplit(plane.url)
        context = ssl.create_default_context(cafile=plane.ca)
        assert address.hostname is not None
        self._connection = http.client.HTTPSConnection(address.hostname, address.port, context=context)
        self._token = plane.token

    def send(self, method: str, path: str, body: Any = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {answer[:2000].decode()}")
        return json.loads(answer)


def full_pod_template(client: Client) -> Schema:
    """The whole schema of a pod template, from the API server's own description of it."""
    schemas = client.send("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    return structural({"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}, schemas)


def structural(schema: Schema, schemas: Schema) -> Schema:
    """A schema as a CustomResourceDefinition takes it: references written out, metadata and unions opened."""
    while "$ref" in schema or "allOf" in schema:
        reference = schema["$ref"] if "$ref" in schema else schema["allOf"][0]["$ref"]
        name = reference.rpartition("/")[2]
        if name.endswith("ObjectMeta"):
            return {"type": "object"}
        if name.endswith((".Quantity", ".IntOrString")):
            return {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
        schema = schemas[name]
    kept = ("type", "format", "required", "enum", "description")
    made = {key: schema[key] for key in kept if key in schema}
    made |= {
        key: value
        for key, value in schema.items()
        if key.startswith("x-kubernetes-") and ("list" in key or "map" in key)
    }
    if "items" in schema:
        made["items"] = structural(schema["items"], schemas)
        keys = made.get("x-kubernetes-list-map-keys", [])
        for key in keys:
            # The keys of a list have to be required or have a default (the protocol of a port, for one).
            if key not in made["items"].get("required", []):
                made["items"]["properties"][key]["default"] = "TCP" if key == "protocol" else ""
    if "properties" in schema:
        made["properties"] = {name: structural(value, schemas) for name, value in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(schema["additionalProperties"], schemas)
    return made


def find(schema: Schema, path: str) -> Schema:
    for step in path.split(".") if path else []:
        schema = schema["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


def variants(client: Client) -> dict[str, Schema]:
    """A schema for each row of the table, lightest first."""
    ours = next(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for crd in crds()
        if crd["spec"]["names"]["kind"] == "Workload"
    )
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    full = copy.deepcopy(ours)
    find(full, "spec.podSets[]")["properties"]["template"] = full_pod_template(client)
    ruled = copy.deepcopy(full)
    for path, rules in RULES.items():
        find(ruled, path)["x-kubernetes-validations"] = [{"rule": rule, "message": "no"} for rule in rules]
    return {
        "no schema": {"type": "object", "properties": {"spec": anything, "status": anything}},
        "ours": ours,
        "ours + full pod template": full,
        f"the same + {sum(map(len, RULES.values()))} CEL rules": ruled,
    }


def install(plane: ControlPlane, client: Client, group: str, schema: Schema) -> None:
    """Serve Workloads with this schema in a group of their own."""
    names = {"kind": "Workload", "listKind": "WorkloadList", "plural": "workloads", "singular": "workload"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"workloads.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    client.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    while plane.request("GET", f"/apis/{group}/v1/workloads")[0] != 200:
        plane.check()


def workload(nodes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A training job as it stands in the API, spec and status: two kinds of pods with ordinary templates."""
    container = {
        "name": "trainer",
        "image": "registry.example.com/research/trainer:2026.11",
        "command": ["torchrun", "--nnodes=$(NODES)", "--nproc-per-node=8", "train.py"],
        "env": [{"name": f"NCCL_SETTING_{i}", "value": str(i)} for i in range(20)]
        + [{"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rank']"}}}],
        "ports": [{"containerPort": 29500, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"},
            "limits": {"memory": "1Ti", "nvidia.com/gpu": "8"},
        },
        "volumeMounts": [{"name": f"volume-{i}", "mountPath": f"/mnt/{i}"} for i in range(4)],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 30},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    affinity = {"key": "node-health", "operator": "NotIn", "values": ["suspect"]}
    template = {
        "metadata": {"labels": {"app": "trainer", "team": "research"}},
        "spec": {
            "schedulerName": "serried",
            "restartPolicy": "Never",
            "containers": [container, container | {"name": "sidecar"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [affinity]}]
                    }
                }
            },
            "volumes": [{"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(4)],
        },
    }
    pod_sets = [{"name": name, "count": nodes, "template": template} for name in ("launcher", "worker")]
    domains: list[assignment.Domain] = [((f"gpu-node-{i:05}.region.internal",), 1) for i in range(nodes)]
    plan = msgspec.to_builtins(assignment.encode(["kubernetes.io/hostname"], domains))
    usage = {"cpu": "96k", "memory": "1000Ti", "nvidia.com/gpu": "8k"}
    assignments = [
        {
            "name": name,
            "count": nodes,
            "flavors": dict.fromkeys(usage, "h200"),
            "resourceUsage": usage,
            "topologyAssignment": plan,
        }
        for name in ("launcher", "worker")
    ]
    return (
        {"queueName": "research", "podSets": pod_sets},
        {"admission": {"clusterQueue": "research", "podSetAssignments": assignments}},
    )


def conditions(message: str) -> dict[str, Any]:
    at = "2026-11-29T12:00:00Z"
    types = ("QuotaReserved", "Admitted", "PodsReady")
    made = [{"type": t, "status": "True", "reason": "R", "message": message, "lastTransitionTime": at} for t in types]
    return {"status": {"conditions": made}}


def main() -> None:
    with ControlPlane(controllers=(), scheduler=False) as plane:
        client = Client(plane)
        schemas = variants(client)
        paths: dict[tuple[str, int], str] = {}
        for index, (name, schema) in enumerate(schemas.items()):
            group = f"weight-{index}.example.com"
            install(plane, client, group, schema)
            for nodes in NODES:
                collection = f"/apis/{group}/v1/namespaces/default/workloads"
                spec, status = workload(nodes)
                body = {"apiVersion": f"{group}/v1", "kind": "Workload", "metadata": {"name": f"job-{nodes}"}}
                client.send("POST", collection, body | {"spec": spec})
                path = paths[name, nodes] = f"{collection}/job-{nodes}/status"
                client.send("PATCH", path, {"status": status})
        # Rounds in turn, so that what else the machine does falls on all variants alike.
        spent: dict[tuple[str, int], list[float]] = {key: [] for key in paths}
        for turn in range(ROUNDS):
            for key, path in paths.items():
                for i in range(LEAD):
                    client.send("PATCH", path, conditions(f"before round {turn}, patch {i}"))
                before = plane.cpu_seconds()["kube-apiserver"]
                for i in range(PATCHES):
                    client.send("PATCH", path, conditions(f"round {turn}, patch {i}"))
                spent[key].append((plane.cpu_seconds()["kube-apiserver"] - before) / PATCHES * 1000)

        print(f"Kubernetes {plane.version()}; CPU time of kube-apiserver for one status patch, in milliseconds:")
        print(f"median of {ROUNDS} rounds of {PATCHES} patches (least and most).\n")
        print("| schema | its size | " + " | ".join(f"job of 2 × {nodes} pods" for nodes in NODES) + " |")
        print("|---|---:|" + "---:|" * len(NODES))
        for name, schema in schemas.items():
            cells = [
                f"{statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f})"
                for times in (spent[name, nodes] for nodes in NODES)
            ]
            print(f"| {name} | {len(json.dumps(schema)) / 1024:.0f} kB | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
