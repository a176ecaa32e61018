"""What Serried needs of a Kubernetes API server, as one small protocol with two implementations.

`serried.cluster.http.HttpCluster` talks to a real API server, `serried.embedded.server.EmbeddedCluster`
is one in process. Every package above is written against `Cluster` alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from serried.api.meta import Object, ObjectMeta
from serried.api.resources import Resource

T = TypeVar("T", bound=Object)

MergePatch = Mapping[str, Any]


class Malformed(Object):
    """An object the server holds that does not decode as its kind: its metadata, and what is wrong with it.

    One such object must never stop a watch, so it travels beside the good ones.
    """

    error: str = ""


class Listing(msgspec.Struct, Generic[T]):
    """All objects that matched, read over as many pages as it took, and the version to watch from."""

    items: list[T]
    malformed: list[Malformed]
    resource_version: str


class WatchEvent(msgspec.Struct, Generic[T]):
    """One change. `BOOKMARK` carries only a resourceVersion (in `object.metadata`)."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: T | Malformed


class ApiError(Exception):
    """The API server answered with a failure. `status` is the HTTP code, `reason` the word Kubernetes gives it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404: the object, its namespace or its kind is not there."""


class Conflict(ApiError):
    """409: the object has changed since it was read, a precondition failed, or a pod is bound already. Read again."""


class AlreadyExists(Conflict):
    """409 on create: an object of this name is there."""


class Invalid(ApiError):
    """422 or 400: the server refuses the content. The same request can never succeed; do not retry."""


class Expired(ApiError):
    """410: the resourceVersion is too old to watch from. List again."""


class Forbidden(ApiError):
    """401 or 403: the credentials are not good enough."""


class NotLeading(ApiError):
    """Not sent, because the lease under which this process may write could be over by now (status 0)."""


class Unavailable(ApiError):
    """The server could not be reached or kept answering 429/5xx until the retries ran out (status 0: no answer)."""


class Cluster(Protocol):
    """Reads, writes and watches. Every method raises `ApiError` or one of its kinds, and nothing else, on failure.

    Selectors are in the form of `kubectl -l` and `--field-selector`. A namespace of "" means all namespaces
    when listing and watching, and no namespace for cluster-scoped kinds.
    """

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T: ...

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[T]: ...

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`, until the server ends the stream (then resume from the last version seen).

        Raises `Expired` when that version is too old.
        """
        ...

    async def create(self, resource: Resource[T], obj: T | Mapping[str, Any], namespace: str = "") -> T: ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch,
        subresource: Literal["", "status"] = "",
    ) -> T:
        """`metadata.resourceVersion` in a patch is a precondition: `Conflict` when the object has moved on."""
        ...

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Deletes an object; what it owns follows."""
        ...

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        """Binds a pod to a node. `Conflict` when it is bound already, still gated, being deleted, or another uid."""
        ...

    async def served(self, group: str, version: str) -> frozenset[str]:
        """The plural names of the kinds that the server has in a group ("" is the core group) and version."""
        ...

    async def version(self) -> str:
        """The server's version, as "v1.37.2"."""
        ...

    async def close(self) -> None: ...


class LeaderCluster(Cluster, Protocol):
    """A cluster for a process of which only one may write at a time: see `serried.cluster.election`."""

    def apart(self) -> Cluster:
        """Another client of the same server, which shares no connection with this one.

        It is to be used, and closed, on one loop, which may be another thread's.
        """
        ...

    def fenced(self, may_write: Callable[[], bool]) -> Cluster:
        """The same client, but each write asks `may_write` as it goes out, and raises `NotLeading` if that says no."""
        ...


def partial(raw: bytes, error: Exception) -> Malformed:
    """What can still be said of an object that did not decode."""

    class _Meta(msgspec.Struct, rename="camel"):
        metadata: ObjectMeta

    try:
        metadata = msgspec.json.decode(raw, type=_Meta).metadata
    except msgspec.MsgspecError:
        metadata = ObjectMeta()
    return Malformed(metadata=metadata, error=str(error))
