"""Waiting that shows signs of life and can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable

from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.training.progress import Phase, Progress

SLEEP_SLICE_SECONDS = 0.1
"""A signal to stop is noticed within this time."""


class Interrupted(BaseException):
    """This process was told to stop. Not an error, and not to be caught as one by a recipe."""


class Patience:
    """How a trainer waits: for a new version, and for a store that does not answer.

    Args:
        stop: whether this process was told to stop.
        sleep: waits so many seconds.
    """

    def __init__(
        self, progress: Progress, *, stop: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.progress = progress
        self.stop = stop
        self._sleep = sleep

    def resilient(self, store: ObjectStore) -> ObjectStore:
        """The same store, but calls wait for outages to end (phase `store_unavailable`), for ever.

        Its calls raise `Interrupted` when told to stop in such a wait.
        """
        return Resilient(store, on_wait=self._on_outage, give_up_after_seconds=None)

    def pause(self, seconds: float, phase: Phase) -> None:
        """Sleep. Raises `Interrupted` when told to stop."""
        self.progress.tick(phase)
        while seconds > 0 and not self.stop():
            self._sleep(min(seconds, SLEEP_SLICE_SECONDS))
            seconds -= SLEEP_SLICE_SECONDS
        if self.stop():
            raise Interrupted

    def _on_outage(self, reason: str, seconds: float) -> None:
        self.progress.tick("store_unavailable")
        if self.stop():
            raise Interrupted
