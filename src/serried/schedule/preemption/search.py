"""The search for whom to preempt: the smallest set of candidates with which gone a workload fits.

Candidates are taken in a fixed order (`classical`, `fair_sharing`), in which each only depends on the quota that those
before it have left. So what is looked for is the shortest beginning of that order with which gone there is quota and,
where the workload needs one, a place on the nodes; then whoever need not go is put back. Quota is asked at each step.
Places cost far more, so of them few are asked for, however many candidates there are: with everyone gone, first of all;
then by bisection, since there is a place with all longer beginnings if there is one with a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from serried.model.capacity import Bools, Ints
from serried.schedule.preemption.candidates import PreemptionRequest, Target, Trial, all_candidates, keys
from serried.schedule.preemption.classical import classical_attempts
from serried.schedule.preemption.fair_sharing import FairTrial, fair_targets
from serried.schedule.state.state import State
from serried.schedule.types.moment import Moment

#: Where more room can take a place away (see `PreemptionRequest.monotone`), so many beginnings are tried one by one.
_WALKED = 16
#: Places that putting back asks for, at most. If more candidates stand where the workload would go, they are put back
#: in portions: a portion goes if any of it has to.
_PUT_BACK = 32


def find_targets(state: State, request: PreemptionRequest, moment: Moment) -> list[Target]:
    """The workloads whose preemption makes room; [] when no set of those that may be preempted does."""
    if not state.options.preemption or not _fits_with_all_gone(state, request, moment):
        return []
    policy = state.cluster_queues[request.queue].spec.preemption
    mark = state.journal.checkpoint()
    try:
        if state.fair_sharing is not None:
            strategies = state.fair_sharing.preemption_strategies
            fair = FairTrial(state, request, moment)
            return _smallest(fair, fair_targets(state, fair, policy, strategies), borrowing=True)
        trial = Trial(state, request, moment)
        for borrowing, targets in classical_attempts(state, trial, policy):
            found = _smallest(trial, targets, borrowing=borrowing)
            state.journal.rollback(mark)
            if found:
                return found
        return []
    finally:
        state.journal.rollback(mark)


def _fits_with_all_gone(state: State, request: PreemptionRequest, moment: Moment) -> bool:
    """If there is no place even with all candidates gone, no part of them helps."""
    if request.nodes is None:
        return True
    everyone = all_candidates(state, request, moment)
    mark = state.journal.checkpoint()
    state.world.leaving(everyone).first(len(everyone))
    found = len(everyone) > 0 and request.nodes() is not None
    state.journal.rollback(mark)
    return found


def _smallest(trial: Trial, targets: Iterator[Target], *, borrowing: bool) -> list[Target]:
    """The shortest beginning with which gone everything fits, less those that need not go. Leaves its trial in the
    journal."""
    journal = trial.state.journal
    taken: list[Target] = []
    marks: list[int] = []

    def take() -> Iterator[Target]:
        for target in targets:
            marks.append(journal.checkpoint())
            trial.remove(target.record)
            taken.append(target)
            yield target

    coming = take()
    if not any(trial.quota_fits(borrowing=borrowing) for _ in coming):
        return []
    if trial.request.nodes is not None:
        count = _with_place(trial, taken, coming)
        if not count:
            return []
        if count < len(taken):
            journal.rollback(marks[count])
        taken = taken[:count]
    return _less_the_unneeded(trial, taken, borrowing=borrowing)


def _with_place(trial: Trial, taken: list[Target], coming: Iterator[Target]) -> int:
    """How many of the first have to be gone so that there is a place, from those taken so far on; 0: none do.

    Takes more as they are needed, each time as many again.
    """
    low = len(taken)
    if not trial.request.monotone:
        _advance(coming, _WALKED - 1)
        with _NodesWithout(trial, taken) as nodes:
            for count in range(low, len(taken) + 1):
                if nodes.first(count) is not None:
                    return count
        low = len(taken) + 1
        if not _advance(coming, len(taken)):
            return 0
    while True:
        with _NodesWithout(trial, taken) as nodes:
            high = len(taken)
            if nodes.first(high) is not None:
                while low < high:
                    middle = (low + high) // 2
                    if nodes.first(middle) is not None:
                        high = middle
                    else:
                        low = middle + 1
                return high
        low = len(taken) + 1
        if not _advance(coming, len(taken)):
            return 0


def _advance(coming: Iterator[Target], count: int) -> int:
    """Takes up to `count` more. Returns how many there were."""
    return sum(1 for _ in islice(coming, count))


class _NodesWithout:
    """A trial on the nodes, in which some of the targets have left with their pods."""

    def __init__(self, trial: Trial, targets: Sequence[Target]) -> None:
        world = trial.state.world
        assert trial.request.nodes is not None
        self._nodes = trial.request.nodes
        everyone = all_candidates(trial.state, trial.request, trial.moment)
        self._leaving = world.leaving(everyone.of(keys(targets)))
        self._world = world

    def __enter__(self) -> _NodesWithout:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.none()

    def first(self, count: int) -> Ints | None:
        """The nodes of a place with the first `count` gone; None: there is none."""
        self._leaving.first(count)
        return self._nodes()

    def gone(self, gone: Bools) -> Ints | None:
        """The nodes of a place with just these gone; None: there is none."""
        self._leaving.set(gone)
        return self._nodes()

    def who_is_on(self, nodes: Ints) -> Bools:
        """Which of the targets use something on these nodes."""
        return self._leaving.departures.touching(nodes, self._world.capacity.rows)


def _less_the_unneeded(trial: Trial, targets: list[Target], *, borrowing: bool) -> list[Target]:
    """The targets without those that turn out not to be needed, looked at from the last but one back to the first.

    There is a place with all of them gone. As long as it is there, whoever does not stand in it can stay.
    """
    gone = np.ones(len(targets), dtype=np.bool_)
    if trial.request.nodes is None:
        for i in range(len(targets) - 2, -1, -1):
            trial.restore(targets[i].record)
            if trial.quota_fits(borrowing=borrowing):
                gone[i] = False
            else:
                trial.remove(targets[i].record)
    else:
        with _NodesWithout(trial, targets) as nodes:
            _PuttingBack(trial, targets, nodes, gone, borrowing=borrowing).run()
    return [target for target, goes in zip(targets, gone.tolist(), strict=True) if goes]


class _PuttingBack:
    """Puts targets back one by one, as far as quota and nodes allow."""

    def __init__(
        self, trial: Trial, targets: Sequence[Target], nodes: _NodesWithout, gone: Bools, *, borrowing: bool
    ) -> None:
        self.trial, self.targets, self.nodes, self.gone, self.borrowing = trial, targets, nodes, gone, borrowing
        self.portion: list[int] = []

    def run(self) -> None:
        self._look()
        size = -(-int(self.blocks[:-1].sum()) // _PUT_BACK)
        for i in range(len(self.targets) - 2, -1, -1):
            self.trial.restore(self.targets[i].record)
            if not self.trial.quota_fits(borrowing=self.borrowing):
                self.trial.remove(self.targets[i].record)
            elif not self.blocks[i]:
                self.gone[i] = False
            else:
                self.portion.append(i)
                if len(self.portion) >= size:
                    self._try_portion()
        self._try_portion()

    def _look(self) -> bool:
        """Looks for a place with those gone who are to go, the portion put back. Returns whether there is one."""
        gone = self.gone.copy()
        gone[self.portion] = False
        place = self.nodes.gone(gone)
        if place is None:
            return False
        self.gone[:] = gone
        #: who cannot be put back without looking for another place
        self.blocks = self.nodes.who_is_on(place) if self.trial.request.monotone else np.ones_like(gone)
        return True

    def _try_portion(self) -> None:
        if self.portion and not self._look():
            for i in self.portion:
                self.trial.remove(self.targets[i].record)
        self.portion.clear()
