from __future__ import annotations

import pytest

from anabasis.report.chart import Chart, Series


def drawn(chart: Chart, *, width: int = 80, height: int = 12) -> list[str]:
    return [line.plain for line in chart.lines(width=width, height=height)]


def test_without_points_it_says_so() -> None:
    assert drawn(Chart([Series("loss", [], "green")])) == ["no loss has been committed yet"]


@pytest.mark.parametrize("width", [20, 60, 133])
def test_no_row_is_wider_than_asked(width: int) -> None:
    points = [(float(i), 5.0 / (i + 1)) for i in range(300)]
    chart = Chart([Series("loss", [points], "green")], marks=[(10.0, "node"), (299.0, "rollback")])
    assert max(len(row) for row in drawn(chart, width=width)[:-4]) <= width


def test_a_falling_loss_falls_from_top_left_to_bottom_right() -> None:
    rows = drawn(Chart([Series("loss", [[(0.0, 2.0), (100.0, 1.0)]], "green")]))
    picture = [row for row in rows if "│" in row or "┤" in row]
    first, last = (row.rstrip() for row in (picture[0], picture[-1]))
    assert len(first) < len(last)


def test_one_point_is_visible() -> None:
    rows = drawn(Chart([Series("loss", [[(1.0, 2.5)]], "green")]))
    assert any(0x2800 < ord(character) < 0x2900 for row in rows for character in row)


def test_a_gap_is_left_between_segments() -> None:
    joined = drawn(Chart([Series("loss", [[(0.0, 1.0), (50.0, 1.0), (100.0, 1.0)]], "green")]))
    split = drawn(Chart([Series("loss", [[(0.0, 1.0), (20.0, 1.0)], [(80.0, 1.0), (100.0, 1.0)]], "green")]))
    assert "".join(split).count("⠤") + "".join(split).count("⣀") < sum("".join(joined).count(c) for c in "⠤⣀⠒⠉")


def test_rollback_wins_over_other_marks_in_its_column_and_all_are_in_the_legend() -> None:
    chart = Chart([Series("loss", [[(0.0, 2.0), (10.0, 1.0)]], "green")], marks=[(5.0, "node"), (5.0, "rollback")])
    rows = drawn(chart)
    strip = next(row for row in rows if "R" in row)
    assert "x" not in strip
    assert any("┊" in row for row in rows)
    assert "R rollback" in " ".join(rows)
    assert "x node failed" in " ".join(rows)


def test_crowded_markers_become_a_line() -> None:
    points = [(float(i), 1.0 + i % 3) for i in range(200)]
    rows = drawn(Chart([Series("validation", [points], "cyan", marker="o")]))
    assert not any("o" in row for row in rows[:12])
