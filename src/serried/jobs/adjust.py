"""What the API server adds to the pods of a template, and what it would refuse them for: LimitRanges, RuntimeClasses.

A pod gets the defaults of its namespace's LimitRanges and the overhead of its RuntimeClass when it is created. Quota
and places have to be found for the pods as they will be, and what no pod could be created for is said of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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


def adjusted(
    pod_sets: Sequence[PodSet], limit_ranges: Sequence[LimitRange], runtime_classes: Mapping[str, RuntimeClass]
) -> tuple[tuple[PodSet, ...], list[Problem]]:
    """Pod sets as their pods will be, and what would keep these from being created.

    `limit_ranges`: of the namespace. What of its quantities cannot be read stays as it is, and is
    reported when the Workload is read.
    """
    result, problems = [], list[Problem]()
    for i, pod_set in enumerate(pod_sets):
        template = f"spec.podSets[{i}].template"
        spec = with_defaults(pod_set.template.spec, limit_ranges)
        problems += limit_range_problems(spec, limit_ranges, template)
        if name := spec.runtime_class_name:
            runtime_class = runtime_classes.get(name)
            if runtime_class is None:
                field = f"{template}.spec.runtimeClassName"
                problems.append(Problem(field, repr(name), "the name of a RuntimeClass that exists"))
            else:
                problems += runtime_class_problems(spec, runtime_class, template)
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


def runtime_class_problems(spec: PodSpec, runtime_class: RuntimeClass, template: str) -> Iterator[Problem]:
    """Where a pod contradicts its RuntimeClass; `template`: path of its template. The API server refuses such a pod."""
    theirs = runtime_class.overhead.pod_fixed
    same = {n: _value(n, q) for n, q in spec.overhead.items()} == {n: _value(n, q) for n, q in theirs.items()}
    found = [("overhead", _listed(spec.overhead), _listed(theirs))] if spec.overhead and not same else []
    for key, value in sorted(runtime_class.scheduling.node_selector.items()):
        if spec.node_selector.get(key, value) != value:
            found.append((f"nodeSelector[{key}]", spec.node_selector[key], value))
    for field, held, wanted in found:
        allowed = f"{wanted}, as in RuntimeClass {spec.runtime_class_name}, or nothing" if wanted else "nothing"
        yield Problem(f"{template}.spec.{field}", held, allowed)


def _listed(quantities: ResourceList) -> str:
    return ", ".join(f"{name}: {quantity}" for name, quantity in sorted(quantities.items()))


def limit_range_problems(spec: PodSpec, limit_ranges: Sequence[LimitRange], template: str) -> Iterator[Problem]:
    """Where a pod, its defaults filled in, does not keep to the LimitRanges; `template`: path of its template."""
    for limit_range, item in _items(limit_ranges, "Container"):
        for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
            for i, container in enumerate(containers):
                resources = container.resources
                requests: ResourceList = {**resources.limits, **resources.requests}
                path = f"{template}.spec.{kind}[{i}].resources.{{}}".format
                yield from _violations(limit_range, item, path, requests, resources.limits)
    for limit_range, item in _items(limit_ranges, "Pod"):
        without = msgspec.structs.replace(spec, overhead={})
        requests, limits = _together(without), _together(_limits_as_requests(without))
        path = f"{{}} of {template}.spec as a whole".format
        yield from _violations(limit_range, item, path, requests, limits)


def _violations(
    limit_range: str, item: LimitRangeItem, path: Callable[[str], str], requests: ResourceList, limits: ResourceList
) -> Iterator[Problem]:
    """In the order, and by the rules, of the API server. `path`: of a field such as limits[cpu]."""
    lists = (("limits", limits), ("requests", requests))

    def problem(which: str, resource: str, found: Quantity | None, allowed: str) -> Problem:
        held = "not set" if found is None else str(found)
        return Problem(path(f"{which}[{resource}]"), held, f"{allowed}, by LimitRange {limit_range}")

    for name, least in item.min.items():
        allowed = f"at least {least}"
        if name not in requests:
            yield problem("requests", name, None, allowed)
        for which, found in reversed(lists):
            if name in found and _less(name, found[name], least):
                yield problem(which, name, found[name], allowed)
                break
    for name, most in item.max.items():
        allowed = f"at most {most}"
        if name not in limits:
            yield problem("limits", name, None, allowed)
            continue
        for which, found in lists:
            if name in found and _less(name, most, found[name]):
                yield problem(which, name, found[name], allowed)
                break
    for name, ratio in item.max_limit_request_ratio.items():
        allowed = f"set, with a limit of at most {ratio} times the request"
        for which, found in reversed(lists):
            if not _value(name, found.get(name, 0)):
                yield problem(which, name, None, allowed)
                break
        else:
            limit, request, most_times = _value(name, limits[name]), _value(name, requests[name]), _value("cpu", ratio)
            if limit and request and most_times is not None and limit * 1000 > most_times * request:
                yield problem("limits", name, limits[name], allowed)


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
