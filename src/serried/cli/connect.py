"""How a command reaches the cluster it was asked about."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from serried.cli.common import Failure
from serried.cluster.credentials import ConfigError
from serried.cluster.http import HttpCluster
from serried.cluster.protocol import ApiError, Unavailable
from serried.control.config import Configuration, ConfigurationError, load

T = TypeVar("T")


@asynccontextmanager
async def connect(kubeconfig: Path | None, context: str | None, **options: int) -> AsyncIterator[HttpCluster]:
    """The cluster a kubeconfig names or, in a pod without one, the cluster around it. Raises `Failure`."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG")
    try:
        if kubeconfig is None and in_pod:
            cluster = await HttpCluster.in_cluster(**options)
        else:
            cluster = await HttpCluster.from_kubeconfig(kubeconfig, context, **options)
    except ConfigError as error:
        raise Failure(str(error)) from error
    async with cluster:
        yield cluster


def configuration(path: Path | None) -> Configuration:
    """What the configuration file says; without one, the defaults. Raises `Failure`."""
    try:
        return load(path) if path is not None else Configuration()
    except ConfigurationError as error:
        raise Failure(str(error)) from error


def complete(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a command's coroutine to its end; what the API server refuses becomes a `Failure`."""
    try:
        return uvloop.run(work())
    except Unavailable as error:
        raise Failure(f"the API server cannot be reached: {error.message}; is it the one you meant?") from error
    except ApiError as error:
        raise Failure(f"the API server answered: {error}") from error
