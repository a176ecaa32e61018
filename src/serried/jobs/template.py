"""What a start adds to the pod templates of a job, and how the next start takes it off again.

The additions are noted in an annotation of the job: it is all that is left to tell them from what its author wrote
once its Workload is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serried.api.core import PodTemplateMeta, PodTemplateSpec
from serried.api.meta import Object
from serried.jobs.podset import PodSetStart

#: Annotation of a job that was started: pod set → what the start added.
INJECTED = "serried.io/injected"


class Injected(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a start added to one pod template."""

    labels: list[str] = []
    annotations: list[str] = []
    node_selector: list[str] = []
    #: how many at the end of the list
    tolerations: int = 0
    gates: list[str] = []
    #: the number of pods as its author wrote it and as it was admitted, where that is less
    count: tuple[int, int] | None = None


def read_injected(job: Object) -> dict[str, Injected]:
    """Pod set → what the last start added; empty where the note was edited: the job is taken as it stands."""
    text = job.metadata.annotations.get(INJECTED)
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Injected])
    except msgspec.MsgspecError:
        return {}


def note(injected: Mapping[str, Injected]) -> dict[str, str]:
    """The annotation that keeps them, for the patch of a start."""
    return {INJECTED: msgspec.json.encode(injected).decode()}


def original(template: PodTemplateSpec, injected: Injected | None) -> PodTemplateSpec:
    """The template as its author wrote it: without what the last start added."""
    if injected is None:
        return template
    spec = msgspec.structs.replace(
        template.spec,
        node_selector=_without(template.spec.node_selector, injected.node_selector),
        tolerations=template.spec.tolerations[: len(template.spec.tolerations) - injected.tolerations],
        scheduling_gates=tuple(g for g in template.spec.scheduling_gates if g.name not in injected.gates),
    )
    metadata = PodTemplateMeta(
        labels=_without(template.metadata.labels, injected.labels),
        annotations=_without(template.metadata.annotations, injected.annotations),
    )
    return PodTemplateSpec(metadata=metadata, spec=spec)


def injection(template: PodTemplateSpec, last: Injected | None, start: PodSetStart) -> tuple[dict[str, Any], Injected]:
    """The merge patch of a template for a start, and what this adds. `last`: what the start before added.

    A node selector that the author set is kept.
    """
    author = original(template, last)
    labels, annotations = author.metadata.labels, author.metadata.annotations
    selector, tolerations = author.spec.node_selector, author.spec.tolerations
    gates = [g.name for g in author.spec.scheduling_gates]
    more = [t for t in start.tolerations if t not in tolerations]
    injected = Injected(
        labels=[k for k in start.labels if k not in labels],
        annotations=[k for k in start.annotations if k not in annotations],
        node_selector=[k for k in start.node_selector if k not in selector],
        tolerations=len(more),
        gates=[g for g in start.scheduling_gates if g not in gates],
    )
    patch = {
        "metadata": {
            "labels": _turned(template.metadata.labels, {**labels, **start.labels}),
            "annotations": _turned(template.metadata.annotations, {**annotations, **start.annotations}),
        },
        "spec": {
            "nodeSelector": _turned(template.spec.node_selector, {**start.node_selector, **selector}),
            "tolerations": msgspec.to_builtins([*tolerations, *more]) or None,
            "schedulingGates": [{"name": g} for g in [*gates, *injected.gates]] or None,
        },
    }
    return patch, injected


def _without(mapping: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    return {k: v for k, v in mapping.items() if k not in keys}


def _turned(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch that turns the mapping `now` into `wanted`."""
    return {**{k: None for k in now if k not in wanted}, **wanted}
