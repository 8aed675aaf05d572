"""`anabasis doctor`: what this machine has and lacks."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anabasis.cli import exits
from anabasis.cli.app import app

_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "missing": "[red]missing[/]"}


@app.command(rich_help_panel="This machine")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array of findings.")] = False,
) -> None:
    """Check Python, packages, ports, disk, devices, the store and Temporal. Exit code 1 when something is missing."""
    from workers.doctor import examine

    checks = examine()
    if as_json:
        print(json.dumps([check.as_json() for check in checks], indent=2))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column()
        table.add_column()
        table.add_column(overflow="fold")
        for check in checks:
            finding = check.detail + (f"\n→ {check.mend}" if check.mend else "")
            table.add_row(_MARKS[check.status], check.name, escape(finding))
        Console().print(table)
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(exits.FAILED)
