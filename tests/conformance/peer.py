"""One scheduling cycle just as Kueue's is, made of Serried's own steps; the corpora record such cycles.

A cycle looks at one workload of each ClusterQueue. All of them are nominated on the same model; then they are served in
order, and who finds that an earlier one has taken its quota, its nodes or its targets is nominated again, if the
feature gates say so, or left for the next cycle. Whoever would have to preempt others, and may not, keeps what it waits
for from those behind it in the cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from serried.api.kueue import Admission
from serried.api.meta import Key
from serried.api.names import PendingReason
from serried.model.placement import Placement
from serried.model.requests import PodSetRequest
from serried.place.place import place
from serried.place.result import NoPlacement
from serried.quota.quotas import FlavorResource
from serried.schedule.cycle.cycle import begin, end, heads, look_again
from serried.schedule.cycle.nominate import Nomination, find_for, preemption_oracle, remove, takes, with_most
from serried.schedule.cycle.order import Entry, line
from serried.schedule.cycle.second_pass import Eviction
from serried.schedule.cycle.turn import Turn
from serried.schedule.flavors.assigner import Rules, assign
from serried.schedule.flavors.assignment import Assignment, Fit
from serried.schedule.flavors.flavor_topology import by_flavor, find_places, places_now
from serried.schedule.preemption.fair_sharing import FairTrial
from serried.schedule.state import transitions
from serried.schedule.state.records import Record
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed
from serried.schedule.types.decisions import Cycle
from serried.schedule.types.moment import Moment
from serried.schedule.types.reasons import Reason
from tests.conformance.peer_scan import PeerRules

_NO_RULES = PeerRules()
_SLICE_REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
#: How the reason begins of a head that would have preempted others, but came too late.
SKIPPED_PREEMPTION = "the victims of a preemption"


@dataclass(frozen=True)
class Gates:
    """The feature gates that change a cycle, and what else of a case its objects do not tell the engine."""

    #: a head whose nodes, or targets, an earlier one has taken is nominated again
    recompute_nodes: bool = True
    recompute_targets: bool = True
    #: whoever lost a node for which there is no other is evicted; else it is looked at again later
    fail_fast: bool = True
    #: under fair sharing, whoever is within its nominal quota takes it back whatever the shares are
    within_nominal: bool = True
    #: workloads that a closed gate keeps from preempting others
    gated: frozenset[Key] = frozenset()
    #: workload → the one that it replaces
    slices: Mapping[Key, Key] = field(default_factory=dict)

    @staticmethod
    def of(case: Mapping[str, Any]) -> Gates:
        gates = case.get("featureGates", {})
        closed = gates.get("MultiKueueOrchestratedPreemption", False)
        return Gates(
            recompute_nodes=gates.get("TASRecomputeAssignmentWithinSchedulingCycle", True),
            recompute_targets=gates.get("RecomputeAssignmentUponPreemptionTargetsOverlap", True),
            fail_fast=gates.get("TASFailedNodeReplacementFailFast", True),
            within_nominal=gates.get("FairSharingPreemptWithinNominal", True),
            gated=frozenset(map(_key, filter(_is_gated, case.get("workloads", ())))) if closed else frozenset(),
            slices={_key(w): old for w in case.get("workloads", ()) if (old := _replaces(w)) is not None},
        )


def _key(workload: Mapping[str, Any]) -> Key:
    return (workload["metadata"].get("namespace", ""), workload["metadata"]["name"])


def _replaces(workload: Mapping[str, Any]) -> Key | None:
    namespace, slash, name = workload["metadata"].get("annotations", {}).get(_SLICE_REPLACES, "").partition("/")
    return (namespace, name) if slash else None


def _is_gated(workload: Mapping[str, Any]) -> bool:
    gates = workload.get("status", {}).get("preemptionGates", ())
    opened = {gate["name"] for gate in gates if gate.get("position") == "Open"}
    return not {gate["name"] for gate in workload.get("spec", {}).get("preemptionGates", ())} <= opened


@contextmanager
def reclaiming(gates: Gates) -> Iterator[None]:
    """The rules of fair sharing by the gates."""
    if gates.within_nominal:
        yield
        return
    with patch.object(FairTrial, "within_nominal", lambda _: False):
        yield


def run_cycle(state: State, now: datetime, gates: Gates) -> tuple[Cycle, Mapping[Key, Admission]]:
    """What is decided; and the slices whose place others have taken, with what they had."""
    started = begin(state, now)
    turn = _Turn(state, started.moment, gates)
    with reclaiming(gates):
        for key in list(state.requeue.workloads):
            look_again(turn, key)
        turn.serve()
    state.sweep.end()
    return end(turn), turn.replaced


@dataclass(eq=False)
class _Entry(Entry):
    #: the quota and the places that it keeps from those behind it
    blocks: Mapping[FlavorResource, int] = field(default_factory=dict)
    wanted: Sequence[Placement] = ()
    #: an earlier slice of the same job, whose place it takes
    replaces: Record | None = None


class _Turn(Turn):
    def __init__(self, state: State, moment: Any, gates: Gates) -> None:
        super().__init__(state, moment)
        self.gates = gates
        self.blocked: list[_Entry] = []
        #: slices whose place others have taken, with what they had
        self.replaced: dict[Key, Admission] = {}

    def serve(self) -> None:
        waiting = line(self.state)
        for order, queue in heads(self.state):
            entry = _Entry(self.state.workloads[order[3], order[4]], queue)
            entry.replaces = self._slice_before(entry)
            self._nominate(entry)
            waiting.add(entry)
        while (found := waiting.next(lambda _: True)) is not None:
            assert isinstance(found, _Entry)
            self.state.looked_at = found.record.info.key
            self._serve(found)
        for entry in self.blocked:
            self.state.ledger.refund(entry.queue.name, entry.blocks)
            if entry.wanted:
                self.state.world.release(entry.record.info.key)
        self.state.journal.commit()

    def _nominate(self, entry: _Entry, rules: PeerRules = _NO_RULES) -> None:
        """By one scan of the flavors, without a choice among targets that are equal."""
        state, info = self.state, entry.record.info
        mark = state.journal.checkpoint()
        old = entry.replaces
        if old is not None and old.reservation is not None:
            # It has the flavors of the slice that it replaces, and what that has counts as free.
            assignments = old.reservation.admission.pod_set_assignments
            rules = replace(rules, replaced={a.name: (a.flavors, {}) for a in assignments})
            remove(state, old)
            old.preempted_by = info.key  # so that it is nobody's target
        entry.nominated(with_most(info, lambda pod_sets: self._scan(entry, pod_sets, rules)), self.moment.moves)
        if old is not None:
            old.preempted_by = None
        state.journal.rollback(mark)

    def _scan(self, entry: Entry, pod_sets: tuple[PodSetRequest, ...], rules: PeerRules) -> Nomination:
        # What others find out while a slice is away is of no use to anyone else.
        state, queue, info, moment = self.state, entry.queue, entry.record.info, Moment(self.moment.now)
        going_on = queue.pending.scan(entry.order)
        start = Rules() if going_on is None else Rules(start=going_on.start)
        found = assign(state, queue, pod_sets, preemption_oracle(state, queue, info, moment), start, rules.scan)
        here = Nomination(found, pod_sets, [])
        if found.mode != Fit.NO_FIT:
            find_places(state, queue, info, found)
        if found.mode == Fit.PREEMPT and info.key not in self.gates.gated:
            request, here.targets = find_for(state, queue, info, found, moment)
            if here.targets and request.nodes is not None:
                mark = state.journal.checkpoint()
                for target in here.targets:
                    state.world.release(target.record.info.key, with_pods=True)
                places_now(state, queue, info, found)
                state.journal.rollback(mark)
        return here

    def _slice_before(self, entry: Entry) -> Record | None:
        """The workload that a head replaces, if it still holds quota of the same ClusterQueue."""
        record = self.state.workloads.get(self.gates.slices.get(entry.record.info.key, ("", "")))
        if record is None or record.reservation is None or record.preempted_by is not None:
            return None
        return record if record.reservation.cluster_queue == entry.queue.name else None

    def admit(self, entry: Entry) -> None:
        old = entry.replaces if isinstance(entry, _Entry) else None
        if old is not None and old.reservation is not None:
            self.replaced[old.info.key] = old.reservation.admission
            transitions.finish(self.state, old)
        super().admit(entry)

    def _serve(self, entry: _Entry) -> None:
        found = entry.found
        if found.assignment.mode == Fit.NO_FIT:
            return self.refuse(entry)
        if not found.fits and not found.targets:
            if entry.queue.spec.preemption.reclaim_within_cohort != "Any":
                self._block(entry)
            return self.refuse(entry)
        if any(record.preempted_by is not None for record in _gone(entry)):
            again = self.gates.recompute_targets
        elif not self._quota_left(entry):
            again = False
        elif not self._nodes_left(entry):
            again = self.gates.recompute_nodes
        else:
            return self.take(entry)
        if not again:
            return self._skip(entry)
        chosen = {p.pod_set.name: p.flavors for p in found.assignment.pod_sets}
        self._nominate(entry, PeerRules(nominated={n: {r: c.flavor for r, c in f.items()} for n, f in chosen.items()}))
        if entry.found.fits or entry.found.targets:
            return self.take(entry)
        return self.refuse(entry)

    def goes_on(self, found: Assignment) -> bool:
        return True

    def hopeless(self, entry: Entry) -> None:
        return None

    def evict(self, record: Record, eviction: Eviction) -> None:
        if self.gates.fail_fast or "no replacement for a failed node" not in eviction.message:
            super().evict(record, eviction)
        else:
            self.state.requeue.wait(record.info.key, Changed.NODES)

    def _skip(self, entry: Entry) -> None:
        self.state.report(
            entry.record.info.key,
            Reason(
                layer="queue",
                code=PendingReason.WAITING_FOR_QUOTA,
                message="Workload no longer fits after processing another workload",
                constraint=SKIPPED_PREEMPTION if entry.found.targets else "",
            ),
        )

    # --- what is left

    def _quota_left(self, entry: Entry) -> bool:
        state, mark = self.state, self.state.journal.checkpoint()
        for gone in _gone(entry):
            assert gone.reservation is not None
            state.ledger.refund(gone.reservation.cluster_queue, gone.reservation.usage)
        left = state.ledger.fits(entry.queue.name, entry.found.assignment.usage)
        state.journal.rollback(mark)
        return left

    def _nodes_left(self, entry: Entry) -> bool:
        state, key, placements = self.state, entry.record.info.key, entry.found.assignment.placements
        if not placements or entry.moves == self.moment.moves:
            return True
        mark = state.journal.checkpoint()
        for gone in _gone(entry):
            state.world.release(gone.info.key, with_pods=True)
        missing = state.world.hold(key, placements, entry.found.pod_sets)
        left = not missing and not state.world.overdrawn(key)
        state.journal.rollback(mark)
        return left

    def _block(self, entry: _Entry) -> None:
        state, key = self.state, entry.record.info.key
        entry.blocks = self._blocked(entry)
        state.ledger.charge(entry.queue.name, entry.blocks)
        for flavor, choices in by_flavor(state, entry.queue, entry.found.assignment).items():
            wanted = place(state.world, flavor, [c.pod_set for c in choices], assume_empty=True)
            if not isinstance(wanted, NoPlacement):
                entry.wanted = [*entry.wanted, *wanted]
        if entry.wanted:
            state.world.hold(key, entry.wanted, entry.found.pod_sets)
        self.moment.moved()
        self.blocked.append(entry)

    def _blocked(self, entry: Entry) -> dict[FlavorResource, int]:
        found = entry.found.assignment
        node = self.state.ledger.queue(entry.queue.name)
        result = {}
        for fr, amount in takes(found).items():
            left = node.quotas.nominal.get(fr, 0) - node.usage.get(fr, 0)
            if found.borrowing == 0:
                result[fr] = max(0, min(amount, left))
            elif fr in node.quotas.borrowing:
                result[fr] = min(amount, left + node.quotas.borrowing[fr])
            else:
                result[fr] = amount
        return result


def _gone(entry: Entry) -> Sequence[Record]:
    """Those who hold nothing any more once this is decided."""
    replaced = [entry.replaces] if isinstance(entry, _Entry) and entry.replaces is not None else []
    return [target.record for target in entry.found.targets] + replaced
