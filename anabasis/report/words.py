"""Numbers, times and foreign text as people read them. Used by every rendering, so that all say the same."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

UNKNOWN = "–"
"""What stands where a number is not known."""

# Control characters could move the cursor of a terminal; bidirectional marks could make text read otherwise.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")


def plain(text: str, *, limit: int = 600) -> str:
    """One line of visible characters, at most `limit` of them: safe to print whoever wrote it."""
    line = _UNSAFE.sub("\ufffd", " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def count(value: float | None) -> str:
    """`950`, `9,500`, `12.3 k`, `4.6 M`; below 100 with one decimal unless it is whole."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for threshold, divisor, unit in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= threshold:
            return f"{value / divisor:.1f} {unit}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return UNKNOWN
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """`0.25 s`, `12.3 s`, `3 m 20 s`, `2 h 05 m`, `3 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return "0 s" if seconds == 0 else f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def moment(at: float | None) -> str:
    """UTC, to the second."""
    if not at:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S Z")
    except (ValueError, OverflowError, OSError):  # a damaged record may hold any number
        return UNKNOWN


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}" if abs(value) < 1_000 else f"{value:.4g}"


def percent(share: float | None) -> str:
    """Of a share from 0 to 1."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def money(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"


def rounded_percents(values: list[float]) -> list[str]:
    """Percentages to one decimal that still sum to what the exact ones sum to (largest remainder)."""
    tenths = [value * 10 for value in values]
    floors = [math.floor(value) for value in tenths]
    short = round(sum(tenths)) - sum(floors)
    by_remainder = sorted(range(len(values)), key=lambda i: tenths[i] - floors[i], reverse=True)
    for index in by_remainder[:short]:
        floors[index] += 1
    return [f"{value / 10:.1f} %" for value in floors]


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
