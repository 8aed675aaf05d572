"""`anabasis start`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.cli.app import app
from anabasis.cli.options import AsJson
from anabasis.cli.session import ask, print_json, ui_link
from anabasis.cli.specfile import override, read_spec

if TYPE_CHECKING:
    from anabasis.client import Anabasis, CampaignSummary


@app.command(rich_help_panel="Campaigns")
def start(  # noqa: PLR0917 (Typer's commands are called by keyword)
    file: Annotated[
        str | None,
        typer.Argument(help="Campaign spec, YAML or JSON; - reads stdin. Without one, --name is enough."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The campaign's name, instead of the file's.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change one field, as in training.inner_steps=5. Repeatable."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Go on with a completed campaign from its last version (give a later target)."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only validate, and show the whole spec with defaults.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends; the exit code says how.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a campaign. Every problem of the spec is reported, by path, before anything happens.

    A name whose campaign failed or was cancelled can be started again: it goes on from its newest version.
    """
    spec = parse_spec(_raw(file, name=name, assignments=assignments or []))
    if check:
        _show_checked(spec, as_json=as_json)
        return
    summary, workers = ask(lambda anabasis: _start(anabasis, spec, again=again))
    if not (as_json and (wait or watch)):
        _announce(summary, as_json=as_json)
    if workers == 0:
        print("No worker serves campaigns yet; it begins when one does: anabasis up", file=sys.stderr)
    if watch:
        from anabasis.cli.watch import follow

        follow(spec.name, as_json=as_json)
    if wait:
        from anabasis.cli.wait import wait_for_end

        wait_for_end(spec.name, run_id=summary.run_id, as_json=as_json)


def _raw(file: str | None, *, name: str | None, assignments: list[str]) -> dict[str, Any]:
    raw: dict[str, Any] = read_spec(file) if file is not None else {}
    if name is not None:
        raw = {**raw, "name": name}
    return override(raw, assignments) if assignments else raw


async def _start(anabasis: Anabasis, spec: CampaignSpec, *, again: bool) -> tuple[CampaignSummary, int]:
    campaign = await anabasis.start(spec, again=again)
    return await campaign.summary(), await anabasis.workers_seen()


def _announce(summary: CampaignSummary, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    print(f"Campaign {summary.name} has started.")
    print(f"  watch it:   anabasis watch {summary.name}")
    link = ui_link(summary.name)
    if link:
        print(f"  in the UI:  {link}")
    sys.stdout.flush()


def _show_checked(spec: CampaignSpec, *, as_json: bool) -> None:
    if as_json:
        print_json(spec)
        return
    import yaml

    print(yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")
