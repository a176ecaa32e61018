"""Topology-aware placement written once more, slowly: one domain at a time, straight from the rules.

It stands beside the vectorised search to be compared with it on many small clusters. It covers what the search does
for one pod set and its leader (best fit, least free, slices in layers, scores, balanced), not what comes before
(filters, capacity) and after (wording).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Path = tuple[str, ...]


@dataclass
class Domain:
    """One domain and the numbers of the rules: P, S, with the leader PL, SL, and LD; `score`."""

    path: Path
    level: int
    children: list[Domain] = field(default_factory=list)
    p: int = 0
    s: int = 0
    pl: int = 0
    sl: int = 0
    ld: int = 0
    score: int = 0

    def subtree(self) -> list[Domain]:
        return [self, *(d for child in self.children for d in child.subtree())]


@dataclass(frozen=True)
class Leaf:
    path: Path
    pods: int
    pods_with_leader: int
    hosts_leader: bool
    score: int = 0


@dataclass(frozen=True)
class Request:
    mode: str
    level: int
    size: int
    slice_level: int
    inner: tuple[int, ...]
    count: int
    leader: bool
    least_free: bool
    by_score: bool
    balanced: bool = False


#: Pods per leaf path and the path of the leader's leaf, or how many slices would fit.
Result = tuple[dict[Path, int], Path | None] | int


class Oracle:
    def __init__(self, leaves: Sequence[Leaf], request: Request) -> None:
        self.r = request
        self.leaves = leaves
        self.levels = len(leaves[0].path)
        self.need = request.count // request.size
        self.reset()

    def reset(self) -> None:
        self.by_path: dict[Path, Domain] = {}
        for leaf in sorted(self.leaves, key=lambda x: x.path):
            for depth in range(1, self.levels + 1):
                path = leaf.path[:depth]
                if path not in self.by_path:
                    self.by_path[path] = Domain(path, depth - 1)
                    if depth > 1:
                        self.by_path[path[:-1]].children.append(self.by_path[path])
            d = self.by_path[leaf.path]
            d.p, d.pl, d.ld, d.score = leaf.pods, leaf.pods_with_leader, int(leaf.hosts_leader), leaf.score
        for d in self.at(0):
            self.aggregate(d, self.r.inner)

    def at(self, level: int) -> list[Domain]:
        return sorted((d for d in self.by_path.values() if d.level == level), key=lambda d: d.path)

    def aggregate(self, d: Domain, inner: Sequence[int]) -> None:
        r = self.r
        if d.children:
            for child in d.children:
                self.aggregate(child, inner)
            n = inner[d.level + 1] or 1
            d.p = sum(c.p // n * n for c in d.children)
            d.s = sum(c.s for c in d.children)
            eligible = [c for c in d.children if c.ld or not r.leader]
            d.pl = d.p - min(c.p // n * n - c.pl // n * n for c in eligible) if eligible else 0
            d.sl = d.s - min(c.s - c.sl for c in eligible) if eligible else 0
            d.ld = max(c.ld for c in d.children)
            d.score = sum(c.score for c in d.children)
        if d.level == r.slice_level:
            d.s, d.sl = d.p // r.size, d.pl // r.size
        elif d.level > r.slice_level:
            d.s = d.sl = 0

    # --- orders

    def order(self, domains: Sequence[Domain], least_free: bool | None = None) -> list[Domain]:
        sign = 1 if (self.r.least_free if least_free is None else least_free) else -1
        return sorted(domains, key=lambda d: (-d.score if self.r.by_score else 0, sign * d.s, d.p, d.path))

    def leader_order(self, domains: Sequence[Domain], least_free: bool | None = None) -> list[Domain]:
        sign = 1 if (self.r.least_free if least_free is None else least_free) else -1
        return sorted(domains, key=lambda d: (-d.ld, -d.score if self.r.by_score else 0, sign * d.sl, d.pl, d.path))

    def pick(self, domains: Sequence[Domain], need: int, leaders: int, pods: bool = False) -> Domain:
        run = list(domains)
        if self.r.by_score:
            end = next((i for i, d in enumerate(run) if d.score != run[0].score), len(run))
            run = run[:end]
        fitting = [d for d in run if d.ld >= leaders and self.value(d, leaders, pods) >= need]
        return min(fitting, key=lambda d: self.value(d, leaders, pods)) if fitting else domains[0]

    @staticmethod
    def value(d: Domain, leaders: int, pods: bool) -> int:
        if pods:
            return d.pl if leaders else d.p
        return d.sl if leaders else d.s

    def front(self, domains: Sequence[Domain], need: int, leader: bool, pods: bool = False) -> list[Domain]:
        listed = list(domains)
        if leader:
            total = sum(self.value(d, 0, pods) for d in listed)
            for d in listed:
                if d.ld and total - (self.value(d, 0, pods) - self.value(d, 1, pods)) >= need:
                    listed.remove(d)
                    return [d, *listed]
        return listed

    # --- the search

    def place(self) -> Result:
        if self.r.balanced and self.r.mode == "preferred":
            balanced = self.place_balanced()
            if balanced is not None:
                return balanced
            self.reset()
        found = self.find()
        return found if isinstance(found, int) else self.descend(*found, pooled=True)

    def find(self) -> tuple[int, list[Domain]] | int:
        r, level, leaders = self.r, self.r.level, int(self.r.leader)
        while True:
            listed = self.leader_order(self.at(level))
            fitting = [i for i, d in enumerate(listed) if d.sl >= self.need and d.ld >= leaders]
            if r.least_free:
                alone = [d for d in listed if d.s >= self.need and (not leaders or (d.ld and d.sl >= self.need))]
                if alone:
                    return level, alone[:1]
            elif fitting and fitting[0] == 0:
                return level, [self.pick(listed, self.need, leaders)]
            if r.mode == "required":
                if r.by_score and fitting:
                    return level, [self.pick(listed[fitting[0] :], self.need, leaders)]
                return listed[0].s
            if r.mode == "preferred" and level:
                level -= 1
                continue
            return self.several(level, listed)

    def several(self, level: int, listed: list[Domain]) -> tuple[int, list[Domain]] | int:
        best_fit, need, leaders = not self.r.least_free, self.need, int(self.r.leader)
        listed = self.front(listed, need, self.r.leader)
        found: list[Domain] = []
        while leaders and listed and listed[0].ld:
            d = self.pick(listed, need, leaders) if best_fit and listed[0].sl >= need else listed[0]
            found.append(d)
            need -= d.sl
            leaders -= d.ld
            listed = listed[1:]
        if leaders:
            return 0
        listed = self.order(listed)
        while need > 0 and listed:
            d = self.pick(listed, need, 0) if best_fit and listed[0].s >= need else listed[0]
            found.append(d)
            need -= d.s
            listed = listed[1:]
        return self.need - need if need > 0 else (level, found)

    def minimum(self, domains: Sequence[Domain], need: int, leaders: int, size: int, pods: bool) -> list[Domain] | None:
        best_fit, rest, open_ = not self.r.least_free, need, leaders
        listed, chosen = self.front(domains, need, bool(leaders), pods), []
        while (rest > 0 or open_) and listed:
            d = listed[0]
            value = self.value(d, open_, pods)
            if best_fit and value >= rest and d.ld >= open_:
                d = self.pick(listed, rest, open_, pods)
                value = self.value(d, open_, pods)
            amount = min(value, rest)
            d.p, d.ld = amount * size, min(d.ld, open_)
            rest -= amount
            open_ -= d.ld
            chosen.append(d)
            listed = listed[1:]
        return chosen if rest <= 0 and not open_ else None

    def descend(self, level: int, found: list[Domain], pooled: bool) -> Result:
        r = self.r
        chosen = self.minimum(found, self.need, int(r.leader), r.size, False)
        while chosen is not None and level < self.levels - 1:
            if pooled and level < r.slice_level:
                children = self.order([c for d in chosen for c in d.children])
                chosen = self.minimum(children, self.need, int(r.leader), r.size, False)
            else:
                size = r.size if level < r.slice_level else r.inner[level + 1] or 1
                lower: list[Domain] = []
                for d in chosen:
                    children = self.order(d.children)
                    if size > 1:
                        for c in children:
                            c.s, c.sl = c.p // size, c.pl // size
                    part = self.minimum(children, d.p // size, d.ld, size, size == 1)
                    if part is None:
                        return 0
                    lower += part
                chosen = lower
            level += 1
        if chosen is None:
            return 0
        pods = {d.path: d.p for d in sorted(chosen, key=lambda d: d.path) if d.p}
        return pods, next((d.path for d in chosen if d.ld), None)

    # --- balanced

    def place_balanced(self) -> Result | None:
        r = self.r
        best, fewest, winner = 0, 0, None
        sets = (
            [[d.path for d in self.at(0)]]
            if r.level == 0
            else [[c.path for c in d.children] for d in self.at(r.level - 1)]
        )
        for paths in sets:
            self.reset()
            members = [self.by_path[p] for p in paths]
            pooled = [c for d in members for c in d.children] if r.level < r.slice_level else members
            greedy = self.greedy(pooled)
            if greedy is None or not greedy[0]:
                continue
            taken, host, last = greedy
            t = min([self.need // taken, *([host.sl] if host else []), *([last.s] if last else [])])
            beside = min(t, last.sl) if r.leader and last else t
            if t < best:
                continue
            self.prune(members, t)
            after = self.greedy(members)
            if after is None and beside < t and beside > 0 and beside >= best:
                t = beside
                self.reset()
                members = [self.by_path[p] for p in paths]
                self.prune(members, t)
                after = self.greedy(members)
            if after is not None and (t > best or (t == best and after[0] < fewest)):
                best, fewest, winner = t, after[0], paths
        if not best or winner is None:
            return None
        self.reset()
        members = [self.by_path[p] for p in winner]
        self.prune(members, best)
        level = r.level
        if level < r.slice_level:
            members.sort(key=lambda d: (-d.ld, -d.sl, -entropy(d), d.path))
            selected = self.select(members)
            if selected is None:
                return None
            members = [c for d in selected for c in d.children]
            level += 1
        selected = self.select(sorted(members, key=lambda d: d.path))
        if selected is None or self.need < len(selected) * best:
            return None
        surplus = self.need - len(selected) * best
        listed = self.leader_order(selected, least_free=False)
        for i, d in enumerate(listed):
            hosts = r.leader and i == 0
            extra = min((d.sl if hosts else d.s) - best, surplus)
            surplus -= extra
            d.s = d.sl = best + extra
            d.p = d.s * r.size
            d.ld = int(hosts)
        if surplus > 0:
            return None
        result = self.descend(level, listed, pooled=False)
        return None if isinstance(result, int) else result

    def greedy(self, domains: Sequence[Domain]) -> tuple[int, Domain | None, Domain | None] | None:
        need, taken, host, last = self.need, 0, None, None
        listed = list(domains)
        if self.r.leader:
            listed = self.leader_order(listed, least_free=False)
            if not listed or not listed[0].ld:
                return None
            host, taken = listed[0], 1
            need -= host.sl
            listed = listed[1:]
        for d in self.order(listed, least_free=False):
            if need <= 0 or d.s <= 0:
                break
            last, taken = d, taken + 1
            need -= d.s
        return None if need > 0 else (taken, host, last)

    def prune(self, members: Sequence[Domain], t: int) -> None:
        for d in members:
            for c in d.children:
                self.prune_one(c, t)
        for d in members:
            self.aggregate(d, [0] * self.levels)
            self.prune_one(d, t)

    def prune_one(self, d: Domain, t: int) -> None:
        if d.s < t:
            for x in d.subtree():
                x.p = x.s = x.pl = x.sl = x.ld = 0
        elif self.r.leader and d.ld and d.sl < t:
            for x in d.subtree():
                x.pl = x.sl = x.ld = 0

    def select(self, domains: Sequence[Domain]) -> list[Domain] | None:
        greedy = self.greedy(domains)
        if greedy is None:
            return None
        n = greedy[0]
        states: list[dict[tuple[int, int], list[Domain]]] = [{} for _ in range(n + 1)]
        states[0][(int(self.r.leader), self.need * self.r.size)] = []
        for d in domains:
            for taken in range(n, 0, -1):
                for leaders, pods in sorted(states[taken - 1]):
                    if leaders <= 0 and pods <= 0:
                        continue
                    way = [*states[taken - 1][leaders, pods], d]
                    if leaders and d.ld:
                        states[taken].setdefault((leaders - 1, pods - d.pl), way)
                    if d.s > 0:
                        states[taken].setdefault((leaders, pods - d.p), way)
        ends = [(pods, way) for (leaders, pods), way in states[n].items() if not leaders and pods <= 0]
        best: Callable[[tuple[int, list[Domain]]], int] = lambda end: end[0]  # noqa: E731
        return max(ends, key=best)[1] if ends else None


def entropy(d: Domain) -> float:
    total = sum(c.p for c in d.children)
    return sum(-c.p / total * math.log2(c.p / total) for c in d.children if c.p > 0) if total else 0.0
