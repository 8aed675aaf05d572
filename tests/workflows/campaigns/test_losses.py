"""Machines that vanish, stop or are taken back are replaced; one that nobody can say anything about is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.providers.processes import ProcessMark
from anabasis.campaign.status import CampaignStatus, Incident, NodeState
from anabasis.client import Anabasis, CampaignHandle
from anabasis.storage.versions import audit_offsets
from tests.support.wait import wait_until
from tests.workflows.campaigns.conftest import (
    SECONDS,
    Running,
    identity,
    node_in,
    open_workflows,
    quick_spec,
    runs_of,
    until,
)
from workers.connect import connect

pytestmark = pytest.mark.slow

HEARTBEAT_SECONDS = 4.0
"""Five beats of a simulated machine, on a machine that may be busy with others."""

FREEZES = "loss-frozen"


async def training(anabasis: Anabasis, name: str, *, slots: int, **sections: Any) -> CampaignHandle:
    """A campaign with a complete fleet that has made versions."""
    spec = quick_spec(name, slots=slots, goal=10_000, health={"heartbeat_seconds": HEARTBEAT_SECONDS}, **sections)
    campaign = await anabasis.start(spec)
    await until(campaign, lambda status: status.ready_nodes == slots and status.version >= 2, what="all nodes train")
    return campaign


async def order(running: Running, campaign: CampaignHandle, **orders: str) -> None:
    """Have the cloud do something to the nodes of these slots (`slot_1="lose"`)."""
    status = await campaign.status()
    for slot, what in orders.items():
        node = node_in(status, int(slot.removeprefix("slot_")))
        assert node is not None
        running.cloud(campaign.name).order(identity(campaign.name, node), what)


def attempts(status: CampaignStatus) -> dict[int, int]:
    """Slot → attempt of the nodes that are ready."""
    return {node.slot: node.attempt for node in status.nodes if node.state is NodeState.READY}


async def finish(campaign: CampaignHandle, running: Running, client: Client) -> CampaignStatus:
    """A few rounds more, and what must be true of every campaign."""
    goal = running.version(campaign.name) + 4
    await campaign.extend(rounds=goal)
    await campaign.result(timeout_seconds=SECONDS)
    status = await campaign.status()
    assert status.merged_rounds is not None
    assert status.merged_rounds >= goal
    assert audit_offsets(running.store(campaign.name)) == []
    assert running.billed(campaign.name) == 0

    async def all_closed() -> bool:
        return await open_workflows(client, campaign.name) == []

    await wait_until(all_closed, seconds=SECONDS)
    return status


def assert_mended(incident: Incident) -> None:
    """It says what was decided and when, in order."""
    assert incident.decision.startswith("replace")
    assert incident.decided_at is not None
    assert incident.mended_at is not None
    assert incident.noticed_at <= incident.decided_at <= incident.mended_at


@pytest.fixture(scope="module", autouse=True)
def freezing(running: Running) -> None:
    """A campaign with a frozen machine: that takes a minute to be sure of, in which the other tests run."""

    async def begin() -> None:
        campaign = await training(Anabasis(await connect(address=running.record.address)), FREEZES, slots=3)
        await order(running, campaign, slot_1="freeze")

    asyncio.run(begin())


async def test_lost_and_preempted_machines_are_replaced(anabasis: Anabasis, client: Client, running: Running) -> None:
    campaign = await training(
        anabasis, "loss-many", slots=4, fleet={"provider_options": {"preemption_notice_seconds": 0.5}}
    )
    await order(running, campaign, slot_0="lose", slot_2="preempt")
    await until(campaign, lambda status: attempts(status) == {0: 2, 1: 1, 2: 2, 3: 1}, what="replacements")
    status = await finish(campaign, running, client)
    found = {(incident.kind, incident.slot, incident.attempt): incident for incident in status.incidents}
    assert sorted(found) == [("lost", 0, 1), ("preempted", 2, 1)]
    for incident in found.values():
        assert_mended(incident)
    lost = found["lost", 0, 1]
    assert lost.happened_at is not None
    assert lost.happened_at <= lost.noticed_at
    moves = {move.key.rsplit("-", 1)[0]: move.detail for move in running.cloud("loss-many").log()}
    assert (moves["0-1"], moves["2-1"]) == ("lost", "preempted")


async def test_a_machine_lost_in_a_pause_is_replaced_when_it_is_over(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    campaign = await training(anabasis, "loss-paused", slots=2)
    await campaign.pause()
    await order(running, campaign, slot_1="lose")
    held = await until(campaign, lambda status: attempts(status) == {0: 1, 1: 2}, what="a replacement")
    assert held.version == running.version("loss-paused")
    await campaign.resume()
    status = await finish(campaign, running, client)
    assert [(incident.kind, incident.slot) for incident in status.incidents] == [("lost", 1)]
    assert_mended(status.incidents[0])


async def test_machines_that_nobody_can_see_are_left_alone(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name = "loss-unknown"
    campaign = await training(anabasis, name, slots=2)
    before = await campaign.status()
    folder = running.folder(name)
    mark = ProcessMark.read(folder / "simulator.pid")
    simulator = mark.find() if mark is not None else None
    assert simulator is not None
    simulator.kill()  # the machines fall silent
    hide(folder, away=True)  # and the cloud does not answer
    nodes_before = await runs_of(client, name)
    unknown = await until(
        campaign,
        lambda status: [node.state for node in status.nodes] == [NodeState.UNKNOWN] * 2,
        what="both machines are unknown",
    )
    assert [node.nonce for node in unknown.nodes] == [node.nonce for node in before.nodes]
    assert unknown.waiting_for
    assert not (folder / "cloud.db").exists()  # nobody asked for another machine, and nobody released one
    hide(folder, away=False)
    back = await until(campaign, lambda status: status.ready_nodes == 2, what="both machines are back")
    assert [(node.slot, node.attempt, node.nonce) for node in back.nodes] == [
        (node.slot, node.attempt, node.nonce) for node in before.nodes
    ]
    assert await runs_of(client, name) == nodes_before
    status = await finish(campaign, running, client)
    assert status.incidents_total == 0


def hide(folder: Path, *, away: bool) -> None:
    """The simulated cloud's file, so that it cannot be opened, or back."""
    for suffix in ("", "-wal", "-shm"):
        here, there = folder / f"cloud.db{suffix}", folder / f"hidden.db{suffix}"
        source, target = (here, there) if away else (there, here)
        if source.exists():
            source.replace(target)


