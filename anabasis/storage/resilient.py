"""A store that waits for outages to end instead of failing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from anabasis.errors import PreconditionFailed, StoreUnavailable
from anabasis.storage.base import ObjectInfo, ObjectStore
from anabasis.storage.own_write import etag_if_mine

FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 5.0
"""A store that comes back is found within this; a thousand nodes then still ask at only 400 requests a second."""

SLICE_SECONDS = 0.5
"""Delays are slept in slices, so that `on_wait` (signs of life, requests to stop) is never further apart."""

T = TypeVar("T")


class Resilient:
    """Retries `StoreUnavailable` with full jitter; all other errors are raised as they come.

    A conditional write whose answer was lost may have happened: when its retry finds the key taken by its own bytes,
    it counts as done.

    Args:
        on_wait: called before each sleep with (reason, seconds since the first failure); may raise to stop.
        give_up_after_seconds: raise the last `StoreUnavailable` when the outage has lasted so long; None: never.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        on_wait: Callable[[str, float], None],
        give_up_after_seconds: float | None,
    ) -> None:
        self._store = store
        self._on_wait = on_wait
        self._give_up_after_seconds = give_up_after_seconds

    @property
    def url(self) -> str:
        return self._store.url

    def child(self, prefix: str) -> Resilient:
        return Resilient(
            self._store.child(prefix), on_wait=self._on_wait, give_up_after_seconds=self._give_up_after_seconds
        )

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        return self._patiently(lambda: self._store.get(key, start=start, length=length))

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        return self._patiently(lambda: self._store.get_into(key, buffer, start=start))

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._patiently(lambda: self._store.get_with_etag(key))

    def head(self, key: str) -> ObjectInfo | None:
        return self._patiently(lambda: self._store.head(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectInfo]:
        return self._patiently(lambda: self._store.list(prefix, start_after=start_after))

    def delete(self, key: str) -> None:
        self._patiently(lambda: self._store.delete(key))

    def delete_prefix(self, prefix: str) -> int:
        return self._patiently(lambda: self._store.delete_prefix(prefix))

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        tries = 0

        def attempt() -> str:
            nonlocal tries
            tries += 1
            return self._store.put(key, value, if_absent=if_absent, if_match=if_match)

        try:
            return self._patiently(attempt)
        except PreconditionFailed:
            etag = etag_if_mine(self, key, value) if tries > 1 else None
            if etag is None:
                raise
            return etag

    def _patiently(self, call: Callable[[], T]) -> T:
        delay, started = FIRST_DELAY_SECONDS, None
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                started = time.monotonic() if started is None else started
                reason, elapsed = str(error), time.monotonic() - started
                if self._give_up_after_seconds is not None and elapsed >= self._give_up_after_seconds:
                    raise
            self._sleep(random.uniform(0, delay), reason=reason, started=started)
            delay = min(2 * delay, MAX_DELAY_SECONDS)

    def _sleep(self, seconds: float, *, reason: str, started: float) -> None:
        while True:
            self._on_wait(reason, time.monotonic() - started)
            piece = min(seconds, SLICE_SECONDS)
            time.sleep(piece)
            seconds -= piece
            if seconds <= 0:
                return
