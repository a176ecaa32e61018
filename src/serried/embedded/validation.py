"""Checks that several kinds share: names, labels, resources, pod specs. The limits are those of Kubernetes.

All take objects in their JSON form whose fields in use have been found to be of the right type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from serried.api.quantity import MILLI, QuantityError, parse
from serried.embedded.problems import Problems

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_matches_label = re.compile(_LABEL).fullmatch
_matches_subdomain = re.compile(rf"{_LABEL}(\.{_LABEL})*").fullmatch
_matches_name = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]").fullmatch
_matches_quantity = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)").fullmatch

#: Fields whose values are quantities by resource.
QUANTITY_MAPS = frozenset({"requests", "limits", "overhead", "capacity", "allocatable", "podFixed"})
#: Fields that need not be searched for them.
_WITHOUT_QUANTITIES = frozenset({"metadata", "labels", "annotations", "nodeSelector", "tolerations", "conditions"})

_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253
_ANNOTATIONS_SIZE = 256 * 1024

_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})

#: What a container can ask for besides devices and the like, which are named domain/name.
_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})

_TOLERATION_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Whether a text can be the name of an object of some kind.
IsName = Callable[[str], bool]


def is_subdomain(name: str) -> bool:
    return len(name) <= _SUBDOMAIN_LENGTH and _matches_subdomain(name) is not None


def is_dns_label(name: str) -> bool:
    return len(name) <= _LABEL_LENGTH and _matches_label(name) is not None


def is_qualified_name(key: str) -> bool:
    """Whether a text can be a label key, a taint key or the like."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return len(name) <= _LABEL_LENGTH and _matches_name(name) is not None


def is_label_value(value: str) -> bool:
    return not value or (len(value) <= _LABEL_LENGTH and _matches_name(value) is not None)


def check_labels(found: Mapping[str, str], path: str, problems: Problems) -> None:
    for key, value in found.items():
        if not is_qualified_name(key):
            problems.invalid(path, key)
        if not is_label_value(value):
            problems.invalid(path, value)


def check_annotations(found: Mapping[str, str], path: str, problems: Problems) -> None:
    for key in found:
        if not is_qualified_name(key.lower()):
            problems.invalid(path, key)
    if (size := sum(len(key) + len(value) for key, value in found.items())) > _ANNOTATIONS_SIZE:
        problems.invalid(path, size)


def check_metadata(metadata: Mapping[str, Any], problems: Problems, *, is_name: IsName, strict: bool) -> None:
    """The metadata of an object that is to be created or changed; `strict` kinds want qualified finalizers."""
    if not is_name(metadata["name"]):
        problems.invalid("metadata.name", metadata["name"])
    check_labels(metadata.get("labels") or {}, "metadata.labels", problems)
    check_annotations(metadata.get("annotations") or {}, "metadata.annotations", problems)
    _check_owners(metadata.get("ownerReferences") or (), problems)
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        if not is_qualified_name(finalizer):
            problems.invalid("metadata.finalizers", finalizer)
        if strict and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            problems.invalid(f"metadata.finalizers[{index}]", finalizer)


def _check_owners(owners: Sequence[Mapping[str, Any]], problems: Problems) -> None:
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                problems.required(f"metadata.ownerReferences[{index}].{name}")
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        problems.invalid("metadata.ownerReferences", owners)


