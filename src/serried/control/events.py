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
from serried.cluster.work_queue import WorkQueue
from serried.control.pace import rest

log = logging.getLogger(__name__)

_MESSAGE_LIMIT = 1024
_WAITING = 2000  # events not yet written; the oldest are dropped beyond it
_REMEMBERED = 4000  # events that a repetition can be folded into

#: What makes events one event: uid of the object, reason, message.
Identity = tuple[str, str, str]


class Recorder:
    """Takes events at once and writes them one after another; an event that repeats is counted, not repeated."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: OrderedDict[Identity, Event] = OrderedDict()
        self._written: OrderedDict[Identity, tuple[str, int]] = OrderedDict()
        self._queue: WorkQueue[Identity] = WorkQueue(self._write, parallelism=1, retry=_lose)

    def start(self) -> None:
        self._queue.start()

    async def stop(self) -> None:
        """What has not been written by then is lost."""
        await self._queue.stop()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to be written."""
        return self._queue.is_quiet

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
            self._queue.forget(self._waiting.popitem(last=False)[0])
        self._queue.add(identity)

    async def _write(self, identity: Identity) -> None:
        event = self._waiting.pop(identity, None)
        if event is None:
            return  # dropped for newer ones
        started = time.monotonic()
        if not await self._count_up(identity, event):
            made = await self._cluster.create(EVENTS, event, event.metadata.namespace)
            self._written[identity] = (made.metadata.name, event.count)
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
        await asyncio.sleep(rest(time.monotonic() - started))

    async def _count_up(self, identity: Identity, event: Event) -> bool:
        """Adds to an event that was written before; False: there is none any more."""
        if identity not in self._written:
            return False
        name, count = self._written[identity]
        count += event.count
        patch = {"count": count, "lastTimestamp": event.last_timestamp}
        try:
            await self._cluster.patch(EVENTS, name, event.metadata.namespace, patch=patch)
        except NotFound:  # events expire
            del self._written[identity]
            return False
        self._written[identity] = (name, count)
        return True


def _lose(identity: Identity, error: Exception, failures: int) -> None:
    """A write that fails loses that event, never more."""
    if isinstance(error, ApiError):
        log.debug("event %s not written: %s", identity[1], error)
    else:
        log.error("event %s not written", identity[1], exc_info=error)
