"""Golden histories replay: a workflow that runs for weeks must survive the next release of its code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from workflows.campaign import TrainingCampaign
from workflows.node import TrainingNode

REPLAY_DEADLINE_SECONDS = 60.0
"""A replay takes about a second."""

GOLDENS = sorted(Path(__file__).parent.glob("*.json"))


def test_there_are_goldens_of_each_kind() -> None:
    labels = {path.name.split(".")[0].rstrip("0123456789") for path in GOLDENS}
    wanted = {"normal", "cancelled", "continued", "cloud-failures", "process-failures", "recipe-failures", "divergence"}
    assert wanted <= labels


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
async def test_golden_history_replays(path: Path) -> None:
    history = path.read_text()
    # The id is part of the input: the workflow compares it with the campaign's name.
    workflow_id = json.loads(history)["events"][0]["workflowExecutionStartedEventAttributes"]["workflowId"]
    replayer = Replayer(workflows=[TrainingCampaign, TrainingNode], data_converter=pydantic_data_converter)
    # A workflow that ends earlier than its history makes the replayer wait for ever instead of failing.
    await asyncio.wait_for(
        replayer.replay_workflow(WorkflowHistory.from_json(workflow_id, history)), REPLAY_DEADLINE_SECONDS
    )
