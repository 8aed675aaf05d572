"""What operators may do to a running campaign by plain Temporal calls, and what they may not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from anabasis.campaign.status import Phase
from anabasis.client import Anabasis, CampaignHandle
from anabasis.errors import AnabasisError, CampaignFailed, UpdateRejected
from anabasis.storage.checkpoints import list_checkpoints
from anabasis.storage.versions import audit_offsets
from tests.support.wait import wait_until
from tests.workflows.campaigns.conftest import SECONDS, Running, quick_spec, until

pytestmark = pytest.mark.slow

LONG = 10_000


async def training(anabasis: Anabasis, name: str, **changes: Any) -> CampaignHandle:
    campaign = await anabasis.start(quick_spec(name, **{"goal": LONG, **changes}))
    await until(campaign, lambda status: status.version >= 2, what="version 2")
    return campaign


async def end(campaign: CampaignHandle, running: Running) -> None:
    """Cancel it, and check what its store says."""
    await campaign.cancel()
    with pytest.raises(CampaignFailed):
        await campaign.result(timeout_seconds=SECONDS)
    assert audit_offsets(running.store(campaign.name)) == []
    assert running.billed(campaign.name) == 0


async def events_of(client: Client, name: str) -> set[str]:
    """Kinds of events in the history of the campaign's present run."""
    history = await client.get_workflow_handle(f"campaign/{name}").fetch_history()
    return {EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events}


