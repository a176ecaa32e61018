"""Why a workload waits, seen from all sides: its place in the queue, each flavor tried, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from serried.api.meta import Key
from serried.api.names import PendingReason
from serried.schedule.cycle.nominate import Nomination, nominate, remove
from serried.schedule.cycle.reason_text import attempts_of, reason_of
from serried.schedule.flavors.assigner import Rules
from serried.schedule.flavors.assignment import Attempt
from serried.schedule.state.records import ClusterQueueState, Record, WorkloadState
from serried.schedule.state.state import State
from serried.schedule.types import wording
from serried.schedule.types.changed import Changed
from serried.schedule.types.moment import Moment
from serried.schedule.types.reasons import Reason
from serried.schedule.types.refusals import RefusalKind
from serried.schedule.types.workload import Order, key_of

_AHEAD_NAMED = 5
#: So many of those ahead in a StrictFIFO queue are looked at to find the one that holds back the others.
_AHEAD_TRIED = 16
#: So many admitted workloads at most are thought away to see what would make room.
_TRIALS = 64


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Where one workload stands. What-ifs in it hold for this moment and for this workload alone."""

    workload: str
    #: unreadable: the object cannot be decoded
    state: WorkloadState | Literal["unreadable"]
    local_queue: str = ""
    cluster_queue: str = ""
    #: seconds it has waited so far
    waited: float = 0.0
    #: how many are ahead of it in its ClusterQueue, how many wait there in all, and the nearest of those ahead
    ahead: int = 0
    pending: int = 0
    ahead_of_it: Sequence[str] = ()
    reason: Reason | None = None
    #: each flavor as it is right now, in the order tried
    attempts: Sequence[Attempt] = ()
    #: it would fit right now, if it were its turn
    fits_now: bool = False
    #: it would fit if all of these ended (none of them is superfluous); empty: no such set was found
    fits_after: Sequence[str] = ()
    #: what of its admission cannot be read or is not there any more
    problems: Sequence[str] = ()


def explain(state: State, key: Key, now: datetime) -> Explanation | None:
    """Where a workload stands, why, and what would help; None: there is no such workload. Changes nothing."""
    mark = state.journal.checkpoint()
    missing = _hold_what_was_missing(state)
    found = _explain(state, key, now, missing.get(key, ()))
    state.journal.rollback(mark)
    return found


def _hold_what_was_missing(state: State) -> dict[Key, Sequence[str]]:
    """For a trial: what the next cycle will charge first. Returns what is missing still."""
    found: dict[Key, Sequence[str]] = {}
    for key, record in state.workloads.items():
        if record.missing:
            assert record.reservation is not None
            found[key] = state.world.hold(key, record.reservation.placements, record.reservation.pod_sets)
    return found


def _explain(state: State, key: Key, now: datetime, missing: Sequence[str]) -> Explanation | None:
    name = "/".join(key)
    if key in state.malformed:
        return Explanation(workload=name, state="unreadable", reason=state.malformed[key])
    if key in state.finished:
        return Explanation(workload=name, state=WorkloadState.FINISHED, local_queue=state.finished[key].local_queue)
    record = state.workloads.get(key)
    if record is None:
        return None
    info = record.info
    local_queue = info.queue[1]
    if record.reservation is not None:
        return Explanation(
            workload=name,
            state=record.state,
            local_queue=local_queue,
            cluster_queue=record.reservation.cluster_queue,
            problems=[*record.reservation.problems, *missing],
        )
    waited = max(0.0, (now - info.queued_at).total_seconds())
    if record.state is WorkloadState.INADMISSIBLE:
        local = state.local_queues.get(info.queue)
        return Explanation(
            workload=name,
            state=record.state,
            local_queue=local_queue,
            cluster_queue=local.spec.cluster_queue if local is not None else "",
            waited=waited,
            reason=record.last_reason,
        )
    queue = state.cluster_queues[record.cluster_queue]
    moment = Moment(now)
    outcome = nominate(state, queue, info, moment)
    attempts: Sequence[Attempt] = attempts_of(state, queue, outcome.assignment)
    if _waits_for_quota(outcome):
        # Quota is looked at first; what the nodes say is worth knowing, too, above all when they say never.
        otherwise = nominate(state, queue, info, moment, rules=Rules(as_if_unused=True))
        attempts = _joined(attempts, attempts_of(state, queue, otherwise.assignment))
        if _never(otherwise):
            outcome = otherwise
    position, ahead = _ahead(state, queue, info.order)
    return Explanation(
        workload=name,
        state=record.state,
        local_queue=local_queue,
        cluster_queue=queue.name,
        waited=waited,
        ahead=position,
        pending=len(queue.pending),
        ahead_of_it=["/".join(key_of(order)) for order in ahead],
        reason=_reason(state, queue, record, outcome, now),
        attempts=attempts,
        fits_now=outcome.fits,
        fits_after=[] if outcome.fits else _fits_after(state, queue, record, outcome, now),
    )


