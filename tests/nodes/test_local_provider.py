"""The local provider keeps the contract, and what is particular to processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from activities.providers import node_folder
from activities.providers.base import TemporalAddress
from activities.providers.local import LocalOptions, LocalProvider, stop_all
from activities.providers.node_folder import NodeFolder
from activities.providers.processes import NODE_VARIABLE, marked
from anabasis.campaign.messages import NodeDescription, NodeIdentity
from anabasis.errors import ProviderError
from tests.nodes.conftest import (
    FAKE_TRAINER,
    Machine,
    alive,
    behave,
    identity,
    process_at,
    request_for,
    until_training,
)
from tests.nodes.provider_contract import ProviderContract
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until


class LocalPlace:
    """A home directory."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.temporal = TemporalAddress(target=address, namespace="default")

    def provider(self) -> LocalProvider:
        return LocalProvider(home=self.home, trainer_command=FAKE_TRAINER)

    def crowded(self, limit: int) -> LocalProvider:
        return LocalProvider(LocalOptions(max_nodes=limit), home=self.home, trainer_command=FAKE_TRAINER)

    def lives_of(self, node: NodeIdentity) -> int:
        return len(alive(NodeFolder(self.home, node)))

    async def lose(self, node: NodeIdentity) -> None:
        for process in marked(NodeFolder(self.home, node).marker):
            process.kill()

    async def freeze(self, node: NodeIdentity) -> None:
        process_at(NodeFolder(self.home, node).agent_pid).suspend()

    async def make_unreadable(self) -> None:
        for path in node_folder.nodes_dir(self.home).glob("*/*/node.json"):
            path.unlink()
            path.mkdir()  # root may read everything, but not this


class TestLocalProvider(ProviderContract):
    @pytest.fixture
    async def place(self, temporal_server: TemporalServer, home: Path) -> AsyncIterator[LocalPlace]:
        yield LocalPlace(home, temporal_server.address)
        # The `home` fixture cannot find nodes whose registration is unreadable.
        for path in node_folder.nodes_dir(home).glob("*/*"):
            for process in marked(f"{path.parent.name}/{path.name}"):
                process.kill()


async def run_agent(folder: NodeFolder) -> subprocess.CompletedProcess[bytes]:
    """Another agent for the same node, until it ends."""
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "workers.agent", "--config", str(folder.config)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


async def test_a_crash_between_registering_and_starting_is_mended_by_asking_again(machine: Machine) -> None:
    node = identity()
    folder = NodeFolder(machine.home, node)
    assert folder.register()
    assert (await machine.provider.describe(node)).state == "absent"
    await machine.start(node)
    assert len(alive(folder)) == 1


async def test_a_crash_between_starting_and_recording_it_makes_no_second_agent(machine: Machine) -> None:
    node = identity()
    await machine.provider.request(request_for(node), temporal=machine.temporal)
    folder = NodeFolder(machine.home, node)
    folder.spawn_pid.unlink()
    await machine.provider.request(request_for(node), temporal=machine.temporal)
    await wait_until(folder.agent_pid.exists, seconds=30)
    assert len(alive(folder)) == 1


async def test_a_second_agent_of_a_node_leaves_at_once(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    second = await run_agent(folder)
    assert second.returncode == 0
    assert b"another_agent_lives_here" in second.stderr
    assert len(alive(folder)) == 1


async def test_an_agent_that_starts_after_the_release_leaves_at_once(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    await machine.provider.release(node, grace_seconds=5.0)
    late = await run_agent(folder)
    assert late.returncode == 0
    assert b"released_before_started" in late.stderr


async def test_nodes_outlive_the_process_that_asked_for_them(machine: Machine) -> None:
    node = identity()
    code = (
        "import asyncio, os, sys, pathlib\n"
        "from activities.providers.local import LocalProvider\n"
        "from activities.providers.base import TemporalAddress\n"
        "from anabasis.campaign.messages import NodeRequest\n"
        "home, request, address = sys.argv[1:]\n"
        "place = TemporalAddress(target=address, namespace='default')\n"
        "asked = NodeRequest.model_validate_json(request)\n"
        "asyncio.run(LocalProvider(home=pathlib.Path(home)).request(asked, temporal=place))\n"
        "os.killpg(0, 9)\n"
    )
    asked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(machine.home), request_for(node).model_dump_json(), machine.address],
        start_new_session=True, timeout=60, check=False,
    )  # fmt: skip
    assert asked.returncode == -signal.SIGKILL
    folder = NodeFolder(machine.home, node)
    await wait_until(folder.agent_pid.exists, seconds=30)
    assert (await machine.provider.describe(node)).state == "running"


async def test_release_ends_agent_and_trainer_politely_and_keeps_only_the_logs(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node)
    await until_training(folder)
    assert (await machine.provider.release(node, grace_seconds=20.0)).state == "absent"
    assert (await handle.result()).failure == "NodeDrained"
    assert alive(folder) == []
    assert not folder.work.exists()
    assert "fake trainer" in folder.trainer_log.read_text()


