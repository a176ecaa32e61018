"""Shared by the contract tests: short manifests and waiting for what comes."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar, cast

from serried.api.meta import Object
from serried.cluster.protocol import WatchEvent
from tests.patience import patience

T = TypeVar("T", bound=Object)


def named(name: str, *, labels: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """The manifest of an object that is nothing but metadata, such as a Lease may be."""
    return {"metadata": {"name": name, "labels": labels or {}, **metadata}}


async def take(events: AsyncIterator[WatchEvent[T]], count: int) -> list[WatchEvent[T]]:
    """The first `count` events but for bookmarks; the watch is closed then."""
    taken: list[WatchEvent[T]] = []
    async with patience(), aclosing(cast(Any, events)):
        async for event in events:
            if event.type != "BOOKMARK":
                taken.append(event)
            if len(taken) == count:
                break
    return taken


def told(events: list[WatchEvent[T]]) -> list[tuple[str, str]]:
    """Type and name of each event."""
    return [(event.type, event.object.metadata.name) for event in events]
