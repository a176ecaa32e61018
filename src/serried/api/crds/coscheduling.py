"""Schema of the PodGroup of scheduling.x-k8s.io, as users of the Coscheduling plugin know it."""

from __future__ import annotations

from serried.api.crds.schema import Schema, integer, mapping, quantity, string, struct, time


def pod_group() -> Schema:
    spec = struct(
        "",
        {
            "minMember": integer("The fewest pods that are bound together.", minimum=1),
            "minResources": mapping("The fewest resources that must be free for the group.", quantity()),
            "scheduleTimeoutSeconds": integer("How long pods of the group wait for each other."),
        },
    )
    status = struct(
        "",
        {
            "phase": string("Pending, Scheduling, Running, Unknown, Finished or Failed."),
            "occupiedBy": string("The owner of the pods."),
            "running": integer(),
            "succeeded": integer(),
            "failed": integer(),
            "scheduleStartTime": time(),
        },
    )
    return struct("Pods that are bound together or not at all.", {"spec": spec, "status": status})
