"""What the Job controller decides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.batch import JobStatus
from serried.api.core import Pod
from serried.api.names import COMPLETION_INDEX
from serried.embedded.job_plan import TRACKING, Job, Plan, format_indexes, next_status, parse_indexes, plan_pods

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


def job(status: JobStatus | None = None, **spec: Any) -> Job:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    made = msgspec.convert({"metadata": {"name": "j", "uid": "j"}, "spec": spec}, Job)
    made.status = status or JobStatus()
    return made


def indexed(count: int, status: JobStatus | None = None, **spec: Any) -> Job:
    return job(status, **{"completionMode": "Indexed", "completions": count, "parallelism": count, **spec})


def pod(name: str, phase: str = "Running", *, going: bool = False, tracked: bool = True, age: int = 0) -> Pod:
    """A pod whose name is its uid; one that is called by a number has that completion index."""
    made = Pod()
    made.metadata.name = made.metadata.uid = name
    made.metadata.creation_timestamp = NOW - timedelta(seconds=age)
    made.metadata.deletion_timestamp = NOW if going else None
    made.metadata.finalizers = (TRACKING,) if tracked else ()
    made.metadata.annotations = {COMPLETION_INDEX: name.rstrip("'")} if name.rstrip("'").isdigit() else {}
    made.status.phase = phase
    return made


def plan(of: Job, *pods: Pod) -> Plan:
    return plan_pods(of, pods, next_status(of, pods, set(), NOW))


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(each.metadata.name for each in pods)


def conditions(status: JobStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


# --- Pods


def test_an_indexed_job_gets_a_pod_for_each_index() -> None:
    assert plan(indexed(4)).create == (0, 1, 2, 3)
    assert plan(indexed(4), pod("0"), pod("2", "Pending")).create == (1, 3)


def test_a_pod_that_failed_or_is_going_is_replaced_and_one_that_succeeded_is_not() -> None:
    assert plan(indexed(4), pod("0", "Failed"), pod("1", going=True), pod("2", "Succeeded"), pod("3")).create == (0, 1)


def test_indexes_that_are_complete_are_remembered_by_the_status() -> None:
    assert plan(indexed(4, JobStatus(completed_indexes="0,2", succeeded=2))).create == (1, 3)


def test_no_more_than_parallelism_run_at_a_time() -> None:
    assert plan(indexed(6, parallelism=2)).create == (0, 1)
    assert plan(indexed(6, parallelism=2), pod("0", "Succeeded"), pod("1")).create == (2,)
    assert plan(indexed(3, parallelism=2), pod("0", "Succeeded"), pod("1", "Succeeded")).create == (2,)
    assert plan(job(completions=5, parallelism=3), pod("a")).create == (None, None)
    assert plan(job(completions=5, parallelism=3), pod("a", "Succeeded"), pod("b"), pod("c")).create == (None,)


def test_a_second_pod_of_an_index_and_one_out_of_range_are_superfluous() -> None:
    found = plan(indexed(2), pod("0"), pod("0'", "Pending"), pod("1"), pod("5"), pod("x"))
    assert names(found.superfluous) == ["0'", "5", "x"]
    assert found.create == ()


def test_when_parallelism_shrinks_those_that_lose_least_go() -> None:
    running = [pod("0"), pod("1", "Pending"), pod("2"), pod("3", "Pending")]
    assert names(plan(indexed(4, parallelism=2), *running).superfluous) == ["1", "3"]
    young_and_old = [pod("a", age=5), pod("b", age=50), pod("c", age=500)]
    assert names(plan(job(completions=3, parallelism=1), *young_and_old).superfluous) == ["a", "b"]
    assert names(plan(indexed(4, parallelism=0), *running).superfluous) == ["0", "1", "2", "3"]


def test_a_work_queue_gets_no_more_pods_after_the_first_success() -> None:
    assert plan(job(parallelism=3)).create == (None, None, None)
    assert plan(job(parallelism=3), pod("a", "Succeeded"), pod("b")) == Plan()


def test_a_suspended_job_loses_its_pods_without_a_failure() -> None:
    found = plan(indexed(2, suspend=True), pod("0"), pod("1", "Succeeded"))
    assert names(found.superfluous) == ["0"]
    assert (found.create, found.lost) == ((), ())


def test_a_job_that_has_failed_loses_its_pods() -> None:
    found = plan(indexed(3, backoffLimit=0), pod("0", "Failed"), pod("1"), pod("2"))
    assert names(found.lost) == ["1", "2"]
    assert (found.create, found.superfluous) == ((), ())


# --- Status


def test_pods_are_counted_once() -> None:
    pods = [
        pod("0", "Succeeded"),
        pod("1", "Failed"),
        pod("2", going=True),
        pod("3"),
        pod("4", "Failed", tracked=False),
    ]
    status = next_status(indexed(6), pods, set(), NOW)
    assert (status.succeeded, status.failed, status.active, status.terminating) == (1, 2, 1, 1)
    assert status.completed_indexes == "0"
    again = next_status(indexed(6, status), pods, {"0", "1", "2"}, NOW)
    assert (again.succeeded, again.failed) == (1, 2)
    without_indexes = next_status(job(completions=6, parallelism=6), pods, {"0"}, NOW)
    assert (without_indexes.succeeded, without_indexes.failed) == (0, 2)


def test_a_job_starts_when_it_is_not_suspended() -> None:
    assert next_status(indexed(1), [], set(), NOW).start_time == NOW
    suspended = next_status(indexed(1, suspend=True), [], set(), NOW)
    assert suspended.start_time is None
    assert conditions(suspended) == {"Suspended": ("True", "JobSuspended")}


def test_a_job_that_is_suspended_again_forgets_its_start_and_begins_anew() -> None:
    started = next_status(indexed(1), [], set(), EARLIER)
    suspended = next_status(indexed(1, started, suspend=True), [], set(), EARLIER)
    assert suspended.start_time is None
    resumed = next_status(indexed(1, suspended), [], set(), NOW)
    assert resumed.start_time == NOW
    assert conditions(resumed) == {"Suspended": ("False", "JobResumed")}
    assert resumed.conditions[0].last_transition_time == NOW


def test_a_job_is_complete_when_all_has_succeeded_and_nothing_is_left() -> None:
    both = [pod("0", "Succeeded"), pod("1", "Succeeded")]
    status = next_status(indexed(2), both, set(), NOW)
    assert conditions(status) == {
        "SuccessCriteriaMet": ("True", "CompletionsReached"),
        "Complete": ("True", "CompletionsReached"),
    }
    assert status.completion_time == NOW
    waiting = next_status(indexed(2), [*both, pod("1'", going=True)], set(), NOW)
    assert conditions(waiting) == {"SuccessCriteriaMet": ("True", "CompletionsReached")}
    assert not indexed(2, waiting).ended
    assert indexed(2, status).ended


def test_nothing_to_do_is_done_at_once() -> None:
    assert job(next_status(job(completions=0), [], set(), NOW)).ended


def test_a_work_queue_is_complete_when_one_has_succeeded_and_none_is_left() -> None:
    queue = job(parallelism=2)
    assert "Complete" not in conditions(next_status(queue, [pod("a", "Succeeded"), pod("b")], set(), NOW))
    assert "Complete" in conditions(next_status(queue, [pod("a", "Succeeded"), pod("b", "Failed")], set(), NOW))


def test_a_job_fails_after_more_failures_than_it_may_have() -> None:
    assert conditions(next_status(indexed(3, backoffLimit=1), [pod("0", "Failed"), pod("1")], set(), NOW)) == {}
    failing = next_status(indexed(3, backoffLimit=0), [pod("0", "Failed"), pod("1")], set(), NOW)
    assert conditions(failing) == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    failed = next_status(indexed(3, failing, backoffLimit=0), [pod("1", "Failed")], set(), NOW)
    assert conditions(failed)["Failed"] == ("True", "BackoffLimitExceeded")
    assert indexed(3, failed).ended


def test_a_job_that_is_being_deleted_says_nothing_new_of_itself() -> None:
    going = indexed(1)
    going.metadata.deletion_timestamp = NOW
    assert conditions(next_status(going, [pod("0", "Succeeded")], set(), NOW)) == {}


# --- Indexes


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("", []),
        ("3", [3]),
        ("0,1", [0, 1]),
        ("0-2", [0, 1, 2]),
        ("0-2,5,7,8,10-13", [0, 1, 2, 5, 7, 8, 10, 11, 12, 13]),
    ],
)
def test_indexes_are_written_as_ranges_of_three_and_more(text: str, indexes: list[int]) -> None:
    assert parse_indexes(text) == set(indexes)
    assert format_indexes(indexes) == text


@settings(deadline=None)
@given(st.sets(st.integers(0, 60)))
def test_indexes_can_be_read_back(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes


phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])


@settings(deadline=None)
@given(
    st.integers(0, 5),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 6), phases, st.booleans()), max_size=8),
)
def test_after_the_plan_there_are_as_many_pods_as_there_should_be(
    completions: int, parallelism: int, is_indexed: bool, suspend: bool, found: list[tuple[int, str, bool]]
) -> None:
    """Never more than parallelism, never two of an index, and just those that are missing."""
    spec: dict[str, Any] = {
        "completions": completions,
        "parallelism": parallelism,
        "backoffLimit": 99,
        "suspend": suspend,
    }
    of = indexed(completions, **{k: v for k, v in spec.items() if k != "completions"}) if is_indexed else job(**spec)
    pods = [pod(str(index) + "'" * number, phase, going=going) for number, (index, phase, going) in enumerate(found)]
    status = next_status(of, pods, set(), NOW)
    chosen = plan_pods(of, pods, status)
    gone = set(names(chosen.superfluous))
    kept = [
        each for each in pods if each.status.phase in ("Pending", "Running") and not each.metadata.deletion_timestamp
    ]
    kept = [each for each in kept if each.metadata.name not in gone]
    after = len(kept) + len(chosen.create)
    assert after == (0 if suspend else max(0, min(parallelism, completions - status.succeeded)))
    if is_indexed:
        indexes = [int(each.metadata.annotations[COMPLETION_INDEX]) for each in kept] + list(
            map(int, map(str, chosen.create))
        )
        assert len(set(indexes)) == len(indexes)
        assert all(index < completions for index in indexes)
        assert not set(indexes) & parse_indexes(status.completed_indexes)
