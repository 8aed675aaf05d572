"""Reports as PNG, drawn with matplotlib (extra `report`) without any display."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabasis.errors import UserError
from anabasis.report import words
from anabasis.report.compare import Comparison
from anabasis.report.marks import (
    GROUP_NAMES,
    Group,
    curve_marks,
    curve_summary,
    training_segments,
    validation_points,
)
from anabasis.report.model import Ledger, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120

MAX_MARKERS = 100
"""Of validation points; more would hide the line."""

BUCKET_COLORS: dict[str, str] = {
    "train": "#2c9a68",
    "sync": "#2c9fb3",
    "wait": "#7391d9",
    "boot": "#d9a531",
    "open": "#9ccf9a",
    "lost": "#d4504a",
    "paused": "#9aa1a8",
    "release": "#a87cc5",
    "unaccounted": "#60666d",
}

_TRAIN, _VALIDATION, _INK, _QUIET, _GRID = "#0f7b4f", "#2458c5", "#1c2126", "#5d6770", "#e2e0da"
_MARKS: dict[Group, tuple[str, str]] = {
    "rollback": ("v", "#b3261e"),
    "node": ("x", "#b26a00"),
    "data": ("D", "#8a3ab9"),
    "control": ("s", "#2458c5"),
}


def render_png(report: Report, path: Path | str) -> Path:
    """The loss curve with its marks, contributors per round, and the ledger; returns the path.

    Raises:
        UserError: matplotlib is missing, or the file cannot be written; the message says the mend.
    """
    figure = _figure(10.0, 6.6)
    grid = figure.add_gridspec(3, 1, height_ratios=[6.0, 1.1, 0.9])
    loss, members, ledger = (figure.add_subplot(grid[row]) for row in range(3))
    loss.sharex(members)
    loss.tick_params(labelbottom=False)
    marks: list[tuple[float, Group]] = [(float(mark.version), mark.group) for mark in curve_marks(report)]
    for index, segment in enumerate(training_segments(report.curve)):
        _plot(loss, segment, color=_TRAIN, label="training" if index == 0 else "", linewidth=1.8)
    validation = validation_points(report.curve)
    marker = "o" if len(validation) <= MAX_MARKERS else ""
    _plot(loss, validation, color=_VALIDATION, label="validation", linewidth=1.0, linestyle="--", marker=marker, size=4)
    _draw_marks(loss, marks)
    title = f"{words.plain(report.campaign, limit=80)}  {words.plain(report.phase, limit=30)}"
    _dress(loss, title=title, y_label="loss", said=curve_summary(report))
    _draw_members(members, report)
    _draw_ledger(ledger, report.ledger)
    return _save(figure, Path(path))


def render_comparison_png(comparison: Comparison, path: Path | str) -> Path:
    """Both curves in one picture, with the marks of b; returns the path. Raises as `render_png` does."""
    figure = _figure(10.0, 5.2)
    axes = figure.add_subplot()
    for run, color, style in ((comparison.a, _VALIDATION, "-"), (comparison.b, "#c25a00", "--")):
        label = f"{run.label}: {words.loss(run.final_loss)} after {run.merged_rounds:,} rounds"
        for index, segment in enumerate(run.curve):
            _plot(axes, segment, color=color, label=label if index == 0 else "", linewidth=1.8, linestyle=style)
    _draw_marks(axes, comparison.b.marks)
    title = " and ".join(words.plain(run.campaign, limit=40) for run in (comparison.a, comparison.b))
    _dress(axes, title=title, y_label="training loss", said=comparison.summary())
    _label(axes.set_xlabel, "merged rounds" if comparison.axis == "rounds" else "committed tokens")
    return _save(figure, Path(path))


def _figure(width: float, height: float) -> Figure:
    try:
        # The object API, not pyplot: no global state, no display, safe in threads.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing a PNG needs matplotlib: pip install 'anabasis[report]'") from None
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _plot(
    axes: Axes,
    points: list[tuple[float, float]],
    *,
    color: str,
    label: str,
    linewidth: float,
    linestyle: str = "-",
    marker: str = "",
    size: float = 3,
) -> None:
    if not points:
        return
    lone = len(points) == 1
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=color,
        linewidth=linewidth,
        linestyle=linestyle,
        marker=marker or ("o" if lone else ""),
        markersize=size,
        # matplotlib leaves labels out that start with an underscore
        label=words.plain(label, limit=80).lstrip("_") if label else "_",
    )


def _draw_marks(axes: Axes, marks: list[tuple[float, Group]]) -> None:
    for group, name in GROUP_NAMES.items():
        positions = [x for x, marked in marks if marked == group]
        if not positions:
            continue
        shape, color = _MARKS[group]
        height = 0.97 if group == "rollback" else 0.03
        axes.plot(
            positions,
            [height] * len(positions),
            transform=axes.get_xaxis_transform(),
            linestyle="",
            marker=shape,
            color=color,
            markersize=6,
            label=name,
        )
        if group == "rollback":
            for x in positions:
                axes.axvline(x, color=color, linewidth=1, linestyle=":")


def _dress(axes: Axes, *, title: str, y_label: str, said: str) -> None:
    _label(axes.set_title, title, loc="left", fontsize=13, color=_INK)
    _label(axes.set_ylabel, y_label)
    axes.margins(x=0.01, y=0.10)
    _plain_axes(axes)
    if not axes.lines:
        axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", color=_QUIET, parse_math=False)
        axes.set_yticks([])
        return
    legend = axes.legend(frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _label(setter: Any, text: str, **style: Any) -> None:
    """Set a title or label without reading `$` as mathematics: names come from others."""
    setter(text, **style).set_parse_math(False)


def _plain_axes(axes: Axes) -> None:
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_QUIET, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_QUIET)


def _draw_members(axes: Axes, report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    merges = [point for point in report.curve if point.kind == "merge"]
    if merges:
        axes.fill_between(
            [point.version for point in merges],
            [point.contributors for point in merges],
            step="mid",
            color="#9cc9b0",
            linewidth=0,
        )
    _plain_axes(axes)
    axes.margins(x=0.01)
    axes.set_ylim(0, max([1, report.setup.slots if report.setup else 1, *(point.contributors for point in merges)]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10]))
    _label(axes.set_ylabel, "nodes")
    _label(axes.set_xlabel, "version")


def _draw_ledger(axes: Axes, ledger: Ledger | None) -> None:
    axes.set_axis_off()
    if ledger is None or not ledger.buckets:
        axes.text(0, 0.5, "Goodput: not known", transform=axes.transAxes, color=_QUIET)
        return
    left = 0.0
    percents = words.rounded_percents([share.percent for share in ledger.buckets])
    for share, said in zip(ledger.buckets, percents, strict=True):
        color = BUCKET_COLORS.get(share.bucket, BUCKET_COLORS["unaccounted"])
        axes.barh(0, share.percent, left=left, height=1.0, color=color, label=f"{words.plain(share.bucket)} {said}")
        left += share.percent
    axes.set_xlim(0, 100)
    title = f"Goodput {words.percent(ledger.goodput)} of {words.duration(ledger.paid_node_seconds)} paid node time"
    _label(axes.set_title, title, loc="left", fontsize=10, color=_INK)
    legend = axes.legend(
        ncols=min(9, len(ledger.buckets)), loc="upper left", bbox_to_anchor=(-0.01, 0.02), frameon=False, fontsize=8
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _save(figure: Figure, path: Path) -> Path:
    """Write beside the target, then rename: a reader never sees half a picture."""
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(suffix=".png", prefix=f".{path.name[:40]}-", dir=path.parent)
        os.close(handle)
        figure.savefig(name, format="png", dpi=DOTS_PER_INCH)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another path") from None
    return path
