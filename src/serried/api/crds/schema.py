"""The pieces of a schema: small functions that return OpenAPI v3 as plain dicts.

Each takes what the field is for as its first argument (`kubectl explain` shows it) and further keywords of OpenAPI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

#: A Kubernetes quantity without a minus sign; what `serried.api.quantity` reads.
QUANTITY_PATTERN = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = rf"({_SUBDOMAIN}/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

SUBDOMAIN_PATTERN = f"^{_SUBDOMAIN}$"
#: A DNS label that may have capitals: pod sets are named after the replica types of jobs ("Master", "Worker").
LABEL_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$"
QUALIFIED_PATTERN = f"^{_QUALIFIED}$"


def string(description: str = "", **more: Any) -> Schema:
    return _schema("string", description, more)


def enum(description: str, *values: str, **more: Any) -> Schema:
    return string(description, enum=list(values), **more)


def subdomain(description: str = "", **more: Any) -> Schema:
    """The name of an object."""
    return string(description, maxLength=253, pattern=SUBDOMAIN_PATTERN, **more)


def label_name(description: str = "", **more: Any) -> Schema:
    return string(description, maxLength=63, pattern=LABEL_PATTERN, **more)


def time(description: str = "") -> Schema:
    return string(description, format="date-time")


def boolean(description: str = "", **more: Any) -> Schema:
    return _schema("boolean", description, more)


def integer(description: str = "", **more: Any) -> Schema:
    return _schema("integer", description, {"format": "int32"} | more)


def quantity(description: str = "", **more: Any) -> Schema:
    """A quantity that people write: read strictly, and not negative."""
    described = {"description": description} if description else {}
    return described | {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": QUANTITY_PATTERN,
        "minimum": 0,
        **more,
    }


def amount(description: str = "") -> Schema:
    """A quantity that the controller writes: not checked again at each write."""
    described = {"description": description} if description else {}
    return described | {"x-kubernetes-int-or-string": True}


def mapping(description: str, values: Schema, **more: Any) -> Schema:
    return _schema("object", description, {"additionalProperties": values} | more)


def array(description: str, items: Schema, *, keys: Sequence[str] | None = (), **more: Any) -> Schema:
    """A list: replaced as a whole without keys, merged by its items' `keys` with them."""
    kind: Schema = {"x-kubernetes-list-type": "map" if keys else "atomic"}
    if keys:
        kind["x-kubernetes-list-map-keys"] = list(keys)
    return _schema("array", description, {"items": items} | kind | more)


def struct(description: str, fields: Mapping[str, Schema], **more: Any) -> Schema:
    """An object; the name of a required field ends in "!"."""
    required = [name[:-1] for name in fields if name.endswith("!")]
    properties = {name.removesuffix("!"): schema for name, schema in fields.items()}
    return _schema(
        "object", description, {"properties": properties} | ({"required": required} if required else {}) | more
    )


def rule(rule: str, message: str) -> Schema:
    """A CEL rule, an entry of `x-kubernetes-validations`."""
    return {"rule": rule, "message": message}


def rules(*entries: Schema) -> Schema:
    return {"x-kubernetes-validations": list(entries)}


def conditions() -> Schema:
    """The standard conditions of a status."""
    condition = struct(
        "",
        {
            "type!": string("What the condition is about.", maxLength=316, pattern=QUALIFIED_PATTERN),
            "status!": enum("", "True", "False", "Unknown"),
            "reason!": string(
                "Why, in one word.", minLength=1, maxLength=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
            ),
            "message!": string("Why, for people.", maxLength=32768),
            "lastTransitionTime!": time("When the status last changed."),
            "observedGeneration": integer("The generation this was said of.", format="int64", minimum=0),
        },
    )
    return array("What is the case, one entry for each type.", condition, keys=["type"], maxItems=16)


def tolerations(description: str, **more: Any) -> Schema:
    toleration = struct(
        "",
        {
            "key": string(),
            "operator": enum("", "Exists", "Equal"),
            "value": string(),
            "effect": enum("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
            "tolerationSeconds": integer(format="int64"),
        },
    )
    return array(description, toleration, maxItems=8, **more)


def _schema(kind: str, description: str, more: Schema) -> Schema:
    return {"type": kind} | ({"description": description} if description else {}) | more
