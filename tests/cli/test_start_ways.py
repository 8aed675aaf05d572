"""Doors to one campaign: Temporal's CLI, its Python client, `anabasis start` (and the Web UI, in tests/browser)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from temporalio.client import Client

from anabasis.cli import exits
from anabasis.client import Anabasis
from tests.cli.conftest import Cli
from tests.support.temporal import TemporalServer
from workers.temporal_server import find_program

TEMPORAL_SECONDS = 60.0


def _temporal(server: TemporalServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_program()), "--disable-config-file", "--address", server.address, *arguments],
        capture_output=True, text=True, timeout=TEMPORAL_SECONDS, check=False,
    )  # fmt: skip


def _result(server: TemporalServer, name: str) -> dict[str, object]:
    async def wait() -> dict[str, object]:
        campaign = (await Anabasis.connect(address=server.address)).campaign(name)
        return (await campaign.result(timeout_seconds=30)).model_dump(mode="json")

    return asyncio.run(wait())


def test_temporals_own_cli_starts_a_campaign(standin_server: TemporalServer, name: str, tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"name": name, "target": {"rounds": 3}}))
    done = _temporal(
        standin_server, "workflow", "start", "--type", "TrainingCampaign", "--task-queue", "campaigns",
        "--workflow-id", f"campaign/{name}", "--input-file", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _result(standin_server, name)["version"] == 3


def test_temporals_own_cli_shows_why_a_bad_spec_fails(
    standin_server: TemporalServer, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"name": name, "fleet": {"slots": 0}, "target": {"rounds": "many"}}))
    done = _temporal(
        standin_server, "workflow", "execute", "--type", "TrainingCampaign", "--task-queue", "campaigns",
        "--workflow-id", f"campaign/{name}", "--input-file", str(path), "--output", "json",
    )  # fmt: skip
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "fleet.slots" in shown
    assert "target.rounds" in shown
    assert "InvalidSpec" in shown


async def test_temporals_python_client_starts_a_campaign(standin_server: TemporalServer, name: str) -> None:
    plain = await Client.connect(standin_server.address)  # with Temporal's own converter, not ours
    handle = await plain.start_workflow(
        "TrainingCampaign", {"name": name, "target": {"rounds": 3}}, id=f"campaign/{name}", task_queue="campaigns"
    )
    assert (await asyncio.wait_for(handle.result(), 30))["version"] == 3
    # Our client works over such a connection too.
    assert (await Anabasis(plain).campaign(name).status()).version == 3


def test_our_cli_starts_a_campaign(cli_run: Cli, temporal_env: TemporalServer, name: str, tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"name": name, "target": {"rounds": 3}}))
    assert cli_run("start", path).code == exits.OK
    assert _result(temporal_env, name)["version"] == 3
