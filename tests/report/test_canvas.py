from __future__ import annotations

from anabasis.report.canvas import Canvas


def test_corners_are_dots_in_the_corner_cells() -> None:
    canvas = Canvas(columns=3, rows=2)
    for x, y in ((0, 0), (1, 1)):
        canvas.dot(x, y)
    assert [line.plain for line in canvas.lines()] == ["  ⠈", "⡀  "]


def test_what_lies_outside_is_not_drawn() -> None:
    canvas = Canvas(columns=2, rows=1)
    canvas.dot(1.5, 0.5)
    canvas.put(-1.0, 0.5, "x")
    assert [line.plain for line in canvas.lines()] == ["  "]


def test_a_column_stays_behind_the_curve() -> None:
    canvas = Canvas(columns=1, rows=2)
    canvas.dot(0, 1)
    canvas.column(0, "┊")
    assert [line.plain for line in canvas.lines()] == ["⠁", "┊"]


def test_two_canvases_share_nothing() -> None:
    first, second = Canvas(columns=1, rows=1), Canvas(columns=1, rows=1)
    first.dot(0, 0, style="red")
    assert second.lines()[0].plain == " "
