"""Orders among the domains of one level, the best-fit pick, and filling domains in order.

A list of domains is an array of their indices at one level. Where scores are counted (preferred affinity), they come
first; what is not the best fit is the least free. Everything here is exact and total: ties end at the path,
which is the order of the indices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serried.model.capacity import Ints
from serried.place.counts import Counts

_MANY = np.iinfo(np.int64).max


def sort(domains: Ints, *keys: Ints) -> Ints:
    """Domains (ascending) sorted by keys, the most significant first; each is given per domain of the list."""
    order: Ints | None = None
    for key in reversed(keys):
        if not len(key):
            continue
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        # Sixteen bits are sorted by radix, in linear time.
        small = (key - low).astype(np.uint16) if high - low < 2**16 else key
        if order is None:
            order = np.argsort(small, kind="stable")
        else:
            order = order[np.argsort(small[order], kind="stable")]
    return domains if order is None else domains[order]


def in_order(counts: Counts, domains: Ints, best_fit: bool) -> Ints:
    """Best score, then most slices (fewest for least-free), then fewest pods, then path. `domains` is ascending."""
    return sort(domains, *_keys(counts, domains, counts.slices, counts.pods, best_fit))


def in_leader_order(counts: Counts, domains: Ints, best_fit: bool) -> Ints:
    """Where the leader fits first; then as `in_order`, with the numbers beside the leader. `domains` is ascending."""
    keys = _keys(counts, domains, counts.slices_with_leader, counts.pods_with_leader, best_fit)
    return sort(domains, -_of(counts.leader, domains), *keys)


def _keys(counts: Counts, domains: Ints, slices: Ints, pods: Ints, best_fit: bool) -> list[Ints]:
    own = _of(slices, domains)
    keys = [-own if best_fit else own]
    if pods is not slices:
        keys.append(_of(pods, domains))
    if counts.score is not None:
        keys.insert(0, -_of(counts.score, domains))
    return keys


def _of(values: Ints, domains: Ints) -> Ints:
    """The values of these domains, which are ascending and may be all there are."""
    return values if len(domains) == len(values) else values[domains]


def pick(values: Ints, allowed: Ints | None, score: Ints | None, need: int) -> int:
    """The position of the domain with the smallest value of at least `need`; the first of the list if there is none.

    Only the leading run of equal score is looked at, and in it only domains that are allowed (not 0).
    """
    if score is not None and len(score):
        other = score != score[0]
        if other.any():
            end = int(np.argmax(other))
            values = values[:end]
            allowed = None if allowed is None else allowed[:end]
    enough = values >= need
    if allowed is not None:
        enough &= allowed > 0
    if not enough.any():
        return 0
    return int(np.argmin(np.where(enough, values, _MANY)))


def leader_to_front(domains: Ints, values: Ints, with_leader: Ints, leader: Ints, need: int) -> Ints:
    """Moves to the front the first domain that can host the leader and still leaves room for `need` in the list."""
    can = (leader > 0) & (int(values.sum()) - (values - with_leader) >= need)
    if not can.any():
        return domains
    at = int(np.argmax(can))
    return np.concatenate([domains[at : at + 1], domains[:at], domains[at + 1 :]])


@dataclass(eq=False)
class Filled:
    """The domains used, slices (or pods) of each, and which of them hosts the leader (-1: none).

    A domain that was passed in the order is used even if it has room for nothing: its children may host the leader.
    """

    domains: Ints
    amounts: Ints
    leader: int
    complete: bool


def fill(
    counts: Counts, domains: Ints, need: int, leader: bool, best_fit: bool, values: Ints, with_leader: Ints
) -> Filled:
    """Fills domains in order until `need` and the leader are placed.

    Each domain takes what it can; up to the one that hosts the leader that is `with_leader`. With best fit, the
    domain that would take all of the rest is replaced by the one that it fits best.

    Args:
        values, with_leader: what each domain of the level holds, without and beside the leader.
    """
    if leader:
        domains = leader_to_front(domains, values[domains], with_leader[domains], counts.leader[domains], need)
    own = values[domains]
    host = -1
    if leader:
        can = counts.leader[domains] > 0
        host = int(np.argmax(can)) if can.any() else len(domains)
        own = np.concatenate([with_leader[domains[: host + 1]], own[host + 1 :]])
    total = np.cumsum(own)
    last = int(np.searchsorted(total, need)) if need > 0 else -1
    last = max(last, host)
    if last >= len(domains):
        return Filled(domains, own, -1, False)
    amounts = np.clip(need - (total - own), 0, own)[: last + 1]
    chosen = domains[: last + 1].copy()
    if best_fit and last >= 0:
        rest = max(0, need - int(total[last] - own[last]))
        tail = domains[last:]
        score = None if counts.score is None else counts.score[tail]
        if last == host:
            best = pick(with_leader[tail], counts.leader[tail], score, rest)
        else:
            best = pick(values[tail], None, score, rest)
        chosen[last] = tail[best]
        amounts[last] = rest
    leader_domain = int(chosen[host]) if leader else -1
    return Filled(chosen, amounts, leader_domain, True)
