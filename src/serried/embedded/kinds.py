"""What the API server knows about each kind: which parts it has, what is filled in, and what is refused.

Kinds that Kubernetes has built in are in `workloads` (Pod, Job) and here (the rest); custom resources follow the
schema of their definition (`serried.api.crds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from serried.api.meta import ObjectMeta
from serried.api.resources import (
    EVENTS,
    LEASES,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    STORAGE,
    Resource,
)
from serried.cluster.protocol import Forbidden
from serried.embedded import validation
from serried.embedded.problems import Problems
from serried.embedded.schema import Schema
from serried.embedded.store import Json, Stored

NOT_READY = "node.kubernetes.io/not-ready"

#: What the server itself looks after in every object.
_COMMON = ("apiVersion", "kind", "metadata")

#: Fields every kind can be selected by.
_COMMON_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True)
class Context:
    """What filling in an object may depend on besides itself."""

    #: now, as Kubernetes writes it
    timestamp: str
    #: the object of this kind and name in no namespace, if there is one
    find: Callable[[Resource[Any], str], Stored | None]
    all: Callable[[Resource[Any]], list[Stored]]


class Kind:
    """The rules of one kind. This base is for built-in kinds with nothing of their own.

    Methods that take an object change it in place; it is the server's own copy.
    """

    #: whether there is a status subresource, so that writes to the object leave the status alone
    has_status = False
    has_generation = False
    fields = _COMMON_FIELDS

    def __init__(self, resource: Resource[Any]) -> None:
        self.resource = resource

    def defect(self, obj: Json) -> str:
        """Why a typed decoder would refuse the object: a field of the wrong type, or a quantity that does not parse.

        "" if it would not.
        """
        try:
            msgspec.convert(obj, self.resource.type)
        except msgspec.ValidationError as error:
            return str(error)
        bad = next((value for value in validation.all_quantities(obj) if not validation.is_quantity(value)), None)
        return f"{bad!r} is no quantity" if bad is not None else ""

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        """Fills in defaults (and, for custom resources, checks against the schema), at creation and at each change.

        Below the top level, only `sections` are the caller's to change; others are shared with older versions.
        """

    def admit(self, obj: Json, context: Context) -> None:
        """What only happens at creation. Name and uid are set."""

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        """Notes what is wrong with a new object, or a changed one (then `old` is what it was)."""

    def check_status(self, new: Json, old: Json, problems: Problems) -> None:
        """Notes what is wrong with a new status."""

    def check_metadata(self, metadata: Json, problems: Problems) -> None:
        """Notes what is wrong with the metadata of a new or changed object."""
        validation.check_metadata(metadata, problems, is_name=validation.is_subdomain, strict=True)


class NodeKind(Kind):
    has_status = True
    fields = _COMMON_FIELDS | {"spec.unschedulable"}

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        if "status" in sections and status.get("capacity") and "allocatable" not in status:
            status["allocatable"] = dict(status["capacity"])

    def admit(self, obj: Json, context: Context) -> None:
        # Until somebody says that the node is ready, nothing is to run there.
        taints = obj["spec"].setdefault("taints", [])
        if not any(taint["key"] == NOT_READY and taint["effect"] == "NoSchedule" for taint in taints):
            taints.append({"key": NOT_READY, "effect": "NoSchedule"})

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        validation.check_taints(new["spec"].get("taints") or (), "metadata.taints", problems)
        self._check_resources(new, problems)

    def check_status(self, new: Json, old: Json, problems: Problems) -> None:
        self._check_resources(new, problems)

    def _check_resources(self, obj: Json, problems: Problems) -> None:
        for name in ("capacity", "allocatable"):
            validation.check_resource_list(obj["status"].get(name) or {}, f"status.{name}", problems)


class NamespaceKind(Kind):
    has_status = True
    fields = _COMMON_FIELDS | {"status.phase"}

    def admit(self, obj: Json, context: Context) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        metadata = obj["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}

    def check_metadata(self, metadata: Json, problems: Problems) -> None:
        validation.check_metadata(metadata, problems, is_name=validation.is_dns_label, strict=True)


class _LooseKind(Kind):
    """A kind whose finalizers may be any names."""

    def check_metadata(self, metadata: Json, problems: Problems) -> None:
        validation.check_metadata(metadata, problems, is_name=validation.is_subdomain, strict=False)


class PriorityClassKind(Kind):
    has_generation = True
    #: the highest value people may use
    highest = 1_000_000_000

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        obj.setdefault("value", 0)
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        if new["value"] > self.highest and not new["metadata"]["name"].startswith("system-"):
            problems.forbidden("value")
        if old is not None and new["value"] != old["value"]:
            problems.forbidden("value")

    def admit(self, obj: Json, context: Context) -> None:
        others = [each.key[1] for each in context.all(PRIORITY_CLASSES) if each.data.get("globalDefault")]
        if obj.get("globalDefault") and others:
            raise Forbidden(403, "Forbidden", f"PriorityClass {others[0]} is the default already")


class LimitRangeKind(Kind):
    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        """What a container gets where nothing is said: the most there may be as its limit, and its limit, or the
        least there may be, as its request."""
        for item in obj.setdefault("spec", {}).get("limits") or ():
            if item["type"] == "Container":
                most, least = item.get("max") or {}, item.get("min") or {}
                limits = {**most, **(item.get("default") or {})}
                requests = {**least, **limits, **(item.get("defaultRequest") or {})}
                for name, found in (("default", limits), ("defaultRequest", requests)):
                    if found:
                        item[name] = found

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        seen = set()
        for i, item in enumerate(new["spec"].get("limits") or ()):
            if item["type"] in seen:
                problems.invalid(f"spec.limits[{i}].type", item["type"])
            seen.add(item["type"])


class EventKind(_LooseKind):
    fields = _COMMON_FIELDS | {
        "reason",
        "type",
        "source",
        "reportingComponent",
        *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")),
    }

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        about = (new.get("involvedObject") or {}).get("namespace") or ""
        namespace = new["metadata"]["namespace"]
        if about not in (namespace, "") or (not about and namespace != "default"):
            problems.invalid("involvedObject.namespace", about)


class LeaseKind(_LooseKind):
    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        obj.setdefault("spec", {})

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        spec = new["spec"]
        for name in ("leaseDurationSeconds", "leaseTransitions"):
            value = spec.get(name)
            if value is not None and (value < 0 or (value == 0 and name == "leaseDurationSeconds")):
                problems.invalid(f"spec.{name}", value)


class CustomKind(_LooseKind):
    """A kind of a CustomResourceDefinition."""

    has_generation = True

    def __init__(self, resource: Resource[Any], version: Mapping[str, Any]) -> None:
        super().__init__(resource)
        whole = version["schema"]["openAPIV3Schema"]
        own = {name: below for name, below in whole["properties"].items() if name not in _COMMON}
        self._schema = Schema.read({**whole, "properties": own})
        self.has_status = "status" in version.get("subresources", {})

    def defect(self, obj: Json) -> str:
        """Only the metadata is of a fixed type; what does not decode as the kind travels as `Malformed`."""
        try:
            msgspec.convert(obj["metadata"], ObjectMeta)
        except msgspec.ValidationError as error:
            return str(error)
        return ""

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        common = {name: obj.pop(name) for name in _COMMON if name in obj}
        self._schema.apply_sections(obj, sections, problems)
        obj.update(common)

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        if self._schema.has_rules and not problems.blocking:
            self._schema.check_rules(new, old, "", problems)

    def check_status(self, new: Json, old: Json, problems: Problems) -> None:
        self.check(new, old, problems)


def custom_kinds(resources: Iterable[Resource[Any]], definitions: Iterable[Mapping[str, Any]]) -> list[Kind]:
    """Those of the kinds that a CustomResourceDefinition defines."""
    found: list[Kind] = []
    for definition in definitions:
        spec = definition["spec"]
        for resource in resources:
            if (resource.group, resource.plural) == (spec["group"], spec["names"]["plural"]):
                version = next(each for each in spec["versions"] if each["name"] == resource.version)
                found.append(CustomKind(resource, version))
    return found


def simple_kinds() -> list[Kind]:
    """The built-in kinds whose rules are in this module."""
    return [
        NodeKind(NODES),
        NamespaceKind(NAMESPACES),
        PriorityClassKind(PRIORITY_CLASSES),
        EventKind(EVENTS),
        LeaseKind(LEASES),
        LimitRangeKind(LIMIT_RANGES),
        Kind(RUNTIME_CLASSES),
        *(Kind(each) for each in STORAGE),
    ]
