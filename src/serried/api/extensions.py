"""apiextensions.k8s.io/v1: what must be known of a custom resource definition that is already installed."""

from __future__ import annotations

import msgspec

from serried.api.meta import Condition, Object, Wire


class CustomResourceDefinitionVersion(Wire):
    name: str
    served: bool = False


class CustomResourceDefinitionSpec(Wire):
    versions: tuple[CustomResourceDefinitionVersion, ...] = ()


class CustomResourceDefinitionStatus(Wire):
    conditions: list[Condition] | None = None


class CustomResourceDefinition(Object):
    spec: CustomResourceDefinitionSpec = msgspec.field(default_factory=CustomResourceDefinitionSpec)
    status: CustomResourceDefinitionStatus = msgspec.field(default_factory=CustomResourceDefinitionStatus)
