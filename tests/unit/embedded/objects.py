"""Manifests, and what the tests wait for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from serried.api.meta import Object
from serried.api.resources import PODS, Resource
from serried.embedded.server import EmbeddedCluster

Json = dict[str, Any]


class RawObject(Object):
    """An object with all that the server holds of it."""

    spec: Json = {}
    status: Json = {}


RAW_PODS = Resource("", "v1", "Pod", "pods", RawObject)

CONTAINER = {"name": "c", "image": "registry.example/none"}


def named(name: str, **metadata: Any) -> Json:
    return {"metadata": {"name": name, **metadata}}


def pod(name: str = "p", *, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": "nobody", "containers": [CONTAINER], **spec},
    }


def job(name: str = "j", *, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    template = {
        "metadata": {"annotations": annotations or {}, "labels": {"app": "train"}},
        "spec": {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [CONTAINER]},
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Waits until the condition holds, with the time of the loop."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


async def set_phase(cluster: EmbeddedCluster, name: str, phase: str, namespace: str = "default") -> None:
    """What a kubelet says of a pod."""
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    patch = {"status": {"phase": phase, "conditions": [ready]}}
    await cluster.patch(PODS, name, namespace, patch=patch, subresource="status")
