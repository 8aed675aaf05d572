"""The simulated provider keeps the same contract, and what is particular to it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from activities.providers import simulated
from activities.providers.base import TemporalAddress
from activities.providers.cloud_table import CloudTable, key_of
from activities.providers.processes import ProcessMark
from activities.providers.simulated import SimulatedOptions, SimulatedProvider, simulation_dir
from anabasis.campaign.messages import NodeIdentity
from anabasis.errors import CapacityError
from tests.nodes.conftest import identity, request_for
from tests.nodes.provider_contract import ProviderContract
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until

QUICK = SimulatedOptions(boot_seconds=0.2)


class SimulatedPlace:
    """A home directory with simulated clouds."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.temporal = TemporalAddress(target=address, namespace="default")

    def provider(self) -> SimulatedProvider:
        return SimulatedProvider(QUICK, home=self.home)

    def crowded(self, limit: int) -> SimulatedProvider:
        return SimulatedProvider(QUICK.model_copy(update={"max_nodes": limit}), home=self.home)

    def table(self, node: NodeIdentity) -> CloudTable:
        return CloudTable(simulation_dir(self.home, node.campaign))

    def lives_of(self, node: NodeIdentity) -> int:
        return sum(row.key == key_of(node) for row in self.table(node).live())

    async def lose(self, node: NodeIdentity) -> None:
        self.table(node).order(node, "lose")

    async def freeze(self, node: NodeIdentity) -> None:
        self.table(node).order(node, "freeze")
        await wait_until(lambda: self.table(node).get(node) == ("running", "frozen"), seconds=20)

    async def make_unreadable(self) -> None:
        await asyncio.to_thread(simulated.stop_all, self.home)
        for path in (self.home / "simulated").glob("*/cloud.db*"):
            path.unlink()
            path.mkdir()


@pytest.fixture
async def place(temporal_server: TemporalServer, tmp_path: Path) -> AsyncIterator[SimulatedPlace]:
    ready = SimulatedPlace(tmp_path / "anabasis-home", temporal_server.address)
    yield ready
    await asyncio.to_thread(simulated.stop_all, ready.home)


class TestSimulatedProvider(ProviderContract):
    pass


async def start(place: SimulatedPlace, node: NodeIdentity) -> None:
    await place.provider().request(request_for(node, provider="simulated"), temporal=place.temporal)
    await wait_until(lambda: (place.table(node).get(node) or ("",))[0] == "running", seconds=30)


async def test_one_simulator_plays_all_nodes_of_a_campaign(place: SimulatedPlace) -> None:
    first = identity()
    nodes = [first.model_copy(update={"slot": slot}) for slot in range(20)]
    await asyncio.gather(*(start(place, node) for node in nodes))
    started = [line for line in simulator_log(place, first).splitlines() if '"simulating"' in line]
    assert len(started) == 1
    assert place.table(first).count_live() == 20


async def test_a_killed_simulator_is_started_again_by_whoever_asks_and_its_nodes_live_on(place: SimulatedPlace) -> None:
    node = identity()
    await start(place, node)
    simulator = simulator_of(place, node)
    simulator.kill()
    await wait_until(
        lambda: not simulated.is_locked(simulation_dir(place.home, node.campaign) / "simulator.lock"), seconds=10
    )
    assert (await place.provider().describe(node)).state == "running"
    again = await wait_until(lambda: find_simulator(place, node), seconds=20)
    assert again is not None
    assert again.pid != simulator.pid
    assert (await place.provider().release(node, grace_seconds=5.0)).state == "absent"


async def test_the_cloud_remembers_when_what_happened(place: SimulatedPlace) -> None:
    node = identity()
    before = time.time()
    await start(place, node)
    await place.lose(node)
    await wait_until(lambda: place.table(node).get(node) == ("absent", "lost"), seconds=10)
    log = place.table(node).log()
    assert [(move.state, move.detail) for move in log] == [("running", ""), ("absent", "lost")]
    assert before < log[0].at <= log[1].at <= time.time()


async def test_refusals_are_capacity_errors_and_another_try_may_succeed(place: SimulatedPlace) -> None:
    provider = SimulatedProvider(QUICK.model_copy(update={"refusal_share": 0.5}), home=place.home)
    refused = 0
    for slot in range(12):
        node = identity(slot=slot).model_copy(update={"campaign": "refusals"})
        while True:
            try:
                await provider.request(request_for(node, provider="simulated"), temporal=place.temporal)
            except CapacityError:
                refused += 1
                continue
            break
    assert 2 <= refused <= 40
    assert len(await provider.list("refusals")) == 12


async def test_a_folder_that_was_removed_is_absence(place: SimulatedPlace) -> None:
    node = identity()
    await start(place, node)
    await asyncio.to_thread(simulated.stop_all, place.home)
    shutil.rmtree(simulation_dir(place.home, node.campaign))
    assert (await place.provider().describe(node)).state == "absent"


def simulator_log(place: SimulatedPlace, node: NodeIdentity) -> str:
    return (simulation_dir(place.home, node.campaign) / "simulator.log").read_text()


def find_simulator(place: SimulatedPlace, node: NodeIdentity) -> psutil.Process | None:
    mark = ProcessMark.read(simulation_dir(place.home, node.campaign) / "simulator.pid")
    return mark.find() if mark is not None else None


def simulator_of(place: SimulatedPlace, node: NodeIdentity) -> psutil.Process:
    found = find_simulator(place, node)
    assert found is not None
    return found
