"""Arguments and options that several commands share, and the completion of campaign names in the shell."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

COMPLETION_SECONDS = 1.0
"""A shell that waits for longer than this on a Tab feels broken."""


def complete_names(incomplete: str) -> list[str]:
    """Names of campaigns that Temporal lists quickly; none when it does not."""
    try:
        return asyncio.run(asyncio.wait_for(_names(incomplete), COMPLETION_SECONDS))
    except Exception:  # a shell's completion must never show an error, whatever it is
        return []


async def _names(incomplete: str) -> list[str]:
    from anabasis.client import Anabasis

    summaries = await (await Anabasis.connect()).list(limit=200)
    return [summary.name for summary in summaries if summary.name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The campaign.", autocompletion=complete_names, show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")]
Store = Annotated[
    str | None,
    typer.Option("--store", help="Object store URL (default: ANABASIS_STORE, else the store of this machine's stack)."),
]
