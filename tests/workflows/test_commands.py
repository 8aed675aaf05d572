"""Updates, signals, the query and the search attributes of a running campaign."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from anabasis.campaign.messages import NodeEvent
from anabasis.campaign.status import Bucket, Phase
from anabasis.client import Anabasis
from anabasis.errors import UpdateRejected
from tests.support.wait import wait_until
from tests.workflows.conftest import SECONDS, simulated, start, until

pytestmark = pytest.mark.slow


async def test_pause_holds_and_resume_goes_on(anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=12), version=2)
    await campaign.pause(reason="lunch")
    paused = await until(campaign, lambda s: s.phase is Phase.PAUSED and s.checkpoint_version is not None)
    assert paused.checkpoint_version == paused.version
    assert paused.ready_nodes == 3
    with pytest.raises(UpdateRejected, match="resume"):
        await campaign.pause()
    await campaign.resume()
    result = await campaign.result(timeout_seconds=SECONDS)
    assert result.version == 12
    assert result.ledger[Bucket.PAUSED] > 0
    assert {(node.slot, node.attempt) for node in paused.nodes} == {(0, 1), (1, 1), (2, 1)}


async def test_pause_may_release_the_nodes(anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=8), version=2)
    await campaign.pause(release_nodes=True)
    await until(campaign, lambda s: s.phase is Phase.PAUSED and not s.nodes)
    await campaign.resume()
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 8


async def test_scale_up_and_down(anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=40))
    await campaign.scale(5)
    await until(campaign, lambda s: s.ready_nodes == 5)
    await campaign.scale(2)
    left = await until(campaign, lambda s: len(s.nodes) == 2)
    assert sorted(node.slot for node in left.nodes) == [0, 1]
    with pytest.raises(UpdateRejected, match="partitions"):
        await campaign.scale(500)
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 40


async def test_a_drained_node_is_followed_by_another(anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=30))
    await campaign.drain(1, reason="new disk")
    await until(campaign, lambda s: (1, 2) in {(node.slot, node.attempt) for node in s.nodes})
    status = await until(campaign, lambda s: s.ready_nodes == 3)
    assert {(node.slot, node.attempt) for node in status.nodes} == {(0, 1), (1, 2), (2, 1)}
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 30


async def test_extend_moves_the_target(anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=6))
    await campaign.extend(rounds=10)
    with pytest.raises(UpdateRejected, match="beyond"):
        await campaign.extend(rounds=1)
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 10


async def test_a_finished_target_that_waits_for_approval_can_be_extended(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(simulated(name, rounds=3, control={"approve_publish": True}))
    held = await until(campaign, lambda s: s.phase is Phase.PUBLISHING and not s.nodes)
    assert held.merged_rounds == 3
    await campaign.extend(rounds=6)
    await until(campaign, lambda s: s.phase is Phase.PUBLISHING and s.merged_rounds == 6)
    await campaign.approve()
    result = await campaign.result(timeout_seconds=SECONDS)
    assert (result.version, result.model) == (6, name)


async def test_a_checkpoint_on_demand(anabasis: Anabasis, name: str) -> None:
    spec = simulated(name, rounds=40, checkpoint={"every_rounds": 40})
    campaign = await start(anabasis, spec, version=2)
    await campaign.checkpoint_now()
    status = await until(campaign, lambda s: (s.checkpoint_version or 0) > 0)
    assert 2 <= (status.checkpoint_version or 0) < 40
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 40


async def test_a_refused_update_leaves_nothing_in_history(anabasis: Anabasis, client: Client, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=12))
    with pytest.raises(UpdateRejected, match="not paused"):
        await campaign.resume()
    with pytest.raises(UpdateRejected, match="approve_publish"):
        await campaign.approve()
    with pytest.raises(UpdateRejected, match="slots with nodes"):
        await campaign.drain(77)
    handle = client.get_workflow_handle(f"campaign/{name}")
    kinds = {event.event_type async for event in handle.fetch_history_events()}
    assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED not in kinds
    assert (await campaign.result(timeout_seconds=SECONDS)).version == 12


async def test_strange_signals_change_nothing(anabasis: Anabasis, client: Client, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=12))
    node = (await until(campaign, lambda s: s.ready_nodes == 3)).nodes[0]
    handle = client.get_workflow_handle(f"campaign/{name}")
    for slot, attempt, nonce in ((node.slot, node.attempt, "of-another"), (77, 1, node.nonce), (node.slot, 9, "x")):
        event = NodeEvent(kind="failed", slot=slot, attempt=attempt, nonce=nonce, at=0.0, failure="Lost", detail="lie")
        await handle.signal("node_event", event)
    with pytest.raises(UpdateRejected):
        await campaign.resume()  # an answer: the signals before it have been taken in
    assert (await campaign.status()).incidents_total == 0
    result = await campaign.result(timeout_seconds=SECONDS)
    assert (result.version, result.incidents_total) == (12, 0)


async def test_campaigns_are_found_by_their_search_attributes(anabasis: Anabasis, client: Client, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=8))

    async def listed(query: str) -> bool:
        return [one.id async for one in client.list_workflows(f'Campaign = "{name}" AND {query}')] == [
            f"campaign/{name}"
        ]

    await wait_until(lambda: listed('Phase = "training" AND Round >= 0'), seconds=SECONDS)
    await campaign.result(timeout_seconds=SECONDS)
    await wait_until(lambda: listed('Phase = "completed" AND Round = 8 AND Tokens > 0'), seconds=SECONDS)


async def test_the_status_is_answered_from_the_first_moment(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(simulated(name, rounds=2))
    first = await campaign.status()
    assert first.name == name
    assert not first.phase.terminal
    await asyncio.wait_for(campaign.result(timeout_seconds=SECONDS), SECONDS)
