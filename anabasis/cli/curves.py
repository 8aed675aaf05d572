"""The loss of a running campaign, read from its committed versions in the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from anabasis.errors import AnabasisError, ObjectNotFound

if TYPE_CHECKING:
    from anabasis.campaign.records import VersionManifest
    from anabasis.storage.base import ObjectStore

T = TypeVar("T")

MAX_POINTS = 160
"""More cannot be told apart in a terminal, and each is one read of the store."""

READERS = 8
"""Concurrent reads: hides the latency of a remote store."""

REFRESH_SECONDS = 5.0
"""A store that is slower than this must not hold up what is shown; the curve is then drawn later."""


@dataclass(frozen=True, slots=True)
class Point:
    """One committed version; `at` in seconds since the epoch."""

    version: int
    kind: str
    loss: float | None
    validation_loss: float | None
    tokens: int
    rounds: int
    at: float


@dataclass(slots=True)
class Curve:
    """Reads incrementally; call `refresh` again for what was committed since. `problem` says why it could not."""

    store_url: str
    campaign: str
    points: list[Point] = field(default_factory=list[Point])
    problem: str = ""
    _store: ObjectStore | None = None
    _busy: bool = False

    async def refresh(self) -> None:
        """Bring `points` up to date, or give up for now after `REFRESH_SECONDS`. Never raises."""
        if self._busy:  # the last one still hangs in the store
            return
        self._busy = True
        try:
            await asyncio.wait_for(_in_thread(self._read), REFRESH_SECONDS)
            self.problem = ""
        except (AnabasisError, ValueError) as error:  # ValueError: a record that is damaged
            self.problem = str(error)
        except TimeoutError:
            self.problem = f"the store {self.store_url} is slow"

    def _read(self) -> None:
        try:
            from anabasis.storage.versions import newest_version

            store = self._open()
            last = self.points[-1].version if self.points else -1
            newest = newest_version(store, at_least=max(0, last))
            if newest is None or newest <= last:
                return
            # Evenly spread over a long history; everything when it is short.
            stride = max(1, -(-(newest - last) // MAX_POINTS))
            wanted = range(newest, last, -stride)
            with ThreadPoolExecutor(READERS) as pool:
                found = pool.map(lambda version: _read_point(store, version), reversed(wanted))
                merged = self.points + [point for point in found if point is not None]
            self.points = _thinned(merged)
        finally:
            self._busy = False

    def _open(self) -> ObjectStore:
        if self._store is None:
            folder = local_folder(self.store_url)
            if folder is not None and not folder.is_dir():
                raise ObjectNotFound(f"the store {self.store_url} is not on this machine")
            from anabasis.campaign.records import keys
            from anabasis.storage import open_store

            self._store = open_store(self.store_url).child(keys.campaign_root(self.campaign))
        return self._store


def _read_point(store: ObjectStore, version: int) -> Point | None:
    from anabasis.storage.versions import try_read_version

    manifest: VersionManifest | None = try_read_version(store, version)
    if manifest is None:
        return None
    return Point(
        version=manifest.version,
        kind=manifest.kind,
        loss=manifest.loss,
        validation_loss=manifest.validation_loss,
        tokens=manifest.tokens_total,
        rounds=manifest.merged_rounds,
        at=manifest.committed_at,
    )


def _thinned(points: list[Point]) -> list[Point]:
    if len(points) <= 2 * MAX_POINTS:
        return points
    # The last one stays: reading goes on from there.
    return [point for index, point in enumerate(reversed(points)) if index % 2 == 0][::-1]


def local_folder(url: str) -> Path | None:
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    return None if "://" in url else Path(url)


async def _in_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a thread that hangs does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # pyright: ignore[reportArgumentType]

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # handed over to whoever waits
            failure = error
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:  # nobody waits any more: the loop is closed
            pass

    threading.Thread(target=run, daemon=True).start()
    return await answer
