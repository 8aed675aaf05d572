"""`anabasis demo`: the main job in about three minutes, and what happens when things break."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabasis.cli.app import app
from anabasis.cli.session import console
from anabasis.errors import StackError

if TYPE_CHECKING:
    from anabasis.cli.havoc import Fault
    from anabasis.client import Anabasis
    from anabasis.report import Report

CAMPAIGN_SECONDS = 600.0
"""Far above what two slow cores need for one of the two campaigns; a demo that hangs must say so."""

NOISE = 0.1
"""Validation losses of runs of this size that differ in seed alone differ by up to 0.05; two of them by 0.1."""

SPEC: dict[str, Any] = {
    "recipe": "gpt",
    "recipe_options": {"layers": 2, "width": 64, "heads": 2},
    "data": {
        "url": "python-stdlib",
        "tokenizer": "bpe",
        "vocabulary_size": 1024,
        "max_bytes": 3_000_000,
        "partitions": 16,
        "validation_samples": 32,
    },
    "fleet": {"slots": 4},
    "training": {"inner_steps": 12, "batch_size": 8},
    "checkpoint": {"every_rounds": 5, "evaluate_every_rounds": 5},
    "health": {"heartbeat_seconds": 6},
    "control": {"progress_seconds": 2},
}

Output = Annotated[Path, typer.Option("--output", help="Where pictures, reports and the demo's state go.")]


@app.command()
def demo(
    output: Output = Path("demo-output"),
    rounds: Annotated[int, typer.Option("--rounds", min=11, help="Rounds of the undisturbed run.")] = 14,
) -> None:
    """Train a small GPT on real text with 4 nodes, twice: undisturbed, and while things are broken on purpose."""
    home = output.absolute() / "state"
    os.environ["ANABASIS_HOME"] = str(home)
    _stack("down", check=False)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    started = time.monotonic()
    _say("starting Temporal, the workers and a local object store (all on 127.0.0.1)")
    _stack("up", "--port", "0", "--detach")
    try:
        ok = asyncio.run(_demo(output.absolute(), home, rounds))
    finally:
        _stack("down", check=False)
    _say(f"took {time.monotonic() - started:.0f} s; reports and pictures are in {output}")
    raise typer.Exit(0 if ok else 1)


def _stack(*arguments: str, check: bool = True) -> None:
    command = [sys.executable, "-m", "anabasis.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if check and done.returncode != 0:
        raise StackError((done.stderr or done.stdout).strip() or f"anabasis {arguments[0]} failed")
    for line in done.stdout.splitlines() if check else []:
        if "Web UI" in line:
            _say(line.strip())


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


async def _demo(output: Path, home: Path, rounds: int) -> bool:
    from anabasis.client import Anabasis
    from anabasis.report import build_report, compare_losses, render_comparison_png, render_comparison_terminal
    from anabasis.storage import open_store

    client = await Anabasis.connect()
    _say("campaign calm: 4 nodes, undisturbed")
    calm = await _train(client, "calm", {**SPEC, "target": {"rounds": rounds}})
    _say("campaign stormy: the same tokens, while things are broken")
    faults: list[Fault] = []
    target = {"rounds": rounds * 2, "tokens": calm.tokens_total}
    stormy = await _train(client, "stormy", {**SPEC, "target": target}, havoc=(home, faults))
    store = open_store(calm.store_url)
    reports = [build_report(store, name, status=await client.campaign(name).status()) for name in ("calm", "stormy")]
    _write(output, reports)
    comparison = compare_losses(reports[0], reports[1], axis="tokens")
    render_comparison_png(comparison, output / "losses.png")
    screen = console()
    print(render_comparison_terminal(comparison, width=min(screen.width, 110), color=screen.color_system is not None))
    return _verdict(faults, reports, calm.validation_loss, stormy.validation_loss)


async def _train(client: Anabasis, name: str, spec: dict[str, Any], *, havoc: Any = None) -> Any:
    from anabasis.cli.havoc import Havoc

    campaign = await client.start({**spec, "name": name})
    breaking: asyncio.Task[None] | None = None
    watching = asyncio.create_task(_watch(campaign))
    try:
        if havoc is not None:
            home, faults = havoc
            status = await campaign.status()
            for _ in range(600):
                if status.store_url:
                    break
                await asyncio.sleep(0.3)
                status = await campaign.status()
            doer = Havoc(name, home=home, store_url=status.store_url, status=campaign.status, say=_say)
            doer.faults = faults
            breaking = asyncio.create_task(doer.run())
        result = await campaign.result(timeout_seconds=CAMPAIGN_SECONDS)
        final = await campaign.status()
        for fault in havoc[1] if havoc else []:
            fault.take(final.incidents)
    finally:
        for task in (breaking, watching):
            if task is not None:
                task.cancel()
    _say(f"{name}: version {result.version}, {result.tokens_total:,} tokens, validation {result.validation_loss:.3f}")
    return result


async def _watch(campaign: Any) -> None:
    from anabasis.errors import AnabasisError

    shown = -1
    while True:
        try:
            status = await campaign.status()
        except AnabasisError:  # the control worker is being killed: that is the demo
            await asyncio.sleep(0.5)
            continue
        if status.version > shown and status.loss is not None:
            shown = status.version
            _say(f"  {campaign.name}: version {shown}, loss {status.loss:.3f}, {status.ready_nodes} nodes ready")
        await asyncio.sleep(1.0)


def _write(output: Path, reports: list[Report]) -> None:
    from anabasis.report import render_html, render_png

    output.mkdir(parents=True, exist_ok=True)
    for report in reports:
        (output / f"{report.campaign}.html").write_text(render_html(report))
        render_png(report, output / f"{report.campaign}.png")


def _verdict(faults: list[Fault], reports: list[Report], calm: float | None, stormy: float | None) -> bool:
    from rich.table import Table

    table = Table("what was broken", "noticed after", "mended after", "decision", title="Broken on purpose")
    for fault in faults:
        table.add_row(fault.what, _after(fault, fault.noticed_at), _after(fault, fault.mended_at), fault.decision)
    screen = console()
    screen.print(table)
    screen.print(f"goodput: calm {_goodput(reports[0])}, stormy {_goodput(reports[1])} of paid node time")
    audits = [problem for report in reports for problem in report.audit.problems]
    screen.print("sample audit: " + ("; ".join(audits) or "every committed sample was committed exactly once"))
    gap = None if calm is None or stormy is None else stormy - calm
    if gap is None:
        screen.print("no validation loss to compare")
        return False
    screen.print(f"validation loss: calm {calm:.3f}, stormy {stormy:.3f}: difference {gap:+.3f} (noise: {NOISE})")
    unseen = [fault.what for fault in faults if fault.noticed_at is None or fault.mended_at is None]
    for what in unseen:
        screen.print(f"NOT noticed or not mended: {what}")
    return len(faults) == 4 and not unseen and not audits and gap <= NOISE


def _after(fault: Fault, at: float | None) -> str:
    return "–" if at is None else f"{max(0.0, at - fault.done_at):.1f} s"


def _goodput(report: Report) -> str:
    ledger = report.ledger
    return "unknown" if ledger is None or ledger.goodput is None else f"{ledger.goodput:.0%}"
