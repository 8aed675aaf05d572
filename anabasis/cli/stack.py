"""`anabasis up`, `down`, `logs`: the stack of this machine. (`doctor` is in doctor.py.)"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Annotated

import typer

from anabasis.cli.app import app

if TYPE_CHECKING:
    from workers.embedded import StackOptions
    from workers.log_files import Line
    from workers.state_dir import StackRecord

Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port of Temporal; 0 = any free one.")]
UiPort = Annotated[
    int | None, typer.Option("--ui-port", min=0, max=65_535, help="Port of Temporal's Web UI (default: port + 1000).")
]


@app.command(rich_help_panel="This machine")
def up(
    port: Port = 7233,
    ui_port: UiPort = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it running in the background.")] = False,
    external: Annotated[
        bool,
        typer.Option("--external", help="Workers only, for the Temporal that TEMPORAL_ADDRESS or the profile names."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where things are as one JSON object.")] = False,
) -> None:
    """Start Temporal and the workers on this machine, and keep them running."""
    from workers.embedded import StackOptions
    from workers.state_dir import StateDir

    options = StackOptions(port=port, ui_port=ui_port, external=external)
    if detach:
        from workers.detached import start_detached

        _show(start_detached(options, StateDir()), as_json=as_json)
        return
    asyncio.run(_in_foreground(options, as_json=as_json))


async def _in_foreground(options: StackOptions, *, as_json: bool) -> None:
    from workers.embedded import STOP_SECONDS, run_stack
    from workers.process import install_stop_signals
    from workers.state_dir import StateDir

    stop = asyncio.Event()
    install_stop_signals(stop, stop_seconds=STOP_SECONDS)
    await run_stack(options, StateDir(), stop, on_ready=lambda record: _show(record, as_json=as_json))
    print("Everything has stopped.", flush=True)


@app.command(rich_help_panel="This machine")
def down() -> None:
    """Stop the stack of this state directory: nodes, workers, then Temporal. Campaigns go on at the next `up`."""
    from workers.state_dir import StateDir
    from workers.teardown import down as stop_stack

    state = StateDir()
    print("Everything has stopped." if stop_stack(state) else f"Nothing was running in {state.home}.")


@app.command("logs", rich_help_panel="This machine")
def show_logs(
    process: Annotated[
        str | None, typer.Argument(help="temporal, control, aggregator, supervisor, or (the start of) a node's name.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines as they come.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Lines as they were written.")] = False,
) -> None:
    """Show what the processes of this machine have logged, in the order in which it happened."""
    from anabasis.errors import ObjectNotFound
    from workers.log_files import follow as follow_files
    from workers.log_files import sources, tail
    from workers.state_dir import StateDir

    state = StateDir()
    every = sources(state.home)
    chosen = {name: path for name, path in every.items() if process is None or name.startswith(process)}
    if not chosen:
        known = ", ".join(every) or "none yet"
        raise ObjectNotFound(f"no log of {process or 'any process'} in {state.home}; there are: {known}")
    found = [line for name, path in chosen.items() for line in tail(path, source=name, lines=lines)]
    found.sort(key=lambda line: line.at)
    new = follow_files(chosen) if follow else iter(())
    width = max(len(name) for name in chosen)
    for line in itertools.chain(found[-lines:] if lines else [], new):
        print(_rendered(line, width=width, as_json=as_json), flush=follow)


def _rendered(line: Line, *, width: int, as_json: bool) -> str:
    if as_json:
        return json.dumps({"source": line.source, **(line.fields or {"event": line.text})}, ensure_ascii=False)
    return f"{line.at[11:23]:<12} {line.source:<{width}} {line.message}"


def _show(record: StackRecord, *, as_json: bool) -> None:
    if as_json:
        print(record.model_dump_json(), flush=True)
        return
    rows = [
        ("Temporal", record.address),
        ("Web UI", record.ui_url),
        ("Store", record.store_url),
        ("Logs", f"{record.home}/logs"),
    ]
    print("Anabasis is up.")
    for name, value in rows:
        if value:
            print(f"  {name:<9} {value}")
    print("Stop it with `anabasis down`." if record.detached else "Stop it with Ctrl-C.", flush=True)
