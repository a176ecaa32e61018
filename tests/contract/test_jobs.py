"""What Serried relies on of the Job controller: the real one, and the one of the embedded cluster.

The tests play scheduler and kubelet.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from serried.api.core import Pod
from serried.api.names import COMPLETION_INDEX
from serried.api.resources import JOBS, PODS
from serried.cluster.protocol import Cluster
from serried.embedded.jobs import JobController
from serried.embedded.server import EmbeddedCluster
from tests.patience import until

Json = dict[str, Any]


class Story:
    """One Job, and what happens to it."""

    def __init__(self, cluster: Cluster, namespace: str, node: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.node = node

    async def submit(self, **spec: Any) -> None:
        container = {"name": "main", "image": "registry.example/none"}
        template = {"spec": {"schedulerName": "nobody", "restartPolicy": "Never", "containers": [container]}}
        manifest = {"metadata": {"name": "job"}, "spec": {**spec, "template": template}}
        await self.cluster.create(JOBS, manifest, self.namespace)

    async def change(self, **spec: Any) -> None:
        await self.cluster.patch(JOBS, "job", self.namespace, patch={"spec": spec})

    async def pods(self) -> list[Pod]:
        return (await self.cluster.list(PODS, self.namespace)).items

    async def live(self) -> list[Pod]:
        """Pods that have neither ended nor are being deleted, by index."""
        found = [
            pod
            for pod in await self.pods()
            if pod.status.phase in ("Pending", "Running") and pod.metadata.deletion_timestamp is None
        ]
        return sorted(found, key=lambda pod: (pod.metadata.annotations.get(COMPLETION_INDEX, ""), pod.metadata.name))

    async def run(self, count: int) -> list[Pod]:
        """Waits until there are so many pods, and runs them."""

        async def made() -> bool:
            return len(await self.live()) == count

        await until(made)
        for pod in await self.live():
            if not pod.spec.node_name:
                await self.cluster.bind(self.namespace, pod.metadata.name, self.node)
                await self.end(pod, "Running")
        return await self.live()

    async def end(self, pod: Pod, phase: str) -> None:
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": str(phase == "Running")}]}
        await self.cluster.patch(
            PODS, pod.metadata.name, self.namespace, patch={"status": status}, subresource="status"
        )

    async def remove(self, *pods: Pod) -> None:
        """The kubelet says that they are gone."""
        for pod in pods:
            await self.cluster.delete(PODS, pod.metadata.name, self.namespace, grace_period_seconds=0)

    async def comes_to(self, *conditions: str, start: bool = True, **counts: Any) -> None:
        """Waits for a status with just these conditions true and just these counts, and with a start time or none."""

        async def told() -> Json:
            status = (await self.cluster.get(JOBS, "job", self.namespace)).status
            found = msgspec.structs.asdict(status)
            true = sorted(each.type for each in status.conditions if each.status == "True")
            numbers = {name: value for name, value in found.items() if name in _COUNTS and value}
            return {"conditions": true, "start": status.start_time is not None, **numbers}

        wanted = {"conditions": sorted(conditions), "start": start, **counts}
        try:

            async def reached() -> bool:
                return await told() == wanted

            await until(reached)
        except TimeoutError:
            assert await told() == wanted


_COUNTS = ("active", "ready", "succeeded", "failed", "terminating", "completed_indexes")


@pytest.fixture
async def story(cluster: Cluster, namespace: str, node: str) -> AsyncIterator[Story]:
    controller = JobController(cluster, speed=10) if isinstance(cluster, EmbeddedCluster) else None
    if controller is not None:
        await controller.start()
    made = Story(cluster, namespace, node)
    yield made
    await made.remove(*await made.pods())
    if controller is not None:
        await controller.stop()


def indexed(count: int, **more: Any) -> Json:
    return {"completionMode": "Indexed", "completions": count, "parallelism": count, **more}


async def test_an_indexed_job_completes_index_by_index(story: Story) -> None:
    await story.submit(**indexed(3))
    pods = await story.run(3)
    assert [pod.metadata.labels[COMPLETION_INDEX] for pod in pods] == ["0", "1", "2"]
    await story.comes_to(active=3, ready=3)
    await story.end(pods[1], "Succeeded")
    await story.comes_to(active=2, ready=2, succeeded=1, completed_indexes="1")
    await story.end(pods[0], "Succeeded")
    await story.end(pods[2], "Succeeded")
    await story.comes_to("SuccessCriteriaMet", "Complete", succeeded=3, completed_indexes="0-2")

    async def released() -> bool:
        return all(not pod.metadata.finalizers for pod in await story.pods())

    await until(released)
    assert len(await story.pods()) == 3


async def test_a_suspended_job_keeps_what_it_has_reached_and_loses_its_pods(story: Story) -> None:
    await story.submit(**indexed(3))
    pods = await story.run(3)
    await story.comes_to(active=3, ready=3)
    await story.end(pods[2], "Succeeded")
    await story.comes_to(active=2, ready=2, succeeded=1, completed_indexes="2")
    await story.change(suspend=True)
    await story.comes_to("Suspended", start=False, succeeded=1, terminating=2, completed_indexes="2")
    await story.remove(*pods[:2])
    await story.comes_to("Suspended", start=False, succeeded=1, completed_indexes="2")
    await story.change(suspend=False)
    pods = await story.run(2)
    await story.comes_to(active=2, ready=2, succeeded=1, completed_indexes="2")
    for pod in pods:
        await story.end(pod, "Succeeded")
    await story.comes_to("SuccessCriteriaMet", "Complete", succeeded=3, completed_indexes="0-2")


async def test_a_job_that_begins_suspended_has_no_pods_until_it_starts(story: Story) -> None:
    await story.submit(**indexed(2, suspend=True))
    await story.comes_to("Suspended", start=False)
    assert await story.pods() == []
    await story.change(suspend=False, template={"spec": {"nodeSelector": {"rack": "r"}}})
    pods = await story.run(2)
    assert {pod.spec.node_selector["rack"] for pod in pods} == {"r"}


async def test_a_failed_and_a_lost_pod_count_and_are_replaced_later(story: Story) -> None:
    await story.submit(**indexed(2, backoffLimit=5))
    pods = await story.run(2)
    await story.comes_to(active=2, ready=2)
    await story.end(pods[0], "Failed")
    await story.comes_to(active=1, ready=1, failed=1)
    # Not at once: that is for the back-off to say.
    assert len(await story.pods()) == 2
    await story.run(2)
    await story.comes_to(active=2, ready=2, failed=1)
    await story.cluster.delete(PODS, pods[1].metadata.name, story.namespace)
    await story.comes_to(active=1, ready=1, failed=2, terminating=1)


async def test_a_job_fails_when_its_pods_have_gone(story: Story) -> None:
    await story.submit(**indexed(3, backoffLimit=0))
    pods = await story.run(3)
    await story.comes_to(active=3, ready=3)
    await story.end(pods[0], "Failed")
    await story.comes_to("FailureTarget", failed=3, terminating=2)
    await story.remove(*pods[1:])
    await story.comes_to("FailureTarget", "Failed", failed=3)


async def test_a_job_grows_and_shrinks(story: Story) -> None:
    await story.submit(**indexed(2))
    await story.run(2)
    await story.change(completions=4, parallelism=4)
    await story.run(4)
    await story.comes_to(active=4, ready=4)
    await story.change(completions=1, parallelism=1)
    await story.comes_to(active=1, ready=1, terminating=3)
    assert [pod.metadata.annotations[COMPLETION_INDEX] for pod in await story.live()] == ["0"]


async def test_a_job_without_indexes_runs_until_enough_have_succeeded(story: Story) -> None:
    await story.submit(completions=3, parallelism=2)
    pods = await story.run(2)
    await story.end(pods[0], "Succeeded")
    await story.comes_to(active=2, ready=1, succeeded=1)
    for pod in await story.run(2):
        await story.end(pod, "Succeeded")
    await story.comes_to("SuccessCriteriaMet", "Complete", succeeded=3)


async def test_a_work_queue_makes_no_pods_after_its_first_success(story: Story) -> None:
    await story.submit(parallelism=2)
    pods = await story.run(2)
    await story.end(pods[0], "Succeeded")
    await story.comes_to(active=1, ready=1, succeeded=1)
    await story.end(pods[1], "Failed")
    await story.comes_to("SuccessCriteriaMet", "Complete", succeeded=1, failed=1)


async def test_pods_go_with_their_job(story: Story) -> None:
    await story.submit(**indexed(2))
    await story.run(2)
    await story.cluster.delete(JOBS, "job", story.namespace)

    async def done() -> bool:
        return all(pod.metadata.deletion_timestamp and not pod.metadata.finalizers for pod in await story.pods())

    await until(done)
    assert len(await story.pods()) == 2
