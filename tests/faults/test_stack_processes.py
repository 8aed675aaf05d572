"""Kill -9 of each process of the real stack while a campaign of real nodes trains."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Processes
from tests.support.stack import Stack, small_spec
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

CONTROL_KILLS = 20

ROUNDS = 70
SLOW: dict[str, Any] = {
    "recipe": "tests.support.recipes:Slow",
    "recipe_options": {"seconds_per_step": 0.05},
    "training": {"inner_steps": 50},
}
"""A round takes three seconds on every machine: longer than 20 killed workers need to come back."""


@pytest.fixture
def stack(processes: Processes, tmp_path: Path) -> Stack:
    running = Stack(processes, tmp_path / "home")
    running.up()
    return running


async def test_the_control_worker_is_killed_twenty_times_and_no_trainer_notices(stack: Stack) -> None:
    campaign = await stack.start(small_spec("control", rounds=ROUNDS, **SLOW))
    await campaign.reach(1)
    trainers = [campaign.pid(slot, "trainer") for slot in (0, 1)]
    killed = 0
    while killed < CONTROL_KILLS and campaign.version < ROUNDS:
        await stack.kill_child("control")
        killed += 1
        before = campaign.version
        # Long enough for the new one to take up work before it is killed in the middle of it.
        await wait_until(lambda seen=before: campaign.version > seen, seconds=120, what="another version")
        await wait_until(lambda: stack.sound("control"), seconds=60, what="a sound control worker")
    assert killed == CONTROL_KILLS
    assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
    await campaign.finish(rounds=ROUNDS)
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    stack.down()


async def test_the_aggregator_is_killed_at_random_moments_of_its_legs(stack: Stack) -> None:
    campaign = await stack.start(small_spec("aggregator", rounds=24, training={"inner_steps": 60}))
    await campaign.reach(1)
    trainers = [campaign.pid(slot, "trainer") for slot in (0, 1)]
    dice = random.Random(20)
    for _ in range(4):
        await campaign.reach(campaign.version + dice.randint(1, 3))
        await stack.kill_child("aggregator")
        await wait_until(lambda: stack.sound("aggregator"), seconds=60, what="a sound aggregator")
    assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
    await campaign.finish(rounds=24)
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    stack.down()


async def test_temporal_is_killed_and_goes_on_from_its_database(stack: Stack) -> None:
    campaign = await stack.start(small_spec("temporal", rounds=16, training={"inner_steps": 60}))
    await campaign.reach(2)
    trainers = [campaign.pid(slot, "trainer") for slot in (0, 1)]
    await stack.kill_child("temporal")
    await campaign.reach(campaign.version + 3)
    await stack.kill_child("temporal")
    assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
    await campaign.finish(rounds=16)
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    stack.down()


async def test_everything_is_killed_at_once_and_up_goes_on(stack: Stack) -> None:
    campaign = await stack.start(small_spec("everything", rounds=14))
    await campaign.reach(4)
    stack.kill_everything()
    committed = campaign.version
    stack.up()
    again = await stack.find("everything", store_url=campaign.store_url)
    assert again.version >= committed
    last = await again.finish(rounds=14)
    assert last.version == 14  # no round was committed twice or given up
    stack.down()


async def test_a_killed_trainer_is_started_again_by_its_agent(stack: Stack) -> None:
    campaign = await stack.start(small_spec("trainer", rounds=12, training={"inner_steps": 60}))
    await campaign.reach(2)
    agents = [campaign.pid(slot, "agent") for slot in (0, 1)]
    bystander, victim = (campaign.pid(slot, "trainer") for slot in (0, 1))
    os.kill(victim, signal.SIGKILL)
    await wait_until(lambda: campaign.pid(1, "trainer") != victim, seconds=60, what="another trainer")
    assert [campaign.pid(slot, "agent") for slot in (0, 1)] == agents
    assert campaign.pid(0, "trainer") == bystander
    await campaign.finish(rounds=12)
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    stack.down()
