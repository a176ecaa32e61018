"""`serried run` as one function: checks, leader election, webhook, controller, until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any

from serried.cluster.election import LeaderElection
from serried.cluster.loop_thread import LoopThread
from serried.cluster.protocol import Cluster, LeaderCluster
from serried.control.config import Configuration
from serried.control.controller import Controller
from serried.control.served import check_served

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """Somebody else leads now. Nothing may be written any more; start again to stand by."""


async def run(
    cluster: LeaderCluster, config: Configuration, stop: asyncio.Event, *, when_listed: Callable[[], None] | None = None
) -> None:
    """Runs the controller until `stop` is set. `when_listed` is called once it has listed all there is.

    Raises `NotServed` before anything is written, `LeadershipLost` when the lease could not be renewed.
    """
    await check_served(cluster)
    async with AsyncExitStack() as stack:
        if config.webhook.enabled:  # every replica answers, whoever leads
            from serried.control import webhook  # a web server, and cryptography: much for whoever needs none

            bind = config.binding == "serried"
            await stack.enter_async_context(webhook.serve(cluster, config.webhook, bind=bind))
        if not config.leader_election.enabled:
            await _schedule(cluster, config, [stop.wait()], when_listed)
            return
        # Nothing that happens on this loop delays a renewal: it has a thread and connections of its own.
        thread = await stack.enter_async_context(LoopThread("lease"))
        client = cluster.apart()
        stack.push_async_callback(lambda: thread.call(client.close()))
        election = _election(client, config)
        stack.push_async_callback(lambda: thread.call(election.release()))
        log.info("standing by for the lease %s", config.leader_election.name)
        if not await _unless(stop, asyncio.create_task(thread.call(election.acquire()))):
            return
        log.info("leading")
        leader = cluster.fenced(election.leads)
        await _schedule(leader, config, [stop.wait(), thread.call(election.lost.wait())], when_listed)
        if election.lost.is_set():
            raise LeadershipLost(f"the lease {config.leader_election.name} could not be renewed in time")


async def _schedule(
    cluster: Cluster,
    config: Configuration,
    until: Iterable[Coroutine[Any, Any, object]],
    when_listed: Callable[[], None] | None,
) -> None:
    """Runs the controller until one of `until` is done, or it fails."""
    control = Controller(cluster, config)
    controller = asyncio.create_task(control.run())
    ends = [asyncio.create_task(work) for work in until]
    listed = asyncio.create_task(_after(control.ready, when_listed))
    try:
        await asyncio.wait({controller, *ends}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*ends, listed, controller):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await controller


async def _after(event: asyncio.Event, call: Callable[[], None] | None) -> None:
    await event.wait()
    if call is not None:
        call()


async def _unless(stop: asyncio.Event, task: asyncio.Task[None]) -> bool:
    """Waits for the task; False when `stop` came first."""
    waiter = asyncio.create_task(stop.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return False


def _election(cluster: Cluster, config: Configuration) -> LeaderElection:
    settings = config.leader_election
    return LeaderElection(
        cluster,
        settings.namespace,
        settings.name,
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}",
        lease_duration=settings.lease_duration,
        renew_deadline=settings.renew_deadline,
        retry_period=settings.retry_period,
    )
