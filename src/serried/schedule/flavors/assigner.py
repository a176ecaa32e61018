"""Which flavor each resource of a workload gets: the scan of the flavors of each resource group, against quota.

The rules are Kueue's: which flavors may be used, how far quota goes with borrowing and preemption, when the scan stops
(flavorFungibility), and which flavor is preferred when none ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from serried.api.kueue import FlavorFungibility, ResourceFlavor
from serried.api.names import PendingReason
from serried.model.requests import PodSetRequest
from serried.quota.ledger import Shortage
from serried.quota.quotas import FlavorResource, Group
from serried.schedule.flavors.assignment import (
    SEVERITY,
    Assignment,
    Choice,
    Fit,
    PodSetChoice,
    Tried,
)
from serried.schedule.flavors.flavor_topology import topology_mismatch
from serried.schedule.state.records import ClusterQueueState
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.label_match import flavor_mismatch
from serried.schedule.types.options import Options
from serried.schedule.types.refusals import (
    BadRequest,
    Cause,
    FlavorNotFound,
    NotCovered,
    QuotaShort,
    Refusal,
    RefusalKind,
)
from serried.schedule.types.workload import total_requests

#: (flavor and resource, amount) → what preemption could do, and the borrowing level afterwards.
Oracle = Callable[[FlavorResource, int], tuple[Fit, int]]


@dataclass(frozen=True)
class Rules:
    """What else the scan has to keep to."""

    #: (index of pod set, resource) → index of the first flavor to look at
    start: Mapping[tuple[int, str], int] = field(default_factory=dict)
    #: (pod set, flavor): not to be used, since it has no place there
    excluded: frozenset[tuple[str, str]] = frozenset()
    #: quota that others use counts as free
    as_if_unused: bool = False
    #: the places do not matter, so the best ones need not be searched for
    only_whether: bool = False


NO_RULES = Rules()


def assign(
    state: State,
    queue: ClusterQueueState,
    pod_sets: Sequence[PodSetRequest],
    oracle: Oracle,
    rules: Rules = NO_RULES,
    scan: Callable[..., FlavorScan] | None = None,
) -> Assignment:
    """Flavors for these pod sets, one after the other (those of one group together), each seeing what the earlier ones
    took. Stops at the first that gets none. Charges nothing. `scan`: a scan with further rules."""
    result = Assignment()
    for unit in _units(pod_sets):
        if not (scan or FlavorScan)(state, queue, pod_sets, unit, oracle, rules, result).run():
            break
    return result


def _units(pod_sets: Sequence[PodSetRequest]) -> Iterator[tuple[int, ...]]:
    """Indices of pod sets that are served together, in the order of the first of each group."""
    groups: dict[str, list[int]] = {}
    for i, pod_set in enumerate(pod_sets):
        group = (pod_set.topology.pod_set_group_name if pod_set.topology else None) or ""
        groups.setdefault(f"group {group}" if group else f"pod set {i}", []).append(i)
    return (tuple(indices) for indices in groups.values())


@lru_cache(maxsize=4096)
def visiting_order(resource: str) -> int:
    """Resources are visited by this: the 64-bit FNV-1a hash of the name, as in Kueue."""
    value = 0xCBF29CE484222325
    for byte in resource.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


class FlavorScan:
    """The scan of the flavors for one unit of pod sets."""

    def __init__(
        self,
        state: State,
        queue: ClusterQueueState,
        pod_sets: Sequence[PodSetRequest],
        unit: tuple[int, ...],
        oracle: Oracle,
        rules: Rules,
        result: Assignment,
    ) -> None:
        self.state, self.queue, self.oracle, self.rules, self.result = state, queue, oracle, rules, result
        self.node = state.ledger.queue(queue.name)
        self.unit = unit
        self.pod_sets = [pod_sets[i] for i in unit]
        self.totals = [_charged(state, queue, p) for p in self.pod_sets]
        if len(unit) == 1 and not self.totals[0]:
            # It asks for nothing, but still needs a flavor: for its nodes.
            covered = (resource for group in queue.quotas.groups for resource in group.resources)
            self.totals[0] |= dict.fromkeys(islice(covered, 1), 0)
        self.needed: dict[str, int] = {}
        for total in self.totals:
            for resource, amount in total.items():
                self.needed[resource] = self.needed.get(resource, 0) + amount
        self.tried: dict[str, Tried] = {}
        self.refusals: list[Refusal] = []
        #: the best failure of each resource group
        self.failures: list[str] = []

    @property
    def name(self) -> str:
        return self.pod_sets[0].name

    def run(self) -> bool:
        """Whether every resource got a flavor. The choices are in the result either way."""
        chosen: dict[str, Choice] = {}
        complete = True
        for resource in sorted(self.needed, key=visiting_order):
            if resource in chosen:
                continue
            group = self.queue.quotas.group_of(resource)
            if group is None:
                if not self.needed[resource]:
                    continue
                self.refusals = [self._not_covered(resource)]
                self.tried.clear()
                complete = False
                break
            found, refusals = self._group(group, resource)
            if not found:
                # What stands against this group is why; that another one has to wait besides is not.
                self.refusals = refusals
                complete = False
                break
            self.refusals += refusals
            chosen |= found
        self._record(chosen if complete else {}, complete=complete)
        return complete

    def _record(self, chosen: Mapping[str, Choice], *, complete: bool) -> None:
        with_topology = {r: c for r, c in chosen.items() if c.flavor in self.state.flavors and self._topology(c.flavor)}
        no_fit = max(self.failures, key=SEVERITY.index, default="")
        if not complete and not self.tried:
            no_fit = PendingReason.NO_MATCHING_FLAVOR
        for pod_set, total in zip(self.pod_sets, self.totals, strict=True):
            own = {r: chosen[r] for r in total if r in chosen}
            if not own and len(self.pod_sets) > 1:
                # It asks for nothing, and goes where its group goes.
                own = with_topology
            self.result.pod_sets.append(
                PodSetChoice(
                    pod_set,
                    total,
                    {r: Choice(c.flavor, c.mode, c.borrow, c.tried) for r, c in own.items()},
                    list(self.refusals),
                    tried=self.tried,
                    no_fit=no_fit,
                )
            )
        for resource, choice in chosen.items():
            fr = (choice.flavor, resource)
            self.result.usage[fr] = self.result.usage.get(fr, 0) + self.needed[resource]

    def _topology(self, flavor: str) -> str:
        return self.state.flavors[flavor].spec.topology_name

    # --- one resource group

    def _group(self, group: Group, first: str) -> tuple[dict[str, Choice], list[Refusal]]:
        """The choice for all resources of a group, and what stood against flavors; {}: there is none."""
        fungibility = self.queue.spec.flavor_fungibility
        resources = sorted((r for r in self.needed if r in group.resources), key=visiting_order)
        best: tuple[tuple[int, ...], dict[str, Choice]] | None = None
        refusals: list[Refusal] = []
        least = ""
        index, last = -1, len(group.flavors) - 1
        for index in range(self.rules.start.get((self.unit[0], first), 0), len(group.flavors)):
            flavor = group.flavors[index]
            if (cause := self.skipped(flavor, first)) is not None:
                refusals.append(Refusal(RefusalKind.MISMATCH, self.name, cause))
                continue
            tried = Tried(flavor)
            mismatch = self._mismatch(flavor, resources)
            if mismatch is not None:
                tried.mode, tried.no_fit, tried.refusals = Fit.NO_FIT, PendingReason.NO_MATCHING_FLAVOR, [mismatch]
                choices: dict[str, Choice] = {}
            else:
                choices = self._try(flavor, resources, tried)
            refusals += tried.refusals
            if flavor in self.tried:
                self.tried[flavor].merge(tried)
            else:
                self.tried[flavor] = tried
            shade = min((c.mode for c in choices.values()), default=Fit.NO_FIT)
            if shade == Fit.NO_FIT:
                least = tried.no_fit if not least else min(least, tried.no_fit, key=SEVERITY.index)
                continue
            preference = preference_key(fungibility, shade, tried.borrow)
            if _ends_scan(fungibility, shade, tried.borrow):
                best = (preference, choices)
                break
            if best is None or preference > best[0]:
                best = (preference, choices)
        if best is None:
            self.failures.append(least or PendingReason.NO_MATCHING_FLAVOR)
            return {}, refusals
        for choice in best[1].values():
            choice.tried = -1 if index >= last else index
        if min(c.mode for c in best[1].values()) == Fit.FIT:
            refusals = []
        for choice in best[1].values():
            choice.mode = choice.mode.answer
        return best[1], refusals

    def skipped(self, flavor: str, resource: str) -> Cause | None:
        """Why a flavor is passed over without being looked at; None: it is not."""
        return None

    def _mismatch(self, flavor: str, resources: Sequence[str]) -> Refusal | None:
        """Why the pod sets may not use the flavor at all, whatever is free in it."""
        found = self.state.flavors.get(flavor)
        if found is None:
            return Refusal(RefusalKind.MISMATCH, self.name, FlavorNotFound(flavor))
        for i, pod_set in zip(self.unit, self.pod_sets, strict=True):
            cause = self.mismatch(i, pod_set, found, resources)
            if cause is not None:
                kind = RefusalKind.BAD_REQUEST if isinstance(cause, BadRequest) else RefusalKind.MISMATCH
                return Refusal(kind, pod_set.name, cause)
        return None

    def mismatch(
        self, index: int, pod_set: PodSetRequest, flavor: ResourceFlavor, resources: Sequence[str]
    ) -> Cause | None:
        """Why a pod set may not use a flavor for these resources; None: it may."""
        cause = topology_mismatch(self.state, self.queue, index, pod_set, flavor, alone=self._alone)
        return cause or flavor_mismatch(pod_set, flavor, flavor.spec.node_labels.keys())

    @property
    def _alone(self) -> bool:
        """Whether all resources come from one group. If not, the topology may be that of another flavor."""
        return sum(not self.needed.keys().isdisjoint(g.resources) for g in self.queue.quotas.groups) == 1

    def _try(self, flavor: str, resources: Sequence[str], tried: Tried) -> dict[str, Choice]:
        choices: dict[str, Choice] = {}
        if any((p.name, flavor) in self.rules.excluded for p in self.pod_sets):
            tried.mode, tried.no_fit = Fit.NO_FIT, PendingReason.TOPOLOGY_PLACEMENT_FAILED
            return {}
        for resource in resources:
            mode, borrow = self._quota((flavor, resource), self.needed[resource], tried)
            choices[resource] = Choice(flavor, mode, borrow)
            tried.borrow = max(tried.borrow, borrow)
            tried.mode = min(tried.mode, mode)
            if mode == Fit.NO_FIT:
                return {}
        if tried.mode < Fit.FIT:
            tried.possibility = tried.mode
        return choices

    def _quota(self, fr: FlavorResource, amount: int, tried: Tried) -> tuple[Fit, int]:
        """How far the quota goes, and at which level of borrowing."""
        node, before = self.node, self.result.usage.get(fr, 0)
        value = before + amount
        most = node.potential(fr)
        if value > most:
            tried.no_fit = PendingReason.EXCEEDS_MAX_QUOTA
            short = QuotaShort(fr[0], Shortage(fr, amount, before, most, most))
            tried.refusals.append(Refusal(RefusalKind.NEVER_QUOTA, self.name, short))
            return Fit.NO_FIT, 0
        available = most if self.rules.as_if_unused else max(0, node.available(fr))
        borrow, has_outside = node.lowest_fit(fr, value)
        if value <= available:
            return Fit.FIT, borrow
        self.result.blocked_on |= Changed.RELEASED
        short = QuotaShort(fr[0], Shortage(fr, amount, before, available, most))
        tried.refusals.append(Refusal(RefusalKind.WAITS_QUOTA, self.name, short))
        if node.quotas.nominal.get(fr, 0) >= value or has_outside or self._preempts_while_borrowing:
            return self.oracle(fr, value)
        tried.no_fit = PendingReason.WAITING_FOR_QUOTA
        return Fit.NO_FIT, borrow

    @property
    def _preempts_while_borrowing(self) -> bool:
        policy = self.queue.spec.preemption
        someone = policy.reclaim_within_cohort != "Never" or policy.within_cluster_queue != "Never"
        return policy.borrow_within_cohort.policy != "Never" or (self.state.fair_sharing is not None and someone)

    def _not_covered(self, resource: str) -> Refusal:
        covered = tuple(r for group in self.queue.quotas.groups for r in group.resources)
        return Refusal(RefusalKind.NEVER_QUOTA, self.name, NotCovered("", resource, self.needed[resource], covered))


def _charged(state: State, queue: ClusterQueueState, pod_set: PodSetRequest) -> dict[str, int]:
    """What quota the pod set needs. Requests of nothing, and `pods`, count only where the queue covers them."""
    totals = counted_totals(state.options, pod_set)
    covered = queue.quotas.group_of
    return {r: n for r, n in totals.items() if covered(r) or (n > 0 and r != "pods")}


def counted_totals(options: Options, pod_set: PodSetRequest) -> dict[str, int]:
    """What of the requests of all its pods together counts for quota, `pods` included."""
    return total_requests(replace(pod_set, requests=counted(options, pod_set.requests)))


def counted(options: Options, requests: Mapping[str, int]) -> Mapping[str, int]:
    """What of the requests of a pod counts for quota, by the administrator's configuration."""
    transformations, excluded = options.resources.transformations, options.resources.exclude_resource_prefixes
    if not transformations and not excluded:
        return requests
    rules = {rule.input: rule for rule in transformations}
    result: dict[str, int] = {}

    def add(name: str, amount: int) -> None:
        result[name] = result.get(name, 0) + amount

    # What comes of a rule is not an input of another one: only what the pod requests is.
    for resource, amount in requests.items():
        if resource.startswith(excluded):
            continue
        rule = rules.get(resource)
        if rule is None or rule.strategy == "Retain":
            add(resource, amount)
        for name, factor in rule.factors.items() if rule is not None else ():
            add(name, -(-amount * factor // (1000 if resource == "cpu" else 1)))
    return result


def preference_key(fungibility: FlavorFungibility, mode: Fit, borrow: int) -> tuple[int, ...]:
    """More is preferred: what fits or can be made to, before what nobody can make fit, before what does not fit."""
    category = min(mode, Fit.PREEMPT)
    if fungibility.preference == "PreemptionOverBorrowing":
        return (category, -borrow, mode)
    return (category, mode, -borrow)


def _ends_scan(fungibility: FlavorFungibility, mode: Fit, borrow: int) -> bool:
    if mode <= Fit.NO_CANDIDATES:
        return False
    if mode < Fit.FIT and fungibility.when_can_preempt == "TryNextFlavor":
        return False
    return not (borrow > 0 and fungibility.when_can_borrow == "TryNextFlavor")
