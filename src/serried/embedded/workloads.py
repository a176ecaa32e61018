"""The rules of the kinds that run something: Pod and Job (batch/v1)."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

import msgspec

from serried.api.core import LimitRange, PodSpec, RuntimeClass
from serried.api.names import JOB_NAME
from serried.api.resources import LIMIT_RANGES, PRIORITY_CLASSES, RUNTIME_CLASSES
from serried.cluster.protocol import Forbidden
from serried.embedded import validation
from serried.embedded.kinds import NOT_READY, Context, Kind
from serried.embedded.patch import same
from serried.embedded.problems import Problems
from serried.embedded.store import Json
from serried.jobs.adjust import limit_range_problems, runtime_class_problems, with_defaults, with_runtime_class

UNREACHABLE = "node.kubernetes.io/unreachable"
#: Seconds a pod stays on a node that has failed, unless it says otherwise.
FAILED_NODE_SECONDS = 300

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
#: The names of the labels before they had a prefix; the real server still sets them.
_OLD_CONTROLLER_UID = "controller-uid"
_OLD_JOB_NAME = "job-name"

_BUILT_IN_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def _fill_pod_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    for name in ("containers", "initContainers"):
        for container in spec.get(name) or ():
            container.setdefault("resources", {})


class PodRules(Kind):
    has_status = True
    has_generation = True
    fields = Kind.fields | {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    }

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        if "spec" in sections or "spec" not in obj:
            spec = obj.setdefault("spec", {})
            _fill_pod_spec(spec)
            validation.default_requests(spec)

    def admit(self, obj: Json, context: Context) -> None:
        spec = obj["spec"]
        spec["priority"], spec["preemptionPolicy"] = _priority(obj, context)
        tolerations = spec.setdefault("tolerations", [])
        for key in (NOT_READY, UNREACHABLE):
            if not any(_covers_no_execute(each, key) for each in tolerations):
                tolerations.append(
                    {
                        "key": key,
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": FAILED_NODE_SECONDS,
                    }
                )
        _adjust(obj, context)
        obj["status"] = {"phase": "Pending", "qosClass": _quality(spec)}
        if spec.get("schedulingGates"):
            obj["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastTransitionTime": context.timestamp,
                }
            ]

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        spec = new["spec"]
        validation.check_pod_spec(spec, "spec", problems)
        if old is not None:
            self._check_change(new, old, problems)
        elif spec.get("schedulingGates") and spec.get("nodeName"):
            problems.forbidden("spec.nodeName")

    def _check_change(self, new: Json, old: Json, problems: Problems) -> None:
        before, after = old["spec"], new["spec"]
        had = [gate["name"] for gate in before.get("schedulingGates") or ()]
        for index, gate in enumerate(after.get("schedulingGates") or ()):
            if gate["name"] not in had:
                problems.forbidden(f"spec.schedulingGates[{index}].name")
        free = {"tolerations", "schedulingGates", "activeDeadlineSeconds"}
        if had:
            free |= {"nodeSelector", "affinity"}
            selector = after.get("nodeSelector") or {}
            if any(selector.get(key) != value for key, value in (before.get("nodeSelector") or {}).items()):
                problems.invalid("spec.nodeSelector", selector)
        kept = after.get("tolerations") or []
        if any(not any(same(each, other) for other in kept) for each in before.get("tolerations") or ()):
            problems.forbidden("spec.tolerations")
        if not same(_fixed(after, free), _fixed(before, free)):
            problems.forbidden("spec")

    def check_status(self, new: Json, old: Json, problems: Problems) -> None:
        phase = (new.get("status") or {}).get("phase", "")
        if phase not in ("Pending", "Running", "Succeeded", "Failed", "Unknown", ""):
            problems.invalid("status.phase", phase)


def _fixed(spec: Json, free: set[str]) -> Json:
    """The part of a pod's spec that stays as it is."""
    fixed = {name: value for name, value in spec.items() if name not in free}
    for name in ("containers", "initContainers"):
        if name in fixed:
            fixed[name] = [{key: value for key, value in each.items() if key != "image"} for each in fixed[name]]
    return fixed


