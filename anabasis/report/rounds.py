"""Sums the version manifests up, one at a time, in order: curve, rounds, nodes, rejections."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from anabasis.campaign.records import CommittedContribution, VersionManifest
from anabasis.report.model import (
    CurvePoint,
    NodeContribution,
    RejectedContribution,
    RolledBack,
    RoundMembers,
)

RECENT_ROUNDS = 10
"""Rounds in the recent speed: enough to smooth one slow round, few enough to show a change."""


@dataclass(slots=True)
class _Node:
    slot: int
    attempt: int
    nonce: str
    rounds: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    sync_seconds: float = 0.0
    wait_seconds: float = 0.0
    uploaded_bytes: int = 0
    rejections: int = 0
    first_version: int | None = None
    last_version: int | None = None


@dataclass(slots=True)
class RoundsTally:
    """Accumulates manifests; the totals are right at any point, so a running campaign needs nothing special."""

    points: list[CurvePoint] = field(default_factory=list)
    rollbacks: list[RolledBack] = field(default_factory=list)
    rounds: list[RoundMembers] = field(default_factory=list)
    rejections: list[RejectedContribution] = field(default_factory=list)
    uploaded_bytes: int = 0
    _nodes: dict[tuple[int, int], _Node] = field(default_factory=dict)
    _validation: dict[int, float] = field(default_factory=dict)

    def add(self, manifest: VersionManifest) -> None:
        """Take in the next manifest."""
        self.points.append(_point(manifest))
        if manifest.kind == "rollback" and manifest.rolled_back_to is not None:
            self.rollbacks.append(
                RolledBack(
                    version=manifest.version,
                    restored=manifest.rolled_back_to,
                    discarded=max(0, manifest.version - 1 - manifest.rolled_back_to),
                    at=manifest.committed_at,
                )
            )
        for contribution in manifest.contributions:
            self._count(manifest.version, contribution)
        for rejection in manifest.rejected:
            self.rejections.append(RejectedContribution(version=manifest.version, **rejection.model_dump()))
            self._node(rejection.slot, rejection.attempt, "").rejections += 1
        if manifest.kind == "merge":
            self.rounds.append(
                RoundMembers(
                    version=manifest.version,
                    contributors=[f"{c.header.slot}-{c.header.attempt}" for c in manifest.contributions],
                    missing_slots=manifest.missing,
                    rejected=[f"{r.slot}-{r.attempt}" for r in manifest.rejected],
                    close_reason=manifest.close_reason,
                )
            )

    def note_validation(self, version: int, loss: float | None) -> None:
        """A validation loss that was measured on `version`."""
        known = finite(loss)
        if known is not None:
            self._validation[version] = known

    def _count(self, version: int, contribution: CommittedContribution) -> None:
        header = contribution.header
        node = self._node(header.slot, header.attempt, header.nonce)
        node.rounds += 1
        node.tokens += header.tokens
        node.train_seconds += header.train_seconds
        node.sync_seconds += header.sync_seconds
        node.wait_seconds += header.wait_seconds
        node.uploaded_bytes += contribution.size_bytes
        node.first_version = version if node.first_version is None else node.first_version
        node.last_version = version
        self.uploaded_bytes += contribution.size_bytes
        # The node measured the version that it started from, not the one that it helped to make.
        self.note_validation(header.base_version, header.validation_loss)

    def _node(self, slot: int, attempt: int, nonce: str) -> _Node:
        node = self._nodes.setdefault((slot, attempt), _Node(slot, attempt, nonce))
        node.nonce = node.nonce or nonce
        return node

    def curve(self) -> list[CurvePoint]:
        """The points, with the validation losses where they belong."""
        return [
            point.model_copy(update={"validation_loss": self._validation[point.version]})
            if point.version in self._validation
            else point
            for point in self.points
        ]

    def nodes(self, *, states: dict[str, str]) -> list[NodeContribution]:
        """By slot and attempt; `states` maps `<slot>-<attempt>` to what the campaign's status says of it."""
        total = sum(node.tokens for node in self._nodes.values())
        rows: list[NodeContribution] = []
        for (slot, attempt), node in sorted(self._nodes.items()):
            rows.append(
                NodeContribution(
                    slot=slot,
                    attempt=attempt,
                    nonce=node.nonce,
                    rounds=node.rounds,
                    tokens=node.tokens,
                    share=node.tokens / total if total else 0.0,
                    train_seconds=node.train_seconds,
                    sync_seconds=node.sync_seconds,
                    wait_seconds=node.wait_seconds,
                    uploaded_bytes=node.uploaded_bytes,
                    rejections=node.rejections,
                    first_version=node.first_version,
                    last_version=node.last_version,
                    state=states.get(f"{slot}-{attempt}", ""),
                )
            )
        return rows

    def tokens_per_second(self, *, rounds: int | None = None) -> float | None:
        """Committed tokens over wall-clock time, of the whole campaign or of its last `rounds`."""
        timed = [point for point in self.points if point.at > 0]
        if rounds is not None:
            timed = timed[-rounds - 1 :]
        if len(timed) < 2:
            return None
        seconds = timed[-1].at - timed[0].at
        tokens = timed[-1].tokens_total - timed[0].tokens_total
        return tokens / seconds if seconds > 0 else None


def finite(value: float | None) -> float | None:
    """The value, or None where it is not a number to draw or to sum."""
    return value if value is not None and math.isfinite(value) else None


def effective(points: list[CurvePoint], rollbacks: list[RolledBack]) -> list[CurvePoint]:
    """The points that the newest version's parameters come from: without what rollbacks have undone."""
    restored = {rollback.version: rollback.restored for rollback in rollbacks}
    kept: list[CurvePoint] = []
    limit: int | None = None
    for point in reversed(points):
        if limit is not None and point.version > limit:
            continue
        kept.append(point)
        limit = restored.get(point.version, limit)
    return kept[::-1]


def version_at(points: list[CurvePoint], moment: float) -> int | None:
    """The version whose round was under way at `moment` (seconds since the epoch), as far as clocks agree."""
    if not points:
        return None
    index = bisect_left(points, moment, key=lambda point: point.at)
    return points[min(index, len(points) - 1)].version


def _point(manifest: VersionManifest) -> CurvePoint:
    timed = manifest.kind == "merge" and 0 < manifest.opened_at <= manifest.committed_at
    return CurvePoint(
        version=manifest.version,
        kind=manifest.kind,
        merged_rounds=manifest.merged_rounds,
        loss=finite(manifest.loss) if manifest.kind == "merge" else None,
        tokens_total=manifest.tokens_total,
        contributors=len(manifest.contributions),
        at=manifest.committed_at,
        seconds=manifest.committed_at - manifest.opened_at if timed else None,
        merge_seconds=manifest.merge_seconds,
        fingerprint=manifest.fingerprint,
    )
