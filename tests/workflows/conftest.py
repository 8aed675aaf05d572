"""Campaigns of simulated nodes on one real stack, which all tests of this folder share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from anabasis.campaign.status import CampaignStatus
from anabasis.client import Anabasis, CampaignHandle
from tests.support.processes import Processes
from tests.support.stack import Stack, overlaid, small_spec
from tests.support.wait import wait_until
from workers.connect import connect
from workers.state_dir import StackRecord, StateDir

SECONDS = 120.0
"""For anything that a campaign of simulated nodes does; most of it takes one or two."""

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackRecord]:
    """`anabasis up`, shared: campaigns need names of their own."""
    folder = tmp_path_factory.mktemp("workflows")
    processes = Processes(folder)
    stack = Stack(processes, folder / "home")
    try:
        stack.up()
        found = StateDir(stack.home).read()
        assert found is not None
        yield found
        stack.down()
    finally:
        processes.stop_all()


@pytest.fixture
def name() -> str:
    """A campaign name that no other test uses."""
    return f"w-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def client(record: StackRecord) -> Client:
    return await connect(address=record.address)


@pytest.fixture
async def anabasis(client: Client) -> Anabasis:
    return Anabasis(client)


@pytest.fixture
def home(record: StackRecord) -> Path:
    return Path(record.home)


def simulated(
    name: str, *, rounds: int, slots: int = 3, options: dict[str, Any] | None = None, **sections: Any
) -> dict[str, Any]:
    """A campaign of simulated nodes, with half a second for a round and these options of the provider."""
    cloud = {"steps_per_second": 40.0, "boot_seconds": 0.1, **(options or {})}
    quick = {
        "fleet": {"provider": "simulated", "provider_options": cloud},
        "rounds": {"min_deadline_seconds": 0.5, "poll_seconds": 0.05},
        "failures": {"backoff_seconds": 0.1},
    }
    return overlaid(overlaid(small_spec(name, rounds=rounds, slots=slots), quick), sections)


async def until(campaign: CampaignHandle, holds: Callable[[CampaignStatus], Any], *, what: str = "") -> CampaignStatus:
    """The first status for which this holds."""

    async def status() -> CampaignStatus | None:
        found = await campaign.status()
        return found if holds(found) else None

    found = await wait_until(status, seconds=SECONDS, every=0.1, what=what or f"a status of {campaign.name}")
    assert found is not None
    return found


async def start(anabasis: Anabasis, spec: dict[str, Any], *, version: int = 1) -> CampaignHandle:
    """Start a campaign, and wait until it has made its first versions."""
    campaign = await anabasis.start(spec)
    await until(campaign, lambda status: status.version >= version, what=f"version {version}")
    return campaign
