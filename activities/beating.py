"""Signs of life of an activity that works in a thread."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from temporalio import activity

BEAT_SECONDS = 1.0
"""Between heartbeats; the SDK sends on fewer of them, by the heartbeat timeout."""

MAX_SILENCE_SECONDS = 600.0
"""One transfer or merge of a very large model may take so long without a tick; after that it counts as hung."""


class Beating:
    """Heartbeats while the work ticks, and for a bounded time while a single long step does not.

    Cancellation and shutdown of the worker are not thrown into the thread (a store or a merge must not be torn):
    `stopping` says so, and the work asks at every tick.

    Args:
        details: small, taken at each beat.
    """

    def __init__(self, details: Callable[[], Any] = lambda: None) -> None:
        self._details = details
        self._ticked_at = time.monotonic()
        self._over = threading.Event()
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._context.run, args=(self._run,), name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def tick(self) -> None:
        """The work has advanced."""
        self._ticked_at = time.monotonic()

    @property
    def stopping(self) -> str:
        """Why the activity must end now; empty: it need not."""
        if activity.is_cancelled():
            return "cancelled"
        return "the worker is shutting down" if activity.is_worker_shutdown() else ""

    def _run(self) -> None:
        while True:
            if time.monotonic() - self._ticked_at < MAX_SILENCE_SECONDS:
                activity.heartbeat(self._details())
            if self._over.wait(BEAT_SECONDS):
                return
