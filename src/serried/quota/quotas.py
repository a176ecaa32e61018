"""What one ClusterQueue may use: its spec, read once into integers and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from serried.api.core import Quantity
from serried.api.kueue import ClusterQueueSpec, CohortSpec, ResourceFlavor
from serried.api.names import QueueReason
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
    #: in the order of the spec; the cells of the status, too
    nominal: Mapping[FlavorResource, int] = field(default_factory=dict)
    #: cells that may go only so far beyond nominal; the others as far as the cohort has any
    borrowing: Mapping[FlavorResource, int] = field(default_factory=dict)
    #: cells of which only so much of nominal may be used by others; of the others, all
    lending: Mapping[FlavorResource, int] = field(default_factory=dict)

    def group_of(self, resource: str) -> Group | None:
        """The group that covers the resource; None: this queue has no quota for it."""
        return next((g for g in self.groups if resource in g.resources), None)

    @property
    def flavors(self) -> tuple[str, ...]:
        return tuple(flavor for group in self.groups for flavor in group.flavors)


@dataclass(frozen=True)
class QueueProblem:
    """Why a ClusterQueue cannot admit: a reason of its condition Active, and the field at fault."""

    reason: str
    message: str
    field: str = ""
    found: str = ""
    allowed: str = ""


def read_quotas(spec: ClusterQueueSpec | CohortSpec) -> tuple[Quotas, list[QueueProblem]]:
    """The quota of a spec, of a ClusterQueue or of a Cohort, and what is wrong with it.

    The rules are those of Kueue: a resource and a flavor each belong to one group, every flavor of a group has a quota
    for every resource the group covers and for no other, quotas are quantities >= 0. With problems the limits hold
    what could be read, so that usage can still be reported by them.
    """
    problems: list[QueueProblem] = []
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
                    _misconfigured(problems, f"{where}.name", quota.name, f"one of {path}.coveredResources: {listed}")
                    continue
                cell = (flavor.name, quota.name)
                nominal[cell] = _amount(problems, quota.name, quota.nominal_quota, f"{where}.nominalQuota")
                for name, given in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
                    if given is not None:
                        limits[name][cell] = _amount(problems, quota.name, given, f"{where}.{name}")
            missing = [r for r in group.covered_resources if r not in {q.name for q in flavor.resources}]
            if missing:
                found = ", ".join(q.name for q in flavor.resources) or "nothing"
                allowed = f"one entry for each of {path}.coveredResources, so also for {', '.join(missing)}"
                _misconfigured(problems, f"{at}.resources", found, allowed)
        groups.append(Group(tuple(group.covered_resources), tuple(f.name for f in group.flavors)))
    return Quotas(tuple(groups), nominal, limits["borrowingLimit"], limits["lendingLimit"]), problems


def missing_references(
    limits: Quotas, flavors: Mapping[str, ResourceFlavor], topologies: Iterable[str]
) -> list[QueueProblem]:
    """Flavors of the queue that do not exist, and topologies that its flavors name and that do not exist."""
    problems = []
    known = set(topologies)
    for i, group in enumerate(limits.groups):
        for j, name in enumerate(group.flavors):
            path = f"spec.resourceGroups[{i}].flavors[{j}].name"
            flavor = flavors.get(name)
            if flavor is None:
                problems.append(_missing(QueueReason.FLAVOR_NOT_FOUND, path, name, "ResourceFlavor", flavors))
            elif flavor.spec.topology_name and flavor.spec.topology_name not in known:
                field = f"spec.topologyName of ResourceFlavor {name}"
                reason = QueueReason.TOPOLOGY_NOT_FOUND
                problems.append(_missing(reason, field, flavor.spec.topology_name, "Topology", known))
    return problems


def _once(problems: list[QueueProblem], seen: dict[str, str], name: str, path: str) -> None:
    first = seen.setdefault(name, path)
    if first != path:
        _misconfigured(problems, path, name, f"a name that is not in the queue yet ({first} has it already)")


def _amount(problems: list[QueueProblem], resource: str, quantity: Quantity, path: str) -> int:
    try:
        amount = resource_value(resource, quantity)
    except QuantityError as error:
        _misconfigured(problems, path, str(quantity), f"a quantity >= 0 ({error})")
        return 0
    if amount < 0:
        _misconfigured(problems, path, str(quantity), "a quantity >= 0")
        return 0
    return amount


def _misconfigured(problems: list[QueueProblem], field: str, found: str, allowed: str) -> None:
    message = f"{field} is {found!r}; allowed: {allowed}"
    problems.append(QueueProblem(QueueReason.MISCONFIGURED, message, field, found, allowed))


def _missing(reason: str, field: str, name: str, kind: str, known: Iterable[str]) -> QueueProblem:
    allowed = ", ".join(sorted(known)) or "none exists yet"
    message = f"{field} is {name!r}, but there is no such {kind} (there is: {allowed}); create it or change the name"
    return QueueProblem(reason, message, field, name, allowed)
