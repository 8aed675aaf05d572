"""Nodes of the real stack that die, freeze and wake up again."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from anabasis.campaign.records import keys
from anabasis.campaign.status import Incident
from anabasis.errors import ObjectNotFound
from anabasis.storage.versions import read_version
from tests.support.processes import Processes, process_exists
from tests.support.stack import Campaign, Stack, small_spec
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

SLOW: dict[str, Any] = {
    "recipe": "tests.support.recipes:Slow",
    "recipe_options": {"seconds_per_step": 0.05},
    "training": {"inner_steps": 40},
}


@pytest.fixture
def stack(processes: Processes, tmp_path: Path) -> Stack:
    running = Stack(processes, tmp_path / "home")
    running.up()
    return running


async def incident(campaign: Campaign, kind: str) -> Incident:
    """The first of this kind, once the campaign knows of it."""

    async def found() -> Incident | None:
        return next((one for one in (await campaign.handle.status()).incidents if one.kind == kind), None)

    noticed = await wait_until(found, seconds=120, what=f"an incident {kind!r}")
    assert noticed is not None
    return noticed


async def test_a_killed_agent_is_replaced_while_the_others_train_on(stack: Stack) -> None:
    campaign = await stack.start(small_spec("agent", rounds=16, slots=3, **SLOW))
    await campaign.reach(2)
    bystanders = [campaign.pid(slot, "trainer") for slot in (1, 2)]
    orphan = campaign.pid(0, "trainer")
    os.kill(campaign.pid(0, "agent"), signal.SIGKILL)
    lost = await incident(campaign, "lost")
    assert (lost.slot, lost.attempt) == (0, 1)
    assert "replace" in lost.decision
    await wait_until(lambda: campaign.attempts(0) == 2, seconds=60, what="a replacement")
    assert not process_exists(orphan)  # a machine's trainer never outlives its agent
    assert [campaign.pid(slot, "trainer") for slot in (1, 2)] == bystanders
    await campaign.finish(rounds=16)
    assert [campaign.attempts(slot) for slot in (1, 2)] == [1, 1]
    stack.down()


async def test_a_frozen_trainer_is_noticed_by_its_lack_of_steps(stack: Stack) -> None:
    campaign = await stack.start(small_spec("frozen", rounds=16, slots=3, **SLOW))
    await campaign.reach(2)
    victim = campaign.pid(1, "trainer")
    os.kill(victim, signal.SIGSTOP)
    frozen = await incident(campaign, "frozen")
    assert (frozen.slot, frozen.attempt) == (1, 1)
    assert not process_exists(victim)
    await campaign.finish(rounds=16)
    assert [campaign.attempts(slot) for slot in (0, 2)] == [1, 1]
    stack.down()


async def test_a_frozen_machine_that_wakes_up_changes_nothing(stack: Stack) -> None:
    """All of its processes stop, as when a laptop sleeps; its upload comes when its replacement already trains.

    On this machine the provider ends what it releases, asleep or not; the upload that a machine out of its reach would
    have made is one that the sleeper made before, sent again under its name.
    """
    campaign = await stack.start(small_spec("sleeper", rounds=30, slots=3, **SLOW))

    def mail() -> bytes | None:
        with suppress(ObjectNotFound):
            return campaign.store.get(keys.mail(campaign.version, 2, 1))
        return None

    await campaign.reach(2)
    late = await wait_until(mail, seconds=120, every=0.02, what="an upload of slot 2")
    assert late is not None
    agent, trainer = campaign.pid(2, "agent"), campaign.pid(2, "trainer")
    os.kill(agent, signal.SIGSTOP)
    os.kill(trainer, signal.SIGSTOP)
    lost = await incident(campaign, "lost")
    assert (lost.slot, lost.attempt) == (2, 1)
    await wait_until(lambda: campaign.attempts(2) == 2, seconds=120, what="a replacement")
    assert campaign.pid(2, "trainer") != trainer
    for _ in range(3):
        now = campaign.version
        campaign.store.put(keys.mail(now, 2, 1), late)
        await campaign.reach(now + 1)
    await campaign.finish(rounds=30)
    merged: list[int] = []
    for version in range(1, campaign.version + 1):
        headers = [entry.header for entry in read_version(campaign.store, version).contributions]
        slots = [header.slot for header in headers]
        assert len(slots) == len(set(slots))  # never two machines of one seat in one round
        merged += [header.attempt for header in headers if header.slot == 2]
    assert merged == sorted(merged)  # nothing of the old machine after the first of the new one
    assert set(merged) == {1, 2}
    stack.down()


async def test_a_deterministic_campaign_ends_in_the_same_bits_whatever_is_killed(
    stack: Stack, processes: Processes, tmp_path: Path
) -> None:
    spec = small_spec("bits", rounds=8, training={"inner_steps": 20, "deterministic": True})
    calm = await (await stack.start(spec)).finish(rounds=8)
    stack.down()

    stormy = Stack(processes, tmp_path / "stormy")
    stormy.up()
    campaign = await stormy.start(spec)
    dice = random.Random(8)
    await campaign.reach(1 + dice.randint(0, 1))
    os.kill(campaign.pid(0, "agent"), signal.SIGKILL)
    await campaign.reach(3 + dice.randint(0, 1))
    os.kill(campaign.pid(1, "trainer"), signal.SIGKILL)
    await campaign.reach(5 + dice.randint(0, 1))
    stormy.kill_everything()
    stormy.up()
    last = await (await stormy.find("bits", store_url=campaign.store_url)).finish(rounds=8)
    assert (last.chain, last.fingerprint) == (calm.chain, calm.fingerprint)
    assert last.offsets == calm.offsets
    stormy.down()
