"""Checks that several kinds share: names, labels, resources, pod specs. The limits and words are those of Kubernetes.

All take objects in their JSON form whose fields in use have been found to be of the right type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from serried.api.quantity import MILLI, QuantityError, parse
from serried.embedded.problems import Problems

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_name_part = re.compile(_NAME).fullmatch
_is_quantity = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)").fullmatch

#: Fields whose values are quantities by resource.
QUANTITY_MAPS = frozenset({"requests", "limits", "overhead", "capacity", "allocatable", "podFixed"})
#: Fields that need not be searched for them.
_WITHOUT_QUANTITIES = frozenset({"metadata", "labels", "annotations", "nodeSelector", "tolerations", "conditions"})

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
ANNOTATIONS_SIZE = 256 * 1024

_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_NAME})?')"
)
QUANTITY_TEXT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

NameErrors = Callable[[str], list[str]]

_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})

#: What a container can ask for besides devices and the like, which are named domain/name.
_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})

TOLERATION_OPERATORS = ("Equal", "Exists")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def subdomain_errors(name: str, unit: str = "characters") -> list[str]:
    """Why a text cannot be the name of an object, if so."""
    found = []
    if len(name) > SUBDOMAIN_LENGTH:
        found.append(f"must be no more than {SUBDOMAIN_LENGTH} {unit}")
    if not _is_subdomain(name):
        found.append(_SUBDOMAIN_TEXT)
    return found


def dns_label_errors(name: str) -> list[str]:
    found = []
    if len(name) > LABEL_LENGTH:
        found.append(f"must be no more than {LABEL_LENGTH} characters")
    if not _is_label(name):
        found.append(_LABEL_TEXT)
    return found


def qualified_name_errors(key: str) -> list[str]:
    """Why a text cannot be a label key, a taint key or the like."""
    prefix, slash, name = key.rpartition("/")
    found = []
    if slash:
        if not prefix:
            found.append("prefix part must be non-empty")
        else:
            found += [f"prefix part {text}" for text in subdomain_errors(prefix, "bytes")]
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > LABEL_LENGTH:
        found.append(f"name part must be no more than {LABEL_LENGTH} bytes")
    if not _is_name_part(name):
        found.append(_NAME_PART_TEXT)
    return found


def label_value_errors(value: str) -> list[str]:
    found = []
    if len(value) > LABEL_LENGTH:
        found.append(f"must be no more than {LABEL_LENGTH} bytes")
    if value and not _is_name_part(value):
        found.append(_LABEL_VALUE_TEXT)
    return found


def check_labels(found: Mapping[str, str], path: str, problems: Problems) -> None:
    for key, value in found.items():
        for text in qualified_name_errors(key):
            problems.invalid(path, key, text)
        for text in label_value_errors(value):
            problems.invalid(path, value, text)


def check_annotations(found: Mapping[str, str], path: str, problems: Problems) -> None:
    for key in found:
        for text in qualified_name_errors(key.lower()):
            problems.invalid(path, key, text)
    if sum(len(key) + len(value) for key, value in found.items()) > ANNOTATIONS_SIZE:
        problems.add(path, f"Too long: may not be more than {ANNOTATIONS_SIZE} bytes")


def check_metadata(metadata: Mapping[str, Any], problems: Problems, *, name_errors: NameErrors, strict: bool) -> None:
    """The metadata of an object that is to be created or changed.

    `name_errors` says why a name cannot be one of this kind; `strict` kinds want their finalizers fully qualified.
    """
    for text in name_errors(metadata["name"]):
        problems.invalid("metadata.name", metadata["name"], text)
    check_labels(metadata.get("labels") or {}, "metadata.labels", problems)
    check_annotations(metadata.get("annotations") or {}, "metadata.annotations", problems)
    _check_owners(metadata.get("ownerReferences") or (), problems)
    finalizers = metadata.get("finalizers") or ()
    for finalizer in finalizers:
        for text in qualified_name_errors(finalizer):
            problems.invalid("metadata.finalizers", finalizer, text)
    for index, finalizer in enumerate(finalizers if strict else ()):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            problems.invalid(f"metadata.finalizers[{index}]", finalizer, text)


def _check_owners(owners: Sequence[Mapping[str, Any]], problems: Problems) -> None:
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                problems.required(f"metadata.ownerReferences[{index}].{name}", "must not be empty")
    controllers = [f"{owner['kind']}/{owner['name']}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        problems.invalid(
            "metadata.ownerReferences",
            owners,
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}",
        )


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
    return _is_quantity(value) is not None


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
            errors = _resource_name_errors(name)
            for text in errors:
                problems.invalid(where, name, text)
            _quantity(name, value, where, problems)
    for name, value in requests.items():
        limit = limits.get(name)
        if limit is None:
            if _is_extended(name):
                problems.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
            continue
        if _is_extended(name) and parse(value, MILLI) != parse(limit, MILLI):
            problems.invalid(f"{path}.requests", str(value), f"must be equal to {name} limit of {limit}")
        elif parse(value, MILLI) > parse(limit, MILLI):
            problems.invalid(f"{path}.requests", str(value), f"must be less than or equal to {name} limit of {limit}")


def _quantity(name: str, value: str | int, path: str, problems: Problems) -> None:
    milli = parse(value, MILLI)
    if milli < 0:
        problems.invalid(path, str(value), "must be greater than or equal to 0")
    elif _is_extended(name) and milli % MILLI:
        problems.invalid(path, str(value), "must be an integer")


def _is_extended(name: str) -> bool:
    return "/" in name and not name.startswith("kubernetes.io/")


def _resource_name_errors(name: str) -> list[str]:
    found = qualified_name_errors(name)
    if "/" in name:
        return [*found, "doesn't follow extended resource name standard"] if found else []
    if name in _STANDARD_RESOURCES or name.startswith("hugepages-"):
        return found
    if not found:
        found.append("must be a standard resource type or fully qualified")
    return [*found, "must be a standard resource for containers"]


def check_resource_list(found: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Capacity or allocatable of a node, overhead of a pod."""
    for name, value in found.items():
        for text in qualified_name_errors(name):
            problems.invalid(f"{path}.{name}", name, text)
        _quantity(name, value, f"{path}.{name}", problems)


