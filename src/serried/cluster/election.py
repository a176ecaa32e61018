"""Leader election by a Lease, as client-go does it: one process acts, the others stand by."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from serried.api.core import Lease
from serried.api.resources import LEASES
from serried.cluster.protocol import ApiError, Cluster, Conflict, NotFound

log = logging.getLogger(__name__)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds of a clock that goes on whatever happens to the process: CLOCK_BOOTTIME where there is one.

    CLOCK_MONOTONIC goes on while a process is stopped, but stands still while the machine sleeps; the loop's clock
    (uvloop's) stands still until the loop turns.
    """
    return time.clock_gettime(_CLOCK)


class LeaderElection:
    """One candidate for a Lease. `identity` must be its own: two processes of one identity would both lead.

    Whoever holds the Lease renews it every `retry_period` seconds and stops leading when `renew_deadline` seconds
    have passed since it sent the last renewal that succeeded. The others take it when it has not changed for as long
    as it says it lasts (`lease_duration`), by their own clocks: the times written in it are for people.
    So no two lead at once, as long as all clocks run at the same speed.

    A leader that is stopped and woken may not notice that its time is over before it writes. So what it writes has to
    ask `leads` as it goes out (`LeaderCluster.fenced`); and since nothing else may delay renewals, they belong on a
    loop and a connection of their own (`LoopThread`, `LeaderCluster.apart`).

        async with LeaderElection(cluster, "serried-system", "serried", identity) as election:
            await election.lost.wait()

    Raises `ValueError` unless lease_duration > renew_deadline > 1.2 × retry_period > 0.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration: float = 15,
        renew_deadline: float = 10,
        retry_period: float = 2,
    ) -> None:
        if not lease_duration > renew_deadline > 1.2 * retry_period > 0:
            raise ValueError(
                f"lease_duration ({lease_duration} s) must be more than renew_deadline ({renew_deadline} s), "
                f"and that more than 1.2 times retry_period ({retry_period} s)"
            )
        if not identity:
            raise ValueError("identity is empty; it must be one that no other candidate has")
        self.identity = identity
        #: Set when the lead is lost, and not by `release`: stop what only the leader may do.
        self.lost = asyncio.Event()
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        #: The Lease as last seen, and when it was first seen with its content, in seconds of `now()`.
        self._seen: Lease | None = None
        self._seen_at = 0.0
        #: When leading ends unless the Lease is renewed, in seconds of `now()`.
        self._leads_until = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._complaints: set[str] = set()

    def leads(self) -> bool:
        """Whether this candidate may act as the leader right now. May be asked by any thread."""
        return now() < self._leads_until

    async def acquire(self) -> None:
        """Waits until this candidate leads, however long that takes, and then keeps it so."""
        while True:
            if await self._try(self._renew_deadline):
                break
            await asyncio.sleep(self._retry_period * random.uniform(1.0, 1.2))
        log.info("%s leads now (lease %s/%s)", self.identity, self._namespace, self._name)
        self.lost.clear()
        self._renewing = asyncio.get_running_loop().create_task(self._renew(), name=f"lease {self._name}")

    async def release(self) -> None:
        """Stops leading and gives the Lease back, so that the next candidate need not wait for its end."""
        task, self._renewing = self._renewing, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        self._leads_until = 0.0
        if self.lost.is_set():
            return
        try:
            async with asyncio.timeout(self._retry_period):
                while not await self._give_back():
                    pass
        except (ApiError, TimeoutError) as error:
            log.warning("the lease %s/%s was not given back, and will run out: %r", self._namespace, self._name, error)

    async def _give_back(self) -> bool:
        """Whether the Lease is ours no more; False: a renewal that was under way when it was cancelled came between."""
        lease = await self._cluster.get(LEASES, self._name, self._namespace)
        if lease.spec.holder_identity == self.identity:
            try:
                await self._write(lease, holder="", duration=1)
            except Conflict:
                return False
        return True

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def _renew(self) -> None:
        """Renews the Lease until it is lost."""
        why = "unexpected"
        try:
            while True:
                await asyncio.sleep(self._retry_period)
                left = self._leads_until - now()
                if left > 0 and await self._try(left):
                    continue
                if self._seen is not None and self._seen.spec.holder_identity != self.identity:
                    why = f"{self._seen.spec.holder_identity!r} holds it"
                    break
                if not self.leads():
                    why = "it could not be renewed"
                    break
        except Exception:
            log.exception("lease %s/%s", self._namespace, self._name)
        self._leads_until = 0.0
        log.error("%s leads no more (lease %s/%s): %s", self.identity, self._namespace, self._name, why)
        self.lost.set()

    async def _try(self, seconds: float) -> bool:
        """Tries once to take or renew the Lease. Failures are logged once for each kind of them."""
        sent_at = now()
        try:
            async with asyncio.timeout(seconds):
                held = await self._claim()
        except (ApiError, TimeoutError) as error:
            if type(error).__name__ not in self._complaints:
                self._complaints.add(type(error).__name__)
                log.warning("lease %s/%s, will try again: %r", self._namespace, self._name, error)
            return False
        self._complaints.clear()
        if held:
            self._leads_until = sent_at + self._renew_deadline
        return held

    async def _claim(self) -> bool:
        """Whether we hold the Lease now. Raises `Conflict` when another candidate was faster."""
        at = now()
        if self._seen is not None and self.leads():
            try:
                self._see(await self._write(self._seen, holder=self.identity, duration=self._lease_duration), at)
                return True
            except (Conflict, NotFound):
                pass  # somebody has changed it
        try:
            lease = await self._cluster.get(LEASES, self._name, self._namespace)
        except NotFound:
            spec = self._spec(self.identity, self._lease_duration, taken=True)
            body = {"metadata": {"name": self._name}, "spec": spec}
            self._see(await self._cluster.create(LEASES, body, self._namespace), at)
            return True
        self._see(lease, at)
        holder = lease.spec.holder_identity
        lasts = lease.spec.lease_duration_seconds or self._lease_duration
        if holder not in ("", self.identity) and at < self._seen_at + lasts:
            return False
        self._see(await self._write(lease, holder=self.identity, duration=self._lease_duration), at)
        return True

    def _see(self, lease: Lease, at: float) -> None:
        if self._seen is None or lease.spec != self._seen.spec:
            self._seen_at = at
        self._seen = lease

    async def _write(self, lease: Lease, *, holder: str, duration: float) -> Lease:
        """Writes the Lease, if it is still as it was read."""
        taken = holder != lease.spec.holder_identity
        spec = self._spec(holder, duration, taken=taken)
        if taken and holder:
            spec["leaseTransitions"] = lease.spec.lease_transitions + 1
        patch = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        return await self._cluster.patch(LEASES, self._name, self._namespace, patch=patch)

    @staticmethod
    def _spec(holder: str, duration: float, *, taken: bool) -> dict[str, Any]:
        # A MicroTime has six digits, also when they are zero.
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": math.ceil(duration), "renewTime": stamp}
        return spec | ({"acquireTime": stamp} if taken else {})
