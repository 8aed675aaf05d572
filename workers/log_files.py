"""The log files of a state directory: kept small while they are written, and read by `anabasis logs`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

MAX_LOG_BYTES = 20_000_000
"""A log file above this becomes `<name>.log.1`, replacing the one before: at most twice this on disk per process."""

_TAIL_BYTES_PER_LINE = 1_000
"""How much of the end of a file is read to find its last lines: ours have 200 bytes, Temporal's 500."""
_LEAST_TAIL_BYTES = 65_536

_TIME_KEYS = ("timestamp", "time", "ts")
"""Ours, and those of Temporal's server and of its SDK's core."""
_TIME_CHARACTERS = len("2026-01-31T12:00:00.000000")
"""Programs write different numbers of digits: microseconds at most, so that the times sort as text."""
_NOT_SHOWN = (*_TIME_KEYS, "logger", "logging-call-at", "component")

_POLL_SECONDS = 0.25
"""Between looks for new lines when following; people do not notice less."""


def rotate_if_large(path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Copy a large log aside and empty it. Its writer goes on undisturbed, because it only appends.

    Lines written between the copy and the emptying are lost: at most a few, once in twenty megabytes.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(path, path.with_name(path.name + ".1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log.

    Attributes:
        at: ISO time in microseconds, empty when neither the line nor one before it says.
        source: which process.
        text: as it was written.
        fields: the parsed JSON object; empty when it is not one.
    """

    at: str
    source: str
    text: str
    fields: dict[str, Any]

    @property
    def message(self) -> str:
        """The line for people: level, event, and the other fields as key=value."""
        if not self.fields:
            return self.text
        shown = dict(self.fields)
        for key in _NOT_SHOWN:
            shown.pop(key, None)
        level = str(shown.pop("level", "info")).lower()
        event = str(shown.pop("event", shown.pop("msg", "")))
        trace = shown.pop("exception", "")
        pairs = " ".join(f"{key}={value}" for key, value in shown.items())
        return f"{level:<8} {event}{' ' if pairs else ''}{pairs}" + (f"\n{trace}" if trace else "")


def sources(home: Path) -> dict[str, Path]:
    """Every log file: `control`, `temporal`, … of the stack; `<campaign>/<node>/<process>` of this machine's nodes."""
    found = {path.stem: path for path in sorted((home / "logs").glob("*.log"))}
    nodes = home / "nodes"
    for path in sorted(nodes.glob("*/*/*.log")):
        found[str(path.relative_to(nodes).with_suffix(""))] = path
    return found


def tail(path: Path, *, source: str, lines: int) -> list[Line]:
    """The last lines of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - max(_LEAST_TAIL_BYTES, lines * _TAIL_BYTES_PER_LINE)))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    found: list[Line] = []
    for raw in text.splitlines()[-lines:] if lines else []:
        # A line without a time (a traceback, a banner) stays behind the one before it.
        found.append(parse(raw, source=source, otherwise_at=found[-1].at if found else ""))
    return found


def last_message(path: Path) -> str:
    """What a process said last, in one line: why it ended, as a rule."""
    for line in reversed(tail(path, source="", lines=50)):
        if line.text.strip():
            reason = line.fields.get("reason") or line.fields.get("exception") or line.message
            return str(reason).strip().splitlines()[-1]
    return "it wrote nothing"


def follow(paths: dict[str, Path]) -> Iterator[Line]:
    """New lines of these files as they are written from now on, for ever."""
    return _follow(paths, {source: path.stat().st_size if path.exists() else 0 for source, path in paths.items()})


def _follow(paths: dict[str, Path], offsets: dict[str, int]) -> Iterator[Line]:
    while True:
        quiet = True
        for source, path in paths.items():
            for line in _new_lines(path, source, offsets):
                quiet = False
                yield line
        if quiet:
            time.sleep(_POLL_SECONDS)


def parse(raw: str, *, source: str, otherwise_at: str = "") -> Line:
    """One raw line."""
    fields: dict[str, Any] = {}
    if raw.startswith("{"):
        try:
            value = json.loads(raw)
            fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        except ValueError:
            fields = {}
    at = next((str(fields[key]) for key in _TIME_KEYS if key in fields), otherwise_at)
    return Line(at[:_TIME_CHARACTERS], source, raw, fields)


def _new_lines(path: Path, source: str, offsets: dict[str, int]) -> list[Line]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = offsets[source] if offsets[source] <= size else 0  # it was emptied: from the beginning
            file.seek(start)
            whole = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return []
    offsets[source] = start + len(whole[0]) + len(whole[1])
    return [parse(raw, source=source) for raw in whole[0].decode(errors="replace").splitlines()]
