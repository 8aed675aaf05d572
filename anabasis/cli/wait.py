"""Waiting for the end of a campaign: `start --wait` and `cancel --wait`."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from anabasis.campaign.status import CampaignResult
from anabasis.cli import exits
from anabasis.cli.session import ask, print_json
from anabasis.errors import CampaignFailed
from anabasis.report import words


def wait_for_end(name: str, *, run_id: str | None = None, as_json: bool = False) -> None:
    """Wait, and print the result. Raises `CampaignFailed`, or `typer.Exit` for Ctrl-C."""
    try:
        result = ask(lambda anabasis: anabasis.campaign(name, run_id=run_id).result())
    except KeyboardInterrupt:
        leave(f"Campaign {name} goes on. Stop it with: anabasis cancel {name}")
    if as_json:
        print_json(result)
    else:
        print(in_words(result))


def wait_for_cancellation(name: str) -> None:
    """Wait until a campaign that was told to stop has ended, and say how. Raises `CampaignFailed` if it failed."""
    try:
        result = ask(lambda anabasis: anabasis.campaign(name).result())
    except KeyboardInterrupt:
        leave(f"Campaign {name} goes on ending. See: anabasis status {name}")
    except CampaignFailed as error:
        if error.failure != "Cancelled":
            raise
        print(f"Campaign {name} has ended; its nodes are released.")
    else:  # it reached its target first
        print(in_words(result))


def leave(text: str) -> NoReturn:
    """What Ctrl-C means for someone who only waits or watches: nothing else stops. Raises `typer.Exit`."""
    print(f"\n{text}", file=sys.stderr)
    raise typer.Exit(exits.INTERRUPTED) from None


def in_words(result: CampaignResult) -> str:
    """A result as one sentence."""
    model = f", published as {result.model} {result.model_number}" if result.model else ""
    return (
        f"Campaign {result.name} has completed at version {result.version}{model}: "
        f"loss {words.loss(result.loss)}, {words.count(result.tokens_total)} tokens, "
        f"{words.duration(result.paid_node_seconds)} of nodes paid, {words.plural(result.incidents_total, 'incident')}."
    )