def _ahead(state: State, queue: ClusterQueueState, order: Order) -> tuple[int, list[Order]]:
    """How many are ahead in the queue, and the nearest of them; by the usage of LocalQueues where that counts."""
    if not state.fair_usage.orders(queue.name):
        return queue.pending.position(order), queue.pending.ahead(order, _AHEAD_NAMED)
    line = state.line(queue.name)
    position = line.index(order)
    return position, line[max(0, position - _AHEAD_NAMED) : position]


def _reason(state: State, queue: ClusterQueueState, record: Record, outcome: Nomination, now: datetime) -> Reason:
    if record.promise is not None and record.last_reason is not None:
        return record.last_reason
    never = _never(outcome)
    holder = None if never else _holder(state, queue, record, now)
    if holder is not None:
        return wording.behind(queue.name, "/".join(key_of(holder)), queue.pending.position(record.info.order))
    if not outcome.fits:
        return reason_of(state, queue, outcome)
    return Reason(
        layer="queue",
        code=PendingReason.PENDING_EVALUATION,
        message=f"It fits now and is decided on in its turn in ClusterQueue {queue.name}",
        where=f"ClusterQueue {queue.name}",
    )


def _never(outcome: Nomination) -> bool:
    furthest = None if outcome.fits else outcome.assignment.furthest()
    return furthest is not None and furthest[1].kind.never


def _waits_for_quota(outcome: Nomination) -> bool:
    furthest = None if outcome.fits else outcome.assignment.furthest()
    return furthest is not None and furthest[1].kind == RefusalKind.WAITS_QUOTA


def _joined(attempts: Sequence[Attempt], as_if_unused: Sequence[Attempt]) -> list[Attempt]:
    """The attempts with what the nodes say where quota was the first to refuse."""
    topology = {(a.pod_set, a.flavor): a.topology for a in as_if_unused}
    return [
        msgspec.structs.replace(a, topology=a.topology or topology.get((a.pod_set, a.flavor), "")) for a in attempts
    ]


def _holder(state: State, queue: ClusterQueueState, record: Record, now: datetime) -> Order | None:
    """Who holds it back in a StrictFIFO queue, also if no cycle has looked at the queue yet."""
    if not queue.pending.strict:
        return None
    holder = queue.pending.holder()
    if holder is not None and holder < record.info.order:
        return holder
    for order in queue.pending.orders()[:_AHEAD_TRIED]:
        if order >= record.info.order:
            return None
        outcome = nominate(state, queue, state.workloads[key_of(order)].info, Moment(now))
        if not outcome.fits and not _never(outcome):
            return order
    return None


def _fits_after(
    state: State, queue: ClusterQueueState, record: Record, outcome: Nomination, now: datetime
) -> list[str]:
    """Admitted workloads whose end would make room: one alone if that is enough; those that queued first, first."""
    if _never(outcome):
        return []
    if outcome.targets:
        return ["/".join(target.record.info.key) for target in outcome.targets]
    keys = {k: None for q in state.ledger.queue(queue.name).root.queues() for k in state.index.holders.get(q.name, {})}
    if Changed.NODES in outcome.assignment.blocked_on:
        keys = {key: None for holders in state.index.holders.values() for key in holders}
    candidates = sorted(
        (r for r in map(state.workloads.__getitem__, keys) if r.preempted_by is None), key=lambda r: r.info.order[1:]
    )
    for candidate in candidates[:_TRIALS]:
        if _fits_without(state, queue, record, [candidate], now):
            return ["/".join(candidate.info.key)]
    gone: list[Record] = []
    for candidate in candidates[:_TRIALS]:
        gone.append(candidate)
        if _fits_without(state, queue, record, gone, now):
            break
    else:
        return []
    for candidate in list(gone[:-1]):
        fewer = [r for r in gone if r is not candidate]
        if _fits_without(state, queue, record, fewer, now):
            gone = fewer
    return ["/".join(r.info.key) for r in gone]


def _fits_without(
    state: State, queue: ClusterQueueState, record: Record, gone: Sequence[Record], now: datetime
) -> bool:
    mark = state.journal.checkpoint()
    for other in gone:
        remove(state, other)
    fits = nominate(state, queue, record.info, Moment(now), rules=Rules(only_whether=True)).fits
    state.journal.rollback(mark)
    return fits
