"""What one pod asks for, by the rules of Kubernetes, in the integers the model calculates with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from serried.api.core import Container, PodSpec, Quantity, ResourceList, ResourceRequirements
from serried.api.meta import Key
from serried.api.quantity import LIMIT, QuantityError, resource_value
from serried.model.capacity import NO_ROWS, Ints, Vector
from serried.model.pod_index import NO_KIND, PodKind

#: Reads one quantity: (path of the field, resource, quantity) → integer.
_Read = Callable[[str, str, Quantity], int]


class RequestError(ValueError):
    """A request that cannot be read or is negative.

    Attributes:
        field: path of the field, e.g. "spec.containers[0].resources.requests[cpu]".
        found: what stands there.
    """

    def __init__(self, field: str, found: str, problem: str) -> None:
        self.field = field
        self.found = found
        super().__init__(f"{field}: {problem}")


@dataclass(slots=True, eq=False)
class BoundPod:
    """A pod on a node."""

    row: int
    vector: Vector
    workload: Key | None
    pod_set: str
    kind: PodKind = NO_KIND
    #: it takes capacity by itself; otherwise a hold has taken it already
    counted: bool = False
    #: its entry in the index of pods
    entries: Ints = field(default_factory=lambda: NO_ROWS)

    @property
    def takes(self) -> tuple[object, ...]:
        """What it takes, where, for whom, and what others see of it."""
        return self.row, self.vector, self.workload, self.pod_set, self.kind


def pod_requests(spec: PodSpec) -> dict[str, int]:
    """Effective requests of one pod: cpu in millicores, everything else in units, held at 2**63 - 1.

    The rules are those of kube-scheduler: what the containers and the restartable init containers (sidecars) need
    together, or more where an init container needs more while it runs; then requests of the pod as a whole, which
    replace that sum; then the overhead. A limit without a request is the request. `pods` is not included.

    Raises:
        RequestError: a quantity does not parse or is negative; names the field.
    """
    return _effective(spec, _read)


def readable_requests(spec: PodSpec) -> dict[str, int]:
    """Like `pod_requests`, but what cannot be read counts as nothing: for pods that already run."""
    return _effective(spec, _read_or_zero)


def _read(field: str, resource: str, quantity: Quantity) -> int:
    try:
        value = resource_value(resource, quantity)
    except QuantityError as error:
        raise RequestError(field, str(quantity), str(error)) from error
    if value < 0:
        raise RequestError(field, str(quantity), f"{quantity} is negative; a request is 0 or more")
    return value


def _read_or_zero(field: str, resource: str, quantity: Quantity) -> int:
    try:
        return max(0, resource_value(resource, quantity))
    except QuantityError:
        return 0


def _effective(spec: PodSpec, read: _Read) -> dict[str, int]:
    total: dict[str, int] = {}
    for i, container in enumerate(spec.containers):
        _add(total, _container(container, f"spec.containers[{i}]", read))
    # Init containers run one after the other; a restartable one stays and runs beside all that follow.
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for i, container in enumerate(spec.init_containers):
        requests = _container(container, f"spec.initContainers[{i}]", read)
        if container.restart_policy == "Always":
            _add(sidecars, requests)
            _raise_to(peak, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(peak, requests)
    _add(total, sidecars)
    _raise_to(total, peak)
    if spec.resources is not None:
        own = _list(spec.resources.requests, "spec.resources.requests", read)
        limits = _list(spec.resources.limits, "spec.resources.limits", read)
        total |= {name: value for name, value in limits.items() if name not in total} | own
    _add(total, _list(spec.overhead, "spec.overhead", read))
    return total


def _container(container: Container, field: str, read: _Read) -> dict[str, int]:
    resources: ResourceRequirements = container.resources
    limits = _list(resources.limits, f"{field}.resources.limits", read) if resources.limits else {}
    return limits | _list(resources.requests, f"{field}.resources.requests", read)


def _list(resources: ResourceList, field: str, read: _Read) -> dict[str, int]:
    return {name: read(f"{field}[{name}]", name, quantity) for name, quantity in resources.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = min(LIMIT, total.get(name, 0) + value)


def _raise_to(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, value in floor.items():
        total[name] = max(total.get(name, 0), value)
