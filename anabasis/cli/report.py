"""`anabasis report` and `anabasis compare`: what a campaign did, for reading and for keeping."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anabasis.cli.app import app
from anabasis.cli.options import AsJson, Name, Store
from anabasis.cli.session import ask, console, print_json
from anabasis.errors import CampaignNotFound, StackError, TemporalUnavailable, UserError

if TYPE_CHECKING:
    from anabasis.campaign.status import CampaignStatus
    from anabasis.report import Report

PANEL = "Results"

Png = Annotated[Path | None, typer.Option("--png", help="Write the picture to this file.", show_default=False)]


@app.command(rich_help_panel=PANEL)
def report(
    name: Name,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page.", show_default=False)
    ] = None,
    png: Png = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Report on a campaign: curve, goodput ledger, incidents, contributors, audit.

    Reads the store, and Temporal's status where Temporal answers: a report needs neither workers nor Temporal.
    """
    from anabasis.report import render_html, render_png, render_terminal

    built = _build(name, store)
    if as_json:
        print_json(built)
    if html is not None:
        _write(html, render_html(built))
    if png is not None:
        render_png(built, png)
    for path in (html, png):
        if path is not None:
            print(f"written: {path}", file=sys.stderr if as_json else sys.stdout)
    if not (as_json or html or png):
        screen = console()
        print(render_terminal(built, width=screen.width, color=screen.color_system is not None), end="")


@app.command(rich_help_panel=PANEL)
def compare(  # noqa: PLR0917 (Typer passes them by keyword)
    a: Annotated[str, typer.Argument(help="One campaign, such as the undisturbed one.", show_default=False)],
    b: Annotated[str, typer.Argument(help="The other.", show_default=False)],
    over: Annotated[
        Literal["rounds", "tokens"], typer.Option("--over", help="What the curves are drawn over.")
    ] = "rounds",
    png: Png = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Compare two campaigns: both curves in one picture, the largest gap, and whether parameters are bit-identical."""
    from anabasis.report import compare_losses, render_comparison_png, render_comparison_terminal

    comparison = compare_losses(_build(a, store), _build(b, store), label_a=a, label_b=b, axis=over)
    if as_json:
        print_json(comparison)
    if png is not None:
        render_comparison_png(comparison, png)
        print(f"written: {png}", file=sys.stderr if as_json else sys.stdout)
    if not (as_json or png):
        screen = console()
        color = screen.color_system is not None
        print(render_comparison_terminal(comparison, width=screen.width, color=color), end="")


def _build(name: str, store: str | None) -> Report:
    from anabasis.cli.models import open_root
    from anabasis.report import build_report

    status = _status(name)
    url = store or (status.store_url if status is not None else None)
    return build_report(open_root(url or None), name, status=status)


def _status(name: str) -> CampaignStatus | None:
    try:
        return ask(lambda anabasis: anabasis.campaign(name).status())
    except CampaignNotFound:
        return None  # its history may be gone; what it left in the store is not
    except (TemporalUnavailable, StackError) as error:
        print(f"anabasis: without the status, from the store alone: {error}", file=sys.stderr)
        return None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
