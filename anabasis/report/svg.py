"""The loss curve as SVG: colours come from the page's style sheet, every mark says on hover what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from anabasis.report import words
from anabasis.report.marks import Mark, curve_marks, curve_summary, training_segments, validation_points
from anabasis.report.model import CurvePoint, Report
from anabasis.report.scale import Axis, Point, axis, thinned

MAX_POINTS = 800
"""Of one line: as many as a wide screen has columns to show; more only make the file large."""

MAX_BARS = 400
"""Of contributors per round."""

MARK_SPACING = 9.0
"""Marks of a group closer than this (units of the drawing) are drawn as one that lists them."""

DOTS_UP_TO = 120
"""With so few points in a line each has a dot of its own, to hover over."""

_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 46.0, 14.0, 26.0, 40.0, 34.0
_MEMBERS_HEIGHT = 44.0


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the two panels lie in a drawing of `width` × `height` units."""

    width: float
    height: float
    x: Axis
    y: Axis

    @property
    def bottom(self) -> float:
        """Of the loss panel."""
        return self.height - _BOTTOM - _MEMBERS_HEIGHT - _GAP

    def px(self, value: float) -> float:
        return _LEFT + self.x.at(value) * (self.width - _LEFT - _RIGHT)

    def py(self, value: float) -> float:
        return self.bottom - self.y.at(value) * (self.bottom - _TOP)


