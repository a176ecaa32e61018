"""What holds for every kind of job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serried.jobs import KINDS
from serried.jobs.kind import JobKind

_RBAC = Path(__file__).parents[3] / "deploy" / "rbac.yaml"


def allowed(group: str, resource: str) -> set[str]:
    """The verbs that deploy/rbac.yaml allows on a resource in all namespaces."""
    roles = [each for each in yaml.safe_load_all(_RBAC.read_text()) if each["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role["rules"]]
    return {v for r in rules if group in r["apiGroups"] and resource in r["resources"] for v in r["verbs"]}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.plural)
def test_serried_may_read_start_and_stop_it_and_own_workloads_by_it(kind: JobKind[Any]) -> None:
    resource = kind.resource
    assert allowed(resource.group, resource.plural) >= {"get", "list", "watch", "patch"}
    assert allowed(resource.group, f"{resource.plural}/status") >= {"patch"}
    assert allowed(resource.group, f"{resource.plural}/finalizers") >= {"update"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.plural)
@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"labels": []}, "spec": 3}], ids=str)
def test_the_webhook_leaves_what_is_none_of_it_to_the_api_server(kind: JobKind[Any], odd: dict[str, Any]) -> None:
    assert kind.admit(odd, bind=True) == []