async def test_release_ends_a_frozen_agent_with_its_frozen_trainer_without_waiting(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    await machine.lease(node)
    await until_training(folder)
    for path in (folder.trainer_pid, folder.agent_pid):
        process_at(path).suspend()
    release = machine.provider.release(node, grace_seconds=600.0)
    assert (await asyncio.wait_for(release, 30)).state == "absent"
    assert alive(folder) == []


async def test_release_by_force_when_the_grace_is_over(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node, shutdown_grace_seconds=100.0)
    behave(folder, "deaf")
    await machine.lease(node)
    await until_training(folder)
    assert (await machine.provider.release(node, grace_seconds=0.5)).state == "absent"
    assert alive(folder) == []


async def test_processes_that_hide_in_sessions_of_their_own_are_ended_too(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    hidden = await asyncio.create_subprocess_exec(
        "sleep", "600", env={**os.environ, NODE_VARIABLE: folder.marker}, start_new_session=True
    )
    process_at(folder.agent_pid).kill()
    await wait_until(lambda: not folder.is_locked(), seconds=10)
    assert (await machine.provider.describe(node)).state == "stopping"
    assert (await machine.provider.release(node, grace_seconds=5.0)).state == "absent"
    assert await asyncio.wait_for(hidden.wait(), 10) == -signal.SIGKILL


async def test_a_node_of_another_machine_is_unknown(machine: Machine) -> None:
    node = identity()
    folder = NodeFolder(machine.home, node)
    folder.register()
    record = json.loads(folder.registration.read_text())
    folder.registration.write_text(json.dumps(record | {"hostname": "elsewhere", "boot": "another"}))
    assert (await machine.provider.describe(node)).state == "unknown"
    # The same disk after a restart of this machine: nothing can be left.
    folder.registration.write_text(json.dumps(record | {"boot": "another"}))
    assert (await machine.provider.describe(node)).state == "absent"


async def test_an_agent_that_cannot_start_leaves_its_reason(machine: Machine) -> None:
    node = identity()
    provider = machine.provider
    await provider.request(request_for(node), temporal=machine.temporal)
    folder = NodeFolder(machine.home, node)
    folder.config.write_text("{}")  # an interpreter takes far longer to start than this line

    async def settled() -> NodeDescription | None:
        found = await provider.describe(node)
        return found if found.state != "starting" else None

    found = await wait_until(settled, seconds=30)
    assert found is not None
    assert found.state == "absent"
    assert "config_unusable" in found.detail


async def test_stop_all_ends_every_node_politely_without_burying_it(machine: Machine) -> None:
    nodes = [identity(slot=slot) for slot in range(2)]
    folders = [await machine.start(node) for node in nodes]
    handle = await machine.lease(nodes[0])
    await until_training(folders[0])
    assert await asyncio.to_thread(stop_all, machine.home, grace_seconds=20.0) == 2
    assert (await handle.result()).failure == "NodeDrained"
    assert [alive(folder) for folder in folders] == [[], []]
    assert not any(folder.tombstone.exists() for folder in folders)
    assert await asyncio.to_thread(stop_all, machine.home) == 0


async def test_limits_hold_for_the_trainer_and_not_for_the_agent(machine: Machine) -> None:
    machine.options = LocalOptions(nice=7, cpu_limit=1, memory_limit_bytes=600 * 1024 * 1024)
    node = identity(slot=1)
    folder = await machine.start(node)
    await machine.lease(node)
    await until_training(folder)
    trainer, agent = process_at(folder.trainer_pid), process_at(folder.agent_pid)
    assert trainer.nice() == agent.nice() + 7
    assert len(trainer.cpu_affinity()) == 1
    assert trainer.rlimit(psutil.RLIMIT_DATA) == (600 * 1024 * 1024, 600 * 1024 * 1024)
    assert len(agent.cpu_affinity()) == len(psutil.Process().cpu_affinity())


async def test_a_disk_that_cannot_be_written_is_the_providers_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    provider = LocalProvider(home=blocked)
    with pytest.raises(ProviderError, match="cannot be started"):
        await provider.request(request_for(identity()), temporal=TemporalAddress("127.0.0.1:1", "default"))


def test_only_the_newest_folders_of_released_nodes_are_kept(tmp_path: Path) -> None:
    for attempt in range(5):
        node = NodeIdentity(campaign="c", slot=0, attempt=attempt, nonce="n")
        folder = NodeFolder(tmp_path, node)
        folder.register()
        if attempt != 0:
            folder.bury()
            os.utime(folder.tombstone, (attempt, attempt))
    assert node_folder.prune(tmp_path, campaign="c", keep=2) == 2
    assert [folder.node.attempt for folder in node_folder.folders(tmp_path)] == [0, 3, 4]


def test_logs_are_cut_down_to_their_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * 500 + b"end")
    node_folder.keep_end(log, size_bytes=10)
    assert log.read_bytes() == b"aaaaaaaend"
