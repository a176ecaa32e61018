"""Hollow nodes and their kubelet on the embedded cluster."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serried.api.core import Pod, Taint
from serried.api.names import HOSTNAME, POD_GROUP, RUN_GANG_SIZE, RUN_RESULT, RUN_SECONDS
from serried.api.resources import JOBS, NODES, PODS
from serried.cluster.protocol import NotFound
from serried.embedded.hollow import HollowNode, HollowNodes, run_seconds
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster
from tests.unit.embedded.conftest import now
from tests.unit.embedded.objects import RAW_PODS, job, named, pod, until


@pytest.fixture
async def nodes(cluster: EmbeddedCluster) -> AsyncIterator[HollowNodes]:
    made = HollowNodes(cluster, now=now)
    await made.add(HollowNode(f"node-{number}") for number in range(4))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def controller(cluster: EmbeddedCluster) -> AsyncIterator[JobController]:
    made = JobController(cluster, now=now)
    await made.start()
    yield made
    await made.stop()


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def run(cluster: EmbeddedCluster, name: str, node: str = "node-0", **annotations: str) -> None:
    """A pod on a node, with annotations such as `run_seconds="3"`."""
    keys = {"run_seconds": RUN_SECONDS, "run_result": RUN_RESULT}
    await cluster.create(PODS, pod(name, annotations={keys[k]: v for k, v in annotations.items()}), "default")
    await cluster.bind("default", name, node)


async def phase(cluster: EmbeddedCluster, name: str) -> str:
    return (await cluster.get(PODS, name, "default")).status.phase


async def gang(cluster: EmbeddedCluster, count: int, **content: Any) -> list[Pod]:
    """The pods of an indexed Job, by index, not bound yet."""
    content = {"completionMode": "Indexed", "completions": count, "parallelism": count, **content}
    await cluster.create(JOBS, job(**content), "default")

    async def made() -> bool:
        return len((await cluster.list(PODS)).items) == count

    await until(made)
    return sorted((await cluster.list(PODS)).items, key=lambda each: each.metadata.name)


async def bind(cluster: EmbeddedCluster, *pods: Pod) -> None:
    for number, each in enumerate(pods):
        await cluster.bind("default", each.metadata.name, f"node-{number % 4}")


async def phases(cluster: EmbeddedCluster) -> list[str]:
    await asyncio.sleep(0.01)
    return sorted(each.status.phase for each in (await cluster.list(PODS)).items)


# --- Nodes


async def test_a_node_is_as_described_and_ready(cluster: EmbeddedCluster) -> None:
    nodes = HollowNodes(cluster, now=now)
    taint = Taint(key="example.com/only", effect="NoSchedule")
    await nodes.add([HollowNode("n", {"rack": "r1"}, {"cpu": "8", "example.com/gpu": 4, "pods": "10"}, (taint,))])
    made = await cluster.get(NODES, "n")
    assert made.metadata.labels == {HOSTNAME: "n", "rack": "r1"}
    assert made.status.allocatable == {"cpu": "8", "example.com/gpu": "4", "pods": "10"}
    assert made.spec.taints == (taint,)
    assert [(each.type, each.status) for each in made.status.conditions] == [("Ready", "True")]


async def test_a_node_that_is_there_is_taken_over(cluster: EmbeddedCluster) -> None:
    await cluster.create(NODES, {**named("n", labels={"kept": "yes"}), "status": {"allocatable": {"cpu": "1"}}})
    nodes = HollowNodes(cluster, now=now)
    await nodes.add([HollowNode("n", {"rack": "r1"}, {"cpu": "8"})])
    made = await cluster.get(NODES, "n")
    assert made.metadata.labels == {HOSTNAME: "n", "kept": "yes", "rack": "r1"}
    assert made.status.allocatable == {"cpu": "8"}
    assert made.spec.taints == ()
    assert [each.status for each in made.status.conditions if each.type == "Ready"] == ["True"]


async def test_pods_that_were_bound_before_are_run(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    await run(cluster, "early", "late-node")
    assert await phases(cluster) == ["Pending"]
    await nodes.add([HollowNode("late-node")])
    assert await phases(cluster) == ["Running"]


# --- Pods


async def test_a_pod_runs_and_is_ready_and_nothing_of_others_is_lost(
    cluster: EmbeddedCluster, nodes: HollowNodes
) -> None:
    await cluster.create(PODS, pod(), "default")
    condition = {"type": "example.com/gate", "status": "True"}
    await cluster.patch(PODS, "p", "default", patch={"status": {"conditions": [condition]}}, subresource="status")
    await asyncio.sleep(5)
    await cluster.bind("default", "p", "node-0")
    assert await phases(cluster) == ["Running"]
    raw = await cluster.get(RAW_PODS, "p", "default")
    assert raw.status["startTime"] == now().strftime("%Y-%m-%dT%H:%M:%SZ")
    found = await cluster.get(PODS, "p", "default")
    assert [(each.type, each.status) for each in found.status.conditions] == [
        ("example.com/gate", "True"),
        ("PodScheduled", "True"),
        ("Initialized", "True"),
        ("ContainersReady", "True"),
        ("Ready", "True"),
    ]


async def test_a_pod_of_another_node_is_none_of_theirs(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    await run(cluster, "p", "another-node", run_seconds="1")
    await asyncio.sleep(10)
    assert await phases(cluster) == ["Pending"]


async def test_a_pod_ends_after_its_seconds(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    await run(cluster, "good", run_seconds="90")
    await run(cluster, "bad", run_seconds="90", run_result="fail")
    await run(cluster, "endless")
    await asyncio.sleep(89)
    assert await phases(cluster) == ["Running", "Running", "Running"]
    await asyncio.sleep(2)
    assert [await phase(cluster, name) for name in ("good", "bad", "endless")] == ["Succeeded", "Failed", "Running"]
    conditions = (await cluster.get(PODS, "good", "default")).status.conditions
    assert {each.type: each.status for each in conditions}["Ready"] == "False"


async def test_time_can_go_faster(cluster: EmbeddedCluster) -> None:
    nodes = HollowNodes(cluster, speed=60, now=now)
    await nodes.add([HollowNode("node-0")])
    await nodes.start()
    await run(cluster, "p", run_seconds="600")
    await asyncio.sleep(9)
    assert await phases(cluster) == ["Running"]
    await asyncio.sleep(2)
    assert await phases(cluster) == ["Succeeded"]
    await nodes.stop()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", ""])
def test_seconds_that_are_none_count_as_none(text: str, caplog: pytest.LogCaptureFixture) -> None:
    made = Pod()
    made.metadata.name, made.metadata.annotations = "p", {RUN_SECONDS: text}
    assert run_seconds(made) is None
    assert f"{RUN_SECONDS} is {text!r}, not a number of seconds" in caplog.text


async def test_a_pod_that_is_deleted_goes_when_its_node_says_so(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    await run(cluster, "p")
    assert await phases(cluster) == ["Running"]
    await cluster.delete(PODS, "p", "default")
    assert await phases(cluster) == []
    await run(cluster, "held")
    await cluster.patch(PODS, "held", "default", patch={"metadata": {"finalizers": ["example.com/hold"]}})
    await cluster.delete(PODS, "held", "default")
    await phases(cluster)
    assert (await cluster.get(PODS, "held", "default")).metadata.deletion_timestamp == now().replace(microsecond=0)
    await cluster.patch(PODS, "held", "default", patch={"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await cluster.get(PODS, "held", "default")


# --- Gangs


@pytest.mark.usefixtures("controller")
async def test_a_gang_gets_nowhere_until_it_is_complete(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    pods = await gang(cluster, 3, annotations={RUN_SECONDS: "60"})
    await bind(cluster, *pods[:2])
    await asyncio.sleep(1000)
    assert await phases(cluster) == ["Pending", "Running", "Running"]
    await bind(cluster, pods[2])
    await asyncio.sleep(59)
    assert await phases(cluster) == ["Running"] * 3
    await asyncio.sleep(2)
    assert await phases(cluster) == ["Succeeded"] * 3
    assert (await cluster.get(JOBS, "j", "default")).status.succeeded == 3


@pytest.mark.usefixtures("controller")
async def test_a_gang_that_loses_a_member_begins_anew_when_it_is_complete_again(
    cluster: EmbeddedCluster, nodes: HollowNodes
) -> None:
    pods = await gang(cluster, 3, annotations={RUN_SECONDS: "60"})
    await bind(cluster, *pods)
    await asyncio.sleep(50)
    await cluster.delete(PODS, pods[0].metadata.name, "default")
    await asyncio.sleep(500)
    assert await phases(cluster) == ["Pending", "Running", "Running"]
    [new] = [each for each in (await cluster.list(PODS)).items if not each.spec.node_name]
    await bind(cluster, new)
    await asyncio.sleep(59)
    assert await phases(cluster) == ["Running"] * 3
    await asyncio.sleep(2)
    assert await phases(cluster) == ["Succeeded"] * 3


@pytest.mark.usefixtures("controller")
async def test_a_job_in_waves_goes_on_with_what_is_left_for_it_to_do(
    cluster: EmbeddedCluster, nodes: HollowNodes
) -> None:
    """Five completions, two at a time: the last pod is a complete gang of one."""
    await gang(cluster, 2, annotations={RUN_SECONDS: "60"}, completions=5)
    for wave in (2, 4, 5):
        free = [each for each in (await cluster.list(PODS)).items if not each.spec.node_name]
        await bind(cluster, *free)
        await asyncio.sleep(62)
        assert (await cluster.get(JOBS, "j", "default")).status.succeeded == wave


@pytest.mark.usefixtures("controller")
async def test_the_failure_of_one_stops_the_others(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    pods = await gang(cluster, 3, annotations={RUN_SECONDS: "60"}, backoffLimit=0)
    failing = {"metadata": {"annotations": {RUN_SECONDS: "30", RUN_RESULT: "fail"}}}
    await cluster.patch(PODS, pods[1].metadata.name, "default", patch=failing)
    await bind(cluster, *pods)
    await asyncio.sleep(100)
    found = (await cluster.get(JOBS, "j", "default")).status
    assert (found.failed, found.succeeded) == (3, 0)
    assert {each.type for each in found.conditions} == {"FailureTarget", "Failed"}
    # The Job told the others to end, and their node let them.
    assert await phases(cluster) == ["Failed"]


async def test_pods_without_a_job_are_a_gang_by_their_group(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    for number in range(3):
        member = pod(f"p{number}", annotations={RUN_SECONDS: "10", RUN_GANG_SIZE: "3"})
        member["metadata"]["labels"] = {POD_GROUP: "g"}
        await cluster.create(PODS, member, "default")
    for number in range(2):
        await cluster.bind("default", f"p{number}", "node-0")
    await asyncio.sleep(100)
    assert await phases(cluster) == ["Pending", "Running", "Running"]
    await cluster.bind("default", "p2", "node-1")
    await asyncio.sleep(11)
    assert await phases(cluster) == ["Succeeded"] * 3


# --- Failing nodes


@pytest.mark.usefixtures("controller")
async def test_a_node_that_fails_stops_its_gangs_until_it_is_restored(
    cluster: EmbeddedCluster, nodes: HollowNodes
) -> None:
    pods = await gang(cluster, 4, annotations={RUN_SECONDS: "60"})
    await bind(cluster, *pods)
    await asyncio.sleep(30)
    await nodes.fail_node("node-2")
    failed = await cluster.get(NODES, "node-2")
    assert [(each.key, each.effect) for each in failed.spec.taints] == [
        ("node.kubernetes.io/not-ready", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoExecute"),
    ]
    assert [(each.type, each.status) for each in failed.status.conditions] == [("Ready", "False")]
    await asyncio.sleep(500)
    assert await phases(cluster) == ["Running"] * 4
    await nodes.restore_node("node-2")
    restored = await cluster.get(NODES, "node-2")
    assert restored.spec.taints == ()
    assert [each.status for each in restored.status.conditions] == ["True"]
    await asyncio.sleep(61)
    assert await phases(cluster) == ["Succeeded"] * 4


async def test_a_failed_node_keeps_the_pods_that_are_deleted(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    await run(cluster, "p", "node-1")
    await phases(cluster)
    await nodes.fail_node("node-1")
    await run(cluster, "late", "node-1")
    await cluster.delete(PODS, "p", "default")
    assert await phases(cluster) == ["Pending", "Running"]
    await nodes.restore_node("node-1")
    assert await phases(cluster) == ["Running"]


async def test_taints_of_others_stay(cluster: EmbeddedCluster, nodes: HollowNodes) -> None:
    theirs = {"key": "example.com/drain", "effect": "NoSchedule"}
    await cluster.patch(NODES, "node-0", patch={"spec": {"taints": [theirs]}})
    await nodes.fail_node("node-0")
    assert len((await cluster.get(NODES, "node-0")).spec.taints) == 3
    await nodes.restore_node("node-0")
    assert [each.key for each in (await cluster.get(NODES, "node-0")).spec.taints] == ["example.com/drain"]


async def test_only_nodes_of_theirs_can_fail(nodes: HollowNodes) -> None:
    with pytest.raises(KeyError):
        await nodes.fail_node("another-node")
