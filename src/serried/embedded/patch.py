"""Merge patch (RFC 7386) on JSON values (dict, list) that are never changed in place.

What a patch leaves alone is shared with the old value, so a history of versions costs little more than its changes,
and `merge(value, patch) is value` tells that nothing happened.
"""

from __future__ import annotations

from typing import Any


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
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
