"""The Python client against a real server and a real worker (which serves a stand-in campaign)."""

from __future__ import annotations

import asyncio

import pytest

from anabasis.campaign.spec import parse_spec
from anabasis.campaign.status import Phase
from anabasis.client import Anabasis, Deadlines, spec_hash
from anabasis.errors import (
    AlreadyCompleted,
    AlreadyRunning,
    CampaignFailed,
    CampaignNotFound,
    InvalidSpec,
    TemporalUnavailable,
    UpdateRejected,
    WorkersUnavailable,
)
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until

SHORT = Deadlines(call_seconds=2.0, query_seconds=4.0, update_seconds=4.0)


def _spec(name: str, *, rounds: int = 3, **options: object) -> dict[str, object]:
    return {"name": name, "target": {"rounds": rounds}, "recipe_options": options}


@pytest.fixture
async def anabasis(standin_server: TemporalServer) -> Anabasis:
    return await Anabasis.connect(address=standin_server.address)


async def test_a_campaign_runs_to_its_result(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name))
    result = await campaign.result(timeout_seconds=30)
    assert (result.name, result.version) == (name, 3)
    status = await campaign.status()
    assert status.phase is Phase.COMPLETED
    assert status.published == {name: 1}


async def test_start_is_recognisable_in_temporal(anabasis: Anabasis, name: str) -> None:
    spec = parse_spec(_spec(name, round_seconds=60))
    campaign = await anabasis.start(spec)
    description = await anabasis.client.get_workflow_handle(f"campaign/{name}").describe()
    assert description.task_queue == "campaigns"
    assert (await description.memo())["spec_sha256"] == spec_hash(spec)
    assert await description.static_summary() == "gpt: 3 rounds on 4 nodes"
    assert (await campaign.summary()).name == name
    await campaign.cancel()


async def test_result_follows_runs_that_continue_as_new(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, rounds=6, continue_every=2))
    assert (await campaign.result(timeout_seconds=30)).version == 6
    assert (await campaign.status()).continued == 2
    assert [one.name for one in await anabasis.list()].count(name) == 1


async def test_invalid_spec_starts_nothing(anabasis: Anabasis, name: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        await anabasis.start({"name": name, "fleet": {"slots": 0, "speed": 1}})
    assert {path for path, _ in caught.value.problems} == {"fleet.slots", "fleet.speed"}
    with pytest.raises(CampaignNotFound, match=name):
        await anabasis.campaign(name).status()


async def test_a_running_name_is_taken(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, round_seconds=60))
    with pytest.raises(AlreadyRunning, match=f"anabasis watch {name}"):
        await anabasis.start(_spec(name))
    await campaign.cancel()


async def test_a_completed_name_needs_again(anabasis: Anabasis, name: str) -> None:
    await (await anabasis.start(_spec(name))).result(timeout_seconds=30)
    with pytest.raises(AlreadyCompleted, match="--again"):
        await anabasis.start(_spec(name))
    campaign = await anabasis.start(_spec(name, rounds=5), again=True)
    assert (await campaign.result(timeout_seconds=30)).version == 5


async def test_a_failed_name_may_be_started_again(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, fail_at=2))
    with pytest.raises(CampaignFailed, match="shapes do not match") as caught:
        await campaign.result(timeout_seconds=30)
    assert caught.value.failure == "UserCodeError"
    assert (await campaign.status()).phase is Phase.FAILED
    assert (await (await anabasis.start(_spec(name))).result(timeout_seconds=30)).version == 3


async def test_every_command_is_answered(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, round_seconds=0.2, rounds=10_000))
    assert (await campaign.scale(7)).text == "wants 7 nodes"
    assert (await campaign.drain(3, reason="noisy")).text == "drains slot 3"
    assert "checkpoint" in (await campaign.checkpoint_now()).text
    assert "2.5" in (await campaign.set_budget(max_cost=2.5, max_node_hours=None)).text
    assert "20000" in (await campaign.extend(rounds=20_000)).text
    assert (await campaign.approve()).text == "publishes"
    assert (await campaign.pause(reason="lunch")).phase == "paused"
    status = await campaign.status()
    assert (status.phase, status.desired_slots, status.target_rounds) == (Phase.PAUSED, 7, 20_000)
    assert status.waiting_for == "paused: lunch"
    assert (await campaign.resume()).phase == "training"
    await campaign.cancel(reason="done")
    with pytest.raises(CampaignFailed) as caught:
        await campaign.result(timeout_seconds=30)
    assert caught.value.failure == "Cancelled"
    assert (await campaign.status()).phase is Phase.CANCELLED


