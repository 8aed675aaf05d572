"""The report as text for a terminal: the curve as a picture, the ledger as a bar, the rest as tables."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anabasis.report import words
from anabasis.report.chart import Chart, Series
from anabasis.report.ledger import MEANING
from anabasis.report.marks import curve_marks, training_segments, validation_points
from anabasis.report.model import Ledger, Report
from anabasis.report.tables import Rows, incident_rows, node_rows, rejection_rows

MIN_WIDTH = 60
"""Narrower than this, tables are unreadable: lines wrap instead."""

FULL_WIDTH = 88
"""Narrower than this, the less important columns are left out."""

NODE_ROWS, INCIDENT_ROWS, REJECTION_ROWS, PROBLEM_ROWS = 12, 15, 8, 20
"""Rows shown; the rest is counted, and `--json` has all of it."""

CURVE_ROWS = 14

BUCKET_STYLES: dict[str, tuple[str, str]] = {
    "train": ("T", "green"),
    "sync": ("S", "cyan"),
    "wait": ("w", "blue"),
    "boot": ("b", "yellow"),
    "open": ("o", "bright_green"),
    "lost": ("L", "red"),
    "paused": ("p", "bright_black"),
    "release": ("r", "magenta"),
}
"""Bucket → (letter for the bar without colour, colour)."""

_HEADING = "bold"
_QUIET = "bright_black"


def render_terminal(report: Report, *, width: int = 100, color: bool = True) -> str:
    """Text with (`color`) or without ANSI codes, lines at most `width` cells; ends with a line end."""
    width = max(MIN_WIDTH, width)
    parts: list[RenderableType] = [_header(report), Text("")]
    parts += _curve(report, width=width)
    parts += _ledger(report.ledger, width=width)
    parts += _members(report, width=width)
    parts += _nodes(report, width=width)
    parts += _incidents(report, width=width)
    parts += _rejections(report)
    parts += _footer(report)
    return to_text(parts, width=width, color=color)


def to_text(parts: list[RenderableType], *, width: int, color: bool) -> str:
    """Render to a string, whatever the environment says of the terminal."""
    console = Console(
        file=io.StringIO(),
        width=width,
        height=25,  # without one, rich asks a "dumb" terminal for its width
        force_terminal=color,
        color_system="256" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(Group(*parts))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in str(text).splitlines()) + "\n"


def _header(report: Report) -> RenderableType:
    phase = words.plain(report.phase) or "phase not known"
    bad = report.phase in {"failed", "cancelled"}
    style = "bold red" if bad else "bold green" if report.phase == "completed" else "bold cyan"
    source = " (by the roster)" if report.phase_source == "roster" else ""
    title = Text.assemble(("campaign ", _QUIET), (words.plain(report.campaign), "bold"), "  ", (phase + source, style))
    waiting = f"waiting for {report.waiting_for}" if report.waiting_for else ""
    rows = [title]
    rows += [
        Text(words.plain(text), style=line_style)
        for text, line_style in ((report.detail, ""), (waiting, "yellow"), (report.failure, "red"))
        if text
    ]
    rows += [Text(line) for line in summary_lines(report)]
    return Group(*rows)


def summary_lines(report: Report) -> list[str]:
    """What the campaign is, where it stands, how fast it goes: three lines of plain text."""
    setup = report.setup
    lines: list[str] = []
    if setup:
        seats = words.plural(setup.slots, "slot")
        mode = ", deterministic" if setup.deterministic else ""
        lines.append(f"{words.plain(setup.recipe)} on {words.plain(setup.data_url)}, {seats} ({setup.provider}){mode}")
    of = f" of {setup.target_rounds:,}" if setup else ""
    lines.append(
        f"round {report.merged_rounds:,}{of}, version {report.version}, loss {words.loss(report.loss)}, "
        f"validation {words.loss(report.validation_loss)}, {words.count(report.tokens_total)} tokens"
    )
    speed = f"{words.count(report.tokens_per_second)} tokens/s"
    recent = f", {words.count(report.recent_tokens_per_second)} lately" if report.recent_tokens_per_second else ""
    lasted = report.last_commit_at - report.started_at if report.last_commit_at and report.started_at else None
    lines.append(
        f"{speed}{recent}, {words.duration(lasted)} from {words.moment(report.started_at)} to the last commit, "
        f"cost {words.money(report.cost)}"
    )
    return lines


def _curve(report: Report, *, width: int) -> list[RenderableType]:
    chart = Chart(
        series=[
            Series("training loss", training_segments(report.curve), "green"),
            Series("validation loss", [validation_points(report.curve)], "bold cyan", marker="o"),
        ],
        marks=[(float(mark.version), mark.group) for mark in curve_marks(report)],
    )
    return [Text("Loss by version", style=_HEADING), *chart.lines(width=width, height=CURVE_ROWS), Text("")]


def _ledger(ledger: Ledger | None, *, width: int) -> list[RenderableType]:
    if ledger is None:
        return [
            Text.assemble(("Goodput ", _HEADING), "not known: no status and no ledger record in the journal"),
            Text(""),
        ]
    runs = "" if ledger.runs == 1 else f" over {words.plural(ledger.runs, 'run')}"
    title = Text.assemble(
        ("Goodput ", _HEADING),
        (words.percent(ledger.goodput), "bold green"),
        f" of {words.duration(ledger.paid_node_seconds)} paid node time{runs}",
    )
    percents = words.rounded_percents([share.percent for share in ledger.buckets])
    bar = Text()
    for share, cells in zip(ledger.buckets, _cells([s.percent for s in ledger.buckets], width), strict=True):
        letter, style = BUCKET_STYLES.get(share.bucket, ("?", "white"))
        bar.append(letter * cells, f"black on {style}")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for share, percent in zip(ledger.buckets, percents, strict=True):
        letter, style = BUCKET_STYLES.get(share.bucket, ("?", "white"))
        name = words.plain(share.bucket)
        table.add_row(
            Text(letter, style=style),
            Text(name),
            Text(percent, justify="right"),
            Text(words.duration(share.seconds), justify="right"),
            Text(MEANING.get(share.bucket, ""), style=_QUIET),
        )
    return [title, bar, table, Text("")]


def _cells(percents: list[float], width: int) -> list[int]:
    """Cells of a bar by largest remainder: they sum to `width`."""
    exact = [percent / 100 * width for percent in percents]
    cells = [int(value) for value in exact]
    for index in sorted(range(len(exact)), key=lambda i: exact[i] - cells[i], reverse=True)[: width - sum(cells)]:
        cells[index] += 1
    return cells


def _members(report: Report, *, width: int) -> list[RenderableType]:
    counts = [len(members.contributors) for members in report.rounds]
    if not counts:
        return []
    columns = min(len(counts), width)
    stretches = [
        counts[i * len(counts) // columns : (i + 1) * len(counts) // columns] for i in range(columns)
    ]  # a column shows the worst of its rounds
    top = max(*counts, report.setup.slots if report.setup else 1, 1)
    blocks = " ▁▂▃▄▅▆▇█"
    line = "".join(blocks[max(1, round(min(part) / top * 8)) if min(part) else 0] for part in stretches)
    missed = sum(len(members.missing_slots) for members in report.rounds)
    title = Text.assemble(
        ("Contributors per round ", _HEADING),
        f"from {min(counts)} to {max(counts)}, on average {sum(counts) / len(counts):.1f}; "
        f"{words.plural(missed, 'missed turn')}",
    )
    return [title, Text(line, style="green"), Text("")]


def _table(title: str, data: Rows, *, noun: str, skip: frozenset[str] = frozenset()) -> list[RenderableType]:
    columns, rows, left = data
    shown = [index for index, column in enumerate(columns) if column.name not in skip]
    table = Table(
        title=title, title_justify="left", title_style=_HEADING, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for index in shown:
        name, kind = columns[index]
        wraps = kind == "text"
        table.add_column(
            name,
            justify="right" if kind == "n" else "left",
            overflow="fold" if wraps else "ellipsis",
            no_wrap=not wraps,
            ratio={"what happened": 3}.get(name, 2) if wraps else None,
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    return [table, *_more(left, noun)]


def _nodes(report: Report, *, width: int) -> list[RenderableType]:
    if not report.nodes:
        return []
    skip = frozenset({"sync", "wait", "sent"}) if width < FULL_WIDTH else frozenset[str]()
    return _table("Nodes", node_rows(report, limit=NODE_ROWS), noun="node", skip=skip)


def _incidents(report: Report, *, width: int) -> list[RenderableType]:
    if not report.incidents_total:
        return [Text.assemble(("Incidents ", _HEADING), "none"), Text("")]
    rows = incident_rows(report, limit=INCIDENT_ROWS)
    title = f"Incidents ({report.incidents_total:,})"
    note = Text("noticed, mended: after the last sign of progress, or after it was noticed", style=_QUIET)
    skip = frozenset({"decided"} if width >= FULL_WIDTH else {"decided", "decision", "noticed", "node"})
    return [*_table(title, rows, noun="earlier incident", skip=skip), note, Text("")]


def _rejections(report: Report) -> list[RenderableType]:
    if not report.rejections:
        return []
    title = f"Rejected contributions ({len(report.rejections):,})"
    return _table(title, rejection_rows(report, limit=REJECTION_ROWS), noun="earlier rejection")


def _footer(report: Report) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for item in report.rollbacks:
        lines.append(
            Text(f"Rollback  version {item.version} restores {item.restored} ({item.discarded} discarded)", style="red")
        )
    sound = [entry for entry in report.checkpoints if not entry.problem]
    if report.checkpoints:
        newest = f", newest at version {sound[-1].version}" if sound else ""
        lines.append(Text(f"Checkpoints  {len(sound)} of {len(report.checkpoints)} readable{newest}"))
    for model in report.models:
        lines.append(
            Text(
                f"Published  {words.plain(model.model)} {model.number} from version {model.campaign_version}, "
                f"validation {words.loss(model.validation_loss)}, {words.size(model.size_bytes)}"
            )
        )
    lines.append(_audit(report))
    if report.problems:
        lines.append(Text(f"Problems of this report ({len(report.problems)})", style="bold yellow"))
        lines += [Padding(Text(words.plain(problem)), (0, 0, 0, 2)) for problem in report.problems[:PROBLEM_ROWS]]
        lines += _more(len(report.problems) - PROBLEM_ROWS, "problem")
    return lines


def _audit(report: Report) -> RenderableType:
    audit = report.audit
    if audit.result == "not_run":
        return Text("Sample audit  not run: nothing is committed", style=_QUIET)
    if audit.result == "clean":
        return Text("Sample audit  clean: every committed sample was committed exactly once", style="green")
    found = [Text(f"Sample audit  {words.plural(len(audit.problems), 'problem')}", style="bold red")]
    found += [Text("  " + words.plain(problem)) for problem in audit.problems[:PROBLEM_ROWS]]
    return Group(*found)


def _more(number: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {words.plural(number, noun)} more: see --json", style=_QUIET)] if number > 0 else []
