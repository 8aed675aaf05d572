"""The report of what the real aggregator commits, not of invented manifests."""

from __future__ import annotations

from pathlib import Path

import torch

from anabasis.report import build_report, compare_losses, render_html, render_terminal
from anabasis.report.model import Report
from anabasis.storage import open_store
from anabasis.training.checkpointing import roll_back, write_checkpoint
from anabasis.training.publish import publish_model
from tests.aggregation.world import NAME, World


def trained(folder: Path, *, rollback: bool = False) -> Report:
    """Three rounds, a checkpoint, perhaps a rollback, then on to the target and the registry."""
    torch.set_num_threads(1)
    world = World(folder)
    aggregator = world.aggregator(on_tick=world.nodes(0, 1))
    aggregator.advance(until_version=3)
    write_checkpoint(aggregator, version=3, keep=2)
    aggregator.advance(until_version=5)
    if rollback:
        roll_back(aggregator, from_version=5, not_after=4)
    aggregator.advance(until_version=100)
    write_checkpoint(aggregator, version=world.newest.version, keep=2)
    root = open_store(world.url)
    publish_model(root, campaign=NAME, version=world.newest.version, tick=lambda _: None)
    return build_report(root, NAME)


def test_a_real_campaign_reads_without_problems(tmp_path: Path) -> None:
    report = trained(tmp_path)
    assert report.problems == []
    assert report.audit.result == "clean"
    assert (report.version, report.merged_rounds) == (6, 6)
    assert report.tokens_total == sum(node.tokens for node in report.nodes) > 0
    assert [entry.version for entry in report.checkpoints] == [3, 6]
    assert [(model.model, model.number, model.campaign_version) for model in report.models] == [(NAME, 1, 6)]
    assert report.validation_loss == report.models[0].validation_loss
    assert "Sample audit  clean" in render_terminal(report, color=False)
    assert "</html>" in render_html(report)


def test_a_real_rollback_is_shown_and_the_audit_stays_clean(tmp_path: Path) -> None:
    report = trained(tmp_path, rollback=True)
    assert [(r.version, r.restored, r.discarded) for r in report.rollbacks] == [(6, 3, 2)]
    assert report.audit.result == "clean"
    assert (report.version, report.merged_rounds) == (7, 6)


def test_two_equal_real_campaigns_are_bit_identical(tmp_path: Path) -> None:
    comparison = compare_losses(trained(tmp_path / "a"), trained(tmp_path / "b"))
    assert comparison.bit_identical
    disturbed = compare_losses(trained(tmp_path / "c"), trained(tmp_path / "d", rollback=True))
    assert disturbed.identical_through == 5