async def test_refusals_say_why(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, round_seconds=60))
    with pytest.raises(UpdateRejected, match="it is not paused"):
        await campaign.resume()
    with pytest.raises(UpdateRejected, match=r"scale: slots: .*got 0"):
        await campaign.scale(0)
    await campaign.cancel()
    with pytest.raises(CampaignFailed):
        await campaign.result(timeout_seconds=30)
    with pytest.raises(UpdateRejected, match=r"is over \(cancelled\)"):
        await campaign.pause()
    with pytest.raises(UpdateRejected, match=r"is over \(cancelled\)"):
        await campaign.cancel()


async def test_unknown_campaigns_are_not_found(anabasis: Anabasis) -> None:
    campaign = anabasis.campaign("no-such-campaign")
    for call in (campaign.status, campaign.summary, campaign.resume, campaign.cancel, campaign.result):
        with pytest.raises(CampaignNotFound, match="no-such-campaign"):
            await call()


async def test_result_can_be_awaited_for_a_while_only(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, round_seconds=60))
    with pytest.raises(TimeoutError):
        await campaign.result(timeout_seconds=0.2)
    assert (await campaign.status()).phase is Phase.TRAINING
    await campaign.cancel()


async def test_list_tells_phase_and_numbers_of_each_campaign(anabasis: Anabasis, name: str) -> None:
    await (await anabasis.start(_spec(name))).result(timeout_seconds=30)

    async def listed() -> bool:
        return any(one.name == name and one.phase == "completed" for one in await anabasis.list())

    await wait_until(listed, seconds=10)
    summary = next(one for one in await anabasis.list() if one.name == name)
    assert (summary.round, summary.tokens, summary.state) == (3, 3 * 4_096, "completed")
    assert summary.loss == pytest.approx(2 + 5 / 4)
    assert summary.ended_at is not None
    assert name not in [one.name for one in await anabasis.list(running_only=True)]


async def test_a_terminated_campaign_is_not_shown_as_training(anabasis: Anabasis, name: str) -> None:
    campaign = await anabasis.start(_spec(name, round_seconds=60))
    await campaign.scale(2)  # it is under way
    await anabasis.client.get_workflow_handle(f"campaign/{name}").terminate(reason="by accident")
    status = await campaign.status()
    assert (status.phase, status.waiting_for) == (Phase.FAILED, "")
    assert "terminated" in status.failure
    with pytest.raises(CampaignFailed, match="by accident"):
        await campaign.result(timeout_seconds=10)


async def test_without_a_worker_it_says_so_instead_of_hanging(own_temporal_server: TemporalServer) -> None:
    anabasis = await Anabasis.connect(address=own_temporal_server.address)
    campaign = await anabasis.start({"name": "lonely"})
    assert await anabasis.workers_seen() == 0
    for call in (campaign.status, campaign.checkpoint_now):
        with pytest.raises(WorkersUnavailable, match=r"no worker serves the queue campaigns.*anabasis up"):
            await call()
    assert (await campaign.summary()).phase == "validating"
    await anabasis.client.get_workflow_handle("campaign/lonely").terminate()
    assert (await campaign.status()).phase is Phase.FAILED


async def test_a_server_that_went_away_is_named(own_temporal_server: TemporalServer) -> None:
    anabasis = await Anabasis.connect(address=own_temporal_server.address, deadlines=SHORT)
    campaign = await anabasis.start({"name": "cut-off"})
    own_temporal_server.kill()
    with pytest.raises(TemporalUnavailable, match="anabasis up"):
        await campaign.status()
    with pytest.raises(TemporalUnavailable):
        await anabasis.list()


async def test_result_survives_a_restart_of_the_server(own_temporal_server: TemporalServer) -> None:
    anabasis = await Anabasis.connect(address=own_temporal_server.address, deadlines=SHORT)
    campaign = await anabasis.start({"name": "patient"})
    waiting = asyncio.create_task(campaign.result(timeout_seconds=60))
    await asyncio.to_thread(own_temporal_server.restart)
    client = await own_temporal_server.client()
    await client.get_workflow_handle("campaign/patient").terminate(reason="the end")
    with pytest.raises(CampaignFailed, match="the end"):
        await waiting
