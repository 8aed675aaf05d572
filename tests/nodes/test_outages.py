"""Temporal goes away and comes back: no trainer notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nodes.conftest import Machine, alive, identity, machine_at, process_at, progress_of, until_training
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
async def lonely(own_temporal_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Machine]:
    async for ready in machine_at(own_temporal_server, tmp_path):
        yield ready


@pytest.mark.parametrize("outage_heartbeats", [0.3, 3.0], ids=["within a heartbeat", "longer than a heartbeat"])
async def test_an_outage_of_temporal_costs_no_step_and_no_restart(
    lonely: Machine, own_temporal_server: TemporalServer, outage_heartbeats: float
) -> None:
    heartbeat = 2.0
    node = identity()
    folder = await lonely.start(node)
    handle = await lonely.lease(node, heartbeat_seconds=heartbeat, attempts=10, lease_seconds=8.0)
    before = await until_training(folder)
    pid = process_at(folder.trainer_pid).pid
    own_temporal_server.kill()
    until_step = before["steps"] + int(outage_heartbeats * heartbeat / 0.05)
    await wait_until(lambda: progress_of(folder)["steps"] >= until_step, seconds=60, what="it trains on")
    await asyncio.to_thread(own_temporal_server.start)
    result = (await asyncio.wait_for(handle.result(), 90)).result
    assert result is not None
    assert (result.reason, result.trainer_starts, result.trainer_pid) == ("lease_over", 1, pid)


async def test_an_agent_without_temporal_obeys_sigterm_all_the_same(
    lonely: Machine, own_temporal_server: TemporalServer
) -> None:
    node = identity()
    folder = await lonely.start(node, shutdown_grace_seconds=1.0)
    await lonely.lease(node, heartbeat_seconds=2.0)
    await until_training(folder)
    own_temporal_server.kill()
    process_at(folder.agent_pid).terminate()
    await wait_until(lambda: alive(folder) == [], seconds=40)
    assert progress_of(folder)["phase"] == "stopped"


async def test_an_agent_may_be_started_before_temporal(lonely: Machine, own_temporal_server: TemporalServer) -> None:
    node = identity()
    own_temporal_server.kill()
    folder = await lonely.start(node)
    await wait_until(lambda: "trying again" in folder.agent_log.read_text(), seconds=20)
    await asyncio.to_thread(own_temporal_server.start)
    result = (await asyncio.wait_for((await lonely.lease(node, lease_seconds=1.0)).result(), 90)).result
    assert result is not None
    assert result.reason == "lease_over"
