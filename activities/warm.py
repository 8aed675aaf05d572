"""Aggregators that stay loaded between activities: a leg need not read the whole model again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabasis.campaign.records import keys
from anabasis.storage import open_store
from anabasis.training.aggregator import Aggregator

MAX_WARM = 4
"""Campaigns whose state (three to four times the parameters' size) is kept in memory when they are not at work."""

HANDOVER_SECONDS = 15.0
"""How long a new attempt waits for an old one of the same campaign in this process, which notices at its next tick
that it was replaced. After that the new one loads a state of its own: two aggregators at once are safe."""


class WarmAggregators:
    """A small cache, least recently used first out. One activity at a time has an aggregator."""

    def __init__(self, *, identity: str, max_warm: int = MAX_WARM) -> None:
        self._identity = identity
        self._max_warm = max_warm
        self._guard = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    @contextmanager
    def borrowed(self, store_url: str, *, campaign: str, tick: Callable[[str], None]) -> Iterator[Aggregator]:
        """The campaign's aggregator, for this activity alone, with its ticks going to `tick`.

        Its state is dropped when the activity fails, since nobody knows then what it is worth.
        """
        entry = self._taken((store_url, campaign), tick=tick)
        entry.aggregator.on_tick = tick
        try:
            yield entry.aggregator
        except BaseException:
            entry.aggregator.drop()
            raise
        finally:
            entry.aggregator.on_tick = _nothing
            entry.lock.release()
            self._shrink()

    def _taken(self, key: tuple[str, str], *, tick: Callable[[str], None]) -> _Entry:
        with self._guard:
            entry = self._entries.setdefault(key, self._new(key))
            self._entries.move_to_end(key)
        waited, step = 0.0, 0.5
        while not entry.lock.acquire(timeout=step):
            tick("an earlier attempt to let go")
            waited += step
            if waited >= HANDOVER_SECONDS:
                entry = self._new(key)
                entry.lock.acquire()
                with self._guard:
                    self._entries[key] = entry
                break
        return entry

    def _new(self, key: tuple[str, str]) -> _Entry:
        store_url, campaign = key
        store = open_store(store_url).child(keys.campaign_root(campaign))
        return _Entry(Aggregator(store, identity=self._identity))

    def _shrink(self) -> None:
        with self._guard:
            for key in list(self._entries)[: max(0, len(self._entries) - self._max_warm)]:
                if not self._entries[key].lock.locked():
                    del self._entries[key]


class _Entry:
    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.lock = threading.Lock()


def _nothing(_: str) -> None:
    pass
