"""Whatever objects hold, the engine answers where they stand: it does not raise, and the good ones go on."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.core import Node, Pod
from serried.api.kueue import ClusterQueue, LocalQueue, ResourceFlavor, Topology, Workload
from tests.unit.schedule.objects import (
    GPU,
    HOST,
    NS,
    RACK,
    at,
    cluster_queue,
    engine,
    feed,
    flavor,
    local_queue,
    node,
    pod_set,
    topology,
    workload,
)

ANY = st.sampled_from


def mostly(good: list[Any], bad: list[Any]) -> st.SearchStrategy[Any]:
    """One odd value among many good ones gets further than only odd ones."""
    return st.integers(0, 9).flatmap(lambda n: ANY(bad) if n == 0 else ANY(good))


names = ANY(["", "h100", "spot", "main", "cq", "lq", "fabric", "x" * 300, "ü/\n", "n0"])
labels = mostly([HOST, RACK], ["", HOST, RACK, "example.com/nowhere", "x" * 70])
quantities = mostly(["1", "8", 2, "0"], ["", "-1", "x", "1e999999999", "9E", "0.0000001", -5, 2**70, "1.5Gi", "1" * 60])
resources = st.dictionaries(mostly([GPU, "cpu"], ["pods", "memory", ""]), quantities, max_size=3)
counts = mostly([1, 2, 4], [-1, 0, 3, 2**31, 2**62])
selectors = st.dictionaries(labels, names, max_size=2)
expressions = st.lists(
    st.fixed_dictionaries(
        {
            "key": labels,
            "operator": ANY(["In", "NotIn", "Exists", "Gt", "Lt", "?"]),
            "values": st.lists(names, max_size=2),
        }
    ),
    max_size=2,
)
taints = st.lists(
    st.fixed_dictionaries({"key": names, "effect": ANY(["NoSchedule", "NoExecute", "?"]), "value": names}), max_size=2
)
tolerations = st.lists(
    st.fixed_dictionaries({"key": names, "operator": ANY(["", "Equal", "Exists", "?"]), "value": names}), max_size=2
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


requests = st.fixed_dictionaries(
    {},
    optional={
        "required": labels,
        "preferred": labels,
        "unconstrained": st.booleans(),
        "podSetGroupName": names,
        "podSetSliceRequiredTopology": labels,
        "podSetSliceSize": counts,
        "podsetSliceRequiredTopologyConstraints": st.lists(
            st.fixed_dictionaries({"topology": labels, "size": counts}), max_size=3
        ),
    },
)
containers = st.lists(
    st.fixed_dictionaries(
        {"resources": st.fixed_dictionaries({}, optional={"requests": resources, "limits": resources})}
    ),
    max_size=2,
)
pod_specs = st.fixed_dictionaries(
    {"containers": containers},
    optional={
        "initContainers": containers,
        "overhead": resources,
        "schedulerName": ANY(["serried", "other"]),
        "nodeSelector": selectors,
        "nodeName": names,
        "tolerations": tolerations,
        "affinity": st.fixed_dictionaries(
            {
                "nodeAffinity": st.fixed_dictionaries(
                    {
                        "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                            {
                                "nodeSelectorTerms": st.lists(
                                    st.fixed_dictionaries({"matchExpressions": expressions}), max_size=2
                                )
                            }
                        )
                    }
                )
            }
        ),
    },
)
pod_sets = st.fixed_dictionaries(
    {
        "name": mostly(["main", "a", "b"], ["", "x" * 300]),
        "count": counts,
        "template": st.fixed_dictionaries({"spec": pod_specs}),
    },
    optional={"topologyRequest": requests},
)
values = ANY([{"universal": "n0"}, {"universal": "lost"}]) | st.fixed_dictionaries(
    {}, optional={"universal": names, "individual": st.fixed_dictionaries({"roots": st.lists(names, max_size=3)})}
)
assignments = st.fixed_dictionaries(
    {
        "name": mostly(["main"], ["", "a"]),
        "flavors": st.dictionaries(ANY([GPU, "cpu"]), mostly(["h100"], ["", "spot", "lost"])),
        "resourceUsage": resources,
    },
    optional={
        "count": counts,
        "topologyAssignment": st.fixed_dictionaries(
            {
                "levels": mostly([[HOST]], [[], [RACK, HOST], [RACK]]),
                "slices": st.lists(
                    st.fixed_dictionaries(
                        {
                            "domainCount": mostly([1], [-1, 0, 2]),
                            "valuesPerLevel": st.lists(values, min_size=1, max_size=2),
                            "podCounts": st.fixed_dictionaries({"universal": mostly([1, 2], [-1, 0, 2**62])}),
                        }
                    ),
                    max_size=2,
                ),
            }
        ),
    },
)
conditions = st.lists(
    st.fixed_dictionaries(
        {"type": mostly(["QuotaReserved", "Admitted"], ["Finished", "?"]), "status": mostly(["True"], ["False", "?"])}
    ),
    max_size=3,
)
workloads = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": names, "namespace": mostly([NS], ["x", ""])}),
        "spec": st.fixed_dictionaries(
            {"podSets": st.lists(pod_sets, max_size=3), "queueName": mostly(["lq"], ["", "x", "main"])},
            optional={"priority": counts},
        ),
    },
    optional={
        "status": st.fixed_dictionaries(
            {"conditions": conditions},
            optional={
                "admission": st.fixed_dictionaries(
                    {"clusterQueue": names, "podSetAssignments": st.lists(assignments, max_size=2)}
                )
            },
        )
    },
)
quotas = st.lists(st.fixed_dictionaries({"name": ANY([GPU, "cpu", ""]), "nominalQuota": quantities}), max_size=3)
cluster_queues = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": names}),
        "spec": st.fixed_dictionaries(
            {
                "namespaceSelector": maybe(st.fixed_dictionaries({"matchExpressions": expressions})),
                "resourceGroups": st.lists(
                    st.fixed_dictionaries(
                        {
                            "coveredResources": st.lists(ANY([GPU, "cpu"]), max_size=2),
                            "flavors": st.lists(
                                st.fixed_dictionaries({"name": names, "resources": quotas}), max_size=2
                            ),
                        }
                    ),
                    max_size=2,
                ),
                "queueingStrategy": ANY(["StrictFIFO", "BestEffortFIFO", "?"]),
                "stopPolicy": ANY(["None", "Hold", "?"]),
            }
        ),
    }
)
some_workloads = st.lists(workloads.map(lambda o: msgspec.convert(o, Workload)), min_size=2, max_size=5)
others = st.one_of(
    cluster_queues.map(lambda o: msgspec.convert(o, ClusterQueue)),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": names, "namespace": ANY([NS, "x"])}),
            "spec": st.fixed_dictionaries({"clusterQueue": names, "stopPolicy": ANY(["None", "Hold", "?"])}),
        }
    ).map(lambda o: msgspec.convert(o, LocalQueue)),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": names}),
            "spec": st.fixed_dictionaries(
                {"nodeLabels": selectors, "nodeTaints": taints, "tolerations": tolerations, "topologyName": names}
            ),
        }
    ).map(lambda o: msgspec.convert(o, ResourceFlavor)),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": names}),
            "spec": st.fixed_dictionaries(
                {"levels": st.lists(st.fixed_dictionaries({"nodeLabel": labels}), max_size=3)}
            ),
        }
    ).map(lambda o: msgspec.convert(o, Topology)),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": names, "labels": selectors}),
            "spec": st.fixed_dictionaries({"taints": taints}),
            "status": st.fixed_dictionaries({"allocatable": resources}),
        }
    ).map(lambda o: msgspec.convert(o, Node)),
    st.fixed_dictionaries(
        {"metadata": st.fixed_dictionaries({"name": names, "namespace": ANY([NS, "x"])}), "spec": pod_specs}
    ).map(lambda o: msgspec.convert(o, Pod)),
)


@settings(deadline=None, max_examples=150)
@given(st.tuples(some_workloads, st.lists(others, max_size=3)).flatmap(lambda both: st.permutations(both[0] + both[1])))
def test_nothing_raises_and_a_good_job_still_gets_in(given_objects: list[Any]) -> None:
    subject = engine(
        topology("good"),
        flavor("good", "good"),
        cluster_queue("good", {"good": {GPU: 8}}),
        local_queue("good", "good"),
        node("good"),
        # What the objects to come can meet, so that they get far.
        topology(),
        flavor("h100", "fabric"),
        flavor("spot"),
        cluster_queue(flavors={"h100": {GPU: 8, "cpu": "9E"}, "spot": {GPU: "9E", "cpu": "9E"}}),
        local_queue(),
        node("n0"),
    )
    for item in given_objects:
        feed(subject, item)
        subject.validate()
        subject.cycle(at(0))
        subject.validate()
        for key in subject.queues_changed():
            subject.status(key)
        if isinstance(item, Workload):
            found = subject.explain(item.key, at(0))
            assert found is not None
            assert found.state != "pending" or found.reason is not None
            subject.validate()
    feed(subject, workload("good", pod_set(1, required=RACK, ours=True, gpu=8), queue="good"))
    while subject.dirty:
        if any(decision.key == (NS, "good") for decision in subject.cycle(at(0)).decisions):
            return
    explanation = subject.explain((NS, "good"), at(0))
    assert explanation is not None
    assert explanation.reason is not None
    # Only what uses the one good node, or its labels, may stand in the way.
    assert explanation.reason.code == "TopologyPlacementFailed", explanation
