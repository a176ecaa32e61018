"""The field errors of one object: the paths that the API server would name as causes of its refusal."""

from __future__ import annotations

import json
from typing import Any

from serried.api.resources import Resource
from serried.cluster.protocol import Invalid


def qualified(resource: Resource[Any]) -> str:
    """A kind as many error messages name it: "pods", "jobs.batch"."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


class Problems:
    """The field errors found so far."""

    def __init__(self) -> None:
        #: (path of the field, kind of error)
        self.found: list[tuple[str, str]] = []
        #: whether something is so wrong that the CEL rules of the object are not evaluated
        self.blocking = False

    def required(self, path: str) -> None:
        self.found.append((path, "Required value"))
        self.blocking = True

    def invalid(self, path: str, value: Any, *, blocking: bool = False) -> None:
        shown = "" if isinstance(value, (dict, list)) else f": {json.dumps(value)}"
        self.found.append((path, f"Invalid value{shown}"))
        self.blocking = self.blocking or blocking

    def forbidden(self, path: str) -> None:
        self.found.append((path, "Forbidden"))

    def check(self, resource: Resource[Any], name: str) -> None:
        """Raises `Invalid` if anything was found."""
        if self.found:
            text = ", ".join(f"{path}: {kind}" for path, kind in self.found)
            raise Invalid(422, "Invalid", f'{qualified(resource)} "{name}" is invalid: {text}')
