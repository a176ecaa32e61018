"""What every Kubernetes object has: metadata, conditions, selectors.

Structs hold only the fields Serried reads or writes; everything else is ignored when decoding,
and writes are patches, so a field that is not here is never lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

import msgspec


class Wire(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of all wire types: camelCase on the wire, defaults left out, unknown fields ignored.

    The garbage collector does not look at them: they are trees, never part of a cycle, and there are so many
    that looking would cost several times what decoding does. What they hold is for reading: lists are tuples, and an
    absent list or mapping is the same object everywhere.
    """


class _NoItems(dict[str, Any]):
    """An empty dictionary that stays empty, and that encoders take for one."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is shared by all objects without one of their own")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


#: The default of fields that hold a mapping: one for all objects, so that decoding makes none.
NO_ITEMS: Final[Mapping[str, Any]] = _NoItems()


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
    labels: Mapping[str, str] = NO_ITEMS
    annotations: Mapping[str, str] = NO_ITEMS
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

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


class ConditionStatus(Wire):
    """Of the conditions of pods and nodes, of which there are many, only this is read."""

    type: str
    status: str


class PlainCondition(ConditionStatus):
    """What the conditions of all kinds have."""

    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Condition(PlainCondition, omit_defaults=False):
    """As custom resources have them."""

    observed_generation: int = 0


C = TypeVar("C", bound=ConditionStatus)


class LabelSelectorRequirement(Wire):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Wire):
    match_labels: Mapping[str, str] = NO_ITEMS
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def find_condition(conditions: Sequence[C], type: str) -> C | None:
    """The condition of this type, or None."""
    return next((c for c in conditions if c.type == type), None)


def condition_is(conditions: Sequence[ConditionStatus], type: str, status: str = "True") -> bool:
    """Whether the condition of this type is there and has this status."""
    found = find_condition(conditions, type)
    return found is not None and found.status == status
