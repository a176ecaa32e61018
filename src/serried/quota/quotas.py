"""What one ClusterQueue may use: its spec, read once into integers and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from serried.api.core import Quantity
from serried.api.kueue import ClusterQueueSpec, CohortSpec, ResourceFlavor
from serried.api.problem import Problem
from serried.api.quantity import QuantityError, resource_value

#: What quota is counted by: (flavor, resource).
FlavorResource = tuple[str, str]


@dataclass(frozen=True)
class Group:
    """Resources whose flavor is chosen together, and the flavors in the order they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True)
class Quotas:
    """The quota a ClusterQueue declares. Amounts: cpu in millicores, everything else in units, all >= 0."""

    groups: tuple[Group, ...] = ()
    #: in the order of the spec, and of the status
    nominal: Mapping[FlavorResource, int] = field(default_factory=dict)
    #: how far usage may go beyond nominal; of those not named as far as the cohort has any
    borrowing: Mapping[FlavorResource, int] = field(default_factory=dict)
    #: how much of nominal others may use; of those not named, all
    lending: Mapping[FlavorResource, int] = field(default_factory=dict)

    def group_of(self, resource: str) -> Group | None:
        """The group that covers the resource; None: this queue has no quota for it."""
        return next((g for g in self.groups if resource in g.resources), None)

    @property
    def flavors(self) -> tuple[str, ...]:
        return tuple(flavor for group in self.groups for flavor in group.flavors)


def read_quotas(spec: ClusterQueueSpec | CohortSpec) -> tuple[Quotas, list[Problem]]:
    """The quota of a spec, of a ClusterQueue or of a Cohort, and what is wrong with it.

    The rules are those of Kueue: a resource and a flavor each belong to one group, every flavor of a group has a quota
    for every resource the group covers and for no other, quotas are quantities >= 0. With problems the quotas hold
    what could be read, so that usage can still be reported by them.
    """
    problems: list[Problem] = []
    groups: list[Group] = []
    nominal: dict[FlavorResource, int] = {}
    limits: dict[str, dict[FlavorResource, int]] = {"borrowingLimit": {}, "lendingLimit": {}}
    seen_resources: dict[str, str] = {}
    seen_flavors: dict[str, str] = {}
    for i, group in enumerate(spec.resource_groups):
        path = f"spec.resourceGroups[{i}]"
        for j, resource in enumerate(group.covered_resources):
            _once(problems, seen_resources, resource, f"{path}.coveredResources[{j}]")
        for j, flavor in enumerate(group.flavors):
            at = f"{path}.flavors[{j}]"
            _once(problems, seen_flavors, flavor.name, f"{at}.name")
            covered = set(group.covered_resources)
            for k, quota in enumerate(flavor.resources):
                where = f"{at}.resources[{k}]"
                if quota.name not in covered:
                    listed = ", ".join(group.covered_resources)
                    allowed = f"one of {path}.coveredResources: {listed}"
                    problems.append(Problem(f"{where}.name", quota.name, allowed))
                    continue
                fr = (flavor.name, quota.name)
                nominal[fr] = _amount(problems, quota.name, quota.nominal_quota, f"{where}.nominalQuota")
                for name, given in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
                    if given is not None:
                        limits[name][fr] = _amount(problems, quota.name, given, f"{where}.{name}")
            missing = [r for r in group.covered_resources if r not in {q.name for q in flavor.resources}]
            if missing:
                found = ", ".join(q.name for q in flavor.resources) or "nothing"
                allowed = f"one entry for each of {path}.coveredResources, so also for {', '.join(missing)}"
                problems.append(Problem(f"{at}.resources", found, allowed))
        groups.append(Group(tuple(group.covered_resources), tuple(f.name for f in group.flavors)))
    return Quotas(tuple(groups), nominal, limits["borrowingLimit"], limits["lendingLimit"]), problems


def missing_flavors(quotas: Quotas, flavors: Mapping[str, ResourceFlavor]) -> list[Problem]:
    """The flavors of a queue that do not exist."""
    return [
        _missing(f"spec.resourceGroups[{i}].flavors[{j}].name", name, "ResourceFlavor", flavors)
        for i, group in enumerate(quotas.groups)
        for j, name in enumerate(group.flavors)
        if name not in flavors
    ]


def missing_topologies(
    quotas: Quotas, flavors: Mapping[str, ResourceFlavor], topologies: Collection[str]
) -> list[Problem]:
    """The topologies that flavors of a queue name and that do not exist."""
    named = ((name, flavors[name].spec.topology_name) for name in quotas.flavors if name in flavors)
    return [
        _missing(f"spec.topologyName of ResourceFlavor {flavor}", topology, "Topology", topologies)
        for flavor, topology in named
        if topology and topology not in topologies
    ]


def _once(problems: list[Problem], seen: dict[str, str], name: str, path: str) -> None:
    first = seen.setdefault(name, path)
    if first != path:
        problems.append(Problem(path, name, f"a name that is not in the queue yet ({first} has it already)"))


def _amount(problems: list[Problem], resource: str, quantity: Quantity, path: str) -> int:
    try:
        amount = resource_value(resource, quantity)
    except QuantityError as error:
        problems.append(Problem(path, str(quantity), f"a quantity >= 0 ({error})"))
        return 0
    if amount < 0:
        problems.append(Problem(path, str(quantity), "a quantity >= 0"))
        return 0
    return amount


def _missing(field: str, name: str, kind: str, known: Iterable[str]) -> Problem:
    return Problem(field, name, f"a {kind} that exists (there is: {', '.join(sorted(known)) or 'none'})")
