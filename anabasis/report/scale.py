"""Axes: round tick values, a padded range, and fewer points where there are more than can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from `low` to `high` with round `ticks` inside."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """With as many decimals as tell neighbouring ticks apart."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        decimals = min(9, max(0, -math.floor(math.log10(step) + 1e-9)))
        largest = max(abs(self.low), abs(self.high))
        for least, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
            if largest >= least:
                return f"{value / divisor:g}{unit}" if value else "0"
        return f"{value:.{decimals}f}"


def axis(values: Sequence[float], *, ticks: int, whole: bool = False, pad: float = 0.0) -> Axis:
    """An axis over finite values (none at all is fine), with about `ticks` ticks.

    Args:
        whole: values are counts: no tick between two whole numbers.
        pad: this share of the span is added at both ends.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-12 * max(1.0, abs(high)):
        margin = 1.0 if whole else max(abs(high) * 0.05, 1e-3)
        low, high = low - (0.0 if whole else margin), high + margin
    margin = (high - low) * pad
    low, high = low - margin, high + margin
    step = _round_step((high - low) / max(1, ticks), whole=whole)
    first = math.ceil(low / step - 1e-9)
    marks = tuple(step * index for index in range(first, math.floor(high / step + 1e-9) + 1))
    return Axis(low, high, marks or (low,))


def _round_step(raw: float, *, whole: bool) -> float:
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next((m * magnitude for m in (1, 2, 5) if m * magnitude >= raw * (1 - 1e-9)), 10 * magnitude)
    return max(1.0, step) if whole else step


def thinned(points: Sequence[Point], *, limit: int) -> list[Point]:
    """At most `limit` points that look the same: of each stretch, the lowest and the highest stay, and both ends."""
    if len(points) <= limit:
        return list(points)
    stretches = max(1, (limit - 2) // 2)
    inner = points[1:-1]
    kept: list[Point] = [points[0]]
    for index in range(stretches):
        part = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        if part:
            kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]]
