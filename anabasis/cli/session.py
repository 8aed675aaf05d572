"""How a command talks to Temporal and to the terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from rich.console import Console

if TYPE_CHECKING:
    from anabasis.client import Anabasis

T = TypeVar("T")

PIPE_COLUMNS = 200
"""Width of what goes to a file or another program: nothing should be cut off there."""


def ask(work: Callable[[Anabasis], Awaitable[T]]) -> T:
    """Connect, do one thing, and return its answer. Raises what `workers.connect` and `anabasis.client` raise."""
    from anabasis.client import Anabasis

    # The command itself says in one line what the core says in one line per attempt.
    if logging.getLogger().level > logging.INFO:
        logging.getLogger("temporal.core").setLevel(logging.CRITICAL)

    async def connected() -> T:
        return await work(await Anabasis.connect())

    return asyncio.run(connected())


def console(*, stderr: bool = False) -> Console:
    """Rich's console: the terminal's width, or a width that cuts nothing off where there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_COLUMNS
    return Console(file=stream, width=width, highlight=False)


def print_json(answer: BaseModel | Sequence[BaseModel]) -> None:
    """One JSON object or array on stdout, field names as in the models."""
    if isinstance(answer, BaseModel):
        print(answer.model_dump_json(indent=2), flush=True)
        return
    body = ",\n".join(one.model_dump_json(indent=2) for one in answer)
    print(f"[{body}]" if body else "[]", flush=True)


def ui_link(name: str) -> str | None:
    """The campaign's page in the Web UI, when this machine's stack has one and is the one that commands use."""
    from urllib.parse import quote

    from workers.connect import target
    from workers.state_dir import StateDir

    record = StateDir().read()
    if record is None or not record.ui_url or record.address != target():
        return None
    return f"{record.ui_url}/namespaces/{record.namespace}/workflows/{quote(f'campaign/{name}', safe='')}"
