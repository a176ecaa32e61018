"""How objects go: grace, finalizers, owners and namespaces. The part of kube-apiserver, the garbage collector and the
namespace controller in it is the same as in a real cluster; here the latter two run as callbacks of the event loop,
right after the change that concerns them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from serried.api.resources import NAMESPACES, PODS
from serried.cluster.protocol import Conflict, Propagation
from serried.embedded.store import Json, Store, Stored

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"

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
        propagation: Propagation = "Background",
        grace: int | None = None,
    ) -> None:
        """Deletes an object, or marks it as being deleted when it has to wait for its node, finalizers or dependents.

        Raises:
            Conflict: it is not the object that was meant.
        """
        if uid not in ("", stored.uid):
            raise Conflict(409, "Conflict", f"{stored.resource.kind} {stored.key[1]} has uid {stored.uid}, not {uid}")
        metadata = stored.metadata
        finalizers = [each for each in metadata.get("finalizers") or () if each not in (FOREGROUND, ORPHAN)]
        if propagation != "Background":
            finalizers.append(FOREGROUND if propagation == "Foreground" else ORPHAN)
        if stored.resource is NAMESPACES:
            self._terminate(stored)
        elif stored.resource is not PODS and not finalizers:
            self.remove(stored)
        else:
            self._mark(stored, finalizers, grace)

    def _mark(self, stored: Stored, finalizers: list[str], asked: int | None) -> None:
        """Marks an object as being deleted, or as to be gone sooner, and removes it if nothing holds it back.

        A pod is marked even if it goes at once, so that watchers see it coming.
        """
        metadata = stored.metadata
        marked = {**metadata, "finalizers": finalizers}
        if not finalizers:
            del marked["finalizers"]
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
        """To be told of each stored version: it may have lost its owners, or wait for its dependents."""
        metadata = new.metadata
        owners = metadata.get("ownerReferences")
        if owners and (old is None or owners is not old.metadata.get("ownerReferences")):
            self._suspects[new.uid] = None
        if "deletionTimestamp" in metadata and metadata.get("finalizers"):
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
        finalizers = stored.metadata.get("finalizers") or ()
        if "deletionTimestamp" in stored.metadata:
            if ORPHAN in finalizers:
                self._orphan(stored)
            elif FOREGROUND in finalizers:
                self._delete_dependents(stored)
            return
        owners = stored.metadata.get("ownerReferences") or ()
        if not owners:
            return
        solid, waiting, dangling = [], [], []
        for reference in owners:
            owner = self._owner(stored, reference)
            if owner is None:
                dangling.append(reference)
            elif "deletionTimestamp" in owner.metadata and FOREGROUND in (owner.metadata.get("finalizers") or ()):
                waiting.append(reference)
            else:
                solid.append(reference)
        if solid:
            if dangling or waiting:
                self._set_owners(stored, solid)
        elif waiting and self._store.dependents(stored.uid):
            self.delete(stored, propagation="Foreground")
        else:
            held = stored.metadata.get("finalizers") or ()
            self.delete(stored, propagation="Orphan" if ORPHAN in held else "Background")

    def _owner(self, stored: Stored, reference: Json) -> Stored | None:
        """The owner that is meant, if it is there: of that kind and name, in the same namespace or cluster-scoped."""
        owner = self._store.by_uid(reference["uid"])
        if owner is None or owner.key[1] != reference["name"] or owner.resource.kind != reference["kind"]:
            return None
        return owner if owner.key[0] in ("", stored.key[0]) else None

    def _orphan(self, owner: Stored) -> None:
        for dependent in self._store.dependents(owner.uid):
            references = dependent.metadata["ownerReferences"]
            self._set_owners(dependent, [each for each in references if each["uid"] != owner.uid])
        self._drop_finalizer(owner, ORPHAN)

    def _delete_dependents(self, owner: Stored) -> None:
        dependents = self._store.dependents(owner.uid)
        for dependent in dependents:
            if "deletionTimestamp" not in dependent.metadata:
                self._examine(dependent)
        if not any(_blocks(each, owner.uid) for each in self._store.dependents(owner.uid)):
            self._drop_finalizer(owner, FOREGROUND)

    def _set_owners(self, stored: Stored, owners: list[Any]) -> None:
        metadata = {**stored.metadata, "ownerReferences": owners}
        if not owners:
            del metadata["ownerReferences"]
        self.changed(self._store.put(stored.resource, {**stored.data, "metadata": metadata}, stored), stored)

    def _drop_finalizer(self, stored: Stored, finalizer: str) -> None:
        left = [each for each in stored.metadata["finalizers"] if each != finalizer]
        metadata = {**stored.metadata, "finalizers": left}
        if not left:
            del metadata["finalizers"]
        data = {**stored.data, "metadata": metadata}
        if self.gone(data):
            self.remove(stored)
        else:
            self.changed(self._store.put(stored.resource, data, stored), stored)

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


def _blocks(dependent: Stored, owner: str) -> bool:
    references = dependent.metadata["ownerReferences"]
    return any(each["uid"] == owner and each.get("blockOwnerDeletion") for each in references)
