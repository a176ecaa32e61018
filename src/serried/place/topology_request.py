"""A topologyRequest, read against the levels of a topology, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from serried.api.kueue import PodSetTopologyRequest
from serried.api.problem import Problem
from serried.model.capacity import UNLIMITED

TopologyMode = Literal["required", "preferred", "unconstrained"]


@dataclass(frozen=True)
class TopologyRequest:
    """A topologyRequest, read. Levels are indices, 0 at the top."""

    mode: TopologyMode
    #: the level at which the pods should be together
    level: int
    #: pods per slice; 1 without slices
    size: int
    #: the level at which each slice must be together; the lowest without slices
    slice_level: int
    #: (level, size) of each layer of slices, outermost first
    layers: tuple[tuple[int, int], ...]
    #: per level: the size of the slices within slices that must be together there; 0: none
    inner: tuple[int, ...]


class TopologyRequestError(ValueError):
    """A topologyRequest that cannot be met as written. The message is Kueue's; `field` says where."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


def layers_of(request: PodSetTopologyRequest | None) -> list[tuple[str, int]]:
    """(topology, size) of each layer of slices, outermost first. A size that is missing is 0."""
    if request is None:
        return []
    if request.podset_slice_required_topology_constraints:
        return [(layer.topology, layer.size) for layer in request.podset_slice_required_topology_constraints]
    if request.pod_set_slice_required_topology is not None:
        return [(request.pod_set_slice_required_topology, request.pod_set_slice_size or 0)]
    return []


def read_topology_request(request: PodSetTopologyRequest | None, keys: Sequence[str]) -> TopologyRequest:
    """Reads a topologyRequest; None is no request, which is unconstrained.

    Raises:
        TopologyRequestError: it cannot be met by any topology with these levels.
    """
    layers = layers_of(request)
    lowest = len(keys) - 1
    mode, key = _mode(request, bool(layers), keys)
    fields = _layer_fields(request, len(layers))
    if layers and layers[0][1] <= 0:
        raise TopologyRequestError(fields[0][1], "slice topology requested, but slice size not provided")
    if key not in keys:
        raise TopologyRequestError(f"topologyRequest.{mode}", f"no requested topology level: {key}")
    level = keys.index(key)
    indexed: list[tuple[int, int]] = []
    inner = [0] * len(keys)
    for i, (topology, size) in enumerate(layers):
        if topology not in keys:
            which = "additional slice layer" if i else "slices"
            raise TopologyRequestError(fields[i][0], f"no requested topology level for {which}: {topology}")
        here = keys.index(topology)
        if i == 0:
            if here < level:
                raise TopologyRequestError(
                    fields[0][0], f"podset slice topology {topology} is above the podset topology {key}"
                )
        else:
            above, outer = indexed[-1]
            if here <= above:
                text = f"additional slice layer topology {topology} must be at a lower level than {keys[above]}"
                raise TopologyRequestError(fields[i][0], text)
            if size <= 0 or outer % size:
                text = f"additional slice layer size {size} must evenly divide parent layer size {outer}"
                raise TopologyRequestError(fields[i][1], text)
            inner[above + 1 : here + 1] = [size] * (here - above)
        indexed.append((here, size))
    slice_level, size = indexed[0] if indexed else (lowest, 1)
    return TopologyRequest(mode, level, size, slice_level, tuple(indexed), tuple(inner))


def _mode(request: PodSetTopologyRequest | None, sliced: bool, keys: Sequence[str]) -> tuple[TopologyMode, str]:
    if request is None:
        return "unconstrained", keys[-1]
    if request.required is not None:
        return "required", request.required
    if request.preferred is not None:
        return "preferred", request.preferred
    if sliced:
        return "unconstrained", keys[0]
    if request.unconstrained:
        return "unconstrained", keys[-1]
    raise TopologyRequestError("topologyRequest", "topology level not specified")


def _layer_fields(request: PodSetTopologyRequest | None, layers: int) -> list[tuple[str, str]]:
    """The fields that hold (topology, size) of each layer."""
    if request is not None and request.podset_slice_required_topology_constraints:
        constraints = "topologyRequest.podsetSliceRequiredTopologyConstraints"
        return [(f"{constraints}[{i}].topology", f"{constraints}[{i}].size") for i in range(layers)]
    return [("topologyRequest.podSetSliceRequiredTopology", "topologyRequest.podSetSliceSize")]


def check_topology_request(request: PodSetTopologyRequest | None, levels: Sequence[str], count: int) -> list[Problem]:
    """All that is wrong with a topologyRequest of a pod set of `count` pods, for a topology with these levels.

    Fields are relative to the pod set, e.g. "topologyRequest.required".
    """
    return list(_problems(request, levels, count))


def _problems(request: PodSetTopologyRequest | None, levels: Sequence[str], count: int) -> Iterator[Problem]:
    if not 0 <= count <= UNLIMITED:
        yield Problem("count", str(count), f"0 to {UNLIMITED}")
    if request is None:
        return
    known = f"a level of the topology: {', '.join(levels)}" if levels else "nothing: the flavor has no topology"
    if request.required is not None and request.preferred is not None:
        yield Problem(
            "topologyRequest",
            f"required {request.required} and preferred {request.preferred}",
            "one of required, preferred and unconstrained",
        )
    for name, value in (("required", request.required), ("preferred", request.preferred)):
        if value is not None and value not in levels:
            yield Problem(f"topologyRequest.{name}", value, known)
    yield from _layer_problems(request, levels, count, known)


def _layer_problems(request: PodSetTopologyRequest, levels: Sequence[str], count: int, known: str) -> Iterator[Problem]:
    layers = layers_of(request)
    fields = _layer_fields(request, len(layers))
    if not layers and request.pod_set_slice_size is not None:
        yield Problem(fields[0][0], "nothing", f"with a slice size, {known}")
    together = request.required if request.required is not None else request.preferred
    above = levels.index(together) if together in levels else -1
    above_name, outer = together, count
    for i, ((topology, size), (topology_field, size_field)) in enumerate(zip(layers, fields, strict=False)):
        if topology not in levels:
            yield Problem(topology_field, topology, known)
        else:
            here = levels.index(topology)
            if here < above or (i and here == above):
                allowed = f"a level below {above_name}" if i else f"{above_name} or a level below it"
                yield Problem(topology_field, topology, allowed)
            above, above_name = here, topology
        if size <= 0:
            yield Problem(size_field, str(size), "1 or more")
        elif outer % size:
            of = f"the number of pods, {outer}" if i == 0 else f"the size of the layer above, {outer}"
            yield Problem(size_field, str(size), f"a divisor of {of}")
        if size > 0:
            outer = size
