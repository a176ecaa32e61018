"""Events on objects, as `kubectl describe` shows them: written behind everything else, folded where they repeat."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from serried.api.core import Event, EventSource, ObjectReference
from serried.api.meta import Object, ObjectMeta
from serried.api.names import SCHEDULER_NAME
from serried.api.resources import EVENTS, Resource
from serried.cluster.protocol import ApiError, Cluster, NotFound

log = logging.getLogger(__name__)

_MESSAGE_LIMIT = 1024
_WAITING = 2000  # events not yet written; the oldest are dropped beyond it
_REMEMBERED = 4000  # events that a repetition can be folded into
# A storm of events must not take the API server's time from decisions: so many at once, then so many a second.
_BURST, _RATE = 200, 10.0


class Recorder:
    """Takes events at once and writes them one after another; an event that repeats is counted, not repeated."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: OrderedDict[tuple[str, str, str], Event] = OrderedDict()
        self._written: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._wake = asyncio.Event()
        self._tokens = float(_BURST)
        self._filled = time.monotonic()

    def event(self, resource: Resource[Any], obj: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """An event about `obj`. Identical ones (same object, reason and text) become one with a count."""
        now = self._clock()
        identity = (obj.metadata.uid, reason, message)
        if (waiting := self._waiting.get(identity)) is not None:
            waiting.count += 1
            waiting.last_timestamp = now
            return
        self._waiting[identity] = Event(
            metadata=ObjectMeta(
                generate_name=f"{obj.metadata.name[:200]}.", namespace=obj.metadata.namespace or "default"
            ),
            involved_object=ObjectReference(
                api_version=resource.api_version,
                kind=resource.kind,
                name=obj.metadata.name,
                namespace=obj.metadata.namespace,
                uid=obj.metadata.uid,
                resource_version=obj.metadata.resource_version,
            ),
            reason=reason,
            message=message[:_MESSAGE_LIMIT],
            type="Warning" if warning else "Normal",
            count=1,
            first_timestamp=now,
            last_timestamp=now,
            source=EventSource(component=SCHEDULER_NAME),
            reporting_component=SCHEDULER_NAME,
        )
        if len(self._waiting) > _WAITING:
            self._waiting.popitem(last=False)
        self._wake.set()

    async def run(self) -> None:
        """Writes events until cancelled. A failed write loses that event, never more."""
        while True:
            await self._wake.wait()
            while self._waiting:
                await self._turn()
                identity, event = self._waiting.popitem(last=False)
                try:
                    await self._write(identity, event)
                except ApiError as error:
                    log.debug("event %s on %s not written: %s", event.reason, event.involved_object.name, error)
            self._wake.clear()

    async def _turn(self) -> None:
        """Waits until the next event may be written."""
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + _RATE * (now - self._filled)) - 1
        self._filled = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / _RATE)

    async def _write(self, identity: tuple[str, str, str], event: Event) -> None:
        namespace = event.metadata.namespace
        if (before := self._written.get(identity)) is not None:
            name, count = before[0], before[1] + event.count
            try:
                await self._cluster.patch(
                    EVENTS, name, namespace, patch={"count": count, "lastTimestamp": event.last_timestamp}
                )
                self._written[identity] = (name, count)
                return
            except NotFound:  # events expire
                del self._written[identity]
        made = await self._cluster.create(EVENTS, event, namespace)
        self._written[identity] = (made.metadata.name, event.count)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
