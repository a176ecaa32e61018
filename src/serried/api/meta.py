"""What every Kubernetes object has: metadata, conditions, selectors.

Structs hold only the fields Serried reads or writes; everything else is ignored when decoding,
and writes are patches, so a field that is not here is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import msgspec


class Wire(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of all wire types: camelCase on the wire, defaults left out, unknown fields ignored.

    The garbage collector does not look at them: they are trees, never part of a cycle, and there are so many
    that looking would cost several times what decoding does.
    """


class OwnerReference(Wire):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    generate_name: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if any."""
        return next((o for o in self.owner_references if o.controller), None)


#: Names an object within its kind: (namespace, name); the namespace of cluster-scoped kinds is "".
Key = tuple[str, str]


class Object(Wire):
    """An object with metadata. `api_version` and `kind` are absent on items of a list."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def key(self) -> Key:
        return self.metadata.key


class PlainCondition(Wire):
    """What the conditions of all kinds have."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Condition(PlainCondition, omit_defaults=False):
    observed_generation: int = 0


C = TypeVar("C", bound=PlainCondition)


class LabelSelectorRequirement(Wire):
    key: str
    operator: str
    values: list[str] = []


class LabelSelector(Wire):
    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


def find_condition(conditions: Sequence[C], type: str) -> C | None:
    """The condition of this type, or None."""
    return next((c for c in conditions if c.type == type), None)


def condition_is(conditions: Sequence[PlainCondition], type: str, status: str = "True") -> bool:
    """Whether the condition of this type is there and has this status."""
    found = find_condition(conditions, type)
    return found is not None and found.status == status
