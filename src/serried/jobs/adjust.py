"""What the API server adds to the pods of a template, and what it would refuse them for: LimitRanges, RuntimeClasses.

A pod gets the defaults of its namespace's LimitRanges and the overhead of its RuntimeClass when it is created. Quota
and places have to be found for the pods as they will be, and what no pod could be created for is said of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from serried.api.core import (
    Container,
    LimitRange,
    LimitRangeItem,
    PodSpec,
    PodTemplateSpec,
    Quantity,
    ResourceList,
    ResourceRequirements,
    RuntimeClass,
)
from serried.api.kueue import PodSet
from serried.api.problem import Problem
from serried.api.quantity import QuantityError, format_quantity, resource_value
from serried.model.pods import readable_requests


@dataclass(frozen=True)
class Breach:
    """A LimitRange that a pod does not keep to."""

    limit_range: str
    #: of the resources, within the pod: "spec.containers[0].resources"; "spec" for those of all containers together
    path: str
    per: Literal["Container", "Pod"]
    bound: Literal["maximum", "minimum", "ratio"]
    resource: str
    enforced: Quantity
    which: Literal["limit", "request"]
    #: None: it is not set, or 0 where there has to be a ratio
    found: Quantity | None
    #: of a ratio: what it is
    times: float = 0.0

    def problem(self, template: str) -> Problem:
        """As bad input; `template`: path of the pod template."""
        lists = f"{self.which}s[{self.resource}]"
        field = (
            f"{template}.{self.path}.{lists}" if self.per == "Container" else f"{lists} of {template}.spec as a whole"
        )
        allowed = {
            "maximum": f"at most {self.enforced}",
            "minimum": f"at least {self.enforced}",
            "ratio": f"set, with a limit of at most {self.enforced} times the request",
        }[self.bound]
        found = "not set" if self.found is None else str(self.found)
        return Problem(field, found, f"{allowed}, by LimitRange {self.limit_range}")


@dataclass(frozen=True)
class Conflict:
    """What a pod says itself and its RuntimeClass says otherwise: the API server refuses such a pod."""

    #: within the pod's spec
    field: str
    found: str
    #: what the RuntimeClass says; "": nothing
    theirs: str

    def problem(self, template: str, runtime_class: str) -> Problem:
        allowed = f"{self.theirs}, as in RuntimeClass {runtime_class}, or nothing" if self.theirs else "nothing"
        return Problem(f"{template}.spec.{self.field}", self.found, allowed)


def adjusted(
    pod_sets: Sequence[PodSet], limit_ranges: Sequence[LimitRange], runtime_classes: Mapping[str, RuntimeClass]
) -> tuple[tuple[PodSet, ...], list[Problem]]:
    """Pod sets as their pods will be, and what would keep these from being created.

    `limit_ranges`: of the namespace. Quantities that cannot be read are left as they are; they are told elsewhere.
    """
    result, problems = [], []
    for i, pod_set in enumerate(pod_sets):
        template = f"spec.podSets[{i}].template"
        spec = with_defaults(pod_set.template.spec, limit_ranges)
        problems += [breach.problem(template) for breach in breaches(spec, limit_ranges)]
        if name := spec.runtime_class_name:
            runtime_class = runtime_classes.get(name)
            if runtime_class is None:
                field = f"{template}.spec.runtimeClassName"
                problems.append(Problem(field, repr(name), "the name of a RuntimeClass that exists"))
            else:
                problems += [c.problem(template, name) for c in conflicts(spec, runtime_class)]
                spec = with_runtime_class(spec, runtime_class)
        elif spec.overhead:
            field = f"{template}.spec.overhead"
            problems.append(Problem(field, _listed(spec.overhead), "nothing without a RuntimeClass that says the same"))
        if spec is not pod_set.template.spec:
            changed = PodTemplateSpec(metadata=pod_set.template.metadata, spec=spec)
            pod_set = msgspec.structs.replace(pod_set, template=changed)
        result.append(pod_set)
    return tuple(result), problems


def with_defaults(spec: PodSpec, limit_ranges: Sequence[LimitRange]) -> PodSpec:
    """Missing limits and requests of containers, from LimitRanges. A limit without a request is the request first."""
    items = [item for _, item in _items(limit_ranges, "Container") if item.default or item.default_request]
    if not items:
        return spec

    def filled(container: Container) -> Container:
        limits = container.resources.limits
        requests: ResourceList = {**limits, **container.resources.requests}
        for item in items:
            limits, requests = {**item.default, **limits}, {**item.default_request, **requests}
        return msgspec.structs.replace(container, resources=ResourceRequirements(requests=requests, limits=limits))

    return msgspec.structs.replace(
        spec,
        containers=tuple(map(filled, spec.containers)),
        init_containers=tuple(map(filled, spec.init_containers)),
    )


def with_runtime_class(spec: PodSpec, runtime_class: RuntimeClass) -> PodSpec:
    """The pod with the overhead of its RuntimeClass, on the nodes that this is for, tolerating what it tolerates."""
    overhead = spec.overhead or runtime_class.overhead.pod_fixed
    selector = {**runtime_class.scheduling.node_selector, **spec.node_selector}
    more = [t for t in runtime_class.scheduling.tolerations if t not in spec.tolerations]
    tolerations = (*spec.tolerations, *more)
    return msgspec.structs.replace(spec, overhead=overhead, node_selector=selector, tolerations=tolerations)


def conflicts(spec: PodSpec, runtime_class: RuntimeClass) -> Iterator[Conflict]:
    """Where a pod contradicts its RuntimeClass."""
    theirs = runtime_class.overhead.pod_fixed
    if spec.overhead and {n: _value(n, q) for n, q in spec.overhead.items()} != {
        n: _value(n, q) for n, q in theirs.items()
    }:
        yield Conflict("overhead", _listed(spec.overhead), _listed(theirs))
    for key, value in sorted(runtime_class.scheduling.node_selector.items()):
        if spec.node_selector.get(key, value) != value:
            yield Conflict(f"nodeSelector[{key}]", spec.node_selector[key], value)


def _listed(quantities: ResourceList) -> str:
    return ", ".join(f"{name}: {quantity}" for name, quantity in sorted(quantities.items()))


def breaches(spec: PodSpec, limit_ranges: Sequence[LimitRange]) -> Iterator[Breach]:
    """Where a pod, its defaults filled in, does not keep to the LimitRanges."""
    for limit_range, item in _items(limit_ranges, "Container"):
        for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
            for i, container in enumerate(containers):
                path, found = f"spec.{kind}[{i}].resources", container.resources
                requests: ResourceList = {**found.limits, **found.requests}
                yield from _breaches(limit_range, item, path, "Container", requests, found.limits)
    for limit_range, item in _items(limit_ranges, "Pod"):
        without = msgspec.structs.replace(spec, overhead={})
        requests, limits = _together(without), _together(_limits_as_requests(without))
        yield from _breaches(limit_range, item, "spec", "Pod", requests, limits)


def _breaches(
    limit_range: str,
    item: LimitRangeItem,
    path: str,
    per: Literal["Container", "Pod"],
    requests: ResourceList,
    limits: ResourceList,
) -> Iterator[Breach]:
    """In the order, and by the rules, of the API server."""
    lists: tuple[tuple[Literal["limit", "request"], ResourceList], ...] = (("limit", limits), ("request", requests))
    for name, least in item.min.items():
        if name not in requests:
            yield Breach(limit_range, path, per, "minimum", name, least, "request", None)
        for which, found in reversed(lists):
            if name in found and _less(name, found[name], least):
                yield Breach(limit_range, path, per, "minimum", name, least, which, found[name])
                break
    for name, most in item.max.items():
        if name not in limits:
            yield Breach(limit_range, path, per, "maximum", name, most, "limit", None)
            continue
        for which, found in lists:
            if name in found and _less(name, most, found[name]):
                yield Breach(limit_range, path, per, "maximum", name, most, which, found[name])
                break
    for name, ratio in item.max_limit_request_ratio.items():
        for which, found in reversed(lists):
            if not _value(name, found.get(name, 0)):
                yield Breach(limit_range, path, per, "ratio", name, ratio, which, None)
                break
        else:
            limit, request = _value(name, limits[name]), _value(name, requests[name])
            most_times = _value("cpu", ratio)
            if limit and request and most_times is not None and limit * 1000 > most_times * request:
                yield Breach(limit_range, path, per, "ratio", name, ratio, "limit", limits[name], limit / request)


def _items(limit_ranges: Sequence[LimitRange], type: str) -> Iterator[tuple[str, LimitRangeItem]]:
    for limit_range in limit_ranges:
        for item in limit_range.spec.limits:
            if item.type == type:
                yield limit_range.metadata.name, item


def _together(spec: PodSpec) -> ResourceList:
    return {name: format_quantity(name, amount) for name, amount in readable_requests(spec).items()}


def _limits_as_requests(spec: PodSpec) -> PodSpec:
    def turned(container: Container) -> Container:
        return msgspec.structs.replace(container, resources=ResourceRequirements(requests=container.resources.limits))

    return msgspec.structs.replace(
        spec,
        containers=tuple(map(turned, spec.containers)),
        init_containers=tuple(map(turned, spec.init_containers)),
        resources=ResourceRequirements(requests=spec.resources.limits) if spec.resources is not None else None,
    )


def _value(name: str, quantity: Quantity) -> int | None:
    try:
        return resource_value(name, quantity)
    except QuantityError:
        return None


def _less(name: str, a: Quantity, b: Quantity) -> bool:
    less, more = _value(name, a), _value(name, b)
    return less is not None and more is not None and less < more
