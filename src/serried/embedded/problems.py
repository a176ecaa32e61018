"""What is wrong with an object, collected and worded as the API server words it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from serried.api.resources import Resource
from serried.cluster.protocol import Invalid


def qualified(resource: Resource[Any]) -> str:
    """A kind as many error messages name it: "pods", "jobs.batch"."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def qualified_kind(resource: Resource[Any]) -> str:
    """A kind as other error messages name it: "Pod", "Job.batch"."""
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


class Problems:
    """A list of field errors of one object."""

    def __init__(self) -> None:
        self.found: list[str] = []
        #: whether something is so wrong that rules about it make no sense
        self.blocking = False

    def add(self, path: str, text: str, *, blocking: bool = False) -> None:
        self.found.append(f"{path}: {text}")
        self.blocking = self.blocking or blocking

    def required(self, path: str, detail: str = "") -> None:
        self.add(path, f"Required value: {detail}" if detail else "Required value", blocking=True)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        shown = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self.add(path, f"Invalid value: {shown}: {detail}")

    def duplicate(self, path: str, shown: str) -> None:
        self.add(path, f"Duplicate value: {shown}")

    def unsupported(self, path: str, value: Any, allowed: Iterable[Any]) -> None:
        values = ", ".join(json.dumps(each) for each in allowed)
        self.add(path, f"Unsupported value: {json.dumps(value)}: supported values: {values}", blocking=True)

    def forbidden(self, path: str, detail: str) -> None:
        self.add(path, f"Forbidden: {detail}")

    def immutable(self, path: str, value: Any) -> None:
        self.invalid(path, value, "field is immutable")

    def check(self, resource: Resource[Any], name: str) -> None:
        """Raises `Invalid` if anything was found."""
        if not self.found:
            return
        text = self.found[0] if len(self.found) == 1 else f"[{', '.join(self.found)}]"
        raise Invalid(422, "Invalid", f'{qualified_kind(resource)} "{name}" is invalid: {text}')
