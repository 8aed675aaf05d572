"""Whole campaigns of simulated nodes on one real stack: Temporal's dev server, control worker, aggregator, simulators.

The stack is started once for the folder, in a state directory of its own, and stopped with everything that it started.
Every test uses campaign names of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.providers import local, simulated
from activities.providers.cloud_table import CloudTable
from activities.providers.simulated import simulation_dir
from anabasis.campaign.messages import NodeIdentity
from anabasis.campaign.records import keys
from anabasis.campaign.status import CampaignStatus, NodeState, NodeStatus
from anabasis.client import Anabasis, CampaignHandle
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import newest_version
from tests.support.processes import Processes
from tests.support.wait import wait_until, wait_until_sync
from workers.connect import connect
from workers.state_dir import StackRecord, StateDir

UP_SECONDS = 180.0

SECONDS = 120.0
"""For anything that takes seconds on an idle machine."""

FOREIGN_PREFIXES = ("TEMPORAL_", "ANABASIS_", "AWS_")


@dataclass(frozen=True)
class Running:
    """Where the running stack is."""

    home: Path
    record: StackRecord

    def store(self, campaign: str) -> ObjectStore:
        """The campaign's own part of the store."""
        return open_store(self.record.store_url).child(keys.campaign_root(campaign))

    def version(self, campaign: str) -> int:
        """The newest committed one, by the store itself."""
        return newest_version(self.store(campaign)) or 0

    def folder(self, campaign: str) -> Path:
        """Of the simulated cloud."""
        return simulation_dir(self.home, campaign)

    def cloud(self, campaign: str) -> CloudTable:
        """What the simulated cloud remembers of a campaign that has asked it for a node."""
        return CloudTable(self.folder(campaign))

    def billed(self, campaign: str) -> int:
        """Machines that the cloud would still bill."""
        return self.cloud(campaign).count_live()


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`anabasis up`, for all tests of this folder."""
    folder = tmp_path_factory.mktemp("campaigns")
    home = folder / "anabasis-home"
    with pytest.MonkeyPatch.context() as patch:  # the fixture that cleans a test's environment comes later
        for name in [name for name in os.environ if name.startswith(FOREIGN_PREFIXES)]:
            patch.delenv(name)
        patch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
        processes = Processes(folder)
        try:
            up = processes.python(
                "-m", "anabasis.cli.main", "up", "--port", "0", "--json", name="up", env={"ANABASIS_HOME": str(home)}
            )
            up.wait_for_text('"ready":true', seconds=UP_SECONDS)
            record = StateDir(home).read()
            assert record is not None
            yield Running(home, record)
            up.signal(signal.SIGTERM)
            assert up.wait(seconds=UP_SECONDS) == 0
        finally:
            processes.stop_all()
            simulated.stop_all(home)
            local.stop_all(home)
    wait_until_sync(lambda: not _processes_of(home), seconds=30, what="no process is left behind")


def _processes_of(home: Path) -> list[str]:
    """Command lines of processes that were started for this state directory."""
    found: list[str] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                ours = process.environ().get("ANABASIS_HOME") == str(home)
                found += [" ".join(process.cmdline())] if ours else []
    return found


@pytest.fixture
async def client(running: Running) -> Client:
    """A plain Temporal client, with the project's data converter."""
    return await connect(address=running.record.address)


@pytest.fixture
async def anabasis(client: Client) -> Anabasis:
    return Anabasis(client)


def quick_spec(name: str, *, slots: int = 2, goal: int = 4, **sections: Any) -> dict[str, Any]:
    """A campaign of simulated nodes whose rounds take a fraction of a second; `sections` are laid over it."""
    spec: dict[str, Any] = {
        "name": name,
        "recipe": "tiny",
        "target": {"rounds": goal},
        "data": {"tokenizer": "bytes", "max_bytes": 200_000, "sequence_length": 32, "partitions": 8},
        "fleet": {
            "slots": slots,
            "provider": "simulated",
            "provider_options": {"steps_per_second": 100.0, "spread": 0.0, "boot_seconds": 0.1},
        },
        "training": {"inner_steps": 20, "batch_size": 1, "dense_warmup_rounds": 0},
        "rounds": {"poll_seconds": 0.05},
        "checkpoint": {"every_rounds": 4, "evaluate_every_rounds": 0},
        "failures": {"backoff_seconds": 0.1, "max_backoff_seconds": 1},
        "control": {"progress_seconds": 0.3},
    }
    return _laid_over(spec, sections)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


async def until(campaign: CampaignHandle, holds: Callable[[CampaignStatus], Any], *, what: str) -> CampaignStatus:
    """The first status for which this holds."""

    async def status() -> CampaignStatus | None:
        found = await campaign.status()
        return found if holds(found) else None

    found = await wait_until(status, seconds=SECONDS, every=0.1, what=f"{campaign.name}: {what}")
    assert found is not None
    return found


async def runs_of(client: Client, campaign: str) -> list[tuple[str, str]]:
    """(workflow id, run id) of all runs of a campaign and its nodes."""
    query = f"WorkflowId STARTS_WITH 'campaign/{campaign}'"
    found = [(run.id, run.run_id) async for run in client.list_workflows(query)]
    return [one for one in found if one[0] == f"campaign/{campaign}" or one[0].startswith(f"campaign/{campaign}/")]


async def open_workflows(client: Client, campaign: str) -> list[str]:
    """Ids of the open workflows of a campaign and its nodes, by what the server says of each now."""
    handles = [client.get_workflow_handle(one, run_id=run_id) for one, run_id in await runs_of(client, campaign)]
    described = await asyncio.gather(*(handle.describe() for handle in handles))
    return [run.id for run in described if run.status is WorkflowExecutionStatus.RUNNING]


def identity(campaign: str, node: NodeStatus) -> NodeIdentity:
    return NodeIdentity(campaign=campaign, slot=node.slot, attempt=node.attempt, nonce=node.nonce)


def node_in(status: CampaignStatus, slot: int) -> NodeStatus | None:
    """The node that is ready in a slot."""
    return next((node for node in status.nodes if node.slot == slot and node.state is NodeState.READY), None)
