"""How an object is created or changed: admission, defaults, checks, versions. The synchronous half of the server."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from serried.api.crds import crds
from serried.api.resources import ALL, JOBS, NAMESPACES, PODS, Resource
from serried.cluster.protocol import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from serried.embedded.deletion import Deletion, timestamp
from serried.embedded.kinds import Context, CustomKind, Kind, custom_kinds, simple_kinds
from serried.embedded.patch import same
from serried.embedded.problems import Problems, qualified
from serried.embedded.store import Json, Store, Stored
from serried.embedded.validation import QUANTITY_MAPS
from serried.embedded.workloads import JobRules, PodRules

#: In-process admission: gets the resource, the operation ("CREATE") and the object, which it may change in place.
#: To refuse, it raises `Forbidden` or `Invalid`.
Mutator = Callable[[Resource[Any], Literal["CREATE"], Json], None]

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_GENERATED_LENGTH = 63

#: What people may write in the metadata, besides name and namespace.
_OPEN_METADATA = ("labels", "annotations", "ownerReferences", "finalizers")

#: Times of built-in kinds that are kept in whole seconds.
_TIMES = frozenset(
    {
        "lastTransitionTime",
        "lastProbeTime",
        "lastHeartbeatTime",
        "startTime",
        "completionTime",
        "firstTimestamp",
        "lastTimestamp",
        "timeAdded",
    }
)
#: Fields of built-in kinds that are maps, and not structs, which may be empty.
_MAPS = QUANTITY_MAPS | {"labels", "annotations", "nodeSelector", "matchLabels"}
_FRACTION = re.compile(r"\.\d+(?=Z|[+-]\d\d:\d\d$)")


class Writes:
    """Creates and changes objects of a store."""

    def __init__(
        self, store: Store, deletion: Deletion, now: Callable[[], datetime], seed: int, mutators: Sequence[Mutator]
    ) -> None:
        self._store = store
        self._deletion = deletion
        self._now = now
        self._random = random.Random(seed)
        self._mutators = tuple(mutators)
        kinds = [PodRules(PODS), JobRules(JOBS), *simple_kinds(), *custom_kinds(ALL, crds())]
        self._kinds = {_identity(kind.resource): kind for kind in kinds}

    def kind(self, resource: Resource[Any]) -> Kind:
        """The rules of a kind. Raises `NotFound` when the server does not have it."""
        kind = self._kinds.get(_identity(resource))
        if kind is None:
            raise NotFound(404, "NotFound", f"{resource!r} is not served")
        return kind

    def served(self, group: str, version: str) -> frozenset[str]:
        return frozenset(plural for *place, plural in self._kinds if place == [group, version])

    def remove_kind(self, resource: Resource[Any]) -> None:
        del self._kinds[_identity(resource)]

    def add_kind(self, resource: Resource[Any], definition: Mapping[str, Any]) -> None:
        (self._kinds[_identity(resource)],) = custom_kinds((resource,), (definition,))

    def find(self, resource: Resource[Any], name: str, namespace: str) -> Stored:
        resource = self.kind(resource).resource
        found = self._store.table(resource).get((namespace if resource.namespaced else "", name))
        if found is None:
            raise NotFound(404, "NotFound", f'{qualified(resource)} "{name}" not found')
        return found

    # --- Creation

    def create(self, resource: Resource[Any], obj: Json, namespace: str) -> Stored:
        """Stores a new object, which becomes the store's own."""
        kind = self.kind(resource)
        resource = kind.resource
        _check_new(kind, obj)
        self._enter_namespace(kind, obj, namespace)
        for mutator in self._mutators:
            mutator(resource, "CREATE", obj)
        _clean(obj["metadata"] if isinstance(kind, CustomKind) else obj)
        if defect := kind.defect(obj):
            raise _unreadable(kind, defect)
        metadata = obj["metadata"] = self._new_metadata(kind, obj["metadata"])
        name = metadata["name"]
        obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
        if isinstance(kind, CustomKind) and kind.has_status:
            obj.pop("status", None)
        problems = Problems()
        kind.fill(obj, obj.keys(), problems)
        kind.admit(obj, self._context())
        kind.check_metadata(metadata, problems)
        kind.check(obj, None, problems)
        problems.check(resource, name)
        taken = self._store.table(resource).get((metadata.get("namespace", ""), name))
        if taken is not None:
            raise AlreadyExists(409, "AlreadyExists", f'{qualified(resource)} "{name}" already exists')
        return self._put(resource, obj, None)

    def _enter_namespace(self, kind: Kind, obj: Json, namespace: str) -> None:
        """Writes down the namespace of a new object, which must be there and not on its way out."""
        metadata = obj["metadata"]
        if not kind.resource.namespaced:
            metadata.pop("namespace", None)
            return
        given = metadata.get("namespace") or ""
        namespace = namespace or given
        if not namespace:
            raise Invalid(400, "BadRequest", "no namespace")
        if given not in ("", namespace):
            raise Invalid(400, "BadRequest", f"namespace {given!r} in the object, {namespace!r} in the request")
        metadata["namespace"] = namespace
        found = self._store.table(NAMESPACES).get(("", namespace))
        if found is None:
            raise NotFound(404, "NotFound", f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in found.metadata:
            raise Forbidden(403, "Forbidden", f"namespace {namespace} is being terminated")

    def _new_metadata(self, kind: Kind, given: Json) -> Json:
        """The metadata of a new object: what may be given, and what the server gives."""
        resource = kind.resource
        if given.get("resourceVersion"):
            raise Invalid(400, "BadRequest", "a new object with a resourceVersion")
        name = given.get("name") or ""
        prefix = given.get("generateName") or ""
        while prefix and (not name or (self._taken(resource, given, name) and not given.get("name"))):
            name = prefix[: _GENERATED_LENGTH - _SUFFIX_LENGTH] + "".join(
                self._random.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH)
            )
        if not name:
            problems = Problems()
            problems.required("metadata.name")
            problems.check(resource, "")
        metadata: Json = {"name": name}
        for field in ("generateName", "namespace", *_OPEN_METADATA):
            if given.get(field):
                metadata[field] = given[field]
        metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = timestamp(self._now())
        if kind.has_generation:
            metadata["generation"] = 1
        return metadata

    def _taken(self, resource: Resource[Any], given: Json, name: str) -> bool:
        return self._store.table(resource).get((given.get("namespace", ""), name)) is not None

    def _context(self) -> Context:
        return Context(
            timestamp=timestamp(self._now()),
            find=lambda resource, name: self._store.table(resource).get(("", name)),
            all=lambda resource: list(self._store.table(resource).all()),
        )

    # --- Change

    def change(self, old: Stored, new: Any, subresource: Literal["", "status"]) -> Stored:
        """Stores a changed object, or leaves the old version alone if nothing has changed.

        `new` may share parts with `old`; which of them are looked at depends on the subresource, as in Kubernetes.
        """
        resource, name = old.resource, old.key[1]
        kind = self.kind(resource)
        _check_patched(kind, new, name)
        problems = Problems()
        metadata = self._changed_metadata(kind, old, new["metadata"], subresource, problems)
        problems.check(resource, name)
        changed = {
            each
            for each in _sections(kind, new.keys() | old.data.keys(), subresource)
            if new.get(each) is not old.data.get(each)
        }
        data: Json = {**old.data, "metadata": metadata}
        for each in changed:
            # A copy: filling in works in place, and what is shared with older versions must not be touched.
            data[each] = msgspec.to_builtins(new.get(each))
            if data[each] is None:
                del data[each]
            elif not isinstance(kind, CustomKind):
                _clean(data[each])
        if defect := kind.defect(data):
            raise _unreadable_patch(defect)
        kind.fill(data, changed, problems)
        for each in [each for each in changed if same(data.get(each), old.data.get(each))]:
            changed.remove(each)
            if each in data:
                data[each] = old.data[each]
        if not changed and same(data["metadata"], old.metadata):
            return old
        kind.check_metadata(metadata, problems)
        if changed and subresource == "status":
            kind.check_status(data, old.data, problems)
        elif changed:
            kind.check(data, old.data, problems)
        problems.check(resource, name)
        if kind.has_generation and (changed - {"status"} if kind.has_status else changed):
            metadata["generation"] = old.metadata["generation"] + 1
        if self._deletion.gone(data):
            self._deletion.remove(old)
            return Stored(resource, data, old.version)
        return self._put(resource, data, old)

    def _changed_metadata(self, kind: Kind, old: Stored, given: Json, subresource: str, problems: Problems) -> Json:
        """The metadata of a changed object: what people may change, and what stays.

        Raises:
            Conflict: the change is based on another version of the object.
        """
        before, name = old.metadata, old.key[1]
        if given.get("name") != name:
            raise Invalid(400, "BadRequest", f"name {given.get('name')!r} in the object, {name!r} in the request")
        if given.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise Conflict(409, "Conflict", f'{qualified(kind.resource)} "{name}" has been modified')
        for field in ("uid", "namespace", "deletionTimestamp"):
            if given.get(field) and given[field] != before.get(field):
                problems.invalid(f"metadata.{field}", given[field])
        metadata = dict(before)
        if subresource == "status" and isinstance(kind, CustomKind):
            return metadata
        for field in _OPEN_METADATA:
            if given.get(field):
                metadata[field] = given[field]
            else:
                metadata.pop(field, None)
        if "deletionTimestamp" in before:
            kept, wanted = before.get("finalizers") or (), metadata.get("finalizers")
            if isinstance(wanted, list) and any(each not in kept for each in wanted):
                problems.forbidden("metadata.finalizers")  # none are added to an object that is being deleted
        return metadata

    # --- Pods

    def bind(self, old: Stored, node: str, uid: str) -> None:
        """Gives a pod its node. Raises `Conflict` when it has one, is gated, going, or not the one that was meant."""
        spec, pod = old.data["spec"], old.key[1]
        if uid and uid != old.uid:
            raise Conflict(409, "Conflict", f"pod {pod} is {old.uid}, not {uid}")
        if "deletionTimestamp" in old.metadata:
            raise Conflict(409, "Conflict", f"pod {pod} is being deleted")
        if spec.get("nodeName"):
            raise Conflict(409, "Conflict", f"pod {pod} is bound to {spec['nodeName']}")
        if spec.get("schedulingGates"):
            raise Conflict(409, "Conflict", f"pod {pod} is gated")
        if not node:
            raise Invalid(422, "Invalid", f'Binding "{pod}" is invalid: target.name: Required value')
        status = self._with_condition(old, {"type": "PodScheduled", "status": "True"})
        self._put(PODS, {**old.data, "spec": {**spec, "nodeName": node}, "status": status}, old)

    def _with_condition(self, stored: Stored, condition: Json) -> Json:
        """The status with a condition that is new or takes the place of the one of its type."""
        status = stored.data["status"]
        conditions = list(status.get("conditions") or ())
        place = next((i for i, each in enumerate(conditions) if each["type"] == condition["type"]), len(conditions))
        changed = place == len(conditions) or conditions[place]["status"] != condition["status"]
        since = timestamp(self._now()) if changed else conditions[place].get("lastTransitionTime")
        conditions[place : place + 1] = [{**condition, "lastTransitionTime": since}]
        return {**status, "conditions": conditions}

    def _put(self, resource: Resource[Any], data: Json, old: Stored | None) -> Stored:
        if old is not None and data["metadata"] is old.metadata:
            data["metadata"] = dict(old.metadata)
        new = self._store.put(resource, data, old)
        self._deletion.changed(new, old)
        return new


