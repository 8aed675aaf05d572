"""What a trainer tells its agent, through files in the work directory: `progress.json` and `failure.json`."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from anabasis.errors import AnabasisError
from anabasis.training.user_code import traceback_text

WRITE_EVERY_SECONDS = 0.2
"""Between writes of the progress file: the agent looks about once a second, and a write costs 50 µs."""

VOUCH_EVERY_SECONDS = 1.0

SLOWEST_BYTES_PER_SECOND = 250_000
"""A line slower than 2 Mbit/s cannot take part in training; a transfer that takes longer counts as stuck."""

TRANSFER_SECONDS = 60.0
"""For the smallest transfer: the store's own timeouts and retries fit in."""

INTERNAL_ERROR = "InternalError"
"""Type of a failure that is no error of `anabasis.errors`."""

Phase = Literal[
    "starting",
    "training",
    "evaluating",
    "uploading",
    "waiting",
    "paused",
    "store_unavailable",
    "finished",
    "stopped",
    "fenced",
    "failed",
]


PHASES_OF_THE_END: tuple[Phase, ...] = ("finished", "stopped")
"""In which a trainer ends well."""


class Progress:
    """The progress file. `ticks` grows whenever anything was done, so a stuck trainer is one whose ticks stand still.

    Args:
        pid: of the process that the agent started.

    Attributes:
        generation: of the roster seen last. version: of the parameters held; −1 before there are any.
        steps, tokens: trained by this process since its start, committed or not.
    """

    def __init__(self, path: Path, *, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.pid = pid or os.getpid()
        self.ticks = _ticks_in(path)  # of an earlier process: they only ever grow
        self.steps = 0
        self.tokens = 0
        self.version = -1
        self.generation = -1
        self.phase: Phase = "starting"
        self._clock = clock
        self._written_at = -WRITE_EVERY_SECONDS
        self._written_phase = ""
        self._guard = threading.Lock()

    def tick(self, phase: Phase | None = None) -> None:
        """Something was done; now in this phase (None: as before). Writes at most every 0.2 s, or on a new phase."""
        with self._guard:
            self.ticks += 1
            if phase is not None:
                self.phase = phase
            now = self._clock()
            if self.phase != self._written_phase or now - self._written_at >= WRITE_EVERY_SECONDS:
                self._written_at = now
                self._written_phase = self.phase
                self._write()

    def words(self, _: str) -> None:
        """`tick` for callers that report in words."""
        self.tick()

    @contextmanager
    def vouched(self, seconds: float) -> Iterator[None]:
        """Within it, a thread ticks: for one long call that cannot, and is trusted for at most so many seconds.

        A frozen process does not tick all the same, since all of its threads are.
        """
        over = threading.Event()

        def vouch() -> None:
            deadline = self._clock() + seconds
            while not over.wait(VOUCH_EVERY_SECONDS) and self._clock() < deadline:
                self.tick()

        threading.Thread(target=vouch, name="voucher", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def stepped(self, *, tokens: int) -> None:
        """One inner step was done."""
        self.steps += 1
        self.tokens += tokens
        self.tick("training")

    def _write(self) -> None:
        record = {
            "pid": self.pid,
            "generation": self.generation,
            "ticks": self.ticks,
            "steps": self.steps,
            "version": self.version,
            "phase": self.phase,
            "at": time.time(),
            "tokens": self.tokens,
        }
        partial = _write_beside(self.path, record)
        if partial is not None:
            with suppress(OSError):
                partial.replace(self.path)


def transfer_seconds(size_bytes: int) -> float:
    """How long a transfer may take without being taken for stuck."""
    return TRANSFER_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND


class Meter:
    """Seconds since the last contribution, each in exactly one of train, sync and wait."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self.train = 0.0
        self.sync = 0.0

    def timing(self, what: Literal["train", "sync"]) -> _Timing:
        """As a context: its time counts as training or as transfer."""
        return _Timing(self, what, self._clock)

    def take(self) -> tuple[float, float, float]:
        """(train, sync, wait) seconds; counting begins anew."""
        now = self._clock()
        train, sync = self.train, self.sync
        wait = max(0.0, now - self._since - train - sync)
        self._since, self.train, self.sync = now, 0.0, 0.0
        return train, sync, wait


class _Timing:
    def __init__(self, meter: Meter, what: Literal["train", "sync"], clock: Callable[[], float]) -> None:
        self._meter, self._what, self._clock = meter, what, clock

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(self, *_: object) -> None:
        elapsed = self._clock() - self._started
        setattr(self._meter, self._what, getattr(self._meter, self._what) + elapsed)


def write_failure(path: Path, error: BaseException) -> None:
    """Say why the trainer ends: its type (a class of `anabasis.errors`, or `InternalError`), message, traceback.

    Of several processes, the first one's word stands: the others fail because it did.
    """
    kind = error.kind if isinstance(error, AnabasisError) else INTERNAL_ERROR
    message = str(error) if isinstance(error, AnabasisError) else f"{type(error).__name__}: {error}"
    partial = _write_beside(path, {"type": kind, "message": message, "traceback": traceback_text(error)})
    if partial is not None:
        with suppress(OSError):
            os.link(partial, path)
        partial.unlink(missing_ok=True)


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is none."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _ticks_in(path: Path) -> int:
    ticks = read_record(path).get("ticks")
    return ticks if isinstance(ticks, int) else 0


def _write_beside(path: Path, record: dict[str, Any]) -> Path | None:
    """Write a hidden file next to `path`; None when the disk is full: that must not end the training."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(record))
    except OSError:
        return None
    return partial
