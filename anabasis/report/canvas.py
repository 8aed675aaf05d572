"""Pictures of characters: braille cells of 2 × 4 dots, each cell in one style.

Self-made because it must fit any width, draw without a terminal, and share nothing between two pictures.
"""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

_BRAILLE = 0x2800
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by dot row, dot column (Unicode braille patterns)


class Canvas:
    """A grid of `columns` × `rows` characters. Dots are addressed by (x, y) from 0 to 1, y upwards.

    A character set with `put` covers the dots of its cell.
    """

    def __init__(self, *, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._dots = [[0] * columns for _ in range(rows)]
        self._characters: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def dot(self, x: float, y: float, *, style: str = "") -> None:
        """One dot; outside of the picture nothing happens."""
        self._set(*self._dot_at(x, y), style)

    def line(self, start: tuple[float, float], end: tuple[float, float], *, style: str = "") -> None:
        """A straight line of dots."""
        x0, y0 = self._dot_at(*start)
        x1, y1 = self._dot_at(*end)
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            self._set(round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps), style)

    def put(self, x: float, y: float, character: str, *, style: str = "") -> None:
        """A character in the cell that holds the point."""
        column, row = self._dot_at(x, y)
        self._place(column // 2, row // 4, character, style)

    def column(self, x: float, character: str, *, style: str = "") -> None:
        """The character from top to bottom, behind whatever is there already."""
        column = self._dot_at(x, 0)[0] // 2
        for row in range(self.rows):
            if not self._dots[row][column] and (row, column) not in self._characters:
                self._place(column, row, character, style)

    def lines(self) -> list[Text]:
        """The rows, top first, each of exactly `columns` cells."""
        return [self._row(row) for row in range(self.rows)]

    def _row(self, row: int) -> Text:
        line = Text(no_wrap=True, end="")
        # One span per stretch of equal style: fewer colour codes on the wire.
        for style, stretch in groupby(range(self.columns), key=lambda column: self._styles.get((row, column), "")):
            line.append("".join(self._character(row, column) for column in stretch), style or None)
        return line

    def _character(self, row: int, column: int) -> str:
        dots = self._dots[row][column]
        return self._characters.get((row, column)) or (chr(_BRAILLE + dots) if dots else " ")

    def _dot_at(self, x: float, y: float) -> tuple[int, int]:
        return round(x * (2 * self.columns - 1)), round((1 - y) * (4 * self.rows - 1))

    def _set(self, x: int, y: int, style: str) -> None:
        if 0 <= x < 2 * self.columns and 0 <= y < 4 * self.rows:
            self._dots[y // 4][x // 2] |= _BITS[y % 4][x % 2]
            self._styles[y // 4, x // 2] = style

    def _place(self, column: int, row: int, character: str, style: str) -> None:
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self._characters[row, column] = character
            self._styles[row, column] = style
