"""Schema of Workload: light, since the API server checks all of it at each of a Workload's many status writes."""

from __future__ import annotations

from serried.api.assignment import MAX_DOMAINS_PER_SLICE, MAX_LEVELS, MAX_SLICES, MAX_VALUE_LENGTH
from serried.api.crds.schema import (
    Schema,
    amount,
    array,
    boolean,
    conditions,
    enum,
    integer,
    label_name,
    mapping,
    string,
    struct,
    subdomain,
    time,
    tolerations,
)

_MAX_POD_SETS = 18


def workload() -> Schema:
    return struct(
        "A job as the scheduler sees it: what it needs, and what it was given.", {"spec": _spec(), "status": _status()}
    )


def _spec() -> Schema:
    slice_constraint = struct("", {"topology!": string(minLength=1, maxLength=63), "size!": integer(minimum=1)})
    topology_request = struct(
        "Where the pods are to be, relative to each other.",
        {
            "required": string("The level within one domain of which all pods must be.", maxLength=63),
            "preferred": string("The level within one domain of which all pods should be.", maxLength=63),
            "unconstrained": boolean("Any nodes with room, chosen by the scheduler."),
            "podIndexLabel": string("The pod label with its rank.", maxLength=317),
            "subGroupIndexLabel": string("The pod label with the number of its replicated job.", maxLength=317),
            "subGroupCount": integer("How many replicated jobs there are.", minimum=0),
            "podSetGroupName": string("Pod sets of one group are placed together.", maxLength=256),
            "podSetSliceRequiredTopology": string(
                "The level within one domain of which each slice must be.", maxLength=63
            ),
            "podSetSliceSize": integer("Pods in a slice.", minimum=1),
            "podsetSliceRequiredTopologyConstraints": array(
                "Slices within slices, widest first.", slice_constraint, maxItems=3
            ),
        },
    )
    pod_set = struct(
        "",
        {
            "name": label_name(default="main"),
            # A full pod template would be checked field by field at each write of the status, for nothing: the
            # API server checked it in the job it came from.
            "template!": {
                "type": "object",
                "description": "The pod template of the job.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "count": integer("Pods.", default=1, minimum=0),
            "minCount": integer("The fewest pods the job can start with.", minimum=1),
            "topologyRequest": topology_request,
        },
    )
    return struct(
        "",
        {
            "podSets": array(
                "Groups of pods that are alike.", pod_set, keys=["name"], minItems=1, maxItems=_MAX_POD_SETS
            ),
            "queueName": subdomain("The LocalQueue."),
            "priority": integer("Higher goes first."),
            "priorityClassRef": struct(
                "Where the priority came from.",
                {
                    "group!": enum("", "kueue.x-k8s.io", "scheduling.k8s.io"),
                    "kind!": enum("", "WorkloadPriorityClass", "PriorityClass"),
                    "name!": subdomain(minLength=1),
                },
            ),
            "active": boolean("False evicts the workload and keeps it out of the queue.", default=True),
            "maximumExecutionTimeSeconds": integer("The workload is ended after this time.", minimum=1),
            "preemptionGates": array(
                "", struct("", {"name!": string(minLength=1, maxLength=63)}), keys=["name"], maxItems=8
            ),
        },
    )


def _topology_assignment() -> Schema:
    """As read and written by `serried.api.assignment`, which checks the rest when it reads."""
    individual = struct(
        "Each domain's value is prefix + root + suffix.",
        {
            "prefix": string(maxLength=MAX_VALUE_LENGTH),
            "roots!": array("", string(maxLength=MAX_VALUE_LENGTH), minItems=1, maxItems=MAX_DOMAINS_PER_SLICE),
            "suffix": string(maxLength=MAX_VALUE_LENGTH),
        },
    )
    values = struct(
        "",
        {
            "universal": string("The value of all domains.", maxLength=MAX_VALUE_LENGTH),
            "individual": individual,
        },
    )
    counts = struct(
        "",
        {
            "universal": integer("The count of all domains.", minimum=1),
            "individual": array("", {"type": "integer"}, minItems=1, maxItems=MAX_DOMAINS_PER_SLICE),
        },
    )
    piece = struct(
        "",
        {
            "domainCount!": integer(minimum=1),
            "valuesPerLevel!": array("", values, minItems=1, maxItems=MAX_LEVELS),
            "podCounts!": counts,
        },
    )
    return struct(
        "Which domains get how many pods, in the order of the pods' ranks.",
        {
            "levels!": array("", string(maxLength=317), minItems=1, maxItems=MAX_LEVELS),
            "slices!": array("", piece, maxItems=MAX_SLICES),
        },
    )


def _status() -> Schema:
    assignment = struct(
        "",
        {
            "name": label_name(default="main"),
            "flavors": mapping("The flavor of each resource.", string()),
            "resourceUsage": mapping("What all pods use together.", amount()),
            "count": integer("Pods admitted.", minimum=0),
            "topologyAssignment": _topology_assignment(),
            "delayedTopologyRequest": enum("", "Pending", "Ready", maxLength=7),
        },
    )
    admission = struct(
        "What the workload was given.",
        {
            "clusterQueue": subdomain(),
            "podSetAssignments": array("", assignment, keys=["name"], maxItems=_MAX_POD_SETS),
        },
    )
    update = struct(
        "",
        {
            "name!": label_name(),
            "labels": mapping("", string()),
            "annotations": mapping("", string()),
            "nodeSelector": mapping("", string()),
            "tolerations": tolerations(""),
        },
    )
    check = struct(
        "",
        {
            "name!": string(minLength=1, maxLength=316),
            "state!": enum("", "Pending", "Ready", "Retry", "Rejected"),
            "message!": string(maxLength=32768),
            "lastTransitionTime!": time(),
            "podSetUpdates": array("", update, maxItems=_MAX_POD_SETS),
            "requeueAfterSeconds": integer(minimum=0),
            "retryCount": integer(minimum=0),
        },
    )
    gate = struct(
        "",
        {
            "name!": string(minLength=1, maxLength=63),
            "position!": enum("", "Closed", "Open"),
            "lastTransitionTime!": time(),
        },
    )
    eviction = struct(
        "",
        {
            "reason!": string(maxLength=316),
            "underlyingCause!": string(maxLength=316),
            "count!": integer(minimum=0),
        },
    )
    reclaimable = struct("", {"name!": label_name(), "count!": integer(minimum=0)})
    requests = struct("", {"name!": label_name(), "resources": mapping("", amount())})
    return struct(
        "",
        {
            "conditions": conditions(),
            "admission": admission,
            "admissionChecks": array("", check, keys=["name"], maxItems=8),
            "requeueState": struct(
                "After a time-out: how often, and when it may be tried again.",
                {"count": integer(minimum=0), "requeueAt": time()},
            ),
            "reclaimablePods": array(
                "Pods that ended and need no quota any more.", reclaimable, keys=["name"], maxItems=_MAX_POD_SETS
            ),
            "resourceRequests": array(
                "What a pod set that waits would use.", requests, keys=["name"], maxItems=_MAX_POD_SETS
            ),
            "unhealthyNodes": array(
                "Nodes of the workload to be replaced.",
                struct("", {"name!": string(maxLength=63)}),
                keys=["name"],
                maxItems=8,
            ),
            "accumulatedPastExecutionTimeSeconds": integer("Run time before the last eviction."),
            "schedulingStats": struct(
                "", {"evictions": array("", eviction, keys=["reason", "underlyingCause"], maxItems=256)}
            ),
            "preemptionGates": array("", gate, keys=["name"], maxItems=8),
            "nominatedClusterNames": array("", string(maxLength=256), maxItems=20),
            "clusterName": string(maxLength=256),
        },
    )
