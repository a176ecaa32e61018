"""The command `serried`. Each subcommand lives in a module of its own and is imported when it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import serried
from serried.cli.common import ConfigOption, ContextOption, Failure, KubeconfigOption, Output, OutputOption

app = typer.Typer(
    name="serried",
    help="Gang scheduling and topology-aware placement for AI training on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        typer.echo(f"serried {serried.__version__}")
        raise typer.Exit


@app.command()
def run(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the controller."""
    from serried.cli.run import run_controller

    run_controller(kubeconfig, context, config, verbose=verbose)


@app.command()
def demo(
    headless: Annotated[bool, typer.Option("--headless", help="No live view: only the summary at the end.")] = False,
    speed: Annotated[float, typer.Option("--speed", min=0.1, max=50, help="So many times faster.")] = 1.0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs of the day.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.1, help="Stop after so many seconds.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Watch a day of training jobs on a cluster of 64 nodes in memory; no Kubernetes needed."""
    from serried.cli.demo import run_demo

    run_demo(speed, jobs, seconds, output, headless=headless)


@app.command()
def queue(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Finished ones, too.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show who waits and who runs, in order, with reasons."""
    from serried.cli.snapshot import snapshot

    state = snapshot(kubeconfig, context, config)
    from serried.cli.look import show_queue

    show_queue(state, namespace, output, everything=everything)


@app.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="KIND/NAME", help="job, workload, pod, clusterqueue or localqueue.")],
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    output: OutputOption = Output.text,
) -> None:
    """Explain where a job stands: which layer it waits in, what is missing, what would free it."""
    from serried.cli.snapshot import snapshot

    state = snapshot(kubeconfig, context, config)
    from serried.cli.look import show_explanation

    show_explanation(state, target, namespace, output)


@app.command()
def topology(
    name: Annotated[str | None, typer.Argument(help="Only this Topology.")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show the domains of each topology with what is used and free in them."""
    from serried.cli.snapshot import snapshot

    state = snapshot(kubeconfig, context)
    from serried.cli.look import show_topology

    show_topology(state.engine.world, name, output)


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
