"""The command line: `serried demo`, `run`, `queue`, `explain`, `topology`, `crds`.

Here: options, terminal output (typer, rich) and the wiring of one command.
Not here: anything another program might want to call. A command asks the rooms below and prints the answer.
"""
