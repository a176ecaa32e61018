"""A crash in the middle of binding a gang: whoever starts next completes it on its planned nodes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from serried.api.names import WorkloadCondition
from tests.conftest import SERRIED
from tests.patience import patience
from tests.scenarios.arena import Arena, assigned, job
from tests.scenarios.process import serried_run
from tests.scenarios.proxy import BindingProxy
from tools.controlplane import ControlPlane

GANG = 64


@pytest.mark.parametrize("arena", ["real"], indirect=True)
@pytest.mark.parametrize(
    "bound",
    [pytest.param(n, marks=() if i % 4 == 0 else pytest.mark.exhaustive) for i, n in enumerate(range(1, GANG, 3))],
)
async def test_kill_between_the_first_and_the_last_binding(
    arena: Arena, control_plane: ControlPlane, tmp_path: Path, bound: int
) -> None:
    """After `kill -9` with some of 64 pods bound, the next process binds the others as planned, and none twice."""
    await arena.set_up_queue()
    proxy = BindingProxy(control_plane.url, control_plane.ca)
    log = tmp_path / "serried.log"
    async with proxy.serve():
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig", SERRIED.token)
        async with serried_run(kubeconfig, log) as process:
            proxy.close_after(bound, process.kill)
            await arena.submit(job("gang", GANG))
            async with patience():
                await proxy.halted.wait()
            assert await process.wait() == -signal.SIGKILL
        await arena.until(lambda: proxy.answered(bound))
        before = {p.metadata.uid: p.spec.node_name for p in await arena.pods("gang") if p.spec.node_name}
        assert len(before) == bound
        _, domains = assigned(await arena.workload("gang"))
        planned = [values[0] for values, count in domains for _ in range(count)]

        proxy.open()
        proxy.bindings.clear()
        async with serried_run(kubeconfig, log) as process:
            await arena.until_condition("gang", WorkloadCondition.PODS_READY)
            after = await arena.pods("gang")
            assert [p.spec.node_name for p in after] == planned
            assert {p.metadata.uid: p.spec.node_name for p in after}.items() >= before.items()
            assert len(proxy.bindings) == GANG - len(before)
            assert {status for _, status in proxy.bindings} == {201}
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_a_controller_stopped_amid_its_bindings_is_followed_by_one_that_completes_them(arena: Arena) -> None:
    """The same on both clusters, the end being a cancelled controller in this process."""
    await arena.set_up_queue()
    await arena.start()
    await arena.submit(job("gang", GANG))

    async def some_bound() -> int:
        return sum(bool(p.spec.node_name) for p in await arena.pods("gang"))

    await arena.until(some_bound)
    await arena.stop()
    _, domains = assigned(await arena.workload("gang"))
    await arena.start()
    pods = await arena.until_running("gang", GANG)
    assert [p.spec.node_name for p in pods] == [values[0] for values, _ in domains]