def curve_svg(report: Report, *, width: float, height: float) -> str:
    """The curve over versions, and below it how many nodes contributed to each; empty without a committed round."""
    segments = training_segments(report.curve)
    validation = validation_points(report.curve)
    points = [point for segment in segments for point in segment] + validation
    if not points:
        return ""
    frame = Frame(
        width,
        height,
        axis([x for x, _ in points], ticks=max(3, int(width // 90)), whole=True),
        axis([y for _, y in points], ticks=max(3, int(height // 45)), pad=0.05),
    )
    marks = curve_marks(report)
    parts = [
        f'<svg class="curve" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(curve_summary(report))}">',
        _axes(frame),
        _members(report, frame),
        _rollbacks(marks, frame),
        *(_line(segment, frame, "training") for segment in segments),
        _dots(report.curve, frame) if len(report.curve) <= DOTS_UP_TO else "",
        _line(validation, frame, "validation"),
        *(_validation_dot(point, frame) for point in (validation if len(validation) <= DOTS_UP_TO else [])),
        _failures(marks, frame),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def _axes(frame: Frame) -> str:
    parts: list[str] = []
    right, floor = frame.width - _RIGHT, frame.height - _BOTTOM
    for tick in frame.y.ticks:
        y = frame.py(tick)
        parts.append(f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{frame.y.label(tick)}</text>')
    for tick in frame.x.ticks:
        x = frame.px(tick)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{floor:g}" y2="{floor + 4:g}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 17:g}" text-anchor="middle">{frame.x.label(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT:g}" x2="{right:g}" y1="{floor:g}" y2="{floor:g}"/>')
    parts.append(f'<text x="{right:g}" y="{frame.height - 3:g}" text-anchor="end" class="name">version</text>')
    parts.append('<text x="4" y="12" class="name">loss</text>')
    return "".join(parts)


def _members(report: Report, frame: Frame) -> str:
    counts = [(float(p.version), float(p.contributors)) for p in report.curve if p.kind == "merge"]
    if not counts:
        return ""
    most = max([1.0, float(report.setup.slots if report.setup else 1), *(count for _, count in counts)])
    floor = frame.height - _BOTTOM
    path: list[str] = []
    for left, right, count in _bars(counts, frame):
        path.append(f"M{left:.1f} {floor:g}V{floor - count / most * _MEMBERS_HEIGHT:.1f}H{right:.1f}V{floor:g}Z")
    top = floor - _MEMBERS_HEIGHT
    return (
        f'<path class="members" d="{"".join(path)}"/>'
        f'<text x="{_LEFT - 6:g}" y="{top + 8:.1f}" text-anchor="end">{most:g}</text>'
        f'<text x="{_LEFT - 6:g}" y="{floor:g}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + 2:g}" y="{top - 4:.1f}" class="name">contributors per round</text>'
    )


def _bars(counts: list[Point], frame: Frame) -> list[tuple[float, float, float]]:
    """(left, right, count): one per round, or per stretch of rounds with its worst where they are too many."""
    size = -(-len(counts) // MAX_BARS)
    right_edge = frame.width - _RIGHT
    bars: list[tuple[float, float, float]] = []
    for start in range(0, len(counts), size):
        part = counts[start : start + size]
        left = frame.px(part[0][0] - 0.5)
        right = frame.px(part[-1][0] + 0.5)
        bars.append((max(_LEFT, left), min(right_edge, right), min(count for _, count in part)))
    return bars


def _line(points: Sequence[Point], frame: Frame, kind: str) -> str:
    if len(points) < 2:
        return ""
    placed = " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in thinned(points, limit=MAX_POINTS))
    return f'<polyline class="{kind}" points="{placed}"/>'


def _dots(curve: list[CurvePoint], frame: Frame) -> str:
    parts: list[str] = []
    for point in curve:
        if point.loss is None:
            continue
        says = (
            f"version {point.version}: loss {words.loss(point.loss)}, {words.plural(point.contributors, 'node')}, "
            f"{words.count(point.tokens_total)} tokens, {words.duration(point.seconds)}, {words.moment(point.at)}"
        )
        parts.append(
            f'<circle class="dot" cx="{frame.px(point.version):.1f}" cy="{frame.py(point.loss):.1f}" r="2.4">'
            f"<title>{escape(says)}</title></circle>"
        )
    return "".join(parts)


def _validation_dot(point: Point, frame: Frame) -> str:
    return (
        f'<circle class="validation-dot" cx="{frame.px(point[0]):.1f}" cy="{frame.py(point[1]):.1f}" r="3.2">'
        f"<title>version {point[0]:.0f}: validation loss {words.loss(point[1])}</title></circle>"
    )


def _rollbacks(marks: list[Mark], frame: Frame) -> str:
    parts: list[str] = []
    for mark in marks:
        if mark.group == "rollback":
            x = frame.px(min(mark.version, frame.x.high))
            parts.append(
                f'<g class="mark rollback"><title>{escape(words.plain(mark.text))}</title>'
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8:g}" y2="{frame.bottom:.1f}"/>'
                f'<path d="M{x - 5:.1f} {_TOP - 14:g}h10l-5 8z"/></g>'
            )
    return "".join(parts)


def _failures(marks: list[Mark], frame: Frame) -> str:
    shapes = {
        "node": "M{x:.1f} {y:.1f}m-4 -4l8 8m0 -8l-8 8",
        "data": "M{x:.1f} {y:.1f}m0 -5l5 5l-5 5l-5 -5z",
        "control": "M{x:.1f} {y:.1f}m-4 -4h8v8h-8z",
    }
    clusters: dict[tuple[str, int], list[Mark]] = {}
    for mark in marks:
        if mark.group != "rollback":
            place = round(frame.px(mark.version) / MARK_SPACING)
            clusters.setdefault((mark.group, place), []).append(mark)
    parts: list[str] = []
    for (group, _), cluster in clusters.items():
        version = sum(mark.version for mark in cluster) / len(cluster)
        x = frame.px(min(max(version, frame.x.low), frame.x.high))
        d = shapes[group].format(x=x, y=frame.bottom + 11)
        texts = [mark.text for mark in cluster[:5]] + ([f"and {len(cluster) - 5} more"] if len(cluster) > 5 else [])
        title = escape(words.plain("; ".join(texts)))
        parts.append(f'<g class="mark {group}"><title>{title}</title><path d="{d}"/></g>')
    return "".join(parts)
