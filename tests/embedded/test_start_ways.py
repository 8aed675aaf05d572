"""Doors to one campaign on the real stack: Temporal's CLI, its Python client, `anabasis start` (and the Web UI, in
tests/browser). All are given the same JSON, but for its name."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from anabasis.client import Anabasis
from tests.support.processes import REPOSITORY, Processes
from tests.support.stack import Stack, small_spec
from workers.state_dir import StackRecord, StateDir
from workers.temporal_server import find_program

pytestmark = pytest.mark.slow

COMMAND_SECONDS = 120.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackRecord]:
    """`anabasis up`, shared by the tests of this file."""
    folder = tmp_path_factory.mktemp("doors")
    processes = Processes(folder)
    running = Stack(processes, folder / "home")
    try:
        running.up()
        record = StateDir(running.home).read()
        assert record is not None
        yield record
        running.down()
    finally:
        processes.stop_all()


def spec_of(name: str) -> dict[str, Any]:
    return small_spec(name, rounds=3, training={"inner_steps": 5})


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=REPOSITORY, env=env
    )


def temporal(stack: StackRecord, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(str(find_program()), "--disable-config-file", "--address", stack.address, *arguments)


async def completed(stack: StackRecord, name: str) -> None:
    campaign = (await Anabasis.connect(address=stack.address)).campaign(name)
    result = await campaign.result(timeout_seconds=COMMAND_SECONDS)
    assert (result.name, result.version) == (name, 3)


async def test_temporals_own_cli_starts_a_campaign(stack: StackRecord, tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps(spec_of("by-temporal")))
    done = temporal(
        stack, "workflow", "start", "--type", "TrainingCampaign", "--task-queue", "campaigns",
        "--workflow-id", "campaign/by-temporal", "--input-file", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    await completed(stack, "by-temporal")


def test_temporals_own_cli_shows_why_a_bad_spec_fails(stack: StackRecord, tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"name": "bad", "fleet": {"slots": 0}, "target": {"rounds": "many"}}))
    done = temporal(
        stack, "workflow", "execute", "--type", "TrainingCampaign", "--task-queue", "campaigns",
        "--workflow-id", "campaign/bad", "--input-file", str(path), "--output", "json",
    )  # fmt: skip
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "fleet.slots" in shown
    assert "target.rounds" in shown
    assert "InvalidSpec" in shown


async def test_temporals_python_client_starts_a_campaign(stack: StackRecord) -> None:
    plain = await Client.connect(stack.address)  # with Temporal's own converter, not ours
    handle = await plain.start_workflow(
        "TrainingCampaign", spec_of("by-client"), id="campaign/by-client", task_queue="campaigns"
    )
    assert (await asyncio.wait_for(handle.result(), COMMAND_SECONDS))["version"] == 3
    # Our client works over such a connection too.
    assert (await Anabasis(plain).campaign("by-client").status()).merged_rounds == 3


async def test_our_typed_client_starts_a_campaign(stack: StackRecord) -> None:
    campaign = await (await Anabasis.connect(address=stack.address)).start(spec_of("by-anabasis"))
    assert (await campaign.result(timeout_seconds=COMMAND_SECONDS)).version == 3


@pytest.mark.parametrize("suffix", ["json", "yaml"])
async def test_our_cli_starts_a_campaign_and_waits(stack: StackRecord, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"campaign.{suffix}"
    spec = spec_of(f"by-cli-{suffix}")
    path.write_text(json.dumps(spec) if suffix == "json" else yaml.safe_dump(spec))
    done = await asyncio.to_thread(
        run, sys.executable, "-m", "anabasis.cli.main", "start", str(path), "--wait",
        env={"ANABASIS_HOME": stack.home, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    await completed(stack, f"by-cli-{suffix}")
