"""Schemas of the kinds that administrators write: flavors, topologies, queues, cohorts and the smaller ones."""

from __future__ import annotations

from serried.api.crds.schema import (
    QUALIFIED_PATTERN,
    SUBDOMAIN_PATTERN,
    Schema,
    amount,
    array,
    conditions,
    enum,
    integer,
    label_name,
    mapping,
    quantity,
    rule,
    rules,
    string,
    struct,
    subdomain,
    time,
    tolerations,
)


def topology() -> Schema:
    level = struct(
        "",
        {
            "nodeLabel!": string(
                "The node label whose values name the domains of this level.",
                minLength=1,
                maxLength=316,
                pattern=QUALIFIED_PATTERN,
            )
        },
    )
    levels = array(
        "The levels of the topology, from the widest (a block, say) to the narrowest (a host).",
        level,
        minItems=1,
        maxItems=16,
        **rules(
            rule("self == oldSelf", "levels cannot be changed; make a new Topology"),
            rule("self.all(a, self.exists_one(b, a.nodeLabel == b.nodeLabel))", "each nodeLabel may be used once"),
            rule(
                "self.all(l, l.nodeLabel != 'kubernetes.io/hostname') "
                "|| self[self.size() - 1].nodeLabel == 'kubernetes.io/hostname'",
                "kubernetes.io/hostname can only be the lowest level",
            ),
        ),
    )
    return struct(
        "How the nodes of a ResourceFlavor lie in the network.",
        {"spec": struct("", {"levels!": levels})},
    )


