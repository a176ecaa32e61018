"""Two clusters that are asked the same, the short manifests to ask about, and what of their answers is compared."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from serried.cluster.protocol import ApiError, Cluster

Json = dict[str, Any]
#: One request to a cluster.
Ask = Callable[[Cluster], Awaitable[Any]]

CONTAINER = {"name": "c", "image": "registry.example/none"}
#: The last one: the note of the LimitRanger about what it has filled in, as a sentence.
_VARIES = {"uid", "resource_version", "namespace", "kubernetes.io/limit-ranger"}
_TIMES = {"creation_timestamp", "deletion_timestamp", "last_transition_time"}
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: A field named as a cause in the message of a 422.
_FIELD = re.compile(r"(?: is invalid: \[?|, )([\w./-]+(?:\[[^]]*\][\w.]*)*): ")


@dataclass(frozen=True)
class Refusal:
    """A refusal without its words. `fields` are those named by a 422, each once."""

    error: str
    status: int
    reason: str
    fields: tuple[str, ...] = ()


@dataclass
class Both:
    """The two clusters, each with a namespace of the same name."""

    real: Cluster
    embedded: Cluster
    namespace: str

    async def answers(self, ask: Ask) -> tuple[Any, Any]:
        """The answers of both to one request: an object, without what differs anyway, or a `Refusal`."""
        return await _answer(self.real, ask), await _answer(self.embedded, ask)


async def _answer(cluster: Cluster, ask: Ask) -> Any:
    try:
        return plain(await ask(cluster))
    except ApiError as error:
        # Differences of Go structs follow the first line.
        found = _FIELD.findall(error.message.partition("\n")[0]) if error.status == 422 else ()
        return Refusal(type(error).__name__, error.status, error.reason, tuple(sorted(set(found))))


def plain(answer: Any) -> Any:
    """An object as JSON, without what differs from cluster to cluster."""
    if isinstance(answer, msgspec.Struct):
        # Not `to_builtins`: it leaves out defaults, but not all strings that equal one.
        answer = msgspec.structs.asdict(answer)
    if isinstance(answer, dict):
        return {
            name: value is not None if name in _TIMES else plain(value)
            for name, value in answer.items()
            if name not in _VARIES
        }
    if isinstance(answer, list):
        return [plain(each) for each in answer]
    return _UID.sub("UID", answer) if isinstance(answer, str) else answer


def named(name: str = "x", **content: Any) -> Json:
    return {"metadata": {"name": name}, **content}


def pod(name: str = "x", **spec: Any) -> Json:
    return named(name, spec={"schedulerName": "nobody", "containers": [CONTAINER], **spec})


def asking(**resources: Any) -> list[Json]:
    """The containers of a pod that asks for these."""
    return [{**CONTAINER, "resources": resources}]
