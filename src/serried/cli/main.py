"""The command `serried`. Each subcommand lives in a module of its own and is imported when it is called."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import serried

app = typer.Typer(
    name="serried",
    help="Gang scheduling and topology-aware placement for AI training on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file; otherwise $KUBECONFIG, ~/.kube/config or, in a pod, its own."),
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context within the kubeconfig.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for scripts.")]


class Failure(Exception):
    """A command cannot go on; the text says what was wrong, where, and what to do."""


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        typer.echo(f"serried {serried.__version__}")
        raise typer.Exit


@app.command()
def run(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file (YAML).")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the controller."""
    from serried.cli.run import run_controller

    run_controller(kubeconfig, context, config, verbose=verbose)


@app.command()
def crds(
    apply: Annotated[
        bool, typer.Option("--apply", help="Install them; existing newer definitions, and those of others, are kept.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print the custom resource definitions, or install them with --apply."""
    from serried.cli.crds import apply_crds, print_crds

    if apply:
        apply_crds(kubeconfig, context, output)
    else:
        print_crds(output)


def main() -> None:
    """Entry point: errors that a person can do something about are one line on stderr, without a traceback."""
    try:
        app()
    except Failure as error:
        typer.echo(f"serried: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
