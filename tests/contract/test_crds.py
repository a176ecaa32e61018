"""The custom resource definitions on a real API server: served, shown, filled in and held to their limits."""

import copy
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serried.api import assignment, resources
from serried.api.crds import crds
from serried.api.kueue import Workload
from serried.api.meta import Condition
from serried.api.quantity import QuantityError, format_quantity, parse, resource_value
from tools.controlplane import ControlPlane, binaries

DEPLOYED = Path(__file__).parents[2] / "deploy" / "crds"
CUSTOM = [r for r in resources.ALL if r.group.endswith(".x-k8s.io")]

Resource = resources.Resource[Any]
Body = dict[str, Any]


def kubectl(plane: ControlPlane, *arguments: str) -> str:
    done = subprocess.run(
        [binaries() / "kubectl", "--kubeconfig", plane.kubeconfig, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = f"crds-{uuid.uuid4().hex[:8]}"
    status, body = control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert status == 201, body
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


class Objects:
    """Creates objects and removes them after the test."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.created: list[str] = []

    def body(self, resource: Resource, content: Body, name: str) -> Body:
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **content}

    def try_create(self, resource: Resource, content: Body) -> tuple[int, Body]:
        """What the server says to the object, without keeping it."""
        path = resource.path(self.namespace) + "?dryRun=All"
        return self.plane.request("POST", path, self.body(resource, content, "trial"))

    def create(self, resource: Resource, content: Body) -> tuple[str, Body]:
        """The object as it was created, and its path."""
        name = f"crds-{uuid.uuid4().hex[:8]}"
        status, body = self.plane.request("POST", resource.path(self.namespace), self.body(resource, content, name))
        assert status == 201, body
        path = resource.path(self.namespace, name)
        self.created.append(path)
        return path, body

    def merge(self, path: str, patch: Body) -> tuple[int, Body]:
        return self.plane.request("PATCH", path, patch, content_type="application/merge-patch+json")


@pytest.fixture
def objects(control_plane: ControlPlane, namespace: str) -> Iterator[Objects]:
    made = Objects(control_plane, namespace)
    yield made
    for path in made.created:
        control_plane.request("DELETE", path)


def queue_with(**quota: Any) -> Body:
    """A ClusterQueue's spec with one flavor and one resource."""
    flavor = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": 1} | quota]}
    return {"spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}]}}


def workload_with(**pod_set: Any) -> Body:
    return {"spec": {"podSets": [{"template": {}} | pod_set]}}


TAINT = {"key": "gpu", "effect": "NoSchedule"}
#: The least that each kind accepts.
LEAST: dict[Resource, Body] = {
    resources.TOPOLOGIES: {"spec": {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}},
    resources.RESOURCE_FLAVORS: {},
    resources.CLUSTER_QUEUES: {"spec": {}},
    resources.LOCAL_QUEUES: {"spec": {"clusterQueue": "team"}},
    resources.COHORTS: {},
    resources.WORKLOADS: workload_with(),
    resources.WORKLOAD_PRIORITY_CLASSES: {"value": 0},
    resources.ADMISSION_CHECKS: {"spec": {"controllerName": "example.com/check"}},
    resources.COSCHEDULING_POD_GROUPS: {"spec": {"minMember": 1}},
}


@pytest.mark.parametrize("crd", crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_definition_is_established_and_structural(control_plane: ControlPlane, crd: Body) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    _, body = control_plane.request("GET", path)
    conditions = {condition["type"]: condition["status"] for condition in body["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema") != "True"


def test_kubectl_applies_the_deployed_files(control_plane: ControlPlane) -> None:
    output = kubectl(
        control_plane, "apply", "--server-side", "--dry-run=server", "--field-manager=new", "-f", str(DEPLOYED)
    )
    assert output.count("serverside-applied") == len(CUSTOM)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("ac", "NAME"),
        ("cq", "NAME COHORT STRATEGY PENDING WORKLOADS ADMITTED WORKLOADS"),
        ("co", "NAME"),
        ("queue", "NAME CLUSTERQUEUE PENDING WORKLOADS ADMITTED WORKLOADS"),
        ("rf", "NAME"),
        ("topo", "NAME"),
        ("wpc", "NAME VALUE"),
        ("kwl", "NAME QUEUE RESERVED IN ADMITTED FINISHED AGE"),
        ("pg", "NAME PHASE MINMEMBER RUNNING SUCCEEDED FAILED AGE"),
    ],
)
def test_kubectl_knows_the_short_names_and_shows_the_columns(objects: Objects, kind: str, columns: str) -> None:
    names = {name: crd["spec"]["names"]["kind"] for crd in crds() for name in crd["spec"]["names"]["shortNames"]}
    resource = next(r for r in CUSTOM if r.kind == names[kind])
    objects.create(resource, LEAST[resource])
    header = kubectl(objects.plane, "get", kind, "-o", "wide", "-n", objects.namespace).splitlines()[0]
    # Kinds without columns of their own get NAME and AGE from the API server.
    assert " ".join(header.split()) in (columns, f"{columns} AGE")


def test_columns_show_the_values(objects: Objects) -> None:
    path, _ = objects.create(resources.WORKLOADS, {"spec": {"queueName": "team-a", "podSets": [{"template": {}}]}})
    condition = {"status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status, body = objects.merge(
        path + "/status",
        {"status": {"admission": {"clusterQueue": "research"}, "conditions": [{"type": "Admitted"} | condition]}},
    )
    assert status == 200, body
    row = kubectl(objects.plane, "get", path.split("/")[-2], path.split("/")[-1], "-n", objects.namespace).splitlines()[
        1
    ]
    assert row.split()[1:4] == ["team-a", "research", "True"]


@pytest.mark.parametrize("resource", CUSTOM, ids=lambda resource: resource.kind)
def test_the_least_of_each_kind_is_accepted_and_decodes(objects: Objects, resource: Resource) -> None:
    _, body = objects.create(resource, LEAST[resource])
    assert msgspec.convert(body, resource.type).kind == resource.kind


def test_a_cluster_queue_gets_its_defaults(objects: Objects) -> None:
    _, body = objects.create(resources.CLUSTER_QUEUES, {"spec": {"fairSharing": {}}})
    assert body["spec"] == {
        "fairSharing": {"weight": 1},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {
            "borrowWithinCohort": {"policy": "Never"},
            "reclaimWithinCohort": "Never",
            "withinClusterQueue": "Never",
        },
        "queueingStrategy": "BestEffortFIFO",
        "stopPolicy": "None",
    }


def test_a_workload_gets_its_defaults_and_its_template_stays_as_it_is(objects: Objects) -> None:
    template = {"spec": {"containers": [{"name": "c", "unheard-of": {"a": [1, None]}}]}, "metadata": {"x": "y"}}
    _, body = objects.create(resources.WORKLOADS, workload_with(template=template))
    assert body["spec"] == {"active": True, "podSets": [{"name": "main", "count": 1, "template": template}]}


def test_other_kinds_get_their_defaults(objects: Objects) -> None:
    _, queue = objects.create(resources.LOCAL_QUEUES, {"spec": {"clusterQueue": "team", "fairSharing": {}}})
    assert queue["spec"] == {"clusterQueue": "team", "fairSharing": {"weight": 1}, "stopPolicy": "None"}
    _, cohort = objects.create(resources.COHORTS, {"spec": {"fairSharing": {}}})
    assert cohort["spec"] == {"fairSharing": {"weight": 1}}


@pytest.mark.parametrize("text", ["0", "8", "1.5Gi", "100m", ".5", "1.", "1e3", "2E", "1k", 8, 0])
def test_quotas_that_are_quantities_are_accepted(objects: Objects, text: str | int) -> None:
    status, body = objects.try_create(resources.CLUSTER_QUEUES, queue_with(nominalQuota=text))
    assert status == 201, body


LEVEL = {"nodeLabel": "kubernetes.io/hostname"}
REFUSED: list[tuple[Resource, Body, str]] = [
    (resources.CLUSTER_QUEUES, queue_with(nominalQuota="8GB"), "nominalQuota"),
    (resources.CLUSTER_QUEUES, queue_with(nominalQuota="-1"), "nominalQuota"),
    (resources.CLUSTER_QUEUES, queue_with(nominalQuota=-1), "nominalQuota"),
    (resources.CLUSTER_QUEUES, queue_with(nominalQuota=1.5), "nominalQuota"),
    (resources.CLUSTER_QUEUES, queue_with(nominalQuota=None), "nominalQuota: Required"),
    (resources.CLUSTER_QUEUES, queue_with(borrowingLimit=1), "borrowingLimit needs a cohortName"),
    (resources.CLUSTER_QUEUES, {"spec": {"queueingStrategy": "LIFO"}}, "queueingStrategy: Unsupported value"),
    (resources.CLUSTER_QUEUES, {"spec": {"stopPolicy": ""}}, "stopPolicy: Unsupported value"),
    (resources.CLUSTER_QUEUES, {"spec": {"cohortName": "Capital"}}, "cohortName"),
    (resources.CLUSTER_QUEUES, {"spec": {"resourceGroups": [{}] * 17}}, "must have at most 16 items"),
    (resources.CLUSTER_QUEUES, {"spec": {"resourceGroups": [{"coveredResources": ["cpu"]}]}}, "flavors: Required"),
    (
        resources.CLUSTER_QUEUES,
        {"spec": {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}},
        "borrowWithinCohort needs reclaimWithinCohort",
    ),
    (resources.COHORTS, queue_with(nominalQuota="many"), "nominalQuota"),
    (resources.COHORTS, {"spec": {"parentName": "x" * 254}}, "parentName"),
    (resources.LOCAL_QUEUES, {"spec": {"clusterQueue": "no_underscores"}}, "clusterQueue"),
    (resources.TOPOLOGIES, {"spec": {"levels": []}}, "levels"),
    (resources.TOPOLOGIES, {"spec": {"levels": [{"nodeLabel": f"l{i}"} for i in range(17)]}}, "at most 16 items"),
    (resources.TOPOLOGIES, {"spec": {"levels": [{"nodeLabel": "two words"}]}}, "nodeLabel"),
    (resources.TOPOLOGIES, {"spec": {"levels": [LEVEL, {"nodeLabel": "rack"}]}}, "can only be the lowest level"),
    (resources.TOPOLOGIES, {"spec": {"levels": [{"nodeLabel": "rack"}] * 2}}, "each nodeLabel may be used once"),
    (resources.RESOURCE_FLAVORS, {"spec": {"nodeTaints": [TAINT | {"effect": "Sometimes"}]}}, "effect"),
    (resources.RESOURCE_FLAVORS, {"spec": {"nodeTaints": [TAINT] * 9}}, "at most 8 items"),
    (resources.RESOURCE_FLAVORS, {"spec": {"nodeLabels": {str(i): "x" for i in range(9)}}}, "nodeLabels: Too many"),
    (resources.RESOURCE_FLAVORS, {"spec": {"topologyName": "t"}}, "needs at least one node label"),
    (resources.RESOURCE_FLAVORS, {"spec": {"tolerations": [{"operator": "Equal"}]}}, "must be Exists when key"),
    (
        resources.RESOURCE_FLAVORS,
        {"spec": {"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}},
        "value must be empty",
    ),
    (
        resources.RESOURCE_FLAVORS,
        {"spec": {"tolerations": [{"key": "k", "tolerationSeconds": 5}]}},
        "effect must be NoExecute",
    ),
    (resources.WORKLOADS, {"spec": {"podSets": []}}, "podSets"),
    (resources.WORKLOADS, {"spec": {"podSets": [{"name": "a", "template": {}}] * 2}}, "Duplicate value"),
    (resources.WORKLOADS, {"spec": {"podSets": [{"count": 1}]}}, "template: Required"),
    (resources.WORKLOADS, workload_with(count=-1), "count"),
    (resources.WORKLOADS, workload_with(count=2**31), "count"),
    (resources.WORKLOADS, workload_with(minCount=0), "minCount"),
    (resources.WORKLOADS, workload_with(name="a.b"), "name"),
    (resources.WORKLOADS, workload_with(topologyRequest={"podSetSliceSize": 0}), "podSetSliceSize"),
    (resources.WORKLOADS, {"spec": {"maximumExecutionTimeSeconds": 0}}, "maximumExecutionTimeSeconds"),
    (
        resources.WORKLOADS,
        {"spec": {"priorityClassRef": {"group": "example.com", "kind": "PriorityClass", "name": "p"}}},
        "group: Unsupported value",
    ),
    (resources.WORKLOAD_PRIORITY_CLASSES, {}, "value: Required"),
    (resources.WORKLOAD_PRIORITY_CLASSES, {"value": 2**31}, "value"),
    (resources.ADMISSION_CHECKS, {"spec": {}}, "controllerName: Required"),
    (
        resources.ADMISSION_CHECKS,
        {"spec": {"controllerName": "c", "parameters": {"apiGroup": "g", "kind": "1K", "name": "n"}}},
        "kind",
    ),
    (resources.COSCHEDULING_POD_GROUPS, {"spec": {"minMember": 0}}, "minMember"),
    (resources.COSCHEDULING_POD_GROUPS, {"spec": {"minMember": 1, "minResources": {"cpu": "lots"}}}, "minResources"),
]


@pytest.mark.parametrize(
    ("resource", "content", "message"), REFUSED, ids=[f"{r.kind}-{m.split(':')[0]}" for r, _, m in REFUSED]
)
def test_what_breaks_a_limit_is_refused_with_the_field(
    objects: Objects, resource: Resource, content: Body, message: str
) -> None:
    status, body = objects.try_create(resource, content)
    assert status == 422, body
    assert message in body["message"]


@pytest.mark.parametrize(
    ("resource", "content", "change", "message"),
    [
        (
            resources.LOCAL_QUEUES,
            {"spec": {"clusterQueue": "team"}},
            {"spec": {"clusterQueue": "other"}},
            "clusterQueue cannot be changed",
        ),
        (
            resources.TOPOLOGIES,
            {"spec": {"levels": [LEVEL]}},
            {"spec": {"levels": [{"nodeLabel": "rack"}, LEVEL]}},
            "levels cannot be changed",
        ),
        (
            resources.RESOURCE_FLAVORS,
            {"spec": {"topologyName": "t", "nodeLabels": {"a": "b"}}},
            {"spec": {"nodeLabels": {"a": "c"}}},
            "cannot be changed",
        ),
        (
            resources.ADMISSION_CHECKS,
            {"spec": {"controllerName": "a"}},
            {"spec": {"controllerName": "b"}},
            "controllerName cannot be changed",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, resources.Resource) else "",
)
def test_what_others_build_on_cannot_be_changed(
    objects: Objects, resource: Resource, content: Body, change: Body, message: str
) -> None:
    path, _ = objects.create(resource, content)
    status, body = objects.merge(path, change)
    assert status == 422, body
    assert message in body["message"]
    labelled, body = objects.merge(path, {"metadata": {"labels": {"other": "things"}}})
    assert labelled == 200, body


def test_a_plan_of_ten_thousand_nodes_is_stored_and_read_back(objects: Objects) -> None:
    levels = ["example.com/block", "kubernetes.io/hostname"]
    domains: list[assignment.Domain] = [
        ((f"block-{i // 1000}", f"gpu-{i // 1000}-{i:05}.region.internal"), 8 if i else 3) for i in range(10_000)
    ]
    path, _ = objects.create(resources.WORKLOADS, workload_with(count=79_995))
    plan = msgspec.to_builtins(assignment.encode(levels, domains))
    status, body = objects.merge(
        path + "/status",
        {
            "status": {
                "admission": {
                    "clusterQueue": "research",
                    "podSetAssignments": [
                        {
                            "name": "main",
                            "count": 79_995,
                            "flavors": {"nvidia.com/gpu": "h200"},
                            "resourceUsage": {"nvidia.com/gpu": format_quantity("nvidia.com/gpu", 79_995)},
                            "topologyAssignment": plan,
                        }
                    ],
                }
            }
        },
    )
    assert status == 200, body
    admission = msgspec.convert(body, Workload).status.admission
    assert admission is not None
    stored = admission.pod_set_assignments[0].topology_assignment
    assert stored is not None
    assert assignment.decode(stored) == domains


def test_the_status_is_held_to_the_limits_of_the_plan(objects: Objects) -> None:
    path, _ = objects.create(resources.WORKLOADS, LEAST[resources.WORKLOADS])
    legal = msgspec.to_builtins(assignment.encode(["host"], [(("n0",), 1), (("n1",), 1)]))
    for change, message in [
        ({"domainCount": 0}, "domainCount"),
        ({"podCounts": {"universal": 0}}, "podCounts.universal"),
        ({"podCounts": {"individual": []}}, "podCounts.individual"),
        ({"valuesPerLevel": [{"universal": "n" * 64}]}, "universal"),
        ({"valuesPerLevel": [{"individual": {"roots": []}}]}, "roots"),
        ({"valuesPerLevel": [{"individual": {"prefix": "x"}}]}, "roots: Required"),
    ]:
        wrong = copy.deepcopy(legal)
        wrong["slices"][0].update(change)
        admission = {"clusterQueue": "q", "podSetAssignments": [{"topologyAssignment": wrong}]}
        status, body = objects.merge(path + "/status", {"status": {"admission": admission}})
        assert status == 422, change
        assert message in body["message"]


def test_conditions_as_they_are_encoded_are_accepted(objects: Objects) -> None:
    """Also one with an empty message, which the schema requires to be there."""
    path, body = objects.create(resources.WORKLOADS, LEAST[resources.WORKLOADS])
    created = msgspec.convert(body, Workload).metadata.creation_timestamp
    condition = Condition(type="Finished", status="True", reason="Succeeded", last_transition_time=created)
    status, body = objects.merge(path + "/status", {"status": {"conditions": [msgspec.to_builtins(condition)]}})
    assert status == 200, body
    assert msgspec.convert(body, Workload).status.conditions == (condition,)


def quota_of(objects: Objects, text: str) -> tuple[int, Body]:
    """What the API server makes of a quantity in one of its own kinds, a ResourceQuota."""
    return objects.plane.request(
        "POST",
        f"/api/v1/namespaces/{objects.namespace}/resourcequotas?dryRun=All",
        {"metadata": {"name": "trial"}, "spec": {"hard": {"cpu": text, "memory": text}}},
    )


@pytest.mark.parametrize("text", ["0", "1", ".5", "0.1", "1.5", "1500m", "2000m", "1k", "1000", "1500", "12000", "2M"])
def test_cpu_is_printed_as_the_api_server_prints_it(objects: Objects, text: str) -> None:
    status, body = quota_of(objects, text)
    assert status == 201, body
    assert format_quantity("cpu", resource_value("cpu", text)) == body["spec"]["hard"]["cpu"]


@pytest.mark.parametrize(
    "text",
    [
        *("007", "1.", "100u", "1n", "0.0001", "0.00001m", "1e3", "1E3", "1500e-3", "1e-12"),
        *("1Ki", "1.5Gi", "0.1Ki", "1E", "7Ei", "9223372036854775807", "8Ei", "1e40"),
    ],
)
def test_quantities_mean_what_they_mean_to_the_api_server(objects: Objects, text: str) -> None:
    """Where the API server writes a quantity in another way, both ways have to be the same number to us."""
    status, body = quota_of(objects, text)
    assert status == 201, body
    assert resource_value("cpu", body["spec"]["hard"]["cpu"]) == resource_value("cpu", text)
    assert parse(body["spec"]["hard"]["memory"]) == parse(text)


@pytest.mark.parametrize("text", ["", "1Zi", "1ki", "1e", "1K", "1e1.5", "--1", "0x1", "1,5"])
def test_what_is_no_quantity_to_the_api_server_is_none_to_us(objects: Objects, text: str) -> None:
    status, body = quota_of(objects, text)
    assert status == 400, body
    with pytest.raises(QuantityError):
        parse(text)
