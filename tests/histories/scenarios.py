"""Campaigns whose histories are kept as goldens: `python -m tests.histories.scenarios SUFFIX [SCENARIO…]`.

Use a suffix of its own for each change of a workflow's commands (`2`, `3`, …); the older goldens stay.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from activities.providers.cloud_table import CloudTable
from activities.providers.simulated import simulation_dir
from anabasis.campaign.messages import NodeIdentity
from anabasis.campaign.status import CampaignStatus
from anabasis.client import Anabasis, CampaignHandle
from anabasis.errors import AnabasisError
from tests.histories.record import record
from tests.support.processes import Processes
from tests.support.stack import Campaign, Stack, small_spec
from tests.support.wait import wait_until
from tests.workflows.conftest import simulated, start, until
from workers.connect import connect, exit_cleanly
from workers.state_dir import StateDir

SECONDS = 300.0


async def over(campaign: CampaignHandle) -> None:
    """However it ends."""
    try:
        await campaign.result(timeout_seconds=SECONDS)
    except AnabasisError as error:
        print(f"{campaign.name}: {error}")
    status = await campaign.status()
    print(campaign.name, status.phase, status.continued, sorted({one.kind for one in status.incidents}))


async def normal(stack: Stack, anabasis: Anabasis, name: str) -> None:
    await over((await stack.start(small_spec(name, rounds=6))).handle)


async def cancelled(stack: Stack, anabasis: Anabasis, name: str) -> None:
    campaign = await start(anabasis, simulated(name, rounds=100), version=2)
    await campaign.pause()
    await campaign.resume()
    await campaign.scale(4)
    await until(campaign, lambda status: status.ready_nodes == 4)
    await campaign.drain(1)
    await until(campaign, lambda status: (1, 2) in _lives(status))
    await campaign.checkpoint_now()
    await campaign.cancel()
    await over(campaign)


async def continued(stack: Stack, anabasis: Anabasis, name: str) -> None:
    spec = simulated(
        name,
        rounds=300,
        options={"mean_seconds_to_failure": 30.0, "steps_per_second": 120.0},
        control={"max_history_events": 200, "progress_seconds": 0.3},
    )
    await over(await anabasis.start(spec))


async def cloud_failures(stack: Stack, anabasis: Anabasis, name: str) -> None:
    spec = simulated(name, rounds=130, slots=4, options={"refusal_share": 0.4}, failures={"provision": 50})
    campaign = await start(anabasis, spec, version=2)
    table = CloudTable(simulation_dir(stack.home, name))
    for slot, order in enumerate(("lose", "freeze", "preempt")):
        status = await until(campaign, lambda status: status.ready_nodes == 4)
        node = next(one for one in status.nodes if one.slot == slot)
        table.order(NodeIdentity(campaign=name, slot=slot, attempt=node.attempt, nonce=node.nonce), order)
        await until(campaign, lambda status, slot=slot: any(one.slot == slot for one in status.incidents))
    await over(campaign)


async def process_failures(stack: Stack, anabasis: Anabasis, name: str) -> None:
    pace: dict[str, Any] = {"recipe": "tests.support.recipes:Slow", "recipe_options": {"seconds_per_step": 0.05}}
    campaign = await stack.start(small_spec(name, rounds=14, slots=3, **pace))
    await campaign.reach(2)
    os.kill(campaign.pid(0, "agent"), signal.SIGKILL)
    os.kill(campaign.pid(1, "trainer"), signal.SIGSTOP)
    await until(campaign.handle, lambda status: {(0, 2), (1, 2)} <= _lives(status))
    await _crash_until_replaced(campaign, slot=2)
    await over(campaign.handle)


async def recipe_failures(stack: Stack, anabasis: Anabasis, name: str) -> None:
    spec = small_spec(name, rounds=50, recipe="tests.support.recipes:Raising", recipe_options={"from_call": 60})
    await over((await stack.start(spec)).handle)


async def divergence(stack: Stack, anabasis: Anabasis, name: str) -> None:
    spec = small_spec(name, rounds=50, recipe="tests.support.recipes:NotFinite", recipe_options={"from_call": 60})
    await over((await stack.start(spec)).handle)


SCENARIOS = (normal, cancelled, continued, cloud_failures, process_failures, recipe_failures, divergence)


def _lives(status: CampaignStatus) -> set[tuple[int, int]]:
    return {(node.slot, node.attempt) for node in status.nodes}


async def _crash_until_replaced(campaign: Campaign, *, slot: int) -> None:
    """An agent starts its trainer again a few times; then the node is given up."""
    while campaign.attempts(slot) == 1:
        victim = campaign.pid(slot, "trainer")
        os.kill(victim, signal.SIGKILL)

        def another(victim: int = victim) -> bool:
            return campaign.attempts(slot) > 1 or campaign.pid(slot, "trainer") != victim

        await wait_until(another, seconds=SECONDS)


async def main(suffix: str, *chosen: str) -> None:
    folder = Path(tempfile.mkdtemp())
    processes = Processes(folder)
    stack = Stack(processes, folder / "home")
    try:
        stack.up()
        found = StateDir(stack.home).read()
        assert found is not None
        os.environ["TEMPORAL_ADDRESS"] = found.address
        for scenario in SCENARIOS:
            if chosen and scenario.__name__ not in chosen:
                continue
            name = f"{scenario.__name__.replace('_', '-')}{suffix}"
            await scenario(stack, Anabasis(await connect(address=found.address)), name)
            print(name, await record(name, name), "histories", flush=True)
        stack.down()
    finally:
        processes.stop_all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    exit_cleanly(0)