def _identity(resource: Resource[Any]) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _sections(kind: Kind, names: Iterable[str], subresource: str) -> set[str]:
    """The top-level fields that a write to this subresource can change."""
    if subresource == "status":
        return {"status"}
    return set(names) - {"apiVersion", "kind", "metadata"} - ({"status"} if kind.has_status else set())


def _unreadable(kind: Kind, why: str) -> Invalid:
    return Invalid(400, "BadRequest", f"{kind.resource.kind}: {why}")


def _unreadable_patch(why: str) -> Invalid:
    return Invalid(422, "Invalid", f'"" is invalid: patch: Invalid value: {why}')


def _foreign_type(kind: Kind, obj: Json) -> str:
    """What an object says that it is, if that is not what belongs here."""
    resource = kind.resource
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if obj.get(field) not in (None, "", wanted):
            return f"{field} is {obj[field]!r}, here it must be {wanted!r}"
    return ""


def _check_new(kind: Kind, obj: Any) -> None:
    if not isinstance(obj, dict) or not isinstance(obj.setdefault("metadata", {}), dict):
        raise _unreadable(kind, "it, or its metadata, is not an object")
    if foreign := _foreign_type(kind, obj):
        raise _unreadable(kind, foreign)


def _check_patched(kind: Kind, obj: Any, name: str) -> None:
    """Refuses what a patch has left, if it is not this object any more."""
    if not isinstance(obj, dict):
        raise Invalid(422, "Invalid", "the patch leaves no object")
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise _unreadable_patch("its metadata is not an object")
    if not metadata.get("name"):
        raise Invalid(400, "BadRequest", f"the patch takes the name of {name}")
    if foreign := _foreign_type(kind, obj):
        raise _unreadable_patch(foreign)


def _clean(value: Any) -> None:
    """Does, in place, what passing through the types of a built-in kind does.

    Nulls and empty lists and maps go, times lose their fractions, and whole quantities become text. (Kubernetes also
    writes quantities in their shortest form, which nothing here depends on.)
    """
    if isinstance(value, dict):
        for name, below in list(value.items()):
            if below is None or below == [] or (below == {} and name in _MAPS):
                del value[name]
            elif name in _TIMES and isinstance(below, str):
                value[name] = _FRACTION.sub("", below)
            elif name in QUANTITY_MAPS and isinstance(below, dict):
                value[name] = {key: str(each) if type(each) is int else each for key, each in below.items()}
            else:
                _clean(below)
    elif isinstance(value, list):
        for below in value:
            _clean(below)
