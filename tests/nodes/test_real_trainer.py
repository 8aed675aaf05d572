"""Agents with the real trainer, the real mailbox and the real aggregator; only the workflow is a small one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from temporalio.client import WorkflowHandle

from activities.providers.local import LocalProvider
from activities.providers.node_folder import NodeFolder
from anabasis.campaign.messages import LeaseRequest, NodeIdentity
from anabasis.campaign.records import keys
from anabasis.storage import open_store
from anabasis.storage.versions import audit_offsets, write_roster
from anabasis.training.aggregator import Aggregator
from anabasis.training.prepare import prepare_campaign
from tests.nodes.conftest import Machine, alive, identity, process_at, request_for
from tests.nodes.drive_node import Drive, DriveNode, Outcome
from tests.nodes.test_simulation import campaign, roster
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow]

torch.set_num_threads(1)


async def test_real_trainers_train_through_a_kill_and_finish(machine: Machine, tmp_path: Path) -> None:
    store_url = f"file://{tmp_path / 'store'}"
    first = identity()
    nodes = [first.model_copy(update={"slot": slot, "nonce": f"n{slot}"}) for slot in range(2)]
    store = open_store(store_url).child(keys.campaign_root(first.campaign))
    await asyncio.to_thread(prepare_campaign, store, campaign(first.campaign, slots=2), tick=lambda _: None)
    write_roster(store, roster(nodes, generation=1, phase="training"))
    folders = [await start(machine, node, store_url=store_url) for node in nodes]
    handles = [await lease(machine, node, store_url=store_url) for node in nodes]

    aggregator = Aggregator(store)
    assert (await asyncio.to_thread(aggregator.advance, until_version=3)).version == 3
    process_at(folders[0].trainer_pid).kill()
    leg = await asyncio.to_thread(aggregator.advance, until_version=6)
    assert {totals.slot for totals in leg.nodes if totals.rounds} == {0, 1}
    assert audit_offsets(store) == []

    write_roster(store, roster(nodes, generation=2, phase="finished"))
    outcomes = [await asyncio.wait_for(handle.result(), 120) for handle in handles]
    assert [outcome.result and outcome.result.reason for outcome in outcomes] == ["finished", "finished"]
    assert [outcome.result and outcome.result.trainer_starts for outcome in outcomes] == [2, 1]
    for node, folder in zip(nodes, folders, strict=True):
        assert (await LocalProvider(home=machine.home).release(node, grace_seconds=10.0)).state == "absent"
        assert alive(folder) == []


async def start(machine: Machine, node: NodeIdentity, *, store_url: str) -> NodeFolder:
    request = request_for(node, store_url=store_url, stall_seconds=30.0)
    await LocalProvider(home=machine.home).request(request, temporal=machine.temporal)
    folder = NodeFolder(machine.home, node)
    await wait_until(folder.agent_pid.exists, seconds=30)
    return folder


async def lease(machine: Machine, node: NodeIdentity, *, store_url: str) -> WorkflowHandle[DriveNode, Outcome]:
    request = LeaseRequest(node=node, store_url=store_url, lease_seconds=300.0, stall_seconds=30.0)
    drive = Drive(lease=request, heartbeat_seconds=20.0, attempts=3)
    return await machine.client.start_workflow(
        DriveNode.run, drive, id=f"drive-{node.campaign}-{node.slot}", task_queue=machine.queue
    )
