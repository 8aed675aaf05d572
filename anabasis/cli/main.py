"""Entry point of `anabasis` (`python -m anabasis.cli.main`): loads the commands, runs one, and ends the process.

A command module imports `app` from `anabasis.cli.app`, decorates its functions, and is imported here. Commands
raise `AnabasisError` for what they cannot do and `typer.Exit(code)` (codes in `exits.py`) for what they found; they
print answers to stdout and nothing else there.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import NoReturn

from anabasis.cli import demo, doctor, exits, models, operate, report, spec, stack, start, status, watch
from anabasis.cli.app import app
from anabasis.errors import AnabasisError, InvalidSpec
from anabasis.logs import redact_text

DEBUG_VARIABLE = "ANABASIS_DEBUG"

COMMAND_MODULES = (demo, stack, doctor, spec, start, status, watch, operate, models, report)
"""Importing them has put their commands on `app`; `--help` shows them in this order."""

_PLACES = {module.__name__: place for place, module in enumerate(COMMAND_MODULES)}
app.registered_commands.sort(key=lambda command: _PLACES[command.callback.__module__] if command.callback else 0)

__all__ = ["COMMAND_MODULES", "app", "main", "run"]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and leave the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ still shows the rest
    code = run(arguments)
    if "temporalio" not in sys.modules:
        sys.exit(code)
    from workers.connect import exit_cleanly

    exit_cleanly(code)


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: the one place where errors become lines on stderr."""
    try:
        app(arguments, prog_name="anabasis")
    except SystemExit as ended:  # what Typer ends every command with
        return _exit_code(ended.code)
    except AnabasisError as error:
        problems = (
            [f"{path}: {text}" for path, text in error.problems] if isinstance(error, InvalidSpec) else [str(error)]
        )
        for line in problems:
            _complain(line)
        return exits.code_for(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:  # the reader of our output (`| head`) has seen enough
        _drop_stdout()
        return exits.OK
    except Exception as error:  # a defect of ours: one line for the user, everything for whoever mends it
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        _complain(f"unexpected {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 for the traceback)")
        return exits.FAILED
    return exits.OK


def _exit_code(code: object) -> int:
    if code is None:
        return exits.OK
    return code if isinstance(code, int) else exits.FAILED


def _complain(text: str) -> None:
    line = " ".join(redact_text(text).split())
    print(f"anabasis: {line}", file=sys.stderr)


def _drop_stdout() -> None:
    # So that flushing at the end does not fail on the closed pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
