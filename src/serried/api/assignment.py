"""A Workload's `topologyAssignment`: which topology domain gets how many pods, as it is written in v1beta2.

In memory an assignment is a list of domains in the order of the pods' ranks, each with its value for every level
(top to bottom) and its number of pods. On the wire it is cut into slices of consecutive domains; within a slice, what
all domains share is written once: a whole value, the first and last letters of names, the pod count. That lets an
assignment of tens of thousands of nodes fit into one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, islice
from operator import methodcaller, ne
from os.path import commonprefix
from typing import Final

import msgspec

from serried.api.kueue import (
    TopologyAssignment,
    TopologyAssignmentSlice,
    TopologyAssignmentSliceLevelIndividualValues,
    TopologyAssignmentSliceLevelValues,
    TopologyAssignmentSlicePodCounts,
)

#: One topology domain and how many pods go there: (values of the levels from top to bottom, number of pods >= 1).
Domain = tuple[tuple[str, ...], int]

#: The limits of the API on one assignment.
MAX_LEVELS: Final = 16
MAX_SLICES: Final = 1000
MAX_DOMAINS_PER_SLICE: Final = 100_000
#: Level values are node label values, which are never longer.
MAX_VALUE_LENGTH: Final = 63

#: One more slice costs about this many bytes; a cut has to save more than that to be worth a trial.
_SLICE_BYTES = 100
#: More slices are taken only if they bring the size below this share of what it was: few slices are easier to read.
_WORTHWHILE = 0.9


class AssignmentError(ValueError):
    """A topology assignment breaks a rule of its form. The message starts with the field at fault."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


def encode(levels: Sequence[str], domains: Sequence[Domain]) -> TopologyAssignment:
    """Write an assignment in the slice form, compactly and keeping the order of the domains.

    Args:
        levels: the node labels of the levels, top to bottom.
        domains: the domains with their pod counts; each domain appears once.

    Raises:
        AssignmentError: a domain has not one value per level, appears twice or has no pods; a value is longer than
            a label value can be; or there are more domains than an assignment can hold.
    """
    _check_levels(levels)
    if not domains:
        return TopologyAssignment(levels=list(levels), slices=[])
    paths, counts = zip(*domains, strict=True)
    if set(map(len, paths)) != {len(levels)} or min(counts) < 1:
        raise _malformed(len(levels), domains)
    columns = list(zip(*paths, strict=True))
    if len(set(columns[-1])) < len(domains):  # different paths may end in the same value
        _check_distinct("domains", paths)
    for level, column in zip(levels, columns, strict=True):
        if max(map(len, column)) > MAX_VALUE_LENGTH:
            longest = max(column, key=len)
            raise AssignmentError(f"level {level}", f"{longest!r} has more than {MAX_VALUE_LENGTH} characters")

    cuts = set(range(0, len(domains), MAX_DOMAINS_PER_SLICE))
    if len(cuts) > MAX_SLICES:
        most = MAX_SLICES * MAX_DOMAINS_PER_SLICE
        raise AssignmentError("domains", f"{len(domains)} domains; an assignment holds at most {most}")
    slices = _slices(columns, counts, cuts)
    size = len(msgspec.json.encode(slices))
    for more in _natural_cuts(columns, counts):
        trial_cuts = cuts | more
        added = len(trial_cuts) - len(cuts)
        if not 0 < added * _SLICE_BYTES < size or len(trial_cuts) > MAX_SLICES:
            continue
        trial = _slices(columns, counts, trial_cuts)
        trial_size = len(msgspec.json.encode(trial))
        if trial_size < size * _WORTHWHILE:
            cuts, slices, size = trial_cuts, trial, trial_size
    return TopologyAssignment(levels=list(levels), slices=slices)


def decode(assignment: TopologyAssignment) -> list[Domain]:
    """Read an assignment in any legal form: its domains, in order, with their pod counts.

    Raises:
        AssignmentError: lengths disagree, a choice between `universal` and `individual` is not made or made twice,
            a count is below 1, a domain appears twice, or a limit of the API is exceeded.
    """
    _check_levels(assignment.levels)
    if len(assignment.slices) > MAX_SLICES:
        raise AssignmentError("slices", f"{len(assignment.slices)} slices; at most {MAX_SLICES} are allowed")
    domains: list[Domain] = []
    for index, piece in enumerate(assignment.slices):
        field = f"slices[{index}]"
        if not 1 <= piece.domain_count <= MAX_DOMAINS_PER_SLICE:
            raise AssignmentError(
                f"{field}.domainCount", f"{piece.domain_count}; it must be between 1 and {MAX_DOMAINS_PER_SLICE}"
            )
        if len(piece.values_per_level) != len(assignment.levels):
            raise AssignmentError(
                f"{field}.valuesPerLevel", f"{len(piece.values_per_level)} entries for {len(assignment.levels)} levels"
            )
        columns = [
            _read_values(f"{field}.valuesPerLevel[{level}]", values, piece.domain_count)
            for level, values in enumerate(piece.values_per_level)
        ]
        if piece.domain_count > 1 and all(values.individual is None for values in piece.values_per_level):
            # Said before the list is built: a few bytes could ask for any number of copies of one domain.
            raise AssignmentError(field, f"one domain {piece.domain_count} times; a domain may appear only once")
        counts = _read_counts(f"{field}.podCounts", piece.pod_counts, piece.domain_count)
        domains += zip(zip(*columns, strict=True), counts, strict=True)
    _check_distinct("slices", [values for values, _ in domains])
    return domains


