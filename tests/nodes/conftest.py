"""Real agents with a fake trainer, leased by a real workflow through a real server."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.providers.base import TemporalAddress
from activities.providers.local import LocalOptions, LocalProvider, stop_all
from activities.providers.node_folder import NodeFolder
from activities.providers.processes import ProcessMark, marked
from anabasis.campaign.messages import LeaseRequest, NodeIdentity, NodeRequest
from tests.nodes.drive_node import Drive, DriveNode, Outcome
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until

FAKE_TRAINER = [sys.executable, str(Path(__file__).with_name("fake_trainer.py"))]


def identity(*, slot: int = 0, attempt: int = 1) -> NodeIdentity:
    """A node of its own campaign: tests share a server."""
    return NodeIdentity(campaign=f"c{uuid.uuid4().hex[:8]}", slot=slot, attempt=attempt, nonce=uuid.uuid4().hex[:8])


def request_for(node: NodeIdentity, **changes: Any) -> NodeRequest:
    defaults: dict[str, Any] = {
        "node": node, "provider": "local", "store_url": "file:///nowhere", "heartbeat_seconds": 5.0,
        "stall_seconds": 2.0, "shutdown_grace_seconds": 5.0,
    }  # fmt: skip
    return NodeRequest.model_validate(defaults | changes)


@dataclass
class Machine:
    """A home directory with local nodes, the server that they talk to, and a workflow to lease them."""

    home: Path
    client: Client
    address: str
    queue: str
    options: LocalOptions = field(default_factory=LocalOptions)

    @property
    def provider(self) -> LocalProvider:
        return LocalProvider(self.options, home=self.home, trainer_command=FAKE_TRAINER)

    @property
    def temporal(self) -> TemporalAddress:
        return TemporalAddress(target=self.address, namespace="default")

    async def start(self, node: NodeIdentity, **changes: Any) -> NodeFolder:
        """Request a node and wait until its agent lives."""
        await self.provider.request(request_for(node, **changes), temporal=self.temporal)
        folder = NodeFolder(self.home, node)
        await wait_until(folder.agent_pid.exists, seconds=30, what="agent is up")
        return folder

    async def lease(
        self,
        node: NodeIdentity,
        *,
        heartbeat_seconds: float = 5.0,
        lease_seconds: float = 60.0,
        stall_seconds: float = 2.0,
        attempts: int = 1,
    ) -> WorkflowHandle[DriveNode, Outcome]:
        request = LeaseRequest(
            node=node, store_url="file:///nowhere", lease_seconds=lease_seconds, stall_seconds=stall_seconds
        )
        drive = Drive(lease=request, heartbeat_seconds=heartbeat_seconds, attempts=attempts)
        return await self.client.start_workflow(
            DriveNode.run, drive, id=f"drive-{uuid.uuid4().hex}", task_queue=self.queue
        )


@pytest.fixture
async def machine(temporal_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Machine]:
    async for ready in machine_at(temporal_server, tmp_path):
        yield ready


async def machine_at(server: TemporalServer, folder: Path) -> AsyncIterator[Machine]:
    """A machine whose nodes are all ended with the test."""
    client = await server.client()
    queue = f"drive-{uuid.uuid4().hex[:8]}"
    home = folder / "anabasis-home"
    worker = Worker(
        client, task_queue=queue, workflows=[DriveNode], workflow_runner=UnsandboxedWorkflowRunner(),
    )  # fmt: skip
    async with worker:
        yield Machine(home=home, client=client, address=server.address, queue=queue)
        await asyncio.to_thread(stop_all, home, grace_seconds=0.0)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory; nodes that a test leaves behind in it are ended."""
    path = tmp_path / "anabasis-home"
    yield path
    stop_all(path, grace_seconds=0.0)


def behave(folder: NodeFolder, what: str) -> None:
    """Tell the fake trainer of a node."""
    folder.work.mkdir(parents=True, exist_ok=True)
    (folder.work / "behave").write_text(what)


def progress_of(folder: NodeFolder) -> dict[str, Any]:
    """What the trainer said last; empty before it said anything."""
    try:
        return json.loads((folder.work / "progress.json").read_text())
    except (OSError, ValueError):
        return {}


def process_at(path: Path) -> psutil.Process:
    """The live process that a mark in this file names."""
    mark = ProcessMark.read(path)
    process = mark.find() if mark is not None else None
    assert process is not None, f"no live process at {path}"
    return process


def alive(folder: NodeFolder) -> list[int]:
    """Pids of everything that belongs to a node."""
    return sorted(process.pid for process in marked(folder.marker))


async def until_training(folder: NodeFolder, *, steps: int = 3) -> dict[str, Any]:
    """Wait for a trainer that has done some steps."""
    return await wait_until(
        lambda: progress_of(folder) if progress_of(folder).get("steps", 0) >= steps else {}, seconds=30,
        what="the trainer trains",
    )  # fmt: skip
