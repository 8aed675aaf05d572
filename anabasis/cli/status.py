"""`anabasis list` and `anabasis status`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from anabasis.campaign.status import CampaignStatus, Phase
from anabasis.cli.app import app
from anabasis.cli.curves import Curve
from anabasis.cli.options import AsJson, Name
from anabasis.cli.pace import Pace, Samples
from anabasis.cli.render import PHASE_STYLES, QUIET, TABLE_BOX, Picture, draw, rounds_done
from anabasis.cli.session import ask, console, print_json
from anabasis.report import words

if TYPE_CHECKING:
    from anabasis.client import Anabasis, CampaignSummary


@app.command("list", rich_help_panel="Campaigns")
def list_campaigns(
    running: Annotated[bool, typer.Option("--running", help="Only campaigns that have not ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List campaigns, newest first. Needs Temporal, but no worker."""
    summaries = ask(lambda anabasis: anabasis.list(running_only=running))
    if as_json:
        print_json(summaries)
    elif not summaries:
        print("There are no campaigns. Start one: anabasis start --name demo")
    else:
        console().print(_listing(summaries))


def _listing(summaries: list[CampaignSummary]) -> Table:
    table = Table(box=TABLE_BOX, pad_edge=False, header_style=QUIET)
    table.add_column("name", no_wrap=True)
    for title in ("phase", "round", "loss", "tokens", "nodes", "cost", "started"):
        table.add_column(title, no_wrap=True, justify="left" if title in ("phase", "started") else "right")
    for one in summaries:
        phase = one.phase if one.state != "terminated" else "terminated"
        running = one.state == "running"
        table.add_row(
            words.plain(one.name),
            Text(phase, style=_phase_style(one.phase)),
            words.UNKNOWN if one.round is None else f"{one.round:,}",
            words.loss(one.loss),
            words.count(one.tokens),
            words.count(one.ready_nodes) if running else "",
            words.money(one.cost) if one.cost else "",
            datetime.fromtimestamp(one.started_at).astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    return table


def _phase_style(phase: str) -> str:
    return PHASE_STYLES.get(Phase(phase), "cyan") if phase in list(Phase) else ""


@app.command(rich_help_panel="Campaigns")
def status(name: Name, as_json: AsJson = False) -> None:
    """Show everything about one campaign: progress, loss, nodes, incidents, costs."""
    if as_json:
        print_json(ask(lambda anabasis: anabasis.campaign(name).status()))
        return
    picture = ask(lambda anabasis: _look(anabasis, name))
    screen = console()
    screen.print(draw(picture, width=screen.width))


async def _look(anabasis: Anabasis, name: str) -> Picture:
    campaign = await anabasis.campaign(name).status()
    curve = Curve(campaign.store_url, name)
    if campaign.store_url:
        await curve.refresh()
    return Picture(campaign, time.time(), _pace(campaign, curve), curve.points)


def _pace(campaign: CampaignStatus, curve: Curve) -> Pace:
    samples = Samples()
    samples.add_all((point.at, point.rounds, point.tokens) for point in curve.points if point.at)
    pace = samples.pace()
    if pace.seconds_per_round is not None or campaign.phase.terminal:
        return pace
    # Without the store: the mean since the start.
    seconds, done = time.time() - campaign.started_at, rounds_done(campaign)
    if seconds <= 0 or done == 0 or campaign.started_at <= 0:
        return pace
    return Pace(tokens_per_second=campaign.tokens_total / seconds, seconds_per_round=seconds / done)