def _malformed(levels: int, domains: Sequence[Domain]) -> AssignmentError:
    """What is wrong with the first domain that has not one value per level and at least one pod."""
    index = next(i for i, (values, count) in enumerate(domains) if len(values) != levels or count < 1)
    values, count = domains[index]
    if len(values) != levels:
        return AssignmentError(f"domains[{index}]", f"{len(values)} values for {levels} levels")
    return AssignmentError(f"domains[{index}]", f"{count} pods; at least 1 is required")


def _slices(columns: Sequence[Sequence[str]], counts: Sequence[int], cuts: set[int]) -> list[TopologyAssignmentSlice]:
    """One slice from each cut (an index into the domains) to the next."""
    starts = sorted(cuts)
    return [
        TopologyAssignmentSlice(
            domain_count=end - start,
            values_per_level=[_write_values(column[start:end]) for column in columns],
            pod_counts=_write_counts(counts[start:end]),
        )
        for start, end in zip(starts, [*starts[1:], len(counts)], strict=True)
    ]


def _natural_cuts(columns: Sequence[Sequence[str]], counts: Sequence[int]) -> Iterator[set[int]]:
    """Places to cut that may save space, one set per idea: where something that a slice could write once changes."""
    yield _changes(counts)
    for column in columns[:-1]:
        yield _changes(column)
    # Names that are numbered within a rack or subnet ("rack-7-node-12") share all but the number there.
    yield _changes([value.rpartition("-")[0] for value in columns[-1]])


def _changes(column: Sequence[object]) -> set[int]:
    return set(compress(range(1, len(column)), map(ne, column, islice(column, 1, None))))


def _write_values(column: Sequence[str]) -> TopologyAssignmentSliceLevelValues:
    # What the smallest and the largest text share at their start, all texts between them share too.
    low, high = min(column), max(column)
    if low == high:
        return TopologyAssignmentSliceLevelValues(universal=low)
    prefix = _common_start(low, high)
    rests = [value[len(prefix) :] for value in column]
    # The suffix is taken from what the prefix leaves, so that the two never overlap ("aa", "aaa").
    suffix = _common_start(rests[0][::-1], rests[-1][::-1])[::-1]
    while suffix and not all(map(methodcaller("endswith", suffix), rests)):
        suffix = suffix[1:]
    roots = [rest[: len(rest) - len(suffix)] for rest in rests] if suffix else rests
    return TopologyAssignmentSliceLevelValues(
        individual=TopologyAssignmentSliceLevelIndividualValues(roots=roots, prefix=prefix, suffix=suffix)
    )


def _common_start(low: str, high: str) -> str:
    return commonprefix((low, high))  # noqa: RUF071 (letters are to be compared, not paths)


def _write_counts(counts: Sequence[int]) -> TopologyAssignmentSlicePodCounts:
    if min(counts) == max(counts):
        return TopologyAssignmentSlicePodCounts(universal=counts[0])
    return TopologyAssignmentSlicePodCounts(individual=list(counts))


def _read_values(field: str, values: TopologyAssignmentSliceLevelValues, domain_count: int) -> list[str]:
    if (values.universal is None) == (values.individual is None):
        raise AssignmentError(field, "exactly one of universal and individual must be set")
    if values.individual is None:
        assert values.universal is not None
        return [values.universal] * domain_count
    prefix, roots, suffix = values.individual.prefix, values.individual.roots, values.individual.suffix
    if len(roots) != domain_count:
        raise AssignmentError(f"{field}.individual.roots", f"{len(roots)} values for {domain_count} domains")
    return [prefix + root + suffix for root in roots]


def _read_counts(field: str, counts: TopologyAssignmentSlicePodCounts, domain_count: int) -> list[int]:
    if (counts.universal is None) == (counts.individual is None):
        raise AssignmentError(field, "exactly one of universal and individual must be set")
    if counts.individual is None:
        assert counts.universal is not None
        if counts.universal < 1:
            raise AssignmentError(f"{field}.universal", f"{counts.universal} pods; at least 1 is required")
        return [counts.universal] * domain_count
    if len(counts.individual) != domain_count:
        raise AssignmentError(f"{field}.individual", f"{len(counts.individual)} counts for {domain_count} domains")
    if min(counts.individual) < 1:
        index = next(i for i, count in enumerate(counts.individual) if count < 1)
        raise AssignmentError(
            f"{field}.individual[{index}]", f"{counts.individual[index]} pods; at least 1 is required"
        )
    return counts.individual


def _check_levels(levels: Sequence[str]) -> None:
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise AssignmentError("levels", f"{len(levels)} levels; there must be between 1 and {MAX_LEVELS}")


def _check_distinct(field: str, domains: Sequence[tuple[str, ...]]) -> None:
    if len(set(domains)) == len(domains):
        return
    seen: set[tuple[str, ...]] = set()
    for domain in domains:
        if domain in seen:
            raise AssignmentError(field, f"domain {'/'.join(domain)} appears more than once")
        seen.add(domain)