def resource_flavor() -> Schema:
    taint = struct(
        "",
        {
            "key!": string(),
            "value": string(),
            "effect!": enum("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
            "timeAdded": time(),
        },
    )
    spec = struct(
        "",
        {
            "nodeLabels": mapping("The labels of the nodes of this flavor.", string(), maxProperties=8),
            "nodeTaints": array("The taints a workload must tolerate to use this flavor.", taint, maxItems=8),
            "tolerations": tolerations(
                "What pods that use this flavor tolerate in addition.",
                **rules(
                    rule(
                        "self.all(t, has(t.key) || has(t.operator) && t.operator == 'Exists')",
                        "operator must be Exists when key is empty",
                    ),
                    rule(
                        "self.all(t, !has(t.operator) || t.operator != 'Exists' || !has(t.value) || t.value == '')",
                        "value must be empty when operator is Exists",
                    ),
                    rule(
                        "self.all(t, !has(t.tolerationSeconds) || has(t.effect) && t.effect == 'NoExecute')",
                        "effect must be NoExecute when tolerationSeconds is set",
                    ),
                ),
            ),
            "topologyName": subdomain("The Topology of this flavor's nodes; topology requests need it."),
        },
        **rules(
            rule(
                "!has(self.topologyName) || has(self.nodeLabels) && self.nodeLabels.size() > 0",
                "a flavor with a topologyName needs at least one node label",
            ),
            rule("!has(oldSelf.topologyName) || self == oldSelf", "a flavor with a topologyName cannot be changed"),
        ),
    )
    return struct("A kind of node that quota can be given for.", {"spec": spec})


def cluster_queue() -> Schema:
    check = struct(
        "",
        {
            "name!": string("An AdmissionCheck.", minLength=1, maxLength=316),
            "onFlavors": {
                **array("The flavors it is needed for; for all if empty.", string(maxLength=253), maxItems=64),
                "x-kubernetes-list-type": "set",
            },
        },
    )
    checks = struct(
        "The checks a workload has to pass to be admitted.",
        {"admissionChecks!": array("", check, keys=["name"], minItems=1, maxItems=64)},
    )
    scope = struct(
        "How usage over time counts in the order of workloads.",
        {"admissionMode!": enum("", "UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing")},
    )
    migration = struct(
        "What happens when a more preferred flavor becomes free.",
        {
            "mode!": enum("", "TryPreferredFlavors", "RetainFirstAdmission", maxLength=253),
            "constraints": struct("", {"lastAcceptableFlavorName": subdomain("Flavors after this one are not tried.")}),
        },
    )
    fungibility = struct(
        "When to go on to the next flavor.",
        {
            "whenCanBorrow": enum("", "MayStopSearch", "TryNextFlavor", default="MayStopSearch"),
            "whenCanPreempt": enum("", "MayStopSearch", "TryNextFlavor", default="TryNextFlavor"),
            "preference": enum(
                "Which to prefer when both are possible.", "BorrowingOverPreemption", "PreemptionOverBorrowing"
            ),
        },
        default={},
    )
    borrow_within_cohort = struct(
        "Whether to preempt in other queues while borrowing.",
        {
            "policy": enum("", "Never", "LowerPriority", default="Never"),
            "maxPriorityThreshold": integer("Only workloads of at most this priority are preempted."),
        },
        default={},
    )
    preemption = struct(
        "Which workloads may be preempted for one that does not fit.",
        {
            "withinClusterQueue": enum(
                "In this queue.", "Never", "LowerPriority", "LowerOrNewerEqualPriority", default="Never"
            ),
            "reclaimWithinCohort": enum(
                "In queues that borrow from this one.", "Never", "LowerPriority", "Any", default="Never"
            ),
            "borrowWithinCohort": borrow_within_cohort,
        },
        default={},
        **rules(
            rule(
                # has() throughout: the API server checks the default itself, {}, before it fills in the rest.
                "!has(self.borrowWithinCohort) || !has(self.borrowWithinCohort.policy) "
                "|| self.borrowWithinCohort.policy == 'Never' "
                "|| has(self.reclaimWithinCohort) && self.reclaimWithinCohort != 'Never'",
                "borrowWithinCohort needs reclaimWithinCohort",
            )
        ),
    )
    spec = struct(
        "",
        {
            "resourceGroups": _resource_groups(),
            "cohortName": subdomain("The Cohort this queue shares unused quota with."),
            "queueingStrategy": enum(
                "StrictFIFO: the first in the queue holds up the others until it fits.",
                "StrictFIFO",
                "BestEffortFIFO",
                default="BestEffortFIFO",
            ),
            "namespaceSelector": _label_selector("Namespaces that may use this queue: {} for all, none if absent."),
            "flavorFungibility": fungibility,
            "preemption": preemption,
            "admissionChecksStrategy": checks,
            "admissionScope": scope,
            "concurrentAdmissionPolicy": struct("", {"migration!": migration}),
            "stopPolicy": _stop_policy(),
            "fairSharing": _fair_sharing(),
        },
        **rules(
            rule(
                "has(self.cohortName) || !has(self.resourceGroups) || self.resourceGroups.all(g, "
                "g.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit))))",
                "borrowingLimit needs a cohortName",
            )
        ),
    )
    return struct(
        "Quota of a team, for each flavor and resource, and how it is used.",
        {
            "spec": spec,
            "status": struct("", _queue_status(borrowed=True) | {"fairSharing": _fair_sharing_status()}),
        },
    )


def local_queue() -> Schema:
    spec = struct(
        "",
        {
            "clusterQueue": subdomain(
                "The ClusterQueue that jobs of this queue use the quota of.",
                **rules(rule("self == oldSelf", "clusterQueue cannot be changed")),
            ),
            "stopPolicy": _stop_policy(),
            "fairSharing": _fair_sharing(),
        },
    )
    past_usage = struct(
        "",
        {"consumedResources!": mapping("", amount()), "lastUpdate!": time()},
    )
    status = _queue_status(borrowed=False) | {
        "fairSharing": _fair_sharing_status({"admissionFairSharingStatus": past_usage})
    }
    return struct(
        "The way into a ClusterQueue for the jobs of one namespace.", {"spec": spec, "status": struct("", status)}
    )


def cohort() -> Schema:
    spec = struct(
        "",
        {
            "parentName": subdomain("The Cohort above; none for a root."),
            "resourceGroups": _resource_groups(),
            "fairSharing": _fair_sharing(),
        },
    )
    return struct(
        "Queues that lend each other unused quota; cohorts form trees.",
        {"spec": spec, "status": struct("", {"conditions": conditions(), "fairSharing": _fair_sharing_status()})},
    )


def admission_check() -> Schema:
    parameters = struct(
        "The object that configures the check.",
        {
            "apiGroup!": string(minLength=1, maxLength=253, pattern=SUBDOMAIN_PATTERN),
            "kind!": string(minLength=1, maxLength=63, pattern="^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$"),
            "name!": label_name(minLength=1),
        },
    )
    spec = struct(
        "",
        {
            "controllerName!": string(
                "Who decides it; not necessarily a pod.",
                minLength=1,
                maxLength=253,
                **rules(rule("self == oldSelf", "controllerName cannot be changed")),
            ),
            "parameters": parameters,
        },
    )
    return struct(
        "Something outside that has to agree before a workload starts.",
        {"spec": spec, "status": struct("", {"conditions": conditions()})},
    )


def workload_priority_class() -> Schema:
    return struct(
        "A priority in the queue that has no bearing on the pods.",
        {
            "value!": integer("Higher goes first."),
            "description": string("When to use it.", maxLength=2048),
        },
    )


def _resource_groups() -> Schema:
    resource = struct(
        "",
        {
            "name!": string("A resource such as cpu, memory or nvidia.com/gpu."),
            "nominalQuota!": quantity("What is there for this queue at any time."),
            "borrowingLimit": quantity("The most it may use of others' unused quota; no limit if absent."),
            "lendingLimit": quantity("The most others may use of its unused quota; no limit if absent."),
        },
    )
    flavor = struct(
        "",
        {
            "name!": subdomain("A ResourceFlavor."),
            "resources!": array("Quota of each covered resource.", resource, keys=["name"], minItems=1, maxItems=64),
        },
    )
    group = struct(
        "",
        {
            "coveredResources!": array("The resources of this group.", string(), minItems=1, maxItems=64),
            "flavors!": array(
                "The flavors, in the order they are tried.", flavor, keys=["name"], minItems=1, maxItems=64
            ),
        },
    )
    return array("Resources that are taken from one flavor together, and the flavors.", group, maxItems=16)


def _label_selector(description: str) -> Schema:
    requirement = struct("", {"key!": string(), "operator!": string(), "values": array("", string())})
    return struct(
        description,
        {"matchLabels": mapping("", string()), "matchExpressions": array("", requirement)},
        **{"x-kubernetes-map-type": "atomic"},
    )


def _stop_policy() -> Schema:
    return enum(
        "Hold admits nothing new; HoldAndDrain also evicts what runs.", "None", "Hold", "HoldAndDrain", default="None"
    )


def _fair_sharing() -> Schema:
    return struct("", {"weight": quantity("The share of unused quota, relative to others.", default=1)})


def _fair_sharing_status(more: dict[str, Schema] | None = None) -> Schema:
    share = integer("Use above nominal quota, in thousandths of what can be lent, over the weight.", format="int64")
    return struct("", {"weightedShare!": share} | (more or {}))


def _queue_status(*, borrowed: bool) -> dict[str, Schema]:
    resource = struct("", {"name!": string(), "total": amount()} | ({"borrowed": amount()} if borrowed else {}))
    flavor = struct("", {"name!": subdomain(), "resources!": array("", resource, keys=["name"], maxItems=64)})
    return {
        "conditions": conditions(),
        "pendingWorkloads": integer("Waiting."),
        "reservingWorkloads": integer("With quota, running or not."),
        "admittedWorkloads": integer("With quota and all checks passed."),
        "flavorsReservation": array("Held by workloads with quota.", flavor, keys=["name"], maxItems=64),
        "flavorsUsage": array("Held by admitted workloads.", flavor, keys=["name"], maxItems=64),
    }
