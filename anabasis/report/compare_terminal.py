"""A comparison as text for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from anabasis.report import words
from anabasis.report.chart import Chart, Series
from anabasis.report.compare import ComparedRun, Comparison
from anabasis.report.terminal import CURVE_ROWS, MIN_WIDTH, to_text


def render_comparison_terminal(comparison: Comparison, *, width: int = 100, color: bool = True) -> str:
    """Both curves in one picture (marks are those of b), and a table of the two."""
    width = max(MIN_WIDTH, width)
    a, b = comparison.a, comparison.b
    chart = Chart(
        series=[
            Series(words.plain(a.label), a.curve, "cyan"),
            Series(words.plain(b.label), b.curve, "yellow"),
        ],
        marks=b.marks,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "loss", "validation", "rounds", "tokens", "incidents", "rollbacks", "goodput"):
        table.add_column(name, justify="right" if name else "left", header_style="bright_black")
    table.add_row(*_row(a))
    table.add_row(*_row(b))
    title = Text(f"Loss over {'merged rounds' if comparison.axis == 'rounds' else 'committed tokens'}", style="bold")
    parts: list[RenderableType] = [title, *chart.lines(width=width, height=CURVE_ROWS), Text(""), table, Text("")]
    parts.append(Text(verdict(comparison)))
    return to_text(parts, width=width, color=color)


def verdict(comparison: Comparison) -> str:
    """The last line: bit-identical or not, and how far apart."""
    if comparison.bit_identical:
        return f"bit-identical: every version up to {comparison.identical_through} has the same fingerprint"
    parts: list[str] = []
    if comparison.final_difference is not None:
        parts.append(f"difference at the end {comparison.final_difference:+.4f}")
    if comparison.largest_gap is not None and comparison.largest_gap_at is not None:
        unit = "round" if comparison.axis == "rounds" else "token"
        parts.append(f"largest gap {comparison.largest_gap:.4f} at {unit} {comparison.largest_gap_at:,.0f}")
    if comparison.identical_through is not None:
        parts.append(f"bit-identical through version {comparison.identical_through}")
    return "; ".join(parts) or "nothing to compare yet"


def _row(run: ComparedRun) -> list[str]:
    return [
        words.plain(run.label),
        words.loss(run.final_loss),
        words.loss(run.final_validation_loss),
        f"{run.merged_rounds:,}",
        words.count(run.tokens_total),
        f"{run.incidents:,}",
        f"{run.rollbacks:,}",
        words.percent(run.goodput),
    ]
