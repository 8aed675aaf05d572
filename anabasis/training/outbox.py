"""The contribution that this node has sent, until its round is over."""

from __future__ import annotations

from contextlib import suppress

import structlog

from anabasis.campaign.records import ContributionHeader, RosterMember, keys
from anabasis.errors import CorruptData, ObjectNotFound, PreconditionFailed
from anabasis.storage.base import ObjectStore
from anabasis.training.contribution import unpack_contribution

MAX_RESENDS = 10
"""Per round. The aggregator gives a damaged object back a few times and then rejects it: this only bounds errors."""

_log = structlog.get_logger(__name__)


class Outbox:
    """Puts this node's contributions into the mailbox, and again when one is withdrawn because it was damaged.

    Attributes:
        version: base version of what was sent last; None when nothing is outstanding.
    """

    def __init__(self, store: ObjectStore, *, member: RosterMember) -> None:
        self._store = store
        self._member = member
        self._data = b""
        self._resends = 0
        self.version: int | None = None

    def send(self, data: bytes, *, version: int, chain: str) -> None:
        """Put the contribution to the round that starts at `version`, which has this chain.

        When an earlier life of this process has sent one already, that one counts, if it is sound.

        Raises:
            StorageError: from the store, if it is no outage that was waited for.
        """
        self._data, self._resends, self.version = data, 0, version
        try:
            self._store.put(self._key(version), data, if_absent=True)
        except PreconditionFailed:
            if self.adopt(version=version, chain=chain) is None:
                self._store.delete(self._key(version))
                self._store.put(self._key(version), data)

    def adopt(self, *, version: int, chain: str) -> ContributionHeader | None:
        """What an earlier life of this process already sent for this version: its header, or None.

        A damaged object is left alone: `send` replaces it.
        """
        try:
            data = self._store.get(self._key(version))
            header, _ = unpack_contribution(data)
        except (ObjectNotFound, CorruptData):
            return None
        mine = (self._member.slot, self._member.attempt, self._member.nonce)
        if (header.slot, header.attempt, header.nonce) != mine or header.base_chain != chain:
            return None
        self._data, self._resends, self.version = data, 0, version
        return header

    def ensure(self) -> bool:
        """Send the outstanding contribution again if it has vanished; whether it had."""
        if self.version is None or self._resends >= MAX_RESENDS or self._store.head(self._key(self.version)):
            return False
        self._resends += 1
        _log.warning("contribution_resent", version=self.version, resends=self._resends)
        with suppress(PreconditionFailed):
            self._store.put(self._key(self.version), self._data, if_absent=True)
        return True

    def clear(self) -> None:
        """The round is over."""
        self._data, self.version = b"", None

    def _key(self, version: int) -> str:
        return keys.mail(version, self._member.slot, self._member.attempt)
