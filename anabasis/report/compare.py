"""Two campaigns side by side: does the disturbed one learn as the undisturbed one does?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from anabasis.report.marks import Group, curve_marks
from anabasis.report.model import CurvePoint, Report, ReportPart
from anabasis.report.words import UNKNOWN
from anabasis.report.words import loss as loss_words

AxisName = Literal["rounds", "tokens"]


class ComparedRun(ReportPart):
    """One of the two.

    Attributes:
        curve: (merged rounds or committed tokens, training loss), cut into segments at rollbacks.
        marks: (position, group) of rollbacks and failures.
    """

    label: str
    campaign: str
    curve: list[list[tuple[float, float]]]
    marks: list[tuple[float, Group]] = Field(default_factory=list)
    final_loss: float | None = None
    final_validation_loss: float | None = None
    tokens_total: int = 0
    merged_rounds: int = 0
    incidents: int = 0
    rollbacks: int = 0
    goodput: float | None = None


class Comparison(ReportPart):
    """What two reports say of each other.

    Attributes:
        axis: what the curves are drawn over; tokens are the fairer one when rounds differ in size.
        largest_gap: greatest absolute difference of training losses at a common position, and where it is.
        final_difference: last training loss of b minus that of a.
        identical_through: last version up to which *all* parameters are bit-identical; null when version 0
            differs already or nothing can be compared.
        bit_identical: both have the same newest version, and every version of one equals the other's.
    """

    a: ComparedRun
    b: ComparedRun
    axis: AxisName
    largest_gap: float | None = None
    largest_gap_at: float | None = None
    final_difference: float | None = None
    identical_through: int | None = None
    bit_identical: bool = False

    def summary(self) -> str:
        """The comparison in one or two sentences."""
        said = (
            f"{self.a.label}: loss {loss_words(self.a.final_loss)} after {self.a.merged_rounds:,} rounds; "
            f"{self.b.label}: loss {loss_words(self.b.final_loss)} after {self.b.merged_rounds:,} rounds, "
            f"{self.b.incidents} incidents, {self.b.rollbacks} rollbacks."
        )
        if self.bit_identical:
            return f"{said} All parameters are bit-identical."
        difference = UNKNOWN if self.final_difference is None else f"{self.final_difference:+.4f}"
        return f"{said} Difference at the end {difference}."


def compare_losses(
    report_a: Report,
    report_b: Report,
    *,
    label_a: str = "undisturbed",
    label_b: str = "disturbed",
    axis: AxisName = "rounds",
) -> Comparison:
    """Compare two campaigns' loss curves, and their parameters by fingerprint."""
    a, b = _run(report_a, label=label_a, axis=axis), _run(report_b, label=label_b, axis=axis)
    gap, gap_at = _largest_gap(a, b)
    through = _identical_through(report_a.curve, report_b.curve)
    difference = b.final_loss - a.final_loss if a.final_loss is not None and b.final_loss is not None else None
    return Comparison(
        a=a,
        b=b,
        axis=axis,
        largest_gap=gap,
        largest_gap_at=gap_at,
        final_difference=difference,
        identical_through=through,
        bit_identical=through is not None and through == report_a.version == report_b.version,
    )


def _run(report: Report, *, label: str, axis: AxisName) -> ComparedRun:
    position = {point.version: _position(point, axis) for point in report.curve}
    segments: list[list[tuple[float, float]]] = [[]]
    for point in report.curve:
        if point.kind == "rollback":
            segments.append([])
        elif point.loss is not None:
            segments[-1].append((_position(point, axis), point.loss))
    return ComparedRun(
        label=label,
        campaign=report.campaign,
        curve=[segment for segment in segments if segment],
        marks=[(position[mark.version], mark.group) for mark in curve_marks(report) if mark.version in position],
        final_loss=report.loss,
        final_validation_loss=report.validation_loss,
        tokens_total=report.tokens_total,
        merged_rounds=report.merged_rounds,
        incidents=report.incidents_total,
        rollbacks=len(report.rollbacks),
        goodput=report.ledger.goodput if report.ledger else None,
    )


def _position(point: CurvePoint, axis: AxisName) -> float:
    return float(point.merged_rounds if axis == "rounds" else point.tokens_total)


def _largest_gap(a: ComparedRun, b: ComparedRun) -> tuple[float | None, float | None]:
    """Over positions that both have (after a rollback, the later loss at a position counts)."""
    ours = {x: loss for segment in a.curve for x, loss in segment}
    theirs = {x: loss for segment in b.curve for x, loss in segment}
    gaps = [(abs(theirs[x] - loss), x) for x, loss in ours.items() if x in theirs]
    return max(gaps) if gaps else (None, None)


def _identical_through(a: list[CurvePoint], b: list[CurvePoint]) -> int | None:
    through: int | None = None
    theirs = {point.version: point.fingerprint for point in b}
    for expected, point in enumerate(a):
        if point.version != expected or not point.fingerprint or theirs.get(point.version) != point.fingerprint:
            break
        through = point.version
    return through
