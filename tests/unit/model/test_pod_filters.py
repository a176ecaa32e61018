"""What constraints say of pods that are placed together. For one pod by itself, tests/parity asks kube-scheduler."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from serried.api.core import PodSpec
from serried.api.names import HOSTNAME
from serried.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from serried.model.nodes import Nodes
from serried.model.pod_constraints import read_constraints
from serried.model.pod_filters import Surroundings, Verdict, judge
from serried.model.pod_index import PodIndex, PodKind
from serried.model.storage import Storage
from tests.unit.model.clusters import node

WEB = {"app": "web"}
SELECTOR = {"matchLabels": WEB}
ROW = {name: row for row, name in enumerate("abcd")}


class Cluster:
    """Nodes a and b are in zone 1, c is in zone 2, d is in none."""

    def __init__(self) -> None:
        self.nodes = Nodes(4)
        for name, labels in (("d", {}), ("c", {"zone": "2"}), ("b", {"zone": "1"}), ("a", {"zone": "1"})):
            self.nodes.put(ROW[name], node(name, labels=labels))
            self.nodes.names[ROW[name]] = name
        self.index, self.storage = PodIndex(), Storage()

    def has(self, name: str, labels: dict[str, str], *, leaving: bool = False, **spec: Any) -> None:
        self.index.add(kind(labels, **spec), np.array([ROW[name]]), np.ones(1, dtype=np.int64), leaving=leaving)

    def judge(self, labels: dict[str, str] | None = None, *, bound_by_us: bool = False, **spec: Any) -> Verdict:
        everywhere = np.ones(4, dtype=np.bool_)
        around = Surroundings(self.nodes, self.index, self.storage, {"team": {}})
        asked = kind(WEB if labels is None else labels, **spec)
        return judge(around, asked, everywhere, everywhere, bound_by_us=bound_by_us)

    def allowed(self, verdict: Verdict) -> str:
        return "".join(name for name in "abcd" if verdict.allowed(self.nodes)[ROW[name]])


def kind(labels: dict[str, str], **spec: Any) -> PodKind:
    found = msgspec.convert({"containers": [{"name": "main"}], **spec}, PodSpec)
    return PodKind("team", labels, read_constraints(found, "team", labels))


def pods(which: str, *keys: str, selector: Any = SELECTOR) -> dict[str, Any]:
    terms = [{"topologyKey": key, "labelSelector": selector} for key in keys]
    return {"affinity": {which: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def spread(key: str = "zone", skew: int = 1, **more: Any) -> dict[str, Any]:
    made = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
    return {"topologySpreadConstraints": [made | more]}


def test_pods_that_their_own_anti_affinity_selects_are_alone_in_a_domain() -> None:
    cluster = Cluster()
    found = cluster.judge(**pods("podAntiAffinity", HOSTNAME, "zone"))
    assert found.apart == (HOSTNAME, "zone")
    assert cluster.allowed(found) == "abcd"
    others = cluster.judge({"app": "db"}, **pods("podAntiAffinity", "zone"))
    assert others.apart == ()
    cluster.has("a", WEB)
    assert cluster.allowed(cluster.judge({"app": "db"}, **pods("podAntiAffinity", "zone"))) == "cd"


def test_pods_that_take_host_ports_are_alone_on_a_node() -> None:
    cluster = Cluster()
    containers = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    cluster.has("b", {}, containers=containers)
    found = cluster.judge(containers=containers)
    assert found.one_per_node
    assert cluster.allowed(found) == "acd"


def test_the_first_of_pods_that_only_their_own_affinity_selects_decides_where_all_go() -> None:
    cluster = Cluster()
    found = cluster.judge(**pods("podAffinity", "zone"))
    assert found.together == ("zone",)
    assert cluster.allowed(found) == "abc"
    assert cluster.allowed(cluster.judge({"app": "db"}, **pods("podAffinity", "zone"))) == ""


def test_where_somebody_matches_affinity_pods_go_there() -> None:
    cluster = Cluster()
    cluster.has("b", WEB)
    found = cluster.judge(**pods("podAffinity", "zone"))
    assert found.together == ()
    assert cluster.allowed(found) == "ab"
    assert cluster.allowed(cluster.judge(**pods("podAffinity", "zone", HOSTNAME))) == "b"


def test_all_terms_of_affinity_are_met_by_the_same_pod() -> None:
    cluster = Cluster()
    cluster.has("a", WEB)
    cluster.has("c", {"tier": "front"})
    affinity = pods("podAffinity", "zone")
    more = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "front"}}}
    affinity["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].append(more)
    assert cluster.allowed(cluster.judge({"app": "db"}, **affinity)) == ""
    cluster.has("c", WEB | {"tier": "front"})
    assert cluster.allowed(cluster.judge({"app": "db"}, **affinity)) == "c"


def test_pods_keep_away_from_those_whose_anti_affinity_selects_them() -> None:
    cluster = Cluster()
    cluster.has("a", {}, **pods("podAntiAffinity", "zone"))
    assert cluster.allowed(cluster.judge()) == "cd"
    assert cluster.allowed(cluster.judge({"app": "db"})) == "abcd"


def test_spread_says_how_many_more_pods_each_domain_may_get() -> None:
    cluster = Cluster()
    cluster.has("a", WEB)
    cluster.has("b", WEB, leaving=True)
    (found,) = cluster.judge(**spread()).spread
    values = cluster.nodes.column("zone").values
    assert dict(zip(values, found.counts.tolist(), strict=True)) == {"1": 1, "2": 0}
    assert found.least == 0
    assert dict(zip(values, found.room(0).tolist(), strict=True)) == {"1": 0, "2": 1}
    assert dict(zip(values, found.room(1).tolist(), strict=True)) == {"1": 1, "2": 2}
    assert cluster.allowed(cluster.judge(**spread())) == "c"
    assert cluster.allowed(cluster.judge(**spread(skew=2))) == "abc"


def test_with_fewer_domains_than_there_have_to_be_the_least_is_none() -> None:
    cluster = Cluster()
    cluster.has("a", WEB)
    cluster.has("c", WEB)
    assert cluster.allowed(cluster.judge(**spread())) == "abc"
    assert cluster.allowed(cluster.judge(**spread(minDomains=3))) == ""


def test_spread_that_does_not_count_the_pods_themselves_only_excludes() -> None:
    cluster = Cluster()
    cluster.has("a", WEB)
    cluster.has("a", WEB)
    found = cluster.judge({"app": "db"}, **spread())
    assert found.spread == ()
    assert cluster.allowed(found) == "c"


def test_a_volume_for_one_pod_is_for_one_in_all() -> None:
    cluster = Cluster()
    claim = {
        "metadata": {"name": "data", "namespace": "team", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]},
    }
    cluster.storage.put(msgspec.convert(claim, PersistentVolumeClaim))
    cluster.storage.put(msgspec.convert({"metadata": {"name": "pv"}}, PersistentVolume))
    found = cluster.judge(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert found.one_in_all
    assert cluster.allowed(found) == "abcd"


def test_a_missing_claim_is_named_and_excludes_everywhere() -> None:
    cluster = Cluster()
    found = cluster.judge(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert [reason for reason, _ in found.exclusions] == ['persistentvolumeclaim "data" not found']
    assert cluster.allowed(found) == ""


def test_a_node_that_is_named_is_the_only_one() -> None:
    cluster = Cluster()
    assert cluster.allowed(cluster.judge(nodeName="c")) == "c"


def test_a_claim_that_waits_for_its_first_pod_is_not_for_pods_that_we_bind() -> None:
    cluster = Cluster()
    late = {"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    claim = {"metadata": {"name": "data", "namespace": "team"}, "spec": {"storageClassName": "late"}}
    cluster.storage.put(msgspec.convert(late, StorageClass))
    cluster.storage.put(msgspec.convert(claim, PersistentVolumeClaim))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    assert cluster.allowed(cluster.judge(volumes=volumes)) == "abcd"
    found = cluster.judge(volumes=volumes, bound_by_us=True)
    assert [reason for reason, _ in found.exclusions] == [
        'persistentvolumeclaim "data" is bound or provisioned where its first pod goes'
    ]
