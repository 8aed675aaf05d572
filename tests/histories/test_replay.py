"""Golden histories replay: a workflow that runs for weeks must survive the next release of its code."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from workflows.campaign import TrainingCampaign
from workflows.node import TrainingNode

GOLDENS = sorted(Path(__file__).parent.glob("*.json"))


def test_there_are_goldens_of_each_kind() -> None:
    labels = {path.name.split(".")[0] for path in GOLDENS}
    assert {"normal", "failures", "cancelled", "continued"} <= labels


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
async def test_golden_history_replays(path: Path) -> None:
    replayer = Replayer(workflows=[TrainingCampaign, TrainingNode], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json(path.stem, path.read_text()))
