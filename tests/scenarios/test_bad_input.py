"""Bad input is answered on the object: which field, what was found, what is allowed. Nobody else is held up by it."""

from __future__ import annotations

from typing import Any

import pytest

from serried.api import names
from serried.api.names import WorkloadCondition
from serried.api.resources import JOBS, WORKLOADS
from serried.cluster.protocol import Invalid
from tests.scenarios.arena import GPU, RACK, Arena, job

QUOTA_RESERVED = WorkloadCondition.QUOTA_RESERVED


def workload(arena: Arena, requests: dict[str, Any], count: int = 1) -> dict[str, Any]:
    """A Workload made by hand; its template is not checked by the API server."""
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "by-hand", "namespace": arena.namespace},
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": count, "template": template}]},
    }


async def message_on_workload(arena: Arena, name: str) -> tuple[str, str]:
    """(reason, message) of QuotaReserved=False, once it is there."""

    async def condition() -> tuple[str, str] | None:
        found = await arena.cluster.get(WORKLOADS, name, arena.namespace)
        waits = [c for c in found.status.conditions if c.type == QUOTA_RESERVED and c.status == "False"]
        return (waits[0].reason, waits[0].message) if waits else None

    answer = await arena.until(condition)
    assert answer is not None
    return answer


async def others_go_on(arena: Arena) -> None:
    await arena.submit(job("good", 2, seconds=0.1))
    await arena.until_condition("good", WorkloadCondition.FINISHED)


async def test_a_quantity_that_does_not_parse_is_refused_with_the_job(arena: Arena) -> None:
    await arena.set_up_queue()
    with pytest.raises(Invalid) as caught:
        await arena.submit(job("typo", 1, gpus="8 pieces"))
    assert caught.value.status == 400


async def test_a_quantity_that_does_not_parse_in_a_workload_made_by_hand(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.cluster.create(WORKLOADS, workload(arena, {GPU: "8 pieces"}), arena.namespace)
    reason, message = await message_on_workload(arena, "by-hand")
    assert reason == "Misconfigured"
    assert f"spec.podSets[0].template.spec.containers[0].resources.requests[{GPU}]" in message
    assert "8 pieces" in message
    await others_go_on(arena)
    await arena.settle()  # nothing is tried again and again


async def test_a_negative_request(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    with pytest.raises(Invalid):
        await arena.submit(job("debt", 1, gpus=-1))
    await arena.cluster.create(WORKLOADS, workload(arena, {GPU: "-1"}), arena.namespace)
    reason, message = await message_on_workload(arena, "by-hand")
    assert reason == "Misconfigured"
    assert f"requests[{GPU}]" in message
    assert "-1" in message
    await others_go_on(arena)


async def test_a_topology_level_that_does_not_exist(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("lost", 2, topology={names.REQUIRED_TOPOLOGY: "topo.example/row"}))
    waits = await arena.until_condition("lost", QUOTA_RESERVED, "False", text="topo.example/row")
    assert RACK in waits.message  # what is allowed
    assert (await arena.job("lost")).spec.suspend
    await others_go_on(arena)


async def test_a_queue_that_does_not_exist_until_it_does(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("early", 2, queue="later", seconds=0.1))
    await arena.until_condition("early", QUOTA_RESERVED, "False", text="later")
    await others_go_on(arena)
    await arena.make_local_queue("later")
    await arena.until_condition("early", WorkloadCondition.FINISHED)


async def test_a_request_above_the_total_quota(arena: Arena) -> None:
    await arena.set_up_queue(nominal=32)
    await arena.start()
    await arena.submit(job("greedy", 5))
    waits = await arena.until_condition("greedy", QUOTA_RESERVED, "False", text="40")
    assert waits.reason == "ExceedsMaxQuota"
    assert GPU in waits.message
    assert "32" in waits.message
    await others_go_on(arena)
    await arena.settle()  # nothing is tried again and again


async def test_a_request_above_the_largest_domain(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("wide", 9, topology={names.REQUIRED_TOPOLOGY: RACK}))
    waits = await arena.until_condition("wide", QUOTA_RESERVED, "False", text="8 of 9")
    assert waits.reason == "TopologyPlacementFailed"
    await others_go_on(arena)
    await arena.settle()  # nothing is tried again and again


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "two"}, "whole number"),
        ({names.UNCONSTRAINED_TOPOLOGY: "maybe"}, "true"),
    ],
)
async def test_an_annotation_that_cannot_be_read(arena: Arena, annotations: dict[str, str], text: str) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("garbled", 2, topology=annotations))

    async def told() -> bool:
        events = await arena.events("garbled")
        return any(reason == "Misconfigured" and text in message for reason, message in events)

    await arena.until(told)
    assert (await arena.job("garbled")).spec.suspend
    await others_go_on(arena)


async def test_both_required_and_preferred(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("both", 2, topology={names.REQUIRED_TOPOLOGY: RACK, names.PREFERRED_TOPOLOGY: RACK}))
    waits = await arena.until_condition("both", QUOTA_RESERVED, "False", text="required")
    assert waits.reason == "Misconfigured"
    assert "preferred" in waits.message
    await others_go_on(arena)


async def test_a_priority_class_that_does_not_exist_until_it_does(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("vip", 1, seconds=0.1, labels={names.PRIORITY_CLASS: arena.scoped("vip")}))

    async def told() -> bool:
        events = await arena.events("vip")
        return any(reason == "Misconfigured" and arena.scoped("vip") in message for reason, message in events)

    await arena.until(told)
    await others_go_on(arena)
    await arena.make_priority_class("vip", 5)
    await arena.until_condition("vip", WorkloadCondition.FINISHED)


async def test_a_resource_that_no_group_covers(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    body = job("odd", 1)
    resources = body["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["requests"]["example.com/fpga"] = resources["limits"]["example.com/fpga"] = "1"
    await arena.submit(body)
    await arena.until_condition("odd", QUOTA_RESERVED, "False", text="example.com/fpga")
    await others_go_on(arena)


async def test_a_job_that_was_wrong_and_is_mended(arena: Arena) -> None:
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("mend", 2, seconds=0.1, topology={names.REQUIRED_TOPOLOGY: "topo.example/row"}))
    await arena.until_condition("mend", QUOTA_RESERVED, "False", text="row")
    annotations = {names.REQUIRED_TOPOLOGY: RACK}
    patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    await arena.cluster.patch(JOBS, "mend", arena.namespace, patch=patch)
    await arena.until_condition("mend", WorkloadCondition.FINISHED)
