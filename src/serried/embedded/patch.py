"""Merge patch (RFC 7386) and JSON patch (RFC 6902) on JSON values (dict, list) that are never changed in place.

What a patch leaves alone is shared with the old value, so a history of versions costs little more than its changes,
and `merge(value, patch) is value` tells that nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class PatchError(ValueError):
    """A JSON patch cannot be applied: its text says which operation, on which path, and why."""


def merge(value: Any, patch: Any) -> Any:
    """`value` with the merge patch applied: a null removes, an object merges, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    old: dict[str, Any] = value if isinstance(value, dict) else {}
    changed: dict[str, Any] | None = None
    for key, wanted in patch.items():
        if wanted is None:
            if key in old:
                changed = dict(old) if changed is None else changed
                changed.pop(key, None)
            continue
        new = merge(old.get(key), wanted)
        if key not in old or not same(old[key], new):
            changed = dict(old) if changed is None else changed
            changed[key] = new
    if changed is not None:
        return changed
    return value if isinstance(value, dict) else {}


def same(left: Any, right: Any) -> bool:
    """JSON equality. Python's own takes True for 1 and 1.0 for 1; only the first is a difference in JSON."""
    if left is right:
        return True
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if _is_list(left) and _is_list(right):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def apply(value: Any, operations: Sequence[Any]) -> Any:
    """`value` with the operations applied in order, all or none.

    As the API server does, `replace` adds what is not there, and `test` finds null where nothing is.

    Raises:
        PatchError: an operation is malformed, its path leads nowhere, or a `test` failed.
    """
    for number, operation in enumerate(operations):
        try:
            value = _apply_one(value, operation)
        except PatchError as error:
            shown = operation.get("op") if isinstance(operation, Mapping) else None
            raise PatchError(f"operation {number} ({shown}): {error}") from None
    return value


def _apply_one(document: Any, operation: Any) -> Any:
    if not isinstance(operation, Mapping):
        raise PatchError("not an object")
    op = operation.get("op")
    path = _pointer(operation, "path")
    match op:
        case "add":
            return _put(document, path, _value(operation), insert=True)
        case "replace":
            return _put(document, path, _value(operation), insert=False)
        case "remove":
            return _take(document, path)[0]
        case "test":
            wanted = operation.get("value")
            found = _look(document, path)
            if not same(found, wanted):
                raise PatchError(f"{operation['path']} holds {found!r}, not {wanted!r}")
            return document
        case "move":
            source = _pointer(operation, "from")
            if path[: len(source)] == source and len(path) > len(source):
                raise PatchError(f"{operation['from']} cannot move into itself")
            rest, moved = _take(document, source)
            return _put(rest, path, moved, insert=True)
        case "copy":
            return _put(document, path, _find(document, _pointer(operation, "from")), insert=True)
        case _:
            raise PatchError("op must be add, remove, replace, move, copy or test")


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchError("has no value")
    return operation["value"]


def _pointer(operation: Mapping[str, Any], field: str) -> list[str]:
    text = operation.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{field} must be a JSON pointer such as /metadata/labels, not {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _position(items: Sequence[Any], part: str, last: int) -> int:
    """The index `part` names, from 0 to `last`."""
    if not (part.isascii() and part.isdigit()) or (len(part) > 1 and part[0] == "0") or int(part) > last:
        raise PatchError(f"there is no item {part!r} in a list of {len(items)}")
    return int(part)


def _child(value: Any, part: str) -> Any:
    if isinstance(value, dict) and part in value:
        return value[part]
    if _is_list(value):
        return value[_position(value, part, len(value) - 1)]
    raise PatchError(f"there is no {part!r}")


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        document = _child(document, part)
    return document


def _look(document: Any, path: list[str]) -> Any:
    """Like `_find`, but the last step may lead to nothing: null."""
    if not path:
        return document
    parent = _find(document, path[:-1])
    if isinstance(parent, dict):
        return parent.get(path[-1])
    return _child(parent, path[-1])


def _put(document: Any, path: list[str], new: Any, *, insert: bool) -> Any:
    if not path:
        return new
    part, rest = path[0], path[1:]
    if rest:
        return _replaced(document, part, _put(_child(document, part), rest, new, insert=insert))
    if isinstance(document, dict):
        return {**document, part: new}
    if _is_list(document):
        items = list(document)
        if not insert:
            items[_position(items, part, len(items) - 1)] = new
        else:
            items.insert(len(items) if part == "-" else _position(items, part, len(items)), new)
        return items
    raise PatchError(f"there is nothing to put {part!r} into")


def _take(document: Any, path: list[str]) -> tuple[Any, Any]:
    """The document without what `path` names, and that."""
    if not path:
        raise PatchError("the whole object cannot be removed")
    part, rest = path[0], path[1:]
    child = _child(document, part)
    if rest:
        remaining, taken = _take(child, rest)
        return _replaced(document, part, remaining), taken
    if isinstance(document, dict):
        return {key: value for key, value in document.items() if key != part}, child
    items = list(document)
    return items, items.pop(int(part))


def _replaced(document: Any, part: str, child: Any) -> Any:
    if isinstance(document, dict):
        return {**document, part: child}
    items = list(document)
    items[int(part)] = child
    return items
