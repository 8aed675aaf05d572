"""Looks at the store from a thread while the main thread trains: has the round closed, does the seat still exist?"""

from __future__ import annotations

import threading
from typing import Literal

import structlog

from anabasis.campaign.records import Roster, RosterMember, keys
from anabasis.errors import AnabasisError
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import read_roster

LOOK_EVERY_SECONDS = 2.0
"""Training for nothing costs at most this; two small reads per node in this time are nothing to a store."""

Seat = Literal["held", "empty", "lost"]

_log = structlog.get_logger(__name__)


def seat_of(roster: Roster | None, *, member: RosterMember) -> Seat:
    """Whether a node holds its slot: `empty` = not yet (or no longer) in the roster, `lost` = someone newer came."""
    if roster is None:
        return "empty"
    holder = next((entry for entry in roster.members if entry.slot == member.slot), None)
    if holder is None:
        return "lost" if roster.attempts.get(str(member.slot), 0) > member.attempt else "empty"
    if (holder.attempt, holder.nonce) == (member.attempt, member.nonce):
        return "held"
    return "lost" if holder.attempt >= member.attempt else "empty"


class Lookout:
    """A context in which a thread looks at the store.

    Args:
        store: the plain one: an outage is simply not news.
        version: that is being trained from.

    Attributes:
        roster: the newest seen.
        in_vain: what is being trained can no longer be merged: the next version is committed, the campaign is
            over, or the seat is lost.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        version: int,
        member: RosterMember,
        roster: Roster,
        every_seconds: float = LOOK_EVERY_SECONDS,
    ) -> None:
        self.roster = roster
        self.in_vain = False
        self._store = store
        self._member = member
        self._next = keys.version(version + 1)
        self._every_seconds = every_seconds
        self._over = threading.Event()

    def __enter__(self) -> Lookout:
        threading.Thread(target=self._watch, name="lookout", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # not joined: it may be waiting for a store that does not answer

    def _watch(self) -> None:
        while not self._over.wait(self._every_seconds):
            try:
                self._look()
            except AnabasisError:
                continue  # an outage: the main thread meets it when it has to
            except Exception:  # a thread's boundary: the training itself must not suffer
                _log.exception("lookout_failed")
                return

    def _look(self) -> None:
        superseded = self._store.head(self._next) is not None
        self.roster = read_roster(self._store) or self.roster
        lost = seat_of(self.roster, member=self._member) == "lost"
        self.in_vain = superseded or lost or self.roster.phase == "finished"
