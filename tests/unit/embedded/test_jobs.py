"""The Job controller on the embedded cluster; the tests are the kubelet."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serried.api.batch import JobStatus
from serried.api.core import Pod
from serried.api.names import COMPLETION_INDEX, JOB_NAME
from serried.api.resources import JOBS, PODS, PRIORITY_CLASSES
from serried.cluster.protocol import NotFound
from serried.embedded.job_plan import TRACKING
from serried.embedded.jobs import FIRST_BACK_OFF, JobController
from serried.embedded.server import EmbeddedCluster
from tests.unit.embedded.conftest import now
from tests.unit.embedded.objects import job, named, set_phase, until


@pytest.fixture
async def controller(cluster: EmbeddedCluster) -> AsyncIterator[JobController]:
    made = JobController(cluster, now=now)
    await made.start()
    yield made
    await made.stop()


pytestmark = pytest.mark.usefixtures("controller")


async def pods(cluster: EmbeddedCluster, name: str = "j") -> list[Pod]:
    return (await cluster.list(PODS, "default", label_selector=f"{JOB_NAME}={name}")).items


async def live(cluster: EmbeddedCluster) -> dict[str, Pod]:
    """Pods that have neither ended nor are being deleted, by completion index."""
    return {
        pod.metadata.annotations.get(COMPLETION_INDEX, pod.metadata.name): pod
        for pod in await pods(cluster)
        if pod.status.phase in ("Pending", "Running") and pod.metadata.deletion_timestamp is None
    }


async def status(cluster: EmbeddedCluster, name: str = "j") -> JobStatus:
    return (await cluster.get(JOBS, name, "default")).status


async def started(cluster: EmbeddedCluster, count: int, **spec: Any) -> dict[str, Pod]:
    """An indexed Job whose pods all run on a node, and these pods."""
    spec = {"completionMode": "Indexed", "completions": count, "parallelism": count, **spec}
    await cluster.create(JOBS, job(**spec), "default")
    await running(cluster, count)
    return await live(cluster)


async def running(cluster: EmbeddedCluster, count: int) -> None:
    """Waits for so many pods, and lets them run."""

    async def all_there() -> bool:
        return len(await live(cluster)) == count

    await until(all_there)
    for pod in (await live(cluster)).values():
        if not pod.spec.node_name:
            await cluster.bind("default", pod.metadata.name, "node")
            await set_phase(cluster, pod.metadata.name, "Running")

    async def all_ready() -> bool:
        return (await status(cluster)).ready == count

    await until(all_ready)


async def until_status(cluster: EmbeddedCluster, **wanted: Any) -> JobStatus:
    async def reached() -> bool:
        found = await status(cluster)
        return all(getattr(found, name) == value for name, value in wanted.items())

    await until(reached)
    return await status(cluster)


async def until_true(cluster: EmbeddedCluster, condition: str, seconds: float = 60.0) -> JobStatus:
    async def reached() -> bool:
        found = await status(cluster)
        return any(each.type == condition and each.status == "True" for each in found.conditions)

    await until(reached, seconds)
    return await status(cluster)


async def test_pods_say_whose_they_are(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 3)
    assert sorted(made) == ["0", "1", "2"]
    owner = await cluster.get(JOBS, "j", "default")
    for index, pod in made.items():
        assert pod.metadata.name.startswith(f"j-{index}-")
        assert (
            pod.metadata.labels.items()
            >= {
                "app": "train",
                "job-name": "j",
                JOB_NAME: "j",
                COMPLETION_INDEX: index,
                "batch.kubernetes.io/controller-uid": owner.metadata.uid,
                "controller-uid": owner.metadata.uid,
            }.items()
        )
        assert pod.metadata.controller is not None
        assert (pod.metadata.controller.kind, pod.metadata.controller.uid) == ("Job", owner.metadata.uid)
        assert pod.metadata.finalizers == (TRACKING,)
        assert pod.spec.scheduler_name == "nobody"


async def test_a_job_completes_and_lets_go_of_its_pods(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 3)
    for pod in made.values():
        await set_phase(cluster, pod.metadata.name, "Succeeded")
    found = await until_true(cluster, "Complete")
    assert (found.succeeded, found.active, found.ready, found.completed_indexes) == (3, 0, 0, "0-2")
    assert found.completion_time is not None

    async def released() -> bool:
        return all(pod.metadata.finalizers == () for pod in await pods(cluster))

    await until(released)
    await cluster.delete(JOBS, "j", "default")

    async def gone() -> bool:
        return await pods(cluster) == []

    await until(gone)


async def test_a_failed_pod_is_replaced_after_a_while_that_doubles(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 2, backoffLimit=5)
    for round_, wait in enumerate([FIRST_BACK_OFF, 2 * FIRST_BACK_OFF], 1):
        failed_at = now()
        await set_phase(cluster, made["0"].metadata.name, "Failed")
        await until_status(cluster, failed=round_, active=1)
        await running(cluster, 2)
        made = await live(cluster)
        created = made["0"].metadata.creation_timestamp
        assert created is not None
        assert wait - 1 <= (created - failed_at).total_seconds() <= wait + 1


async def test_a_pod_that_was_deleted_is_a_failure_and_is_replaced(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 2)
    name = made["1"].metadata.name
    await cluster.delete(PODS, name, "default")
    found = await until_status(cluster, failed=1, terminating=1)
    assert (found.active, found.ready) == (1, 1)
    await running(cluster, 2)
    await cluster.delete(PODS, name, "default", grace_period_seconds=0)
    assert (await until_status(cluster, terminating=0)).failed == 1


async def test_a_job_fails_when_it_has_failed_too_often(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 3, backoffLimit=0)
    await set_phase(cluster, made["1"].metadata.name, "Failed")
    found = await until_true(cluster, "FailureTarget")
    # Its other pods are told to end, and it has failed when they have.
    assert not any(each.type == "Failed" for each in found.conditions)
    for index in "02":
        await cluster.delete(PODS, made[index].metadata.name, "default", grace_period_seconds=0)
    found = await until_true(cluster, "Failed")
    assert (found.failed, found.active, found.terminating) == (3, 0, 0)
    assert next(each for each in found.conditions if each.type == "Failed").reason == "BackoffLimitExceeded"
    assert [pod.metadata.name for pod in await pods(cluster)] == [made["1"].metadata.name]


async def test_a_suspended_job_has_no_pods_and_can_be_changed(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 2)
    await cluster.patch(JOBS, "j", "default", patch={"spec": {"suspend": True}})
    found = await until_true(cluster, "Suspended")
    assert found.start_time is None
    assert (found.active, found.failed, found.terminating) == (0, 0, 2)
    for pod in made.values():
        await cluster.delete(PODS, pod.metadata.name, "default", grace_period_seconds=0)
    await until_status(cluster, terminating=0)
    assert await pods(cluster) == []
    placed = {"spec": {"template": {"spec": {"nodeSelector": {"rack": "r1"}}}}}
    await cluster.patch(JOBS, "j", "default", patch=placed)
    await cluster.patch(JOBS, "j", "default", patch={"spec": {"suspend": False}})
    await running(cluster, 2)
    assert {pod.spec.node_selector["rack"] for pod in (await live(cluster)).values()} == {"r1"}
    found = await status(cluster)
    assert found.start_time is not None
    assert [(each.type, each.status) for each in found.conditions] == [("Suspended", "False")]


async def test_a_job_that_begins_suspended_waits(cluster: EmbeddedCluster) -> None:
    await cluster.create(JOBS, job(suspend=True, parallelism=2), "default")
    found = await until_true(cluster, "Suspended")
    assert found.start_time is None
    assert await pods(cluster) == []


async def test_a_job_grows_and_shrinks(cluster: EmbeddedCluster) -> None:
    await started(cluster, 2)
    await cluster.patch(JOBS, "j", "default", patch={"spec": {"completions": 4, "parallelism": 4}})
    await running(cluster, 4)
    await cluster.patch(JOBS, "j", "default", patch={"spec": {"completions": 1, "parallelism": 1}})
    found = await until_status(cluster, active=1)
    assert found.failed == 0
    assert list(await live(cluster)) == ["0"]


async def test_a_job_without_indexes_runs_until_enough_have_succeeded(cluster: EmbeddedCluster) -> None:
    await cluster.create(JOBS, job(completions=3, parallelism=2), "default")
    for succeeded, at_once in ((1, 2), (2, 2), (3, 1)):
        await running(cluster, at_once)
        await set_phase(cluster, next(iter((await live(cluster)).values())).metadata.name, "Succeeded")
        await until_status(cluster, succeeded=succeeded)
    await until_true(cluster, "Complete")
    assert len(await pods(cluster)) == 3


async def test_a_job_of_the_same_name_has_nothing_of_the_one_before(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 2)
    await cluster.delete(JOBS, "j", "default")
    await cluster.create(JOBS, job(completionMode="Indexed", completions=2, parallelism=2), "default")
    await running(cluster, 2)
    assert not {pod.metadata.uid for pod in (await live(cluster)).values()} & {p.metadata.uid for p in made.values()}
    assert (await status(cluster)).failed == 0
    for pod in made.values():
        await cluster.delete(PODS, pod.metadata.name, "default", grace_period_seconds=0)
    assert len(await pods(cluster)) == 2


async def test_a_deleted_job_takes_its_pods_along(cluster: EmbeddedCluster) -> None:
    made = await started(cluster, 2)
    await cluster.delete(JOBS, "j", "default")

    async def all_going() -> bool:
        return all(pod.metadata.deletion_timestamp and not pod.metadata.finalizers for pod in await pods(cluster))

    await until(all_going)
    for pod in made.values():
        await cluster.delete(PODS, pod.metadata.name, "default", grace_period_seconds=0)

    async def gone() -> bool:
        try:
            await cluster.get(JOBS, "j", "default")
        except NotFound:
            return True
        return False

    await until(gone)


async def test_a_job_managed_by_another_is_left_alone(cluster: EmbeddedCluster) -> None:
    await cluster.create(JOBS, job("theirs", managedBy="example.com/other"), "default")
    await started(cluster, 1)
    assert await pods(cluster, "theirs") == []
    assert await status(cluster, "theirs") == JobStatus()


async def test_pods_that_are_refused_are_tried_again_later(cluster: EmbeddedCluster) -> None:
    """And other Jobs go on meanwhile."""
    refused = job("refused", parallelism=1)
    refused["spec"]["template"]["spec"]["priorityClassName"] = "late"
    await cluster.create(JOBS, refused, "default")
    await started(cluster, 2)
    assert await pods(cluster, "refused") == []
    assert (await status(cluster, "refused")).active == 0
    await cluster.create(PRIORITY_CLASSES, {**named("late"), "value": 1})

    async def made() -> bool:
        return len(await pods(cluster, "refused")) == 1

    await until(made)


async def test_a_controller_that_comes_late_takes_up_what_is_there(
    cluster: EmbeddedCluster, controller: JobController
) -> None:
    made = await started(cluster, 3)
    await controller.stop()
    await set_phase(cluster, made["0"].metadata.name, "Succeeded")
    await cluster.delete(PODS, made["1"].metadata.name, "default")
    await cluster.create(JOBS, job("k"), "default")
    successor = JobController(cluster, now=now)
    await successor.start()
    await until_status(cluster, succeeded=1, failed=1, active=1)
    await running(cluster, 2)
    assert len(await pods(cluster, "k")) == 1
    await successor.stop()