def _covers_no_execute(toleration: Json, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _adjust(pod: Json, context: Context) -> None:
    """Defaults and bounds of the namespace's LimitRanges, and what the RuntimeClass adds."""
    metadata, spec = pod["metadata"], pod["spec"]
    in_force = [
        msgspec.convert(each.data, LimitRange)
        for each in context.all(LIMIT_RANGES)
        if each.key[0] == metadata["namespace"]
    ]
    if in_force:
        typed = with_defaults(msgspec.convert(spec, PodSpec), in_force)
        for name, containers in (("containers", typed.containers), ("initContainers", typed.init_containers)):
            for container, filled in zip(spec.get(name) or (), containers, strict=True):
                container["resources"] = {**container["resources"], **msgspec.to_builtins(filled.resources)}
        if problem := next(limit_range_problems(typed, in_force, "pod"), None):
            raise _refused(pod, str(problem))
    if class_name := spec.get("runtimeClassName"):
        found_class = context.find(RUNTIME_CLASSES, class_name)
        if found_class is None:
            raise _refused(pod, f"there is no RuntimeClass {class_name}")
        runtime_class = msgspec.convert(found_class.data, RuntimeClass)
        typed = msgspec.convert(spec, PodSpec)
        if problem := next(runtime_class_problems(typed, runtime_class, "pod"), None):
            raise _refused(pod, str(problem))
        typed = with_runtime_class(typed, runtime_class)
        for name, added in (("overhead", typed.overhead), ("nodeSelector", typed.node_selector)):
            if added:
                spec[name] = dict(added)
        spec["tolerations"] += msgspec.to_builtins(typed.tolerations[len(spec["tolerations"]) :])
    elif spec.get("overhead"):
        raise _refused(pod, "overhead without a RuntimeClass")


def _refused(pod: Json, why: str) -> Forbidden:
    return Forbidden(403, "Forbidden", f'pods "{pod["metadata"]["name"]}" is forbidden: {why}')


def _priority(pod: Json, context: Context) -> tuple[int, str]:
    """What the priority class of a pod says, or the default one: priority and preemption policy."""
    spec = pod["spec"]
    name = spec.get("priorityClassName") or ""
    policy = spec.get("preemptionPolicy") or ""
    if not name:
        defaults = [each for each in context.all(PRIORITY_CLASSES) if each.data.get("globalDefault")]
        if not defaults:
            return 0, policy or "PreemptLowerPriority"
        name = spec["priorityClassName"] = defaults[0].key[1]
    if name in _BUILT_IN_PRIORITIES:
        return _BUILT_IN_PRIORITIES[name], policy or "PreemptLowerPriority"
    found = context.find(PRIORITY_CLASSES, name)
    if found is None:
        raise _refused(pod, f"there is no PriorityClass {name}")
    return found.data["value"], policy or found.data["preemptionPolicy"]


def _quality(spec: Json) -> str:
    """The quality of service class, from cpu and memory of all containers."""
    guaranteed = True
    anything = False
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        found = container.get("resources") or {}
        requests, limits = found.get("requests") or {}, found.get("limits") or {}
        for name in ("cpu", "memory"):
            anything = anything or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name) == limits[name]
    return "Guaranteed" if guaranteed else "Burstable" if anything else "BestEffort"


_MANAGED_BY = re.compile(r"[^/]+/[A-Za-z0-9\-._~%!$&'()*+,;=:/]+").fullmatch

#: What may change in the template of a suspended Job that has not started: where its pods may run, and what they need.
_SCHEDULING_FIELDS = frozenset({"nodeSelector", "tolerations", "affinity", "schedulingGates"})


