"""`serried queue`, `explain` and `topology`: read-only, on any cluster that has these objects."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree as RichTree

from serried.api.kueue import ClusterQueueStatus, LocalQueueFairSharingStatus, LocalQueueStatus, Workload
from serried.api.meta import Key, find_condition
from serried.api.names import WorkloadCondition
from serried.api.resources import Resource
from serried.cli.common import Failure, Output
from serried.lifecycle.cluster_state import ClusterState
from serried.lifecycle.owner import JobOwner
from serried.model.world import World
from serried.observe.nodes import Domain, domains
from serried.observe.report import Report, report
from serried.schedule.state.records import WAITS
from serried.schedule.types.reasons import Reason, layer_of

#: so many places of a gang are named
_NAMED = 16


class Waiting(msgspec.Struct, rename="camel"):
    """One row of `serried queue`."""

    workload: str
    job: str
    cluster_queue: str
    local_queue: str
    priority: int
    pods: int
    state: str
    #: seconds since it was created
    age: float
    layer: str
    reason: str


def show_queue(state: ClusterState, namespace: str | None, output: Output, *, everything: bool) -> None:
    """Who waits and who runs, in the order of each ClusterQueue, with reasons."""
    rows = queue_rows(state, datetime.now(UTC), namespace, everything=everything)
    if output is Output.json:
        typer.echo(msgspec.json.encode(rows))
        return
    if not rows:
        typer.echo("Nobody waits and nothing runs." if not everything else "There are no Workloads.")
        return
    heads = ("CLUSTERQUEUE", "WORKLOAD", "PRIORITY", "PODS", "STATE", "AGE", "LAYER")
    cells = [
        (r.cluster_queue, r.workload, str(r.priority), str(r.pods), r.state, _age(r.age), r.layer or "-") for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (heads, *cells)]
    typer.secho(lines[0], bold=True)
    # The reason has a line of its own: it is a sentence, and terminals are narrow.
    width = max(40, shutil.get_terminal_size().columns - 4)
    told = (typer.style(textwrap.indent(textwrap.fill(row.reason, width), "    "), dim=True) for row in rows)
    typer.echo("\n".join(f"{line}\n{reason}" for line, reason in zip(lines[1:], told, strict=True)))


def queue_rows(state: ClusterState, now: datetime, namespace: str | None, *, everything: bool) -> list[Waiting]:
    """Admitted first, then who waits in the order in which they are looked at; finished ones with `everything`.

    Why one waits is what the controller has last written to its status; `explain` has the numbers of the moment.
    """
    view = state.engine.inspect()
    rows: list[tuple[tuple[object, ...], Waiting]] = []
    for key, workload in state.workloads.items():
        found = view.workload(key)
        if found is None or (namespace and key[0] != namespace):
            continue
        told = report(_owner_of(state, key), workload, state.gangs.get(key), found.reason or _last_reason(workload))
        finished = not told.layer
        if finished and not everything:
            continue
        created = workload.metadata.creation_timestamp or now
        rank = 2 if finished else 1 if found.state in WAITS else 0
        row = Waiting(
            workload="/".join(key),
            job=told.job,
            cluster_queue=found.cluster_queue or "-",
            local_queue=found.local_queue,
            priority=workload.spec.priority or 0,
            pods=sum(p.count for p in workload.spec.pod_sets),
            state=found.state,
            age=(now - created).total_seconds(),
            layer=told.layer,
            reason=told.summary,
        )
        rows.append(((found.cluster_queue, rank, found.ahead, -row.priority, created, key), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _last_reason(workload: Workload) -> Reason | None:
    """Why it waits, as its status says."""
    reserved = find_condition(workload.status.conditions, WorkloadCondition.QUOTA_RESERVED)
    if reserved is None or reserved.status == "True":
        return None
    return Reason(layer=layer_of(reserved.reason), code=reserved.reason, message=reserved.message)


def show_explanation(state: ClusterState, target: str, namespace: str, output: Output) -> None:
    """Everything about one object: KIND/NAME. Raises `Failure` when there is none."""
    kind, _, name = target.partition("/")
    if not name:
        raise Failure(
            f"{target!r} is not KIND/NAME; for example job/train, workload/job-train-1a2b3, clusterqueue/team"
        )
    job_kind = next((k for k in state.kinds if kind.lower() in _spellings(k.resource)), None)
    if job_kind is not None:
        _print_report(_job_report(state, job_kind.resource, (namespace, name)), output)
        return
    kind = kind.lower().rstrip("s") if kind.lower() != "kwl" else "workload"
    match kind.split(".")[0]:
        case "workload" | "wl" | "pod" | "po":
            _print_report(_report(state, kind.split(".")[0], (namespace, name)), output)
        case "clusterqueue" | "cq":
            _print_status(state, ("", name), f"ClusterQueue {name}", output)
        case "localqueue" | "queue" | "lq":
            _print_status(state, (namespace, name), f"LocalQueue {namespace}/{name}", output)
        case _:
            kinds = ", ".join(k.resource.kind.lower() for k in state.kinds)
            raise Failure(f"cannot explain {kind!r}; it is one of {kinds}, workload, pod, clusterqueue, localqueue")


def _spellings(resource: Resource[Any]) -> set[str]:
    """How a kind of job can be named: as kubectl takes it."""
    names = {resource.kind.lower(), resource.plural}
    return names | {f"{name}.{resource.group}" for name in names}


def _job_report(state: ClusterState, resource: Resource[Any], key: Key) -> Report:
    owner = state.job_owner((resource, key))
    if owner is None:
        raise Failure(f"there is no {resource.kind} {key[1]} in namespace {key[0]} (choose with --namespace)")
    found = (key[0], owner.workload_name)
    return _full_report(state, found, owner)


def _report(state: ClusterState, kind: str, key: Key) -> Report:
    if kind in ("pod", "po"):
        gang = next((k for k, g in state.gangs.items() if k[0] == key[0] and key[1] in g.members), None)
        if gang is None:
            raise Failure(f"there is no pod {key[1]} of a gang in namespace {key[0]} (choose with --namespace)")
        return _full_report(state, gang, _owner_of(state, gang))
    if key not in state.workloads and state.engine.inspect().workload(key) is None:
        raise Failure(f"there is no Workload {key[1]} in namespace {key[0]} (choose with --namespace)")
    return _full_report(state, key, _owner_of(state, key))


def _full_report(state: ClusterState, workload: Key, owner: JobOwner | None) -> Report:
    why = state.engine.explain(workload, datetime.now(UTC))
    reason = why.reason if why is not None else None
    return report(owner, state.workloads.get(workload), state.gangs.get(workload), reason, why)


def _owner_of(state: ClusterState, workload: Key) -> JobOwner | None:
    found = state.workloads.get(workload)
    return state.job_owner(state.owner_of(found)) if found is not None else None


def _print_report(found: Report, output: Output) -> None:
    if output is Output.json:
        typer.echo(msgspec.json.encode(found))
        return
    console = Console()
    if found.job:
        console.print(Text(f"{found.kind:<11} {found.job}"))
    if found.workload:
        console.print(Text(f"Workload    {found.workload}"))
    marks = {"done": ("✓", "green"), "here": ("●", "yellow"), "ahead": ("·", "dim")}
    for step in found.steps:
        mark, style = marks[step.state]
        console.print(Text(f"  {mark} {step.layer:<9} {step.text}", style=style))
    if not found.steps:
        console.print(Text(found.summary))
    if found.places:
        more = f" and {len(found.places) - _NAMED} more" if len(found.places) > _NAMED else ""
        console.print(Text(f"\nPlaced on   {', '.join(found.places[:_NAMED])}{more}"))
    why = found.explanation
    if why is None or why.state not in WAITS:
        return
    if why.cluster_queue:
        console.print(
            Text(
                f"\nQueue       {why.cluster_queue}: {why.ahead} ahead of {why.pending} waiting, for {_age(why.waited)}"
            )
        )
    if why.ahead_of_it:
        console.print(Text(f"            behind {', '.join(why.ahead_of_it)}"))
    if (r := why.reason) is not None:
        lines = [
            ("Needs", f"{r.needed} {r.what}" if r.needed else ""),
            ("There are", f"{r.available} {r.what}" if r.available else ""),
            ("Missing", f"{r.missing} {r.what}" if r.missing else ""),
            ("Where", r.where),
            ("Because of", r.constraint),
            ("Field", r.field),
            ("Found", r.found),
            ("Allowed", r.allowed),
            ("Freed by", r.frees),
        ]
        for label, text in lines:
            if text:
                console.print(Text(f"{label:<12}{text}"))
    for attempt in why.attempts:
        verdict = attempt.match or attempt.quota or attempt.topology or "fits"
        console.print(Text(f"Tried       flavor {attempt.flavor} for pod set {attempt.pod_set}: {verdict}"))
    if why.fits_after:
        console.print(
            Text(f"Fits when {', '.join(why.fits_after)} {'has' if len(why.fits_after) == 1 else 'have'} ended.")
        )


def _print_status(state: ClusterState, key: Key, title: str, output: Output) -> None:
    status = state.engine.status(key)
    if status is None:
        raise Failure(f"there is no {title}")
    if output is Output.json:
        typer.echo(msgspec.json.encode(status))
        return
    console = Console()
    active = status.conditions[0]
    console.print(Text(title, style="bold"))
    console.print(
        Text(f"  {'active' if active.status == 'True' else 'NOT ACTIVE'} ({active.reason}): {active.message}")
    )
    console.print(
        Text(
            f"  {status.pending_workloads} waiting, {status.reserving_workloads} with quota, "
            f"{status.admitted_workloads} admitted"
        )
    )
    for line in _usage(status):
        console.print(Text(f"  {line}"))


def _usage(status: ClusterQueueStatus | LocalQueueStatus) -> Sequence[str]:
    lines = [
        f"{flavor.name}: {resource.total} {resource.name} in use"
        for flavor in status.flavors_reservation
        for resource in flavor.resources
    ]
    fair = status.fair_sharing
    if isinstance(fair, LocalQueueFairSharingStatus) and (past := fair.admission_fair_sharing_status) is not None:
        lines += [f"used lately: {amount} {resource}" for resource, amount in past.consumed_resources.items()]
        lines.append(f"its share is {fair.weighted_share}; the queue with the lowest one in its ClusterQueue is next")
    elif fair is not None:
        lines.append(f"share of what it can borrow: {fair.weighted_share} thousandths, over its weight")
    return lines


def show_topology(world: World, name: str | None, output: Output) -> None:
    """The domains of each topology with what is used and free in them. Raises `Failure` when it is not there."""
    if name is not None and name not in world.topologies:
        known = ", ".join(sorted(world.topologies)) or "none"
        raise Failure(f"there is no Topology {name}; there are: {known}")
    found = {t: domains(world, t) for t in sorted(world.topologies) if name in (None, t)}
    if output is Output.json:
        typer.echo(msgspec.json.encode(found))
        return
    if not found:
        typer.echo("There are no Topologies.")
    console = Console()
    for topology, roots in found.items():
        tree = RichTree(
            Text(f"{topology} ({' / '.join(x.node_label for x in world.topologies[topology].spec.levels)})")
        )
        _grow(tree, roots)
        console.print(tree)


def _grow(tree: RichTree, found: Sequence[Domain]) -> None:
    for domain in found:
        usage = "  ".join(f"{u.used}/{u.allocatable} {u.name}" for u in domain.resources)
        nodes = f"  {domain.nodes} nodes" if domain.children or domain.nodes > 1 else ""
        branch = tree.add(Text.assemble((domain.value, "bold"), f"{nodes}  {usage}"))
        _grow(branch, domain.children)


def _age(seconds: float) -> str:
    """As kubectl prints ages."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 172800:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"
