"""`serried crds`: print the custom resource definitions, or install them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from serried.api.crds import crds, to_yaml
from serried.cli.common import Failure, Output
from serried.cli.connect import complete, connect
from serried.control.crd_install import Installation, apply


def print_crds(output: Output) -> None:
    """All definitions: as YAML documents, or as one JSON List for `kubectl apply -f -`."""
    if output is Output.json:
        typer.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": crds()}))
    else:
        typer.echo("---\n" + "---\n".join(to_yaml(d) for d in crds()), nl=False)


def apply_crds(kubeconfig: Path | None, context: str | None, output: Output) -> None:
    """Installs the definitions and says what became of each. Raises `Failure`."""

    async def work() -> list[Installation]:
        async with connect(kubeconfig, context) as cluster:
            return await apply(cluster)

    try:
        outcomes = complete(work)
    except TimeoutError as error:
        raise Failure(f"custom resource definitions {error}") from error
    if output is Output.json:
        typer.echo(msgspec.json.encode(outcomes))
        return
    for outcome in outcomes:
        detail = f" ({outcome.detail})" if outcome.detail else ""
        typer.echo(f"{outcome.name} {outcome.action}{detail}")
