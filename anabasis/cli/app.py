"""The Typer application that command modules register themselves on, and the options that every command has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from anabasis import __version__, logs
from anabasis.cli import exits

app = typer.Typer(
    name="anabasis",
    help="Training campaigns that survive machines that come and go.",
    epilog=exits.IN_WORDS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # the error boundary in main.py says everything in one line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show informational log lines too.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="State directory (default: ANABASIS_HOME, else ./.anabasis).")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Training campaigns that survive machines that come and go."""
    del version
    if home is not None:
        # The environment is how it reaches everything, child processes too.
        os.environ["ANABASIS_HOME"] = str(home.expanduser().absolute())
    # A command's output is its answer: by default only warnings join it on the terminal.
    logs.configure(level="INFO" if verbose else os.environ.get(logs.LEVEL_VARIABLE, "WARNING"))
