from __future__ import annotations

from pathlib import Path

import pytest

from anabasis.report import compare_losses, render_comparison_png, render_comparison_terminal
from anabasis.report.model import Report
from anabasis.report.rounds import RoundsTally
from tests.report.samples import START, manifests


def report(campaign: str, **kind: int) -> Report:
    tally = RoundsTally()
    for manifest in manifests(kind.pop("count", 20), campaign=campaign, **kind):
        tally.add(manifest)
    curve = tally.curve()
    return Report(
        campaign=campaign,
        store_url="file:///s",
        generated_at=START,
        curve=curve,
        rollbacks=tally.rollbacks,
        version=curve[-1].version,
        merged_rounds=curve[-1].merged_rounds,
        tokens_total=curve[-1].tokens_total,
        loss=curve[-1].loss,
    )


def test_equal_campaigns_are_bit_identical() -> None:
    comparison = compare_losses(report("calm"), report("stormy"))
    assert comparison.bit_identical
    assert comparison.identical_through == 20
    assert comparison.largest_gap == 0.0
    assert "bit-identical: every version up to 20" in render_comparison_terminal(comparison, color=False)


def test_a_rollback_ends_the_identity_and_is_marked() -> None:
    comparison = compare_losses(report("calm"), report("stormy", rollback_at=8))
    assert not comparison.bit_identical
    assert comparison.identical_through == 7
    assert comparison.b.rollbacks == 1
    assert len(comparison.b.curve) == 2
    text = render_comparison_terminal(comparison, color=False)
    assert "R rollback" in text
    assert "bit-identical through version 7" in text


def test_a_shorter_prefix_is_not_the_same_campaign() -> None:
    comparison = compare_losses(report("calm", count=20), report("stormy", count=10))
    assert not comparison.bit_identical
    assert comparison.identical_through == 10


def test_differences_are_of_equal_positions() -> None:
    a, b = report("calm"), report("stormy")
    moved = b.model_copy(
        update={
            "curve": [
                point.model_copy(update={"loss": point.loss + 0.5, "fingerprint": "f"}) if point.version == 7 else point
                for point in b.curve
                if point.loss is not None or point.version == 0
            ]
        }
    )
    comparison = compare_losses(a, moved)
    assert comparison.largest_gap == pytest.approx(0.5)
    assert comparison.largest_gap_at == 7.0
    assert comparison.final_difference == 0.0


def test_tokens_can_be_the_axis() -> None:
    comparison = compare_losses(report("calm"), report("stormy"), axis="tokens")
    assert comparison.a.curve[0][-1][0] == float(comparison.a.tokens_total)
    assert "committed tokens" in render_comparison_terminal(comparison, color=False)


def test_nothing_to_compare_is_said() -> None:
    empty = Report(campaign="a", store_url="", generated_at=START)
    comparison = compare_losses(empty, empty)
    assert not comparison.bit_identical
    assert "nothing to compare yet" in render_comparison_terminal(comparison, color=False)


def test_both_curves_in_one_picture(tmp_path: Path) -> None:
    comparison = compare_losses(report("calm"), report("$torm_y$", rollback_at=8))
    written = render_comparison_png(comparison, tmp_path / "both.png")
    assert written.read_bytes().startswith(b"\x89PNG")
