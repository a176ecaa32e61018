"""The webhook's double for the embedded cluster."""

from __future__ import annotations

import copy
from typing import Any

from serried.api import names
from serried.api.resources import JOBS, PODS
from serried.embedded import webhook


def test_it_changes_jobs_and_nothing_else() -> None:
    job = {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": {"template": {"spec": {}}}}
    webhook.mutate(JOBS, "CREATE", job)
    assert job["spec"] == {"suspend": True, "template": {"spec": {"schedulerName": "serried"}}}
    pod: dict[str, Any] = {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": {}}
    webhook.mutate(PODS, "CREATE", pod)
    assert pod["spec"] == {}


def test_a_job_without_a_queue_stays_as_it_is() -> None:
    job = {"metadata": {"name": "free"}, "spec": {"template": {"spec": {"containers": []}}}}
    before = copy.deepcopy(job)
    webhook.mutate(JOBS, "CREATE", job)
    assert job == before
