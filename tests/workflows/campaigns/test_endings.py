"""However a campaign ends, its machines are gone, its last work is in the store, and its name can go on."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from anabasis.campaign.status import CampaignStatus, Phase
from anabasis.client import Anabasis
from anabasis.errors import AlreadyCompleted, AlreadyRunning, CampaignFailed, UpdateRejected
from anabasis.storage import open_store
from anabasis.storage.checkpoints import list_checkpoints, read_checkpoint, verify_checkpoint
from anabasis.storage.registry import list_models
from anabasis.storage.versions import audit_offsets, read_version
from tests.support.wait import wait_until
from tests.workflows.campaigns.conftest import SECONDS, Running, open_workflows, quick_spec, runs_of, until

pytestmark = pytest.mark.slow

LONG = 10_000
"""Rounds that no test waits for."""

PRICE = 36_000.0
"""Ten per node-second: a budget is spent within seconds."""


async def failure_of(anabasis: Anabasis, name: str) -> tuple[CampaignFailed, CampaignStatus]:
    """How a campaign failed, and its last status."""
    campaign = anabasis.campaign(name)
    with pytest.raises(CampaignFailed) as raised:
        await campaign.result(timeout_seconds=SECONDS)
    return raised.value, await campaign.status()


async def assert_all_released(client: Client, running: Running, name: str) -> None:
    """No machine is billed and no workflow is open; a node's own ends just after its last report."""
    assert running.billed(name) == 0

    async def all_closed() -> bool:
        return await open_workflows(client, name) == []

    await wait_until(all_closed, seconds=SECONDS)


def assert_last_work_is_kept(running: Running, name: str) -> int:
    """The newest version has a whole checkpoint; returns its number."""
    store = running.store(name)
    version = running.version(name)
    assert list_checkpoints(store)[-1] == version
    assert verify_checkpoint(store, read_checkpoint(store, version)) == []
    assert audit_offsets(store) == []
    return version


async def test_cancelling_releases_all_and_keeps_the_last_version(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name = "end-cancelled"
    campaign = await anabasis.start(quick_spec(name, slots=3, goal=LONG, checkpoint={"every_rounds": 1_000}))
    await until(campaign, lambda status: status.version >= 3, what="version 3")
    with pytest.raises(AlreadyRunning):
        await anabasis.start(quick_spec(name))
    await campaign.cancel(reason="enough")
    failure, status = await failure_of(anabasis, name)
    assert failure.failure == "Cancelled"
    described = await client.get_workflow_handle(f"campaign/{name}").describe()
    assert described.status is WorkflowExecutionStatus.CANCELED
    assert (status.phase, status.nodes) == (Phase.CANCELLED, [])
    assert assert_last_work_is_kept(running, name) == status.version == status.checkpoint_version
    assert math.isclose(sum(status.ledger.values()), status.paid_node_seconds, rel_tol=1e-6)
    await assert_all_released(client, running, name)
    with pytest.raises(UpdateRejected, match="is over"):
        await campaign.cancel()


async def test_cancelling_before_any_node_is_there(anabasis: Anabasis, client: Client, running: Running) -> None:
    name = "end-early"
    campaign = await anabasis.start(
        quick_spec(name, slots=3, goal=LONG, fleet={"provider_options": {"boot_seconds": 600.0}})
    )
    await until(campaign, lambda status: len(status.nodes) == 3, what="three machines asked for")
    await campaign.cancel()
    failure, status = await failure_of(anabasis, name)
    assert (failure.failure, status.phase) == ("Cancelled", Phase.CANCELLED)
    await assert_all_released(client, running, name)


async def test_cancelling_during_the_preparation(anabasis: Anabasis, client: Client) -> None:
    name = "end-at-once"
    campaign = await anabasis.start(quick_spec(name))
    await client.get_workflow_handle(f"campaign/{name}").cancel()
    failure, _ = await failure_of(anabasis, name)
    assert failure.failure == "Cancelled"
    assert campaign.name == name
    assert await runs_of(client, name) == [(f"campaign/{name}", campaign.run_id)]


async def test_a_refused_slot_fails_the_campaign_which_goes_on_when_started_again(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name = "end-refused"
    spec = quick_spec(name, goal=LONG, fleet={"provider_options": {"max_nodes": 2}}, failures={"provision": 3})
    campaign = await anabasis.start(spec)
    await until(campaign, lambda status: status.version >= 2, what="version 2")
    await campaign.scale(3)
    failure, status = await failure_of(anabasis, name)
    assert failure.failure == "CampaignFailed"
    assert "starts failed in a row" in str(failure)
    assert "raise fleet.provider_options.max_nodes" in status.failure
    assert status.phase is Phase.FAILED
    assert [incident.kind for incident in status.incidents] == ["capacity"] * 4
    assert status.incidents[-1].decision.startswith("fail")
    await assert_all_released(client, running, name)
    before = assert_last_work_is_kept(running, name)

    again = await anabasis.start(quick_spec(name, slots=3, goal=before + 4))
    seen = await until(again, lambda status: status.phase is Phase.TRAINING, what="training again")
    assert seen.version >= before
    assert min(node.attempt for node in seen.nodes) > 1  # no machine shares its name with an earlier one
    result = await again.result(timeout_seconds=SECONDS)
    assert result.version == before + 4
    assert audit_offsets(running.store(name)) == []
    with pytest.raises(AlreadyCompleted):
        await anabasis.start(spec)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"refusal_share": 1 - 1e-12}, "capacity", "no machine just now"),
        ({"boot_minutes": 1}, "configuration", "boot_minutes"),
    ],
)
async def test_a_cloud_that_never_gives_a_machine(
    anabasis: Anabasis, client: Client, options: dict[str, Any], kind: str, words: str
) -> None:
    name = f"end-by-{kind}"
    await anabasis.start(quick_spec(name, fleet={"provider_options": options}, failures={"provision": 1}))
    _, status = await failure_of(anabasis, name)
    assert words in status.failure
    assert {incident.kind for incident in status.incidents} == {kind}
    assert (status.version, status.paid_node_seconds) == (0, 0)

    async def all_closed() -> bool:
        return await open_workflows(client, name) == []

    await wait_until(all_closed, seconds=SECONDS)


