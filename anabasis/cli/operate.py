"""Commands that steer a campaign; each is one update of its workflow, answered by it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from anabasis.cli.app import app
from anabasis.cli.options import AsJson, Name
from anabasis.cli.session import ask, print_json
from anabasis.cli.wait import wait_for_cancellation
from anabasis.report import words

if TYPE_CHECKING:
    from anabasis.campaign.messages import Receipt
    from anabasis.client import Anabasis, CampaignHandle

PANEL = "Steering"

Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the status and kept in the history.")]


@app.command(rich_help_panel=PANEL)
def pause(
    name: Name,
    reason: Reason = "",
    release_nodes: Annotated[
        bool, typer.Option("--release-nodes", help="Give the nodes back meanwhile, so that nothing is paid.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Finish the round in flight, write a checkpoint, and hold."""
    _order(name, lambda campaign: campaign.pause(reason=reason, release_nodes=release_nodes), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def resume(name: Name, as_json: AsJson = False) -> None:
    """Go on after a pause."""
    _order(name, lambda campaign: campaign.resume(), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def scale(
    name: Name,
    slots: Annotated[int, typer.Argument(min=1, max=2_000, help="How many nodes to want.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Want more or fewer nodes. Surplus ones leave after their round."""
    _order(name, lambda campaign: campaign.scale(slots), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def drain(
    name: Name,
    slot: Annotated[int, typer.Argument(min=0, help="Whose node to let go.", show_default=False)],
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Let one node finish its round and leave; its slot is filled again."""
    _order(name, lambda campaign: campaign.drain(slot, reason=reason), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def extend(
    name: Name,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="New target: merged rounds in all.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="New target: training tokens in all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set a later target."""
    if rounds is None and tokens is None:
        raise typer.BadParameter("give --rounds, --tokens, or both")
    _order(name, lambda campaign: campaign.extend(rounds=rounds, tokens=tokens), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def budget(
    name: Name,
    max_cost: Annotated[
        str, typer.Option("--max-cost", metavar="COST|none", help="In the currency of the prices.", show_default=False)
    ],
    max_node_hours: Annotated[
        str, typer.Option("--max-node-hours", metavar="HOURS|none", help="Paid node-hours.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Replace both limits of what may be spent; at a limit the campaign writes a checkpoint, releases and stops.

    Both must be given, so that no limit is lifted by leaving it out: say none for no limit.
    """
    cost, hours = _limit(max_cost, "--max-cost"), _limit(max_node_hours, "--max-node-hours")
    _order(name, lambda campaign: campaign.set_budget(max_cost=cost, max_node_hours=hours), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def checkpoint(name: Name, as_json: AsJson = False) -> None:
    """Write a checkpoint after the round in flight."""
    _order(name, lambda campaign: campaign.checkpoint_now(), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def approve(name: Name, as_json: AsJson = False) -> None:
    """Let a campaign with control.approve_publish publish its model."""
    _order(name, lambda campaign: campaign.approve(), as_json=as_json)


@app.command(rich_help_panel=PANEL)
def cancel(
    name: Name,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every node is released.")] = False,
) -> None:
    """End a campaign in order: nodes are released, the last checkpoint stays. It can be started again later."""
    if ask(lambda anabasis: _cancel(anabasis, name, reason=reason)) == 0:
        print("No worker serves campaigns now; it ends when one does: anabasis up", file=sys.stderr, flush=True)
    if wait:
        wait_for_cancellation(name)
    else:
        print(f"Campaign {name} is ending; see: anabasis status {name}")


async def _cancel(anabasis: Anabasis, name: str, *, reason: str) -> int:
    await anabasis.campaign(name).cancel(reason=reason)
    return await anabasis.workers_seen()


def _order(name: str, order: Callable[[CampaignHandle], Awaitable[Receipt]], *, as_json: bool) -> None:
    receipt = ask(lambda anabasis: order(anabasis.campaign(name)))
    if as_json:
        print_json(receipt)
    else:
        print(f"{name}: {words.plain(receipt.text)} (phase: {receipt.phase})")


def _limit(text: str, option: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{option} must be a number above 0, or none, not {text!r}")
    return value
