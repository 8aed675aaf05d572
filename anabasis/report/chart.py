"""A line chart for terminals: axes with round ticks around a braille picture, and a strip of marks below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from anabasis.report.canvas import Canvas
from anabasis.report.marks import GROUP_NAMES, Group
from anabasis.report.scale import Axis, Point, axis

MARK_SIGNS: dict[Group, tuple[str, str]] = {
    "rollback": ("R", "bold red"),
    "node": ("x", "yellow"),
    "data": ("◆", "magenta"),
    "control": ("■", "blue"),
}
"""Group → (character, style); the first of them wins where several fall into one column."""

_AXIS = "bright_black"

CELLS_PER_MARKER = 4
"""A series of markers that lie closer than this on average is drawn as a line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: segments are joined within, not between; with `marker` only the points are drawn, as that character."""

    name: str
    segments: Sequence[Sequence[Point]]
    style: str
    marker: str = ""

    @property
    def points(self) -> list[Point]:
        return [point for segment in self.segments for point in segment]

    def crowded(self, columns: int) -> bool:
        """Too many points for markers on so many cells."""
        return len(self.points) > columns // CELLS_PER_MARKER


@dataclass(slots=True)
class Chart:
    """Put together, then `lines(width=…, height=…)` draws it; `height` counts the rows of the picture alone."""

    series: list[Series]
    marks: list[tuple[float, Group]] = field(default_factory=list)

    def lines(self, *, width: int, height: int) -> list[Text]:
        """Rows of at most `width` cells. Without any point: one row that says so."""
        points = [point for series in self.series for point in series.points]
        if not points:
            return [Text("no loss has been committed yet", style=_AXIS)]
        y_axis = axis([y for _, y in points], ticks=max(2, height // 2), pad=0.04)
        labels = {tick: y_axis.label(tick) for tick in y_axis.ticks}
        margin = max(len(label) for label in labels.values()) + 1
        columns = max(10, width - margin - 1)
        x_axis = axis([x for x, _ in points] + [x for x, _ in self.marks], ticks=max(2, columns // 12), whole=True)
        canvas = self._picture(Canvas(columns=columns, rows=height), x_axis, y_axis)
        rows = {round((1 - y_axis.at(tick)) * (height - 1)): label for tick, label in labels.items()}
        drawn = [
            Text.assemble((f"{rows.get(row, ''):>{margin}}", _AXIS), ("┤" if row in rows else "│", _AXIS), line)
            for row, line in enumerate(canvas.lines())
        ]
        if self.marks:
            drawn.append(Text.assemble(" " * margin, ("│", _AXIS), self._strip(x_axis, columns)))
        return [*drawn, *_x_axis(x_axis, columns, margin=margin), *self._legend(margin=margin, columns=columns)]

    def _picture(self, canvas: Canvas, x_axis: Axis, y_axis: Axis) -> Canvas:
        for series in self.series:
            for segment in series.segments:
                placed = [(x_axis.at(x), y_axis.at(y)) for x, y in segment]
                if series.marker and not series.crowded(canvas.columns):
                    for x, y in placed:
                        canvas.put(x, y, series.marker, style=series.style)
                    continue
                for start, end in zip(placed, placed[1:] or placed, strict=False):
                    canvas.line(start, end, style=series.style)
        for x, group in self.marks:
            if group == "rollback":
                canvas.column(x_axis.at(x), "┊", style="red")
        return canvas

    def _strip(self, x_axis: Axis, columns: int) -> Text:
        order = list(MARK_SIGNS)
        best: dict[int, Group] = {}
        for x, group in self.marks:
            column = round(x_axis.at(x) * (columns - 1))
            if column not in best or order.index(group) < order.index(best[column]):
                best[column] = group
        strip = Text()
        for column in range(columns):
            sign, style = MARK_SIGNS[best[column]] if column in best else (" ", "")
            strip.append(sign, style or None)
        return strip

    def _legend(self, *, margin: int, columns: int) -> list[Text]:
        parts = [
            (series.marker if series.marker and not series.crowded(columns) else "━", series.style, series.name)
            for series in self.series
            if series.points
        ]
        groups = {group for _, group in self.marks}
        parts += [(*MARK_SIGNS[group], GROUP_NAMES[group]) for group in MARK_SIGNS if group in groups]
        rows = [Text(" " * (margin + 1))]
        for sign, style, name in parts:
            entry = Text.assemble((f"{sign} ", style), f"{name}   ")
            if rows[-1].cell_len + entry.cell_len > margin + columns and rows[-1].plain.strip():
                rows.append(Text(" " * (margin + 1)))
            rows[-1].append_text(entry)
        return rows


def _x_axis(x_axis: Axis, columns: int, *, margin: int) -> list[Text]:
    line, labels = ["─"] * columns, [" "] * (columns + 1)
    free_from = 0
    for tick in x_axis.ticks:
        column = round(x_axis.at(tick) * (columns - 1))
        text = x_axis.label(tick)
        start = min(max(0, column - len(text) // 2), columns - len(text))
        line[column] = "┬"
        if start >= free_from:
            labels[start : start + len(text)] = text
            free_from = start + len(text) + 1
    return [
        Text(" " * margin + "└" + "".join(line), style=_AXIS),
        Text(" " * (margin + 1) + "".join(labels).rstrip(), style=_AXIS),
    ]