async def test_a_fleet_that_keeps_dying_still_gets_there(anabasis: Anabasis, client: Client, running: Running) -> None:
    dying = {"mean_seconds_to_failure": 6.0, "preemption_share": 0.5, "preemption_notice_seconds": 0.5}
    name = "loss-dying"
    campaign = await anabasis.start(
        quick_spec(
            name, slots=4, goal=20, fleet={"provider_options": dying}, health={"heartbeat_seconds": HEARTBEAT_SECONDS}
        )
    )
    result = await campaign.result(timeout_seconds=SECONDS)
    assert result.version == 20
    status = await campaign.status()
    assert {incident.kind for incident in status.incidents} <= {"lost", "preempted"}
    assert status.incidents_total > 0
    still_open = [incident for incident in status.incidents if incident.mended_at is None]
    assert len(still_open) <= 4  # lost so late that the campaign was over before their replacements were there
    assert sum(status.ledger.values()) == pytest.approx(status.paid_node_seconds)
    assert audit_offsets(running.store(name)) == []
    assert running.billed(name) == 0


async def test_a_frozen_machine_is_replaced_and_released(anabasis: Anabasis, client: Client, running: Running) -> None:
    campaign = anabasis.campaign(FREEZES)
    await until(campaign, lambda status: attempts(status) == {0: 1, 1: 2, 2: 1}, what="a replacement")
    status = await finish(campaign, running, client)
    assert [(incident.kind, incident.slot, incident.attempt) for incident in status.incidents] == [("lost", 1, 1)]
    assert_mended(status.incidents[0])
    assert "takes no work" in status.incidents[0].text
