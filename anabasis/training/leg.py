"""Accounting of a leg: totals over exactly the committed versions of a range."""

from __future__ import annotations

from collections.abc import Sequence

from anabasis.campaign.messages import AggregatorIncident, LegResult, NodeRoundTotals
from anabasis.campaign.records import VersionManifest
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import read_version


class Leg:
    """The versions (from_version, newest known], each counted once however often the leg is tried again."""

    def __init__(self, store: ObjectStore, *, from_version: int | None) -> None:
        self._store = store
        self._from_version = from_version
        self._versions: list[VersionManifest] = []

    def catch_up(self, newest: VersionManifest) -> None:
        """Take in all versions up to this one."""
        if self._from_version is None:
            self._from_version = newest.version
        first = self._versions[-1].version + 1 if self._versions else self._from_version + 1
        missed = [read_version(self._store, version) for version in range(first, newest.version)]
        if newest.version >= first:
            self._versions += [*missed, newest]
        elif not self._versions:
            self._start = newest

    _start: VersionManifest | None = None

    def result(self, *, reason: str, detail: str, incidents: Sequence[AggregatorIncident]) -> LegResult:
        """The leg so far; empty when it was interrupted before anything was loaded."""
        last = self._versions[-1] if self._versions else self._start
        evaluated = [item.validation_loss for item in self._versions if item.validation_loss is not None]
        start = self._from_version or 0
        return LegResult.model_validate(
            {
                "reason": reason,
                "detail": detail,
                "from_version": start,
                "version": last.version if last else start,
                "loss": last.loss if last else None,
                "validation_loss": evaluated[-1] if evaluated else None,
                "tokens_total": last.tokens_total if last else 0,
                "merged_rounds": last.merged_rounds if last else 0,
                "nodes": totals(self._versions),
                "incidents": list(incidents),
            }
        )


def totals(versions: Sequence[VersionManifest]) -> list[NodeRoundTotals]:
    """What these versions say of each node, in the order of slots and attempts."""
    found: dict[tuple[int, int], NodeRoundTotals] = {}
    for manifest in versions:
        for item in manifest.contributions:
            header = item.header
            key = (header.slot, header.attempt)
            old = found.get(key, NodeRoundTotals(slot=header.slot, attempt=header.attempt))
            found[key] = old.model_copy(
                update={
                    "rounds": old.rounds + 1,
                    "tokens": old.tokens + header.tokens,
                    "train_seconds": old.train_seconds + header.train_seconds,
                    "sync_seconds": old.sync_seconds + header.sync_seconds,
                    "wait_seconds": old.wait_seconds + header.wait_seconds,
                }
            )
    return [found[key] for key in sorted(found)]