def is_quantity(value: Any) -> bool:
    """Whether this is a quantity as far as the API server's decoder cares; what it would answer 400 to is not."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return False
    if isinstance(value, int):
        return True
    try:
        parse(value)
    except QuantityError:
        return False
    return _matches_quantity(value) is not None


def all_quantities(holder: Any) -> Iterator[Any]:
    """Every quantity in an object, but for those of a LimitRange: what stands in `QUANTITY_MAPS`."""
    if isinstance(holder, dict):
        for key, value in holder.items():
            if not isinstance(value, (dict, list)) or key in _WITHOUT_QUANTITIES:
                continue
            if key in QUANTITY_MAPS and isinstance(value, dict) and "podFixed" not in value:
                yield from value.values()
            else:
                yield from all_quantities(value)
    elif isinstance(holder, list):
        for item in holder:
            yield from all_quantities(item)


def default_requests(spec: dict[str, Any]) -> None:
    """Limits count as requests where there are none."""
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.setdefault("resources", {})
        limits = resources.get("limits")
        if limits:
            resources["requests"] = {**limits, **(resources.get("requests") or {})}


def check_resources(found: Mapping[str, Any], path: str, problems: Problems) -> None:
    """The requests and limits of one container."""
    limits, requests = found.get("limits") or {}, found.get("requests") or {}
    for kind, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            where = f"{path}.{kind}[{name}]"
            if not _is_resource_of_containers(name):
                problems.invalid(where, name)
            _quantity(name, value, where, problems)
    for name, value in requests.items():
        limit = limits.get(name)
        if limit is None:
            if _is_extended(name):
                problems.required(f"{path}.limits")
            continue
        asked, most = parse(value, MILLI), parse(limit, MILLI)
        if asked > most or (_is_extended(name) and asked != most):
            problems.invalid(f"{path}.requests", str(value))


def _quantity(name: str, value: str | int, path: str, problems: Problems) -> None:
    milli = parse(value, MILLI)
    if milli < 0 or (_is_extended(name) and milli % MILLI):
        problems.invalid(path, str(value))


def _is_extended(name: str) -> bool:
    return "/" in name and not name.startswith("kubernetes.io/")


def _is_resource_of_containers(name: str) -> bool:
    is_standard = "/" in name or name in _STANDARD_RESOURCES or name.startswith("hugepages-")
    return is_standard and is_qualified_name(name)


def check_resource_list(found: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Capacity or allocatable of a node, overhead of a pod."""
    for name, value in found.items():
        if not is_qualified_name(name):
            problems.invalid(f"{path}.{name}", name)
        _quantity(name, value, f"{path}.{name}", problems)


def check_tolerations(found: Iterable[Mapping[str, Any]], path: str, problems: Problems) -> None:
    for index, toleration in enumerate(found):
        where = f"{path}[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        if key and not is_qualified_name(key):
            problems.invalid(f"{where}.key", key)
        if not key and operator != "Exists":
            problems.invalid(f"{where}.operator", operator)
        if operator not in _TOLERATION_OPERATORS:
            problems.invalid(f"{where}.operator", operator)
        elif (operator == "Exists" and value) or not is_label_value(value):
            problems.invalid(f"{where}.operator", value)
        if effect and effect not in _EFFECTS:
            problems.invalid(f"{where}.effect", effect)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            problems.invalid(f"{where}.effect", effect)


def check_taints(found: Iterable[Mapping[str, Any]], path: str, problems: Problems) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(found):
        where = f"{path}[{index}]"
        if not is_qualified_name(taint["key"]):
            problems.invalid(f"{where}.key", taint["key"])
        if not is_label_value(taint.get("value") or ""):
            problems.invalid(f"{where}.value", taint.get("value"))
        if taint["effect"] not in _EFFECTS:
            problems.invalid(f"{where}.effect", taint["effect"])
        identity = (taint["key"], taint["effect"])
        if identity in seen:
            problems.invalid(where, taint)
        seen.add(identity)


def check_pod_spec(spec: Mapping[str, Any], path: str, problems: Problems) -> None:
    """What a pod or a pod template asks for."""
    if not spec.get("containers"):
        problems.required(f"{path}.containers")
    _check_containers(spec, path, problems)
    check_labels(spec.get("nodeSelector") or {}, f"{path}.nodeSelector", problems)
    check_tolerations(spec.get("tolerations") or (), f"{path}.tolerations", problems)
    check_resource_list(spec.get("overhead") or {}, f"{path}.overhead", problems)
    gates: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        if not is_qualified_name(gate["name"]) or gate["name"] in gates:
            problems.invalid(f"{path}.schedulingGates[{index}]", gate["name"])
        gates.add(gate["name"])
    restart = spec.get("restartPolicy") or ""
    if restart not in ("Always", "OnFailure", "Never"):
        problems.invalid(f"{path}.restartPolicy", restart)


def _check_containers(spec: Mapping[str, Any], path: str, problems: Problems) -> None:
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            where = f"{path}.{kind}[{index}]"
            name = container.get("name") or ""
            if not name:
                problems.required(f"{where}.name")
            elif not is_dns_label(name) or name in names:
                problems.invalid(f"{where}.name", name)
            names.add(name)
            if not container.get("image"):
                problems.required(f"{where}.image")
            check_resources(container.get("resources") or {}, f"{where}.resources", problems)