async def test_a_pause_commits_nothing_and_is_found_by_its_phase(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name = "operate-pause"
    campaign = await training(anabasis, name)
    answers = await asyncio.gather(*(campaign.pause(reason="audit") for _ in range(5)), return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {UpdateRejected}
    held = await until(campaign, lambda s: s.phase is Phase.PAUSED and s.checkpoint_version == s.version, what="paused")

    async def found() -> bool:
        query = f"WorkflowType = 'TrainingCampaign' AND Phase = 'paused' AND Round = {held.merged_rounds}"
        return f"campaign/{name}" in {one.id async for one in client.list_workflows(query)}

    await wait_until(found, seconds=SECONDS)  # in which more than one round would have been made
    assert running.version(name) == held.version
    assert list_checkpoints(running.store(name))[-1] == held.version
    assert held.detail == "audit"
    await campaign.checkpoint_now()  # there is one already: accepted, and nothing to do
    assert (await campaign.status()).nodes == held.nodes
    await campaign.resume()
    gone_on = await until(campaign, lambda status: status.version > held.version, what="another version")
    assert [(one.slot, one.attempt, one.nonce) for one in gone_on.nodes] == [
        (one.slot, one.attempt, one.nonce) for one in held.nodes
    ]
    await end(campaign, running)


async def test_a_pause_that_releases_its_machines_bills_none(anabasis: Anabasis, running: Running) -> None:
    name = "operate-release"
    campaign = await training(anabasis, name, slots=3)
    await campaign.pause(release_nodes=True)
    held = await until(campaign, lambda s: s.phase is Phase.PAUSED and not s.nodes, what="paused without nodes")
    assert running.billed(name) == 0
    assert list_checkpoints(running.store(name))[-1] == running.version(name) == held.version
    await campaign.scale(2)
    await campaign.resume()
    back = await until(campaign, lambda status: status.version > held.version, what="another version")
    assert [(node.slot, node.attempt) for node in back.nodes] == [(0, 2), (1, 2)]
    assert back.incidents_total == 0
    await end(campaign, running)


async def test_a_budget_can_be_lifted_and_set(anabasis: Anabasis, running: Running) -> None:
    name = "operate-budget"
    campaign = await training(
        anabasis, name, budget={"max_cost": 10_000.0}, fleet={"provider_options": {"price_per_hour": 36_000.0}}
    )
    await campaign.set_budget(max_cost=None, max_node_hours=None)
    with pytest.raises(UpdateRejected, match="max_cost"):
        await campaign.set_budget(max_cost=-1.0, max_node_hours=None)
    status = await campaign.status()
    await campaign.set_budget(max_cost=status.cost + 20.0, max_node_hours=None)
    with pytest.raises(CampaignFailed, match="budget exhausted"):
        await campaign.result(timeout_seconds=SECONDS)
    final = await campaign.status()
    assert final.cost >= status.cost + 20.0
    assert final.checkpoint_version == final.version == running.version(name)
    assert running.billed(name) == 0
    with pytest.raises(AnabasisError):
        await campaign.resume()


async def test_refusals_are_typed_and_leave_no_trace(anabasis: Anabasis, client: Client, running: Running) -> None:
    name = "operate-refused"
    campaign = await training(anabasis, name, rounds={"min_contributors": 2})
    handle = client.get_workflow_handle(f"campaign/{name}")
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("resume", {}, "not paused"),
        ("scale", {"slots": 9}, "data.partitions = 8"),
        ("scale", {"slots": 1}, "rounds.min_contributors = 2"),
        ("drain", {"slot": 5}, "slots with nodes: [0, 1]"),
        ("extend", {}, "at least one"),
        ("extend", {"rounds": 1}, "not beyond"),
        ("extend", {"tokens": 1}, "not beyond"),
        ("approve", {}, "approve_publish is off"),
    ]
    for update, argument, words in refused:
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await handle.execute_update(update, argument)
        cause = raised.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "Refused"
        assert words in cause.message
    kinds = await events_of(client, name)
    assert not {kind for kind in kinds if "UPDATE" in kind}
    assert "WORKFLOW_TASK_FAILED" not in kinds
    await end(campaign, running)


async def test_calls_that_make_no_sense_do_no_harm(anabasis: Anabasis, client: Client, running: Running) -> None:
    name = "operate-nonsense"
    campaign = await training(anabasis, name)
    handle = client.get_workflow_handle(f"campaign/{name}")
    broken = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{nonsense"))
    for update, arguments in [
        ("scale", [{"slots": "many"}]),
        ("scale", [{"slots": 0}]),
        ("scale", [{"slots": 10**9}]),
        ("scale", [None]),
        ("scale", []),
        ("scale", [3, 4]),
        ("drain", [{"slot": -1}]),
        ("pause", ["now"]),
        ("pause", [{"reason": "x" * 501}]),
        ("extend", [{"rounds": 1.5}]),
        ("set_budget", [{"max_cost": "all"}]),
        ("resume", [broken]),
        ("no_such_update", [{}]),
    ]:
        with pytest.raises(WorkflowUpdateFailedError):
            await asyncio.wait_for(handle.execute_update(update, args=arguments), SECONDS)
    for signal, arguments in [
        ("node_event", [{"slot": 0}]),
        ("node_event", ["gone"]),
        ("node_event", []),
        ("node_event", [broken]),
        ("node_event", [{"slot": 0, "attempt": 1, "nonce": "x", "kind": "exploded", "at": 0.0}]),
        ("progress", [broken]),
        ("progress", [{"version": "newest"}]),
        ("progress", [{"version": 0, "merged_rounds": 0}]),
        ("no_such_signal", [1]),
    ]:
        await handle.signal(signal, args=arguments)
    seen = await campaign.status()
    await until(campaign, lambda status: status.version >= seen.version + 3, what="three versions more")
    later = await campaign.status()
    assert [(one.slot, one.attempt, one.nonce) for one in later.nodes] == [
        (one.slot, one.attempt, one.nonce) for one in seen.nodes
    ]
    assert later.incidents_total == 0
    assert "WORKFLOW_TASK_FAILED" not in await events_of(client, name)
    await end(campaign, running)


async def test_a_finished_campaign_waits_for_its_approval(anabasis: Anabasis, running: Running) -> None:
    name = "operate-approve"
    campaign = await anabasis.start(quick_spec(name, goal=3, control={"approve_publish": True}))
    held = await until(campaign, lambda status: "approval" in status.waiting_for and not status.nodes, what="waiting")
    assert (held.phase, held.published, held.merged_rounds) == (Phase.PUBLISHING, {}, 3)
    assert running.billed(name) == 0
    await campaign.approve()
    result = await campaign.result(timeout_seconds=SECONDS)
    assert (result.model, result.model_number) == (name, 1)
    with pytest.raises(AnabasisError):
        await campaign.extend(rounds=9)
