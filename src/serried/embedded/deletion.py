"""How objects go: grace, finalizers, owners and namespaces. The part of kube-apiserver, the garbage collector and the
namespace controller in it is the same as in a real cluster; here the latter two run as callbacks of the event loop,
right after the change that concerns them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from serried.api.resources import NAMESPACES, PODS
from serried.cluster.protocol import Conflict
from serried.embedded.store import Json, Store, Stored

#: Seconds a pod is given to end when neither it nor the caller says.
GRACE_SECONDS = 30


def timestamp(moment: datetime) -> str:
    """A time as Kubernetes writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Deletion:
    """Deletes objects of a store, and what belongs to them."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        #: dependents to look at again, and namespaces to empty, when the loop gets to it
        self._suspects: dict[str, None] = {}
        self._namespaces: dict[str, None] = {}
        self._scheduled: asyncio.Handle | None = None

    def close(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()

    # --- What the API server does at once

    def delete(
        self,
        stored: Stored,
        *,
        uid: str = "",
        grace: int | None = None,
    ) -> None:
        """Deletes an object, or marks it as being deleted when it has to wait for its node or finalizers.

        Raises:
            Conflict: it is not the object that was meant.
        """
        if uid not in ("", stored.uid):
            raise Conflict(409, "Conflict", f"{stored.resource.kind} {stored.key[1]} has uid {stored.uid}, not {uid}")
        if stored.resource is NAMESPACES:
            self._terminate(stored)
        elif stored.resource is not PODS and not stored.metadata.get("finalizers"):
            self.remove(stored)
        else:
            self._mark(stored, grace)

    def _mark(self, stored: Stored, asked: int | None) -> None:
        """Marks an object as being deleted, or as to be gone sooner, and removes it if nothing holds it back.

        A pod is marked even if it goes at once, so that watchers see it coming.
        """
        metadata = stored.metadata
        marked = dict(metadata)
        if "deletionTimestamp" not in metadata:
            seconds = _grace(stored, asked)
            if "generation" in metadata:
                marked["generation"] = metadata["generation"] + 1
        else:
            before: int = metadata.get("deletionGracePeriodSeconds", 0)
            seconds = before if asked is None else min(before, asked)
        if "deletionTimestamp" not in metadata or seconds < metadata.get("deletionGracePeriodSeconds", 0):
            marked["deletionTimestamp"] = timestamp(self._now() + timedelta(seconds=seconds))
            marked["deletionGracePeriodSeconds"] = seconds
        if marked == metadata:
            return
        new = self._store.put(stored.resource, {**stored.data, "metadata": marked}, stored)
        if self.gone(new.data):
            self.remove(new)
        else:
            self.changed(new, stored)

    def gone(self, data: Json) -> bool:
        """Whether nothing holds back an object that is being deleted."""
        metadata = data["metadata"]
        return (
            "deletionTimestamp" in metadata
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
            and not (data.get("spec") or {}).get("finalizers")
        )

    def remove(self, stored: Stored) -> Stored:
        """Takes an object out of the store, now."""
        last = self._store.remove(stored)
        self._suspects.update(dict.fromkeys(each.uid for each in self._store.dependents(stored.uid)))
        for owner in stored.metadata.get("ownerReferences") or ():
            self._suspects[owner["uid"]] = None
        if stored.key[0]:
            self._namespace_may_be_empty(stored.key[0])
        self._schedule()
        return last

    def changed(self, new: Stored, old: Stored | None) -> None:
        """To be told of each stored version: it may have lost its owners."""
        owners = new.metadata.get("ownerReferences")
        if owners and (old is None or owners is not old.metadata.get("ownerReferences")):
            self._suspects[new.uid] = None
            self._schedule()

    # --- What the controllers do soon after

    def _schedule(self) -> None:
        if self._scheduled is None and (self._suspects or self._namespaces):
            self._scheduled = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        suspects, self._suspects = self._suspects, {}
        namespaces, self._namespaces = self._namespaces, {}
        self._scheduled = None
        for uid in suspects:
            stored = self._store.by_uid(uid)
            if stored is not None:
                self._examine(stored)
        for name in namespaces:
            self._empty(name)

    def _examine(self, stored: Stored) -> None:
        """One look at one object by the garbage collector."""
        owners = stored.metadata.get("ownerReferences") or ()
        solid = [reference for reference in owners if self._owner(stored, reference) is not None]
        if len(solid) == len(owners) or "deletionTimestamp" in stored.metadata:
            return
        if solid:
            metadata = {**stored.metadata, "ownerReferences": solid}
            self.changed(self._store.put(stored.resource, {**stored.data, "metadata": metadata}, stored), stored)
        else:
            self.delete(stored)

    def _owner(self, stored: Stored, reference: Json) -> Stored | None:
        """The owner that is meant, if it is there: of that kind and name, in the same namespace or cluster-scoped."""
        owner = self._store.by_uid(reference["uid"])
        if owner is None or owner.key[1] != reference["name"] or owner.resource.kind != reference["kind"]:
            return None
        return owner if owner.key[0] in ("", stored.key[0]) else None

    # --- Namespaces

    def _terminate(self, namespace: Stored) -> None:
        if "deletionTimestamp" not in namespace.metadata:
            metadata = {**namespace.metadata, "deletionTimestamp": timestamp(self._now())}
            status = {**namespace.data["status"], "phase": "Terminating"}
            self._store.put(NAMESPACES, {**namespace.data, "metadata": metadata, "status": status}, namespace)
        self._namespaces[namespace.key[1]] = None
        self._schedule()

    def _namespace_may_be_empty(self, name: str) -> None:
        namespace = self._store.table(NAMESPACES).get(("", name))
        if namespace is not None and "deletionTimestamp" in namespace.metadata:
            self._namespaces[name] = None

    def _empty(self, name: str) -> None:
        """Deletes all that a terminating namespace holds, and then the namespace."""
        left = 0
        for table in self._store.tables():
            for stored in list(table.all(name)):
                if "deletionTimestamp" not in stored.metadata:
                    self.delete(stored)
                left += self._store.current(stored) is not None
        namespace = self._store.table(NAMESPACES).get(("", name))
        if left or namespace is None:
            return
        data = {**namespace.data, "spec": {}, "metadata": dict(namespace.metadata)}
        if self.gone(data):
            self.remove(namespace)
        elif namespace.data["spec"]:
            self._store.put(NAMESPACES, data, namespace)


def _grace(stored: Stored, asked: int | None) -> int:
    """Seconds until an object may go. Only a pod that may be running on a node has any."""
    if stored.resource is not PODS:
        return 0
    spec, phase = stored.data["spec"], stored.data["status"].get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    default = spec.get("terminationGracePeriodSeconds")
    return max(0, asked if asked is not None else GRACE_SECONDS if default is None else int(default))
