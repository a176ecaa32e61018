"""The one place that writes decisions to the API. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from serried.api import names
from serried.api.meta import Object
from serried.api.resources import COSCHEDULING_POD_GROUPS, PODS, WORKLOADS, Resource
from serried.cluster.protocol import ApiError, Conflict, NotFound
from serried.control.events import Recorder
from serried.control.gate import Gate
from serried.gang.plan import Move
from serried.lifecycle.actions import (
    Action,
    CreatePodGroup,
    CreateWorkload,
    DeleteWorkload,
    PatchObject,
    PatchWorkload,
    Place,
    Subject,
    Warn,
)

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

#: Takes the server's answer to a write, as if the watch had brought it.
Observe = Callable[[Resource[Any], Any], None]


class Executor:
    """Carries out actions. What the server answers is shown to the informers at once, before the watch brings it."""

    def __init__(
        self,
        gate: Gate,
        recorder: Recorder,
        observe: Observe,
        node_of: Callable[[str], str | None],
        patch_workload: Callable[[PatchWorkload], None],
    ) -> None:
        self._gate = gate
        self._patch_workload = patch_workload
        self._recorder = recorder
        self._observe = observe
        self._node_of = node_of

    async def do(self, action: Action) -> None:
        """Carries out one action. Raises `ApiError` when the server refuses; an object that is gone is no failure."""
        try:
            await self._do(action)
        except NotFound as error:
            if isinstance(action, CreateWorkload | CreatePodGroup):
                raise  # its namespace is about to go, or its kind is not served for a moment
            log.debug("%s: gone meanwhile (%s)", type(action).__name__, error)

    async def _do(self, action: Action) -> None:
        match action:
            case PatchObject(Subject(resource, obj)):
                await self._patch(resource, obj, action.patch, "status" if action.status else "")
                if action.event is not None:
                    self._recorder.event(resource, obj, *action.event)
            case CreateWorkload():
                await self._create_workload(action)
            case PatchWorkload():
                self._patch_workload(action)
            case DeleteWorkload():
                meta = action.workload.metadata
                await self._gate.delete(WORKLOADS, meta.name, meta.namespace, uid=meta.uid)
                self._recorder.event(WORKLOADS, action.workload, "DeletedWorkload", f"Deleted: {action.why}")
            case CreatePodGroup():
                group = action.pod_group
                made = await self._gate.create(COSCHEDULING_POD_GROUPS, group, group.metadata.namespace)
                self._observe(COSCHEDULING_POD_GROUPS, made)
            case Place():
                await self._place(action)
            case Warn():
                about = action.about
                self._recorder.event(about.resource, about.object, action.reason, action.message, warning=True)

    async def _create_workload(self, action: CreateWorkload) -> None:
        namespace = action.workload.metadata.namespace
        made = await self._gate.create(WORKLOADS, action.workload, namespace)
        self._observe(WORKLOADS, made)
        owner, text = action.owner, f"Created Workload: {namespace}/{made.metadata.name}"
        self._recorder.event(owner.resource, owner.object, "CreatedWorkload", text)
        if action.event is not None:
            self._recorder.event(owner.resource, owner.object, *action.event)

    async def _place(self, action: Place) -> None:
        """All bindings of the gang at once. Those that fail are tried again by the next look, if they still should."""
        action.gang.in_flight.update(m.uid for m in action.moves)
        namespace = action.workload.metadata.namespace
        results = await asyncio.gather(*(self._move(namespace, m) for m in action.moves), return_exceptions=True)
        failures: list[ApiError] = []
        for move, result in zip(action.moves, results, strict=True):
            if isinstance(result, BaseException):
                action.gang.in_flight.discard(move.uid)
                if not isinstance(result, ApiError):
                    raise result
                if not isinstance(result, NotFound):
                    failures.append(result)
        if failures:
            raise failures[0]

    async def _move(self, namespace: str, move: Move) -> None:
        if not move.gates:
            node = self._node_of(move.values[-1])
            if node is None:
                raise Conflict(409, "NodeGone", f"the plan names node {move.values[-1]}, which is gone")
            await self._gate.bind(namespace, move.pod, node, uid=move.uid)
            return
        others = [{"name": g} for g in move.gates if g != names.TOPOLOGY_GATE]
        patch = {
            "metadata": {"uid": move.uid},
            "spec": {
                "schedulingGates": others or None,
                "nodeSelector": dict(zip(move.levels, move.values, strict=True)),
            },
        }
        self._observe(PODS, await self._gate.patch(PODS, move.pod, namespace, patch=patch))

    async def _patch(
        self, resource: Resource[T], obj: T, patch: Mapping[str, Any], subresource: Literal["", "status"]
    ) -> None:
        meta = obj.metadata
        self._observe(
            resource,
            await self._gate.patch(resource, meta.name, meta.namespace, patch=patch, subresource=subresource),
        )
