"""Simulated nodes behave like real ones: towards Temporal, towards the mailbox, and when they fail."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from temporalio.client import ActivityFailureError, Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import TimeoutError, TimeoutType
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.providers import simulated
from activities.providers.base import TemporalAddress
from activities.providers.cloud_table import CloudTable
from activities.providers.processes import ProcessMark
from activities.providers.simulated import SimulatedOptions, SimulatedProvider, simulation_dir
from anabasis.campaign.messages import LeaseRequest, NodeIdentity
from anabasis.campaign.records import ContributionHeader, Roster, RosterMember, keys
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.storage import open_store
from anabasis.storage.versions import audit_offsets, read_version, write_roster
from anabasis.training.aggregator import Aggregator
from anabasis.training.contribution import unpack_contribution
from anabasis.training.prepare import prepare_campaign
from anabasis.training.quantize import decode_update
from tests.nodes.conftest import identity, request_for
from tests.nodes.drive_node import Drive, DriveNode, Outcome
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until
from workers.simulation.model import fate_of, loss_at
from workers.simulation.updates import Updates

torch.set_num_threads(1)

Handle = WorkflowHandle[DriveNode, Outcome]

QUICK = SimulatedOptions(boot_seconds=0.1, steps_per_second=100.0)


@dataclass
class Cloud:
    home: Path
    client: Client
    address: str
    queue: str
    store_url: str

    def provider(self, **options: Any) -> SimulatedProvider:
        return SimulatedProvider(QUICK.model_copy(update=options), home=self.home)

    async def start(self, node: NodeIdentity, **options: Any) -> None:
        request = request_for(node, provider="simulated", store_url=self.store_url)
        await self.provider(**options).request(request, temporal=TemporalAddress(self.address, "default"))
        await self.until(node, "running")

    async def until(self, node: NodeIdentity, state: str) -> None:
        await wait_until(lambda: (self.table(node).get(node) or ("",))[0] == state, seconds=30)

    def table(self, node: NodeIdentity) -> CloudTable:
        return CloudTable(simulation_dir(self.home, node.campaign))

    async def lease(self, node: NodeIdentity, *, heartbeat_seconds: float = 2.0, **changes: Any) -> Handle:
        lease = LeaseRequest(
            node=node, store_url=self.store_url, stall_seconds=5.0, lease_seconds=changes.pop("lease_seconds", 60.0)
        )
        drive = Drive(lease=lease, heartbeat_seconds=heartbeat_seconds, **changes)
        handle = await self.client.start_workflow(
            DriveNode.run, drive, id=f"drive-{uuid.uuid4().hex}", task_queue=self.queue
        )
        await wait_until(lambda: self._is_leased(handle), seconds=30, every=0.1)
        return handle

    async def _is_leased(self, handle: Handle) -> bool:
        description = await self.client.get_workflow_handle(handle.id).describe()
        pending = description.raw_description.pending_activities
        return any(activity.HasField("heartbeat_details") for activity in pending)


@pytest.fixture
async def cloud(temporal_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Cloud]:
    client = await temporal_server.client()
    queue = f"drive-{uuid.uuid4().hex[:8]}"
    home = tmp_path / "anabasis-home"
    worker = Worker(client, task_queue=queue, workflows=[DriveNode], workflow_runner=UnsandboxedWorkflowRunner())
    async with worker:
        yield Cloud(home, client, temporal_server.address, queue, f"file://{tmp_path / 'store'}")
        await asyncio.to_thread(simulated.stop_all, home)


async def outcome_of(handle: Handle) -> Outcome:
    return await asyncio.wait_for(handle.result(), 60)


async def test_nodes_train_a_real_campaign_through_the_real_mailbox(cloud: Cloud) -> None:
    first = identity()
    nodes = [first.model_copy(update={"slot": slot, "nonce": f"n{slot}"}) for slot in range(3)]
    spec = campaign(first.campaign, slots=3)
    store = open_store(cloud.store_url).child(keys.campaign_root(spec.name))
    await asyncio.to_thread(prepare_campaign, store, spec, tick=lambda _: None)
    write_roster(store, roster(nodes, generation=1, phase="training"))
    await asyncio.gather(*(cloud.start(node) for node in nodes))
    leases = [await cloud.lease(node) for node in nodes]
    leg = await asyncio.to_thread(Aggregator(store).advance, until_version=6)
    assert (leg.reason, leg.version) == ("until", 6)
    assert {totals.slot for totals in leg.nodes if totals.rounds} == {0, 1, 2}
    assert audit_offsets(store) == []
    losses = [read_version(store, version).loss for version in range(1, 7)]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < losses[0]
    assert read_version(store, 6).rejected == []
    write_roster(store, roster(nodes, generation=2, phase="finished"))
    outcomes = [await outcome_of(lease) for lease in leases]
    assert [outcome.result and outcome.result.reason for outcome in outcomes] == ["finished"] * 3


async def timeout_of_a_task(cloud: Cloud, node: NodeIdentity) -> TimeoutType | None:
    """How a task that nobody answers times out: was it taken?"""
    asked = await cloud.client.start_activity(
        "verify_node", node, id=f"verify-{uuid.uuid4().hex}", task_queue=node.task_queue,
        schedule_to_start_timeout=timedelta(seconds=2), start_to_close_timeout=timedelta(seconds=2),
        retry_policy=RetryPolicy(maximum_attempts=1),
    )  # fmt: skip
    with pytest.raises(ActivityFailureError) as raised:
        await asyncio.wait_for(asked.result(), 30)
    cause = raised.value.__cause__
    assert isinstance(cause, TimeoutError)
    return cause.type


async def test_a_lost_node_says_nothing_any_more(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    handle = await cloud.lease(node)
    cloud.table(node).order(node, "lose")
    outcome = await outcome_of(handle)
    assert outcome.failure == "timeout HEARTBEAT"
    assert outcome.details["at"] > 0
    # Its poll broke off with it: nothing takes what is put into its queue now.
    assert await timeout_of_a_task(cloud, node) is TimeoutType.SCHEDULE_TO_START


async def test_a_frozen_node_is_silent_but_there(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    handle = await cloud.lease(node)
    cloud.table(node).order(node, "freeze")
    assert (await outcome_of(handle)).failure == "timeout HEARTBEAT"
    described = await cloud.provider().describe(node)
    assert (described.state, described.detail) == ("running", "frozen")
    # The poll that was open swallows one task at most, as a stopped process's would.
    await timeout_of_a_task(cloud, node)
    assert await timeout_of_a_task(cloud, node) is TimeoutType.SCHEDULE_TO_START
    assert (await cloud.provider().release(node, grace_seconds=1.0)).state == "absent"


async def test_a_preempted_node_gives_notice(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node, preemption_notice_seconds=0.5)
    handle = await cloud.lease(node)
    cloud.table(node).order(node, "preempt")
    assert (await outcome_of(handle)).failure == "Preempted"
    await cloud.until(node, "absent")


async def test_a_released_node_hands_its_lease_back(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    handle = await cloud.lease(node)
    assert (await cloud.provider().release(node, grace_seconds=5.0)).state == "absent"
    assert (await outcome_of(handle)).failure == "NodeDrained"


async def test_a_cancelled_lease_is_drained(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    handle = await cloud.lease(node)
    await handle.signal(DriveNode.leave)
    outcome = await outcome_of(handle)
    assert outcome.result is not None
    assert outcome.result.reason == "drained"


async def test_a_lease_ends_when_it_is_over(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    outcome = await outcome_of(await cloud.lease(node, lease_seconds=2.0))
    assert outcome.report is not None
    assert outcome.report.hostname == "simulated-0-1"
    assert outcome.result is not None
    assert outcome.result.reason == "lease_over"


async def test_nodes_fail_by_themselves_as_the_model_says(cloud: Cloud) -> None:
    first = identity()
    nodes = [first.model_copy(update={"slot": slot}) for slot in range(10)]
    for node in nodes:
        await cloud.start(node, mean_seconds_to_failure=0.5, preemption_share=0.5, preemption_notice_seconds=0.1)
    await wait_until(lambda: cloud.table(first).count_live() == 0, seconds=30)
    ends = [move.detail for move in cloud.table(first).log() if move.state == "absent"]
    assert len(ends) == 10
    assert {"lost", "preempted"} == set(ends)


async def test_a_killed_simulator_costs_its_nodes_an_attempt_and_no_more(cloud: Cloud) -> None:
    node = identity()
    await cloud.start(node)
    handle = await cloud.lease(node, attempts=5, lease_seconds=8.0)
    mark = ProcessMark.read(simulation_dir(cloud.home, node.campaign) / "simulator.pid")
    process = mark.find() if mark is not None else None
    assert process is not None
    process.kill()
    await wait_until(
        lambda: not simulated.is_locked(simulation_dir(cloud.home, node.campaign) / "simulator.lock"), seconds=10
    )
    assert (await cloud.provider().describe(node)).state == "running"
    outcome = await outcome_of(handle)
    assert outcome.result is not None
    assert outcome.result.reason == "lease_over"


def test_fates_follow_from_the_seed() -> None:
    options = SimulatedOptions(seed=3, mean_seconds_to_failure=100.0, freeze_share=0.2, preemption_share=0.3)
    fates = [fate_of(options, slot=slot, attempt=1) for slot in range(2_000)]
    assert fates[7] == fate_of(options, slot=7, attempt=1)
    assert fates[7] != fate_of(options, slot=7, attempt=2)
    lifetimes = [fate.lifetime_seconds or 0.0 for fate in fates]
    assert 90 < sum(lifetimes) / len(lifetimes) < 110
    for end, share in (("frozen", 0.2), ("preempted", 0.3), ("lost", 0.5)):
        assert abs(sum(fate.end == end for fate in fates) / len(fates) - share) < 0.05
    assert all(fate_of(SimulatedOptions(), slot=slot, attempt=1).lifetime_seconds is None for slot in range(5))


def test_the_loss_falls_from_that_of_guessing() -> None:
    losses = [loss_at(rounds, vocabulary_size=1_024) for rounds in range(50)]
    assert abs(losses[0] - 6.93) < 0.01
    assert losses == sorted(losses, reverse=True)
    assert loss_at(3, vocabulary_size=1_024, noise=random.Random(1)) != losses[3]


@pytest.mark.parametrize("compression", ["int8", "none"])
def test_updates_are_what_a_real_reader_understands(compression: str) -> None:
    count = 2_500
    updates = Updates(count=count, seed=1, compression=compression)
    norms: list[float] = []
    for rounds in (0, 10):
        header, tensors = unpack_contribution(updates.seal(header_for(slot=2, compression=compression), rounds=rounds))
        assert header.slot == 2
        decoded = decode_update(tensors, count)
        assert decoded.shape == (count,)
        norms.append(float(decoded.norm()))
    assert 0 < norms[1] < norms[0] < 1
    files = [updates.seal(header_for(slot=slot, compression=compression), rounds=10) for slot in (2, 2, 3)]
    hashes = [unpack_contribution(file)[0].payload_hash for file in files]
    assert hashes[0] == hashes[1] != hashes[2]


def header_for(*, slot: int, compression: str) -> ContributionHeader:
    return ContributionHeader.model_validate(
        {
            "campaign": "c", "base_version": 0, "base_chain": "x", "slot": slot, "attempt": 1, "nonce": "n", "steps": 1,
            "tokens": 8, "loss": 1.0, "consumed": {"0": (0, 1)}, "train_seconds": 1.0, "sync_seconds": 0.0,
            "wait_seconds": 0.0, "compression": compression, "payload_hash": "",
        }
    )  # fmt: skip


def campaign(name: str, *, slots: int) -> CampaignSpec:
    return parse_spec(
        {
            "name": name, "recipe": "tiny", "target": {"rounds": 50},
            "data": {"tokenizer": "bytes", "sequence_length": 16, "max_bytes": 200_000, "partitions": slots},
            "training": {"inner_steps": 10, "batch_size": 4}, "fleet": {"slots": slots, "provider": "simulated"},
            "rounds": {"poll_seconds": 0.05, "quorum": 1.0},
        }
    )  # fmt: skip


def roster(nodes: list[NodeIdentity], *, generation: int, phase: str) -> Roster:
    members = [RosterMember(slot=node.slot, attempt=node.attempt, nonce=node.nonce) for node in nodes]
    return Roster.model_validate(
        {
            "campaign": nodes[0].campaign, "generation": generation, "phase": phase,
            "slots": [node.slot for node in nodes], "members": [member.model_dump() for member in members],
            "target_rounds": 50,
        }
    )  # fmt: skip
