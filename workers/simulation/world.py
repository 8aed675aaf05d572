"""What all nodes of a simulated campaign see of the store, read once for all of them."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from anabasis.campaign.records import DatasetManifest, Roster, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import ObjectNotFound, PreconditionFailed, StorageError
from anabasis.storage import open_store
from anabasis.storage.versions import newest_version, read_roster, read_spec, read_version, try_read_version
from workers.simulation.updates import Updates

ROSTER_EVERY_SECONDS = 1.0

STORE_THREADS = 8
"""Uploads at a time: a local disk's syncs overlap, and hundreds of threads would only queue inside the kernel."""

OUTAGE_PAUSE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """The newest version and roster; `updates` makes contributions of the campaign's size."""

    spec: CampaignSpec
    dataset: DatasetManifest
    updates: Updates
    manifest: VersionManifest
    roster: Roster | None


class World:
    """Run `follow` as a task; nodes await `changed`.

    Attributes:
        view: None until the campaign is prepared.
        available: whether the store answered the last time.
    """

    def __init__(self, *, campaign: str, store_url: str, seed: int) -> None:
        self.store = open_store(store_url).child(keys.campaign_root(campaign))
        self.view: View | None = None
        self.available = True
        self._seed = seed
        self._threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="store")
        self._news = asyncio.Event()
        self._roster_read_at = -ROSTER_EVERY_SECONDS

    async def changed(self, *, seconds: float) -> None:
        """Wait for a new version or roster, or for so long."""
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            pass

    async def upload(self, key: str, data: bytes) -> None:
        """Put a contribution. One that is there already counts. Raises StorageError."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._upload, key, data)

    def _upload(self, key: str, data: bytes) -> None:
        try:
            self.store.put(key, data, if_absent=True)
        except PreconditionFailed:
            pass  # an earlier life of this simulator sent it

    async def exists(self, key: str) -> bool:
        """Whether the aggregator has left a contribution where it is. Raises StorageError."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self.store.head, key)
        return found is not None

    async def follow(self) -> None:
        """Read what is new, for ever."""
        loop = asyncio.get_running_loop()
        pause = OUTAGE_PAUSE_SECONDS
        while True:
            try:
                news = await loop.run_in_executor(self._threads, self._look)
                self.available = True
                pause = self.view.spec.rounds.poll_seconds if self.view else OUTAGE_PAUSE_SECONDS
            except ObjectNotFound:
                news, pause = False, OUTAGE_PAUSE_SECONDS  # not prepared yet
            except StorageError as error:
                news, pause = self.available, OUTAGE_PAUSE_SECONDS
                if self.available:
                    _log.warning("store_unavailable", reason=str(error))
                self.available = False
            if news:
                self._news.set()
                self._news = asyncio.Event()
            await asyncio.sleep(pause)

    def _look(self) -> bool:
        if self.view is None:
            self.view = self._first_look()
            return True
        view = self.view
        manifest = try_read_version(self.store, view.manifest.version + 1)
        roster = self._read_roster() or view.roster
        news = manifest is not None or roster != view.roster
        if news:
            self.view = View(view.spec, view.dataset, view.updates, manifest or view.manifest, roster)
        return news

    def _first_look(self) -> View:
        spec = read_spec(self.store)
        dataset = DatasetManifest.model_validate_json(self.store.get(keys.DATASET))
        layout = read_version(self.store, 0).layout or []
        newest = newest_version(self.store)
        updates = Updates(
            count=sum(entry.count for entry in layout), seed=self._seed, compression=spec.training.compression
        )
        return View(spec, dataset, updates, read_version(self.store, newest or 0), read_roster(self.store))

    def _read_roster(self) -> Roster | None:
        if time.monotonic() - self._roster_read_at < ROSTER_EVERY_SECONDS:
            return None
        self._roster_read_at = time.monotonic()
        return read_roster(self.store)