class JobRules(Kind):
    has_status = True
    has_generation = True
    fields = Kind.fields | {"status.successful"}

    def fill(self, obj: Json, sections: Set[str], problems: Problems) -> None:
        if "spec" in obj and "spec" not in sections:
            return
        spec = obj.setdefault("spec", {})
        if spec.get("parallelism") is None and spec.get("completions") is None:
            spec["completions"] = 1
        if spec.get("parallelism") is None:
            spec["parallelism"] = 1
        if spec.get("completions") is None:
            spec.pop("completions", None)
        for name, value in (
            ("backoffLimit", 6),
            ("completionMode", "NonIndexed"),
            ("suspend", False),
            ("manualSelector", False),
            ("podReplacementPolicy", "TerminatingOrFailed"),
        ):
            if spec.get(name) is None:
                spec[name] = value
        template = spec.setdefault("template", {})
        _fill_pod_spec(template.setdefault("spec", {}))

    def admit(self, obj: Json, context: Context) -> None:
        metadata, spec = obj["metadata"], obj["spec"]
        obj["status"] = {}
        if spec["manualSelector"]:
            return
        uid, name = metadata["uid"], metadata["name"]
        labels = {
            CONTROLLER_UID: uid,
            JOB_NAME: name,
            _OLD_CONTROLLER_UID: uid,
            _OLD_JOB_NAME: name,
        }
        template = spec["template"].setdefault("metadata", {})
        template["labels"] = {**(template.get("labels") or {}), **labels}
        # A Job without labels of its own gets those of its template.
        if not metadata.get("labels"):
            metadata["labels"] = dict(template["labels"])
        selector = spec.get("selector") or {}
        spec["selector"] = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), CONTROLLER_UID: uid}}

    def check(self, new: Json, old: Json | None, problems: Problems) -> None:
        metadata, spec = new["metadata"], new["spec"]
        for name in ("parallelism", "completions", "backoffLimit"):
            value = spec.get(name)
            if value is not None and value < 0:
                problems.invalid(f"spec.{name}", value)
        if spec["completionMode"] not in ("NonIndexed", "Indexed"):
            problems.invalid("spec.completionMode", spec["completionMode"])
        elif spec["completionMode"] == "Indexed":
            if spec.get("completions") is None:
                problems.required("spec.completions")
            elif not validation.is_dns_label(f"{metadata['name']}-{max(0, spec['completions'] - 1)}"):
                problems.invalid("metadata.name", metadata["name"])  # the names of its last pods would be too long
        managed_by = spec.get("managedBy")
        if managed_by is not None and not _MANAGED_BY(managed_by):
            problems.invalid("spec.managedBy", managed_by)
        template = spec["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        selected = (spec.get("selector") or {}).get("matchLabels") or {}
        if any(labels.get(key) != value for key, value in selected.items()):
            problems.invalid("spec.template.metadata.labels", labels)
        if not spec["manualSelector"] and selected != {CONTROLLER_UID: metadata["uid"]}:
            problems.invalid("spec.selector", spec["selector"])
        validation.check_labels(labels, "spec.template.labels", problems)
        validation.check_annotations(
            (template.get("metadata") or {}).get("annotations") or {}, "spec.template.annotations", problems
        )
        _check_template(template["spec"], problems)
        if old is not None:
            self._check_change(new, old, problems)

    def _check_change(self, new: Json, old: Json, problems: Problems) -> None:
        before, after = old["spec"], new["spec"]
        for name in ("selector", "completionMode", "managedBy", "podReplacementPolicy", "manualSelector"):
            if not same(before.get(name), after.get(name)):
                problems.invalid(f"spec.{name}", after.get(name))
        # An indexed Job may grow and shrink, its parallelism with it.
        resized = after["completionMode"] == "Indexed" and after.get("completions") == after.get("parallelism")
        if before.get("completions") != after.get("completions") and not resized:
            problems.invalid("spec.completions", after.get("completions"))
        old_template, template = before["template"], after["template"]
        if same(old_template, template):
            return
        if not (before["suspend"] and (old.get("status") or {}).get("startTime") is None):
            problems.invalid("spec.template", template)
        elif not same(_fixed_template(old_template["spec"]), _fixed_template(template["spec"])):
            problems.invalid("spec.template.spec", template["spec"])

    def check_status(self, new: Json, old: Json, problems: Problems) -> None:
        status = new.get("status") or {}
        for name in ("active", "ready", "succeeded", "failed", "terminating"):
            if (status.get(name) or 0) < 0:
                problems.invalid(f"status.{name}", status[name])
        ready = status.get("ready")
        if ready is not None and ready > (status.get("active") or 0):
            problems.invalid("status.ready", ready)
        true = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        if "Complete" in true and not status.get("completionTime"):
            problems.required("status.completionTime")
        for ending, first in (("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")):
            if ending in true and first not in true:
                problems.invalid("status.conditions", f"{ending} without {first}")
        if true & {"Complete", "Failed"} and not status.get("startTime"):
            problems.required("status.startTime")


def _check_template(spec: Json, problems: Problems) -> None:
    path = "spec.template.spec"
    if spec["restartPolicy"] == "Always":
        problems.required(f"{path}.restartPolicy")
    validation.check_pod_spec(spec, path, problems)


def _fixed_template(spec: Json) -> dict[str, Any]:
    """The part of a suspended Job's pod spec that stays as it is."""
    fixed: dict[str, Any] = {name: value for name, value in spec.items() if name not in _SCHEDULING_FIELDS}
    for name in ("containers", "initContainers"):
        if name in fixed:
            fixed[name] = [{key: value for key, value in each.items() if key != "resources"} for each in fixed[name]]
    return fixed
