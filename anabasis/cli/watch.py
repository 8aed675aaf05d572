"""`anabasis watch`: follow a campaign until it ends. Leaving it leaves the campaign running."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from anabasis.campaign.status import CampaignStatus, Phase
from anabasis.cli import exits
from anabasis.cli.app import app
from anabasis.cli.curves import Curve
from anabasis.cli.options import AsJson, Name
from anabasis.cli.pace import Samples
from anabasis.cli.render import Picture, draw, incident_line, one_line, rounds_done
from anabasis.cli.session import ask, console
from anabasis.cli.wait import leave
from anabasis.errors import TemporalUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anabasis.client import Anabasis

PATIENCE_SECONDS = 600.0
"""A Temporal or a worker that is away for longer than this is not just being restarted."""

CURVE_SECONDS = 2.0
"""Between looks into the store for new versions."""


@app.command(rich_help_panel="Campaigns")
def watch(
    name: Name,
    every: Annotated[float, typer.Option("--every", min=0.1, max=3_600, help="Seconds between looks.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow a campaign until it ends. Ctrl-C stops watching; the campaign goes on.

    On a terminal: one live picture. Elsewhere: a line per change, or with --json a status object per line.
    """
    follow(name, every=every, as_json=as_json)


def follow(name: str, *, every: float = 1.0, as_json: bool = False) -> None:
    """Watch until the end; raises `typer.Exit` with the exit code that says how it ended, or 130 for Ctrl-C."""
    view = _view(as_json=as_json)
    try:
        with view:
            last = ask(lambda anabasis: _follow(anabasis, name, view=view, every=every))
    except KeyboardInterrupt:
        leave(f"Campaign {name} goes on. Stop it with: anabasis cancel {name}")
    view.finish(last)
    raise typer.Exit(exits.OK if last.status.phase is Phase.COMPLETED else exits.CAMPAIGN_ENDED_BADLY)


async def _follow(anabasis: Anabasis, name: str, *, view: View, every: float) -> Picture:
    campaign = anabasis.campaign(name)
    status = await campaign.status()  # what is wrong from the beginning ends the command
    curve = Curve(status.store_url, name)
    samples = Samples()
    reader = asyncio.create_task(_read_curve(curve, samples))
    silent_since: float | None = None
    trouble = ""
    try:
        while True:
            if not curve.points:
                samples.add(time.time(), rounds=rounds_done(status), tokens=status.tokens_total)
            picture = Picture(status, time.time(), samples.pace(), list(curve.points), note=trouble)
            if status.phase.terminal:
                await curve.refresh()
                return Picture(status, time.time(), samples.pace(), list(curve.points))
            view.show(picture)
            await asyncio.sleep(every)
            try:
                status = await campaign.status()
                silent_since, trouble = None, ""
            except TemporalUnavailable as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE_SECONDS:
                    raise
                trouble = trouble or f"no answer since {datetime.now().astimezone():%H:%M:%S}: {error}"
    finally:
        reader.cancel()


async def _read_curve(curve: Curve, samples: Samples) -> None:
    while True:
        await curve.refresh()
        samples.add_all((point.at, point.rounds, point.tokens) for point in curve.points if point.at)
        await asyncio.sleep(CURVE_SECONDS)


class View(Protocol):
    """Where pictures go."""

    def __enter__(self) -> View: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, picture: Picture) -> None: ...
    def finish(self, picture: Picture) -> None: ...


def _view(*, as_json: bool) -> View:
    if as_json:
        return JsonView()
    return LiveView() if sys.stdout.isatty() else LinesView()


class LiveView:
    """The terminal's other screen, redrawn in place; the last picture stays on the ordinary one."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, picture: Picture) -> None:
        self._live.update(self._drawn(picture), refresh=True)

    def _drawn(self, picture: Picture) -> RenderableType:
        from dataclasses import replace

        note = picture.note or "Ctrl-C stops watching; the campaign goes on."
        width, height = self._console.size
        return draw(replace(picture, note=note), width=width, height=height)

    def finish(self, picture: Picture) -> None:
        self._console.print(draw(picture, width=self._console.width))


class LinesView:
    """One line per change, for logs and pipes."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._incidents = 0
        self._note = ""

    def __enter__(self) -> LinesView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, picture: Picture) -> None:
        if picture.note != self._note:
            self._note = picture.note
            self._print(picture.note or "Temporal answers again")
        for incident in picture.status.incidents:
            if incident.sequence > self._incidents:
                self._incidents = incident.sequence
                print(incident_line(incident), flush=True)
        if (now := changing(picture.status)) != self._last:
            self._last = now
            self._print(one_line(picture))

    def finish(self, picture: Picture) -> None:
        self.show(picture)
        if picture.status.failure:
            self._print(picture.status.failure)

    def _print(self, text: str) -> None:
        print(f"{datetime.now().astimezone():%H:%M:%S} {text}", flush=True)


class JsonView:
    """One status object per line, whenever something changed."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, picture: Picture) -> None:
        if (now := changing(picture.status)) != self._last:
            self._last = now
            print(picture.status.model_dump_json(), flush=True)

    def finish(self, picture: Picture) -> None:
        self.show(picture)


def changing(status: CampaignStatus) -> tuple[object, ...]:
    """What is worth a new line."""
    return (
        status.phase,
        status.version,
        status.ready_nodes,
        status.desired_slots,
        status.target_rounds,
        status.checkpoint_version,
        status.waiting_for,
        status.incidents_total,
        status.failure,
    )