def check_tolerations(found: Iterable[Mapping[str, Any]], path: str, problems: Problems) -> None:
    for index, toleration in enumerate(found):
        where = f"{path}[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        if key:
            for text in qualified_name_errors(key):
                problems.invalid(f"{where}.key", key, text)
        elif operator != "Exists":
            problems.invalid(f"{where}.operator", operator, "operator must be Exists when `key` is empty, which means "
                             '"match all values and all keys"')  # fmt: skip
        if operator not in TOLERATION_OPERATORS:
            problems.unsupported(f"{where}.operator", operator, TOLERATION_OPERATORS)
        elif operator == "Exists" and toleration.get("value"):
            problems.invalid(
                f"{where}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'"
            )
        elif operator == "Equal":
            for text in label_value_errors(toleration.get("value") or ""):
                problems.invalid(f"{where}.operator", toleration.get("value"), text)
        effect = toleration.get("effect") or ""
        if effect and effect not in EFFECTS:
            problems.unsupported(f"{where}.effect", effect, EFFECTS)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            problems.invalid(f"{where}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")


def check_taints(found: Iterable[Mapping[str, Any]], path: str, problems: Problems) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(found):
        where = f"{path}[{index}]"
        for text in qualified_name_errors(taint["key"]):
            problems.invalid(f"{where}.key", taint["key"], text)
        for text in label_value_errors(taint.get("value") or ""):
            problems.invalid(f"{where}.value", taint.get("value"), text)
        if taint["effect"] not in EFFECTS:
            problems.unsupported(f"{where}.effect", taint["effect"], EFFECTS)
        identity = (taint["key"], taint["effect"])
        if identity in seen:
            shown = json.dumps(taint, separators=(",", ":"))
            problems.duplicate(where, f"{shown}: taints must be unique by key and effect pair")
        seen.add(identity)


def check_pod_spec(spec: Mapping[str, Any], path: str, problems: Problems) -> None:
    """What a pod or a pod template asks for."""
    if not spec.get("containers"):
        problems.required(f"{path}.containers")
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            where = f"{path}.{kind}[{index}]"
            name = container.get("name") or ""
            if not name:
                problems.required(f"{where}.name")
            else:
                for text in dns_label_errors(name):
                    problems.invalid(f"{where}.name", name, text)
                if name in names:
                    problems.duplicate(f"{where}.name", json.dumps(name))
                names.add(name)
            if not container.get("image"):
                problems.required(f"{where}.image")
            check_resources(container.get("resources") or {}, f"{where}.resources", problems)
    check_labels(spec.get("nodeSelector") or {}, f"{path}.nodeSelector", problems)
    check_tolerations(spec.get("tolerations") or (), f"{path}.tolerations", problems)
    check_resource_list(spec.get("overhead") or {}, f"{path}.overhead", problems)
    gates: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        where = f"{path}.schedulingGates[{index}]"
        for text in qualified_name_errors(gate["name"]):
            problems.invalid(where, gate["name"], text)
        if gate["name"] in gates:
            problems.duplicate(where, json.dumps(gate["name"]))
        gates.add(gate["name"])
    restart = spec.get("restartPolicy") or ""
    if restart not in ("Always", "OnFailure", "Never"):
        problems.unsupported(f"{path}.restartPolicy", restart, ("Always", "OnFailure", "Never"))
