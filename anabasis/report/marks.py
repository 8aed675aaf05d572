"""What is drawn: the curve's lines and the marks of rollbacks and failures on it, whatever draws them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from anabasis.report.model import CurvePoint, Report
from anabasis.report.scale import Point
from anabasis.report.words import plural

Group = Literal["rollback", "node", "data", "control"]

GROUP_NAMES: dict[Group, str] = {
    "rollback": "rollback",
    "node": "node failed",
    "data": "bad contribution or checkpoint",
    "control": "aggregator, store or budget",
}

_DATA = {"corrupt_contribution", "rejected_contribution", "checkpoint_fallback"}
_CONTROL = {"aggregator_failed", "store_unavailable", "budget_warning", "budget_exhausted"}
_NO_MARK = {"diverged"}  # the rollback that answers it has its own mark


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened in the round of `version`; `text` says what, for a tooltip."""

    version: int
    group: Group
    text: str


def curve_marks(report: Report) -> list[Mark]:
    """One mark per version and group, rollbacks first."""
    marks = [
        Mark(item.version, "rollback", f"version {item.version}: rolled back to version {item.restored}")
        for item in report.rollbacks
    ]
    kinds: dict[tuple[int, Group], Counter[str]] = {}
    for incident in report.incidents:
        if incident.version is not None and incident.kind not in _NO_MARK:
            kinds.setdefault((incident.version, group_of(incident.kind)), Counter())[incident.kind] += 1
    for (version, group), counter in sorted(kinds.items()):
        said = ", ".join(f"{number} × {kind}" for kind, number in sorted(counter.items()))
        marks.append(Mark(version, group, f"around version {version}: {said}"))
    return marks


def group_of(kind: str) -> Group:
    """Whose failure an incident's kind is; unknown kinds are a node's, as most are."""
    if kind in _DATA:
        return "data"
    return "control" if kind in _CONTROL else "node"


def training_segments(points: list[CurvePoint]) -> list[list[Point]]:
    """(version, loss), cut where a rollback jumps back."""
    segments: list[list[Point]] = [[]]
    for point in points:
        if point.kind == "rollback":
            segments.append([])
        elif point.loss is not None:
            segments[-1].append((float(point.version), point.loss))
    return [segment for segment in segments if segment]


def validation_points(points: list[CurvePoint]) -> list[Point]:
    """(version, validation loss)."""
    return [(float(point.version), point.validation_loss) for point in points if point.validation_loss is not None]


def curve_summary(report: Report) -> str:
    """The picture in words, for those who cannot see it."""
    losses = [point.loss for point in report.curve if point.loss is not None]
    if not losses:
        return "No round has been committed yet."
    failures = sum(incident.kind not in _NO_MARK for incident in report.incidents)
    return (
        f"Training loss from {losses[0]:.4f} to {losses[-1]:.4f} over {plural(len(losses), 'round')}, "
        f"with {plural(len(report.rollbacks), 'rollback')} and {plural(failures, 'incident')}."
    )
