"""The aggregator worker as a process: killed, frozen, asked to stop, while a leg is under way."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from anabasis.campaign.messages import AGGREGATOR_QUEUE, LegRequest, LegResult
from tests.aggregation.test_activities import OneActivity
from tests.aggregation.world import NAME, World, facts
from tests.faults.aggregator_process import campaign, freeze
from tests.support.processes import Process, Processes
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until

torch.set_num_threads(1)

pytestmark = [pytest.mark.faults, pytest.mark.slow]

UNTIL = 6
HEARTBEAT_SECONDS = 2.0


@asynccontextmanager
async def a_leg(client: Client, world: World, *, attempts: int = 0) -> AsyncIterator[Any]:
    """A running workflow whose one activity advances the campaign to version 6."""
    queue = f"test-{uuid.uuid4().hex[:8]}"
    request = LegRequest(campaign=NAME, store_url=world.url, until_version=UNTIL, from_version=0)
    async with Worker(client, task_queue=queue, workflows=[OneActivity], workflow_runner=UnsandboxedWorkflowRunner()):
        yield await client.start_workflow(
            OneActivity.run,
            args=["advance_leg", request.model_dump(mode="json"), attempts, AGGREGATOR_QUEUE, HEARTBEAT_SECONDS],
            id=f"campaign/{NAME}",
            task_queue=queue,
            result_type=LegResult,
        )


def a_worker(processes: Processes, server: TemporalServer) -> Process:
    return processes.python("-m", "workers.aggregator", name="aggregator", env={"TEMPORAL_ADDRESS": server.address})


async def trained(world: World, *, until: int) -> None:
    """Play the nodes until this version is committed."""
    tick = world.nodes(0, 1, until=until)

    def committed() -> bool:
        tick("")
        return world.newest.version >= until

    await wait_until(committed, seconds=60, every=0.02)


async def assert_undisturbed(world: World, handle: Any, folder: Path) -> None:
    result = await asyncio.wait_for(handle.result(), 60)
    assert (result.reason, result.version) == ("until", UNTIL)
    assert [(node.slot, node.rounds) for node in result.nodes] == [(0, UNTIL), (1, UNTIL)]
    folder.mkdir()
    campaign(folder, until=UNTIL)
    assert facts(world.store, range(UNTIL + 1)) == facts(World(folder).store, range(UNTIL + 1))


def a_world(folder: Path) -> World:
    return World(folder, training={"outer_momentum": 0.9, "dense_warmup_rounds": 0}, target={"rounds": 99})


async def test_a_killed_worker_is_replaced_by_another(
    tmp_path: Path, own_temporal_server: TemporalServer, processes: Processes
) -> None:
    world = a_world(tmp_path / "world")
    async with a_leg(await own_temporal_server.client(), world) as handle:
        first = a_worker(processes, own_temporal_server)
        await trained(world, until=2)
        first.kill()
        a_worker(processes, own_temporal_server)
        await trained(world, until=UNTIL)
        await assert_undisturbed(world, handle, tmp_path / "undisturbed")


async def test_a_frozen_worker_wakes_up_beside_its_replacement(
    tmp_path: Path, own_temporal_server: TemporalServer, processes: Processes
) -> None:
    world = a_world(tmp_path / "world")
    async with a_leg(await own_temporal_server.client(), world) as handle:
        first = a_worker(processes, own_temporal_server)
        await trained(world, until=2)
        freeze(first.pid, world.folder)
        a_worker(processes, own_temporal_server)
        await trained(world, until=4)
        first.signal(signal.SIGCONT)
        await trained(world, until=UNTIL)
        await assert_undisturbed(world, handle, tmp_path / "undisturbed")


async def test_a_worker_that_is_told_to_stop_ends_quickly_and_the_leg_returns(
    tmp_path: Path, own_temporal_server: TemporalServer, processes: Processes
) -> None:
    world = a_world(tmp_path / "world")
    async with a_leg(await own_temporal_server.client(), world) as handle:
        worker = a_worker(processes, own_temporal_server)
        await trained(world, until=1)
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, seconds=20) == os.EX_OK
        result = await asyncio.wait_for(handle.result(), 20)
    assert (result.reason, result.version) == ("interrupted", 1)