async def test_a_spent_budget_stops_and_a_raised_one_goes_on(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name = "end-budget"
    fleet = {"provider_options": {"price_per_hour": PRICE}}
    campaign = await anabasis.start(quick_spec(name, goal=LONG, fleet=fleet, budget={"max_cost": 100_000.0}))

    async def has_trained() -> bool:
        return (await campaign.status()).version >= 2

    await wait_until(has_trained, seconds=SECONDS)  # before the money is gone, however slow the machine is
    limit = round(1.1 * (await campaign.status()).cost + 20.0)
    await campaign.set_budget(max_cost=limit, max_node_hours=None)
    _, status = await failure_of(anabasis, name)
    assert "budget exhausted" in status.failure
    assert f"budget.max_cost = {limit}" in status.failure
    assert status.cost >= limit
    assert "budget_warning" in {incident.kind for incident in status.incidents}
    before = assert_last_work_is_kept(running, name)
    assert before == status.version > 0
    await assert_all_released(client, running, name)

    again = await anabasis.start(quick_spec(name, goal=before + 2, fleet=fleet))
    result = await again.result(timeout_seconds=SECONDS)
    assert result.version == before + 2
    assert audit_offsets(running.store(name)) == []


async def test_a_completed_campaign_tells_what_it_made(anabasis: Anabasis, client: Client, running: Running) -> None:
    name = "end-completed"
    campaign = await anabasis.start(quick_spec(name, goal=5, checkpoint={"evaluate_every_rounds": 1}))
    result = await campaign.result(timeout_seconds=SECONDS)
    version = read_version(running.store(name), 5)
    assert (result.name, result.version, result.checkpoint_version) == (name, 5, 5)
    assert (result.model, result.model_number) == (name, 1)
    assert (result.tokens_total, result.loss) == (version.tokens_total, version.loss)
    assert result.validation_loss is not None
    assert result.incidents_total == 0
    assert math.isclose(sum(result.ledger.values()), result.paid_node_seconds, rel_tol=1e-6)
    assert result.store_url == running.record.store_url
    assert assert_last_work_is_kept(running, name) == 5
    models = [model for model in list_models(open_store(result.store_url)) if model.campaign == name]
    assert [(model.number, model.campaign_version) for model in models] == [(1, 5)]
    await assert_all_released(client, running, name)


@pytest.mark.parametrize("what", ["tokens", "loss"])
async def test_the_target_that_comes_first_ends_it(anabasis: Anabasis, running: Running, what: str) -> None:
    name = f"end-{what}"
    goal = {"tokens": 6_000} if what == "tokens" else {"loss": 5.1}
    campaign = await anabasis.start(quick_spec(name, goal=LONG, target=goal))
    result = await campaign.result(timeout_seconds=SECONDS)
    store = running.store(name)
    assert result.version == running.version(name)
    last, before = read_version(store, result.version), read_version(store, result.version - 1)
    if what == "tokens":
        assert before.tokens_total < 6_000 <= last.tokens_total == result.tokens_total
    else:
        assert before.loss is not None
        assert last.loss is not None
        assert last.loss <= 5.1 < before.loss


async def test_ten_campaigns_that_start_and_end_at_once_leave_nothing(anabasis: Anabasis, client: Client) -> None:
    names = [f"end-many-{number}" for number in range(10)]
    refusing = {"provider_options": {"refusal_share": 1 - 1e-12}}
    campaigns = await asyncio.gather(
        *(anabasis.start(quick_spec(name, fleet=refusing, failures={"provision": 0})) for name in names)
    )
    failures = await asyncio.gather(*(failure_of(anabasis, campaign.name) for campaign in campaigns))
    assert {status.phase for _, status in failures} == {Phase.FAILED}

    async def all_closed() -> bool:
        return await open_workflows(client, "end-many") == []

    await wait_until(all_closed, seconds=SECONDS)
