"""A campaign outlives its histories: its nodes, numbers, orders and commands go through every continue-as-new."""

from __future__ import annotations

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from anabasis.campaign.messages import NodeEvent
from anabasis.campaign.status import Phase
from anabasis.client import Anabasis
from anabasis.storage.versions import audit_offsets, read_version
from tests.support.wait import wait_until
from tests.workflows.campaigns.conftest import SECONDS, Running, identity, open_workflows, quick_spec, runs_of, until

pytestmark = pytest.mark.slow

LEAST_EVENTS = 200
"""The smallest `control.max_history_events`."""

RESTING_EVENTS = 150
"""Room for what is in flight when the limit is reached, and for what comes in until it rests."""


async def test_nodes_and_numbers_go_through_five_continuations(
    anabasis: Anabasis, client: Client, running: Running
) -> None:
    name, slots, goal, extensions = "continued", 3, 80, 12
    campaign = await anabasis.start(
        quick_spec(
            name,
            slots=slots,
            goal=goal,
            training={"inner_steps": 8},
            checkpoint={"every_rounds": 1, "keep": 2},
            control={"max_history_events": LEAST_EVENTS, "progress_seconds": 0.1},
        )
    )
    first = await until(campaign, lambda status: status.ready_nodes == slots, what="a complete fleet")
    nodes = sorted((run for run in await runs_of(client, name) if "slot-" in run[0]), key=lambda run: run[0])
    assert [node.attempt for node in first.nodes] == [1] * slots
    handle = client.get_workflow_handle(f"campaign/{name}")
    for number in range(1, extensions + 1):  # an update that comes in between two runs is neither lost nor refused
        await campaign.extend(rounds=goal + number)
        stale = NodeEvent(kind="gone", nonce="of-nobody", slot=number % slots, attempt=1, at=0.0)
        await handle.signal("node_event", stale)
        await until(campaign, lambda status, n=number: (status.merged_rounds or 0) >= 5 * n, what=f"round {5 * number}")
    result = await campaign.result(timeout_seconds=SECONDS)

    status = await campaign.status()
    assert (result.version, status.merged_rounds) == (goal + extensions, goal + extensions)
    assert status.continued >= 5
    assert status.incidents_total == 0
    all_runs = await runs_of(client, name)
    assert sorted((run for run in all_runs if "slot-" in run[0]), key=lambda run: run[0]) == nodes
    own = [run for run in all_runs if "slot-" not in run[0]]
    assert len(own) == status.continued + 1
    described = [await client.get_workflow_handle(run[0], run_id=run[1]).describe() for run in own]
    kinds = sorted(str(one.status and one.status.name) for one in described)
    assert kinds == ["COMPLETED"] + ["CONTINUED_AS_NEW"] * status.continued
    assert max(one.history_length for one in described) < LEAST_EVENTS + RESTING_EVENTS

    store = running.store(name)
    assert audit_offsets(store) == []
    merged = [read_version(store, version) for version in range(1, goal + extensions + 1)]
    assert {(one.header.slot, one.header.attempt) for manifest in merged for one in manifest.contributions} == {
        (node.slot, 1) for node in first.nodes
    }
    assert running.billed(name) == 0

    async def all_closed() -> bool:
        return await open_workflows(client, name) == []

    await wait_until(all_closed, seconds=SECONDS)


async def test_a_pause_holds_through_a_continuation(anabasis: Anabasis, client: Client, running: Running) -> None:
    name = "continued-paused"
    spec = quick_spec(name, goal=10_000, control={"max_history_events": LEAST_EVENTS})
    campaign = await anabasis.start(spec)
    await until(campaign, lambda status: status.version >= 2, what="version 2")
    await campaign.pause(reason="lunch")
    held = await until(
        campaign,
        lambda status: status.phase is Phase.PAUSED and status.checkpoint_version == status.version,
        what="paused with a checkpoint",
    )
    before = await runs_of(client, name)
    handle = client.get_workflow_handle(f"campaign/{name}")
    node = identity(name, held.nodes[0]).model_copy(update={"nonce": "of-nobody"})
    event = NodeEvent(kind="failed", slot=node.slot, attempt=node.attempt, nonce=node.nonce, at=0.0, failure="Lost")
    for _ in range(LEAST_EVENTS):  # nothing else makes history in a pause
        await handle.signal("node_event", event)
    later = await until(campaign, lambda status: status.continued >= 1, what="a continuation")
    assert (later.phase, later.detail, later.version) == (Phase.PAUSED, "lunch", held.version)
    assert [(one.slot, one.attempt, one.nonce) for one in later.nodes] == [
        (one.slot, one.attempt, one.nonce) for one in held.nodes
    ]
    assert later.incidents_total == 0
    assert running.version(name) == held.version
    after = await runs_of(client, name)
    assert {run for run in after if "slot-" in run[0]} == {run for run in before if "slot-" in run[0]}

    await campaign.resume()
    await until(campaign, lambda status: status.version > held.version, what="another version")
    await campaign.cancel()
    await wait_until(lambda: _is_cancelled(client, name), seconds=SECONDS)
    assert running.billed(name) == 0


async def _is_cancelled(client: Client, name: str) -> bool:
    described = await client.get_workflow_handle(f"campaign/{name}").describe()
    return described.status is WorkflowExecutionStatus.CANCELED
