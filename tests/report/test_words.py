from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, words.UNKNOWN),
        (math.nan, words.UNKNOWN),
        (0, "0"),
        (0.53, "0.5"),
        (950, "950"),
        (9_500, "9,500"),
        (12_345, "12.3 k"),
        (999_600, "999.6 k"),
        (4_560_000, "4.6 M"),
        (2.5e9, "2.5 G"),
    ],
)
def test_counts_are_short(value: float | None, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, words.UNKNOWN),
        (math.inf, words.UNKNOWN),
        (0, "0 s"),
        (0.254, "0.25 s"),
        (0.9999, "1.0 s"),
        (12.34, "12.3 s"),
        (200, "3 m 20 s"),
        (7_500, "2 h 05 m"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_keep_two_units(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_moments_are_utc_and_never_raise() -> None:
    assert words.moment(1_800_000_000.0) == "2027-01-15 08:00:00 Z"
    assert words.moment(0.0) == words.UNKNOWN
    assert words.moment(1e300) == words.UNKNOWN


def test_foreign_text_becomes_one_visible_line() -> None:
    text = words.plain("a\x1b[2Jb\nc\td\u202e\ud800")
    assert text == "a\ufffd[2Jb c d\ufffd\ufffd"
    assert len(words.plain("x" * 1_000, limit=20)) == 20


@given(st.text())
def test_foreign_text_can_always_be_encoded(text: str) -> None:
    line = words.plain(text)
    line.encode("utf-8")
    assert "\x1b" not in line
    assert "\n" not in line


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=12).filter(lambda parts: sum(parts) > 1e-3))
def test_shown_percents_sum_to_one_hundred(parts: list[float]) -> None:
    shown = words.rounded_percents([100 * part / sum(parts) for part in parts])
    assert sum(round(10 * float(text.removesuffix(" %"))) for text in shown) == 1_000
