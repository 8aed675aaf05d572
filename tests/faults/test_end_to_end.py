"""The main job on the real stack, while an agent, a trainer and the control worker are taken out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from anabasis.campaign.records import keys
from anabasis.client import Anabasis
from anabasis.storage import open_store
from anabasis.storage.versions import audit_offsets, newest_version
from tests.support.processes import Processes
from tests.support.wait import wait_until, wait_until_sync
from workers.connect import connect
from workers.state_dir import StateDir

UP_SECONDS = 180.0
CAMPAIGN_SECONDS = 300.0

SPEC = {
    "name": "survivor",
    # A round takes about a second on every machine, so that there is time to notice and to mend before the end.
    "recipe": "tests.support.recipes:Slow",
    "recipe_options": {"seconds_per_step": 0.03},
    "target": {"rounds": 40},
    "data": {"tokenizer": "bytes", "max_bytes": 300_000, "sequence_length": 64, "partitions": 8},
    "fleet": {"slots": 3},
    "training": {"inner_steps": 30},
    "checkpoint": {"every_rounds": 6},
    "health": {"heartbeat_seconds": 8},
    "control": {"progress_seconds": 1},
}


def _pid(home: Path, slot: int, file: str) -> int:
    """Of the slot's newest node, once it trains."""

    def folder() -> Path | None:
        living = [f for f in (home / "nodes" / "survivor").glob(f"{slot}-*") if not (f / "released").exists()]
        ready = [f for f in living if (f / "trainer.pid").exists()]
        return max(ready, key=lambda f: f.stat().st_mtime, default=None)

    wait_until_sync(lambda: folder() is not None, seconds=120)
    found = folder()
    assert found is not None
    return int(json.loads((found / file).read_text())["pid"])


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(700)
async def test_a_campaign_survives_killed_and_frozen_processes(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-must-not-travel")
    home = Path(os.environ["ANABASIS_HOME"])
    stack = processes.python("-m", "anabasis.cli.main", "up", "--port", "0", "--json", name="up")
    stack.wait_for_text('"ready":true', seconds=UP_SECONDS)
    client = await connect()
    campaign = await Anabasis(client).start(SPEC)
    status = await campaign.status()

    async def store_known() -> bool:
        return bool((await campaign.status()).store_url)

    await wait_until(store_known, seconds=120)
    status = await campaign.status()
    store = open_store(status.store_url).child(keys.campaign_root("survivor"))

    def reached(version: int) -> bool:
        return (newest_version(store) or 0) >= version

    await wait_until(lambda: reached(2), seconds=CAMPAIGN_SECONDS)
    bystander = _pid(home, 2, "trainer.pid")
    os.kill(_pid(home, 0, "agent.pid"), signal.SIGKILL)
    await wait_until(lambda: reached(4), seconds=CAMPAIGN_SECONDS)
    os.kill(_pid(home, 1, "trainer.pid"), signal.SIGSTOP)
    await wait_until(lambda: reached(6), seconds=CAMPAIGN_SECONDS)
    record = StateDir(home).read()
    assert record is not None
    os.kill(next(child.pid for child in record.children if child.name == "control"), signal.SIGKILL)

    result = await campaign.result(timeout_seconds=CAMPAIGN_SECONDS)
    final = await campaign.status()
    assert final.merged_rounds == 40
    assert result.model == "survivor"
    assert audit_offsets(store) == []
    assert {"lost", "frozen"} <= {incident.kind for incident in final.incidents}
    assert all(incident.mended_at is not None for incident in final.incidents)
    assert sum(final.ledger.values()) == pytest.approx(final.paid_node_seconds)
    untouched = list((home / "nodes" / "survivor").glob("2-*"))
    assert [int(json.loads((node / "trainer.pid").read_text())["pid"]) for node in untouched] == [bystander]
    await _no_secret_in_histories(client)
    stack.signal(signal.SIGTERM)
    stack.wait(seconds=UP_SECONDS)


async def _no_secret_in_histories(client: Client) -> None:
    seen = 0
    async for workflow in client.list_workflows():
        history = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).fetch_history()
        assert "a-secret-that-must-not-travel" not in history.to_json()
        seen += 1
    assert seen >= 5  # the campaign, its three first nodes, and at least one replacement
