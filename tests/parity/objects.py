"""Random clusters and pods that use every feature kube-scheduler's filters know, as manifests.

Labels, ports, zones and claims come from small vocabularies, so that pods meet each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Manifest = dict[str, Any]

HOSTNAME, ZONE, REGION = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
RACK = "example.com/rack"
KEYS = (HOSTNAME, ZONE, RACK, "disk")
_ZONE_OF = {"k1": "z1", "k2": "z1", "k3": "z2", "k4": "z3"}
DRIVERS = ("csi.example.com", "fast.example.com", "needed.example.com")
CONTAINER = {"name": "main", "image": "registry.example/none"}


@dataclass
class Scene:
    """One cluster, and pods that are to be judged on it."""

    name: str
    namespaces: list[Manifest] = field(default_factory=list)
    nodes: list[Manifest] = field(default_factory=list)
    #: storage classes, claims, volumes, CSI nodes and drivers, attachments
    storage: list[Manifest] = field(default_factory=list)
    #: pods that are on nodes
    bound: list[Manifest] = field(default_factory=list)
    #: of them, the names of those that are being deleted, and of those that have ended
    leaving: set[tuple[str, str]] = field(default_factory=set)
    ended: set[tuple[str, str]] = field(default_factory=set)
    pods: list[Manifest] = field(default_factory=list)


def scene(random: Random, name: str, pods: int) -> Scene:
    made = _Maker(random, Scene(name))
    made.cluster()
    for i in range(pods):
        made.scene.pods.append(made.pod(f"pod-{i}"))
    return made.scene


def gang_scene(random: Random, name: str) -> Scene:
    """A cluster whose racks lie within zones, and most of whose nodes are of use."""
    made = scene(random, name, 0)
    for node in made.nodes:
        rack = random.choice(["k1", "k2", "k3", "k4"])
        node["metadata"]["labels"] |= {HOSTNAME: node["metadata"]["name"], RACK: rack, ZONE: _ZONE_OF[rack]}
        if random.random() < 0.7:
            node["spec"] = {"taints": []}
    return made


def gang(random: Random, scene: Scene, name: str) -> Manifest:
    """The pods of a gang, with rules that are about themselves, mostly."""
    made = _Maker(random, scene)
    pod = made.pod(name, light=True)
    pod["metadata"]["labels"]["gang"] = name
    spec, own = pod["spec"], {"matchLabels": {"gang": name}}
    if random.random() < 0.7:
        spec.pop("volumes", None)
        spec.pop("affinity", None)
    rules: list[Callable[[Manifest], None]] = [made.anti_affinity, made.affinity, made.spread, made.ports]
    for rule in random.sample(rules, random.randint(1, 2)):
        rule(spec)
    affinity = spec.get("affinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in (
        *affinity.get("podAffinity", {}).get(required, ()),
        *affinity.get("podAntiAffinity", {}).get(required, ()),
        *spec.get("topologySpreadConstraints", ()),
    ):
        for field_ in ("matchLabelKeys", "mismatchLabelKeys", "namespaces", "namespaceSelector"):
            term.pop(field_, None)
        if random.random() < 0.8:
            term["labelSelector"] = own
    return pod


class _Maker:
    def __init__(self, random: Random, scene: Scene) -> None:
        self.random = random
        self.scene = scene
        self.namespaces = [f"{scene.name}-{letter}" for letter in "ab"]
        self.node_names: list[str] = []
        self.claims: list[tuple[str, str]] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, values: tuple[Any, ...] | list[Any], most: int) -> list[Any]:
        return self.random.sample(list(values), self.random.randint(1, min(most, len(values))))

    # --- the cluster

    def cluster(self) -> None:
        for i, name in enumerate(self.namespaces):
            labels = {"team": "red" if i == 0 else "blue"} | ({"open": "yes"} if self.chance(0.5) else {})
            self.scene.namespaces.append(_object("v1", "Namespace", name, labels=labels))
        for i in range(self.random.randint(4, 14)):
            self.scene.nodes.append(self.node(f"{self.scene.name}-n{i:02}"))
            self.node_names.append(self.scene.nodes[-1]["metadata"]["name"])
        self.storage()
        for i in range(self.random.randint(4, 30)):
            pod = self.pod(f"bound-{i}", light=True)
            pod["spec"]["nodeName"] = self.random.choice(self.node_names)
            pod["spec"].pop("nodeSelector", None)
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            self.scene.bound.append(pod)
            if self.chance(0.12):
                self.scene.leaving.add(key)
            elif self.chance(0.08):
                self.scene.ended.add(key)

    def node(self, name: str) -> Manifest:
        random = self.random
        labels = {HOSTNAME: name}
        if self.chance(0.9):
            labels[ZONE] = random.choice(["z1", "z2", "z3"])
        if self.chance(0.1):
            labels[OLD_ZONE] = random.choice(["z1", "z2"])
        if self.chance(0.5):
            labels[REGION] = random.choice(["r1", "r2"])
        if self.chance(0.8):
            labels[RACK] = random.choice(["k1", "k2", "k3", "k4"])
        if self.chance(0.7):
            labels["disk"] = random.choice(["ssd", "hdd"])
        if self.chance(0.7):
            labels["cores"] = random.choice(["4", "8", "16", "3", "many", "08", "9223372036854775808"])
        if self.chance(0.05):
            del labels[HOSTNAME]
        taints = []
        if self.chance(0.3):
            taints.append({"key": "gpu", "value": random.choice(["yes", "no", "5"]), "effect": random.choice(_EFFECTS)})
        if self.chance(0.1):
            taints.append({"key": "maintenance", "effect": random.choice(_EFFECTS)})
        allocatable = {
            "cpu": random.choice(["1", "2", "4", "3900m", "8"]),
            "memory": random.choice(["1Gi", "4Gi", "8Gi", "16Gi"]),
            "pods": random.choice(["3", "20", "110", "110"]),
            "ephemeral-storage": random.choice(["1Gi", "10Gi"]),
        }
        if self.chance(0.4):
            allocatable["example.com/gpu"] = random.choice(["0", "1", "4"])
        if self.chance(0.2):
            allocatable["hugepages-2Mi"] = random.choice(["4Mi", "8Mi"])
        made = _object("v1", "Node", name, labels=labels)
        made["spec"] = {"taints": taints, "unschedulable": self.chance(0.1)}
        ready = "True" if self.chance(0.95) else "False"
        made["status"] = {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        }
        return made

    def storage(self) -> None:
        random, add = self.random, self.scene.storage.append
        prefix = self.scene.name
        for mode in ("Immediate", "WaitForFirstConsumer"):
            add(
                _object("storage.k8s.io/v1", "StorageClass", f"{prefix}-{mode.lower()}")
                | {"provisioner": random.choice(DRIVERS), "volumeBindingMode": mode}
            )
        for node in self.node_names:
            if self.chance(0.6):
                drivers = [
                    {"name": d, "nodeID": node}
                    | ({"allocatable": {"count": random.randint(0, 3)}} if self.chance(0.8) else {})
                    for d in self.some(DRIVERS, 3)
                ]
                add(_object("storage.k8s.io/v1", "CSINode", node) | {"spec": {"drivers": drivers}})
        if self.chance(0.5):
            add(
                _object("storage.k8s.io/v1", "CSIDriver", DRIVERS[-1])
                | {"spec": {"preventPodSchedulingIfMissing": self.chance(0.8)}}
            )
        for i in range(10):
            namespace = random.choice(self.namespaces)
            self.claims.append((namespace, f"claim-{i}"))
            for made in self.claim(namespace, f"claim-{i}", f"{prefix}-pv-{i}"):
                add(made)
        for i in range(random.randint(0, 4)):
            add(
                _object("storage.k8s.io/v1", "VolumeAttachment", f"{prefix}-va-{i}")
                | {
                    "spec": {
                        "attacher": random.choice(DRIVERS),
                        "nodeName": random.choice(self.node_names),
                        "source": {"persistentVolumeName": f"{prefix}-pv-{random.randint(0, 9)}"},
                    }
                }
            )

    def claim(self, namespace: str, name: str, volume: str) -> list[Manifest]:
        """A claim and, mostly, the volume that it is bound to."""
        random = self.random
        mode = random.choice([*["ReadWriteMany"] * 4, "ReadWriteOnce", "ReadWriteOncePod"])
        claim = _object("v1", "PersistentVolumeClaim", name, namespace)
        claim["spec"] = {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": random.choice(
                ["", f"{self.scene.name}-immediate", f"{self.scene.name}-waitforfirstconsumer"]
            ),
        }
        if self.chance(0.08):
            return [claim]  # not bound
        claim["spec"]["volumeName"] = volume
        if self.chance(0.97):
            claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        claim["status"] = {"phase": "Lost" if self.chance(0.03) else "Bound"}
        if self.chance(0.03):
            return [claim]  # the volume is gone
        labels = {}
        if self.chance(0.3):
            labels[random.choice([ZONE, OLD_ZONE])] = random.choice(["z1", "z2", "z1__z3"])
        if self.chance(0.1):
            labels[REGION] = random.choice(["r1", "r2"])
        made = _object("v1", "PersistentVolume", volume, labels=labels)
        made["spec"] = {
            "accessModes": [mode],
            "capacity": {"storage": "1Gi"},
            "storageClassName": claim["spec"]["storageClassName"],
            "claimRef": {"namespace": namespace, "name": name},
        }
        if self.chance(0.7):
            handle = f"handle-{random.randint(0, 6)}"
            made["spec"]["csi"] = {"driver": random.choice(DRIVERS), "volumeHandle": f"{self.scene.name}-{handle}"}
        else:
            made["spec"]["nfs"] = {"server": "192.0.2.1", "path": "/"}
        if self.chance(0.3):
            expression = random.choice(
                [
                    {"key": ZONE, "operator": "In", "values": self.some(["z1", "z2", "z3"], 2)},
                    {"key": HOSTNAME, "operator": "In", "values": self.some(self.node_names, 3)},
                    {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
                ]
            )
            made["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        return [claim, made]

    # --- pods

    def pod(self, name: str, *, light: bool = False) -> Manifest:
        random = self.random
        labels = {"app": random.choice(["web", "db", "cache"])}
        if self.chance(0.6):
            labels["tier"] = random.choice(["front", "back"])
        if self.chance(0.3):
            labels["version"] = random.choice(["1", "2"])
        made = _object("v1", "Pod", name, random.choice(self.namespaces), labels=labels)
        spec: Manifest = {"containers": [dict(CONTAINER)], "terminationGracePeriodSeconds": 600}
        made["spec"] = spec
        self.resources(spec, 0.25 if light else 0.6)
        namespace = made["metadata"]["namespace"]
        features: list[tuple[float, Callable[[Manifest], None]]] = [
            (0.2, self.ports),
            (0.1 if light else 0.2, self.anti_affinity),
            (0.05 if light else 0.15, self.affinity),
            (0.05 if light else 0.25, self.spread),
            (0.2, lambda spec: self.volumes(spec, namespace)),
            (0.6, self.tolerations),
            (0.0 if light else 0.1, self.node_selector),
            (0.0 if light else 0.15, self.node_affinity),
        ]
        for probability, feature in features:
            if self.chance(probability):
                feature(spec)
        return made

    def resources(self, spec: Manifest, probability: float) -> None:
        if not self.chance(probability):
            return
        random = self.random
        spec["containers"][0]["resources"] = self.requests()
        if self.chance(0.3):
            spec["containers"].append({**CONTAINER, "name": "second", "resources": self.requests()})
        if self.chance(0.3):
            init = {**CONTAINER, "name": "init", "resources": self.requests()}
            if self.chance(0.5):
                init["restartPolicy"] = "Always"
            spec["initContainers"] = [init]
            if self.chance(0.4):
                spec["initContainers"].append({**CONTAINER, "name": "init2", "resources": self.requests()})
        if self.chance(0.15):
            kind = random.choice(["requests", "limits"])
            spec["resources"] = {kind: {"cpu": "5", "memory": random.choice(["6Gi", "9Gi"])}}

    def requests(self) -> Manifest:
        random = self.random
        found = {
            "cpu": random.choice(["100m", "500m", "1", "1500m"]),
            "memory": random.choice(["64Mi", "512Mi", "2Gi"]),
        }
        kind = random.choice(["requests", "requests", "limits"])
        result: Manifest = {kind: found}
        if self.chance(0.2):
            found["ephemeral-storage"] = random.choice(["100Mi", "2Gi"])
        if self.chance(0.15):
            result.setdefault("limits", {})["example.com/gpu"] = random.choice(["0", "1", "2"])
        if self.chance(0.05):
            result.setdefault("limits", {})["example.com/unknown"] = random.choice(["0", "1"])
        if self.chance(0.05):
            result.setdefault("limits", {})["hugepages-2Mi"] = "4Mi"
        return result

    def ports(self, spec: Manifest) -> None:
        random = self.random
        ports: list[Manifest] = []
        for _ in range(random.randint(1, 2)):
            number = random.choice([80, 443, 8080])
            port: Manifest = {"containerPort": number}
            if not self.chance(0.2):
                port["hostPort"] = number
            if self.chance(0.4):
                port["hostIP"] = random.choice(["192.0.2.1", "192.0.2.2", "0.0.0.0", "::"])
            if self.chance(0.4):
                port["protocol"] = random.choice(["UDP", "SCTP", "TCP"])
            if not any(_same_port(port, other) for other in ports):
                ports.append(port)
        where = spec["containers"][0]
        if "initContainers" in spec and self.chance(0.3):
            where = spec["initContainers"][0]
        where["ports"] = ports
        if self.chance(0.3):
            spec["hostNetwork"] = True
            for port in ports:
                port["hostPort"] = port["containerPort"]

    def pod_terms(self, most: int) -> list[Manifest]:
        return [self.pod_term() for _ in range(self.random.randint(1, most))]

    def pod_term(self) -> Manifest:
        random = self.random
        term: Manifest = {"topologyKey": random.choice(KEYS)}
        if self.chance(0.95):
            term["labelSelector"] = self.selector()
        if self.chance(0.15):
            term["namespaces"] = self.some(self.namespaces, 2)
        if self.chance(0.2):
            term["namespaceSelector"] = random.choice(
                [
                    {},
                    {"matchLabels": {"team": "blue"}},
                    {"matchExpressions": [{"key": "open", "operator": "DoesNotExist"}]},
                ]
            )
        if "labelSelector" in term and self.chance(0.2):
            used = {e["key"] for e in term["labelSelector"].get("matchExpressions", [])}
            used |= term["labelSelector"].get("matchLabels", {}).keys()
            free = [key for key in ("version", "tier") if key not in used]
            if free:
                term[random.choice(["matchLabelKeys", "mismatchLabelKeys"])] = [random.choice(free)]
        return term

    def selector(self) -> Manifest:
        random = self.random
        return random.choice(
            [
                {"matchLabels": {"app": random.choice(["web", "db", "cache"])}},
                {"matchLabels": {"app": random.choice(["web", "db"]), "tier": "front"}},
                {
                    "matchExpressions": [
                        {"key": "app", "operator": "In", "values": self.some(["web", "db", "cache"], 2)}
                    ]
                },
                {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]},
                {"matchExpressions": [{"key": "tier", "operator": random.choice(["Exists", "DoesNotExist"])}]},
                {"matchLabels": {"nobody": "has-it"}},
                {},
            ]
        )

    def affinity(self, spec: Manifest) -> None:
        _affinity(spec)["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": self.pod_terms(2)}

    def anti_affinity(self, spec: Manifest) -> None:
        _affinity(spec)["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": self.pod_terms(2)}

    def spread(self, spec: Manifest) -> None:
        random = self.random
        constraints = []
        for key in self.some(KEYS, 2):
            made: Manifest = {
                "topologyKey": key,
                "maxSkew": random.randint(1, 3),
                "whenUnsatisfiable": "DoNotSchedule" if self.chance(0.85) else "ScheduleAnyway",
            }
            if self.chance(0.95):
                made["labelSelector"] = self.selector()
            if made["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.3):
                made["minDomains"] = random.randint(1, 4)
            for field_ in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.chance(0.4):
                    made[field_] = random.choice(["Honor", "Ignore"])
            if made.get("labelSelector", {}).get("matchLabels", {}).get("app") and self.chance(0.3):
                made["matchLabelKeys"] = ["version"]
            constraints.append(made)
        spec["topologySpreadConstraints"] = constraints

    def volumes(self, spec: Manifest, namespace: str) -> None:
        names = [name for where, name in self.claims if where == namespace] or ["claim-missing"]
        chosen = self.some(names, 2) if self.chance(0.97) else ["claim-missing"]
        spec["volumes"] = [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(chosen)
        ]

    def tolerations(self, spec: Manifest) -> None:
        random = self.random
        spec["tolerations"] = self.some(
            [
                {"key": "gpu", "operator": "Exists"},
                {"key": "gpu", "operator": "Equal", "value": "yes", "effect": random.choice(_EFFECTS)},
                {"operator": "Exists", "effect": random.choice(_EFFECTS)},
                {"operator": "Exists"},
                {"key": "maintenance", "operator": "Exists"},
                {"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            ],
            2,
        )

    def node_selector(self, spec: Manifest) -> None:
        random = self.random
        spec["nodeSelector"] = random.choice(
            [
                {"disk": "ssd"},
                {"disk": "ssd"},
                {ZONE: random.choice(["z1", "z2"])},
                {"disk": "hdd", ZONE: "z1"},
                {"no-node": "has-it"},
            ]
        )

    def node_affinity(self, spec: Manifest) -> None:
        terms = []
        for _ in range(self.random.randint(1, 2)):
            term: Manifest = {}
            if self.chance(0.9):
                term["matchExpressions"] = [self.expression() for _ in range(self.random.randint(1, 2))]
            if self.chance(0.15):
                operator = self.random.choice(["In", "NotIn"])
                name = self.random.choice(self.node_names)
                term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
            terms.append(term)
        _affinity(spec)["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }

    def expression(self) -> Manifest:
        random = self.random
        operator = random.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        if operator in ("Gt", "Lt"):
            return {"key": "cores", "operator": operator, "values": [random.choice(["5", "8", "9223372036854775806"])]}
        key = random.choice([ZONE, "disk", RACK, "cores"])
        found: Manifest = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self.some(["z1", "z2", "ssd", "hdd", "k1", "k2", "8", "16"], 4)
        return found


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _object(
    api_version: str, kind: str, name: str, namespace: str = "", *, labels: dict[str, str] | None = None
) -> Manifest:
    metadata: Manifest = {"name": name, "labels": labels or {}}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _affinity(spec: Manifest) -> Manifest:
    found: Manifest = spec.setdefault("affinity", {})
    return found


def _same_port(a: Manifest, b: Manifest) -> bool:
    keys = ("containerPort", "hostIP", "protocol")
    return all(
        a.get(key, "TCP" if key == "protocol" else "") == b.get(key, "TCP" if key == "protocol" else "") for key in keys
    )
