"""What all commands share: their options, their output, and how they fail."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file; otherwise $KUBECONFIG, ~/.kube/config or, in a pod, its own."),
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context within the kubeconfig.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Configuration file (YAML) of `serried run`, where it has one.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for scripts.")]


class Failure(Exception):
    """A command cannot go on; the text says what was wrong, where, and what to do."""
