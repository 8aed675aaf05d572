"""The local provider: a node is a process of this machine, with a folder, a session and a trainer of its own.

It outlives whoever asked for it (a control worker that is killed does not take its nodes along), and is found again
by its folder: see `node_folder` for what is in it, and why no crash in between makes two of a node or loses one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import structlog
from pydantic import Field

from activities.agent_config import (
    ORPHAN_SECONDS,
    STARTUP_GRACE_SECONDS,
    TRAINER_RESTARTS,
    AgentConfig,
    TrainerLimits,
)
from activities.providers import node_folder
from activities.providers.base import OPTIONS_PATH, Offer, ProviderOptions, TemporalAddress
from activities.providers.node_folder import NodeFolder
from activities.providers.processes import (
    NODE_VARIABLE,
    ProcessMark,
    all_marked,
    boot_id,
    is_frozen,
    kill_all,
    lives,
    marked,
    send,
    wait_gone,
)
from anabasis.campaign.messages import NodeDescription, NodeHandle, NodeIdentity, NodeRequest
from anabasis.errors import CapacityError, Fenced, ProviderError

AGENT_MODULE = "workers.agent"
TRAINER_MODULE = "anabasis.training.trainer"

STOP_ALL_GRACE_SECONDS = 20.0
"""For trainers to finish their step when the whole machine's nodes are stopped."""

MIN_MEMORY_BYTES = 512 * 1024 * 1024
"""Importing torch and training the default recipe takes 360 MB of private memory (measured; with 256 MB it cannot)."""

LOCK_FREE_SECONDS = 2.0
"""From the death of an agent to the end of its last thread: milliseconds."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Agents that this process started, to collect them when they end: otherwise they would stay as zombies."""

_log = structlog.get_logger(__name__)


class LocalOptions(ProviderOptions):
    """`fleet.provider_options` of the local provider."""

    max_nodes: int | None = Field(default=None, ge=1, description="nodes on this machine at a time, of all campaigns")
    nice: int = Field(
        default=5, ge=0, le=19, description="niceness of trainers, so that heartbeats and decisions come first"
    )
    cpu_limit: int | None = Field(default=None, ge=1, description="CPUs of one trainer (pinned, dealt out by slot)")
    memory_limit_bytes: int | None = Field(
        default=None,
        ge=MIN_MEMORY_BYTES,
        description="private memory of a trainer (RLIMIT_DATA); above: MemoryError",
    )
    price_per_hour: float | None = Field(default=None, ge=0, description="what a node of this machine is said to cost")
    orphan_seconds: float = Field(
        default=ORPHAN_SECONDS, gt=0, description="an agent without a lease for so long ends itself"
    )
    startup_grace_seconds: float = Field(
        default=STARTUP_GRACE_SECONDS, gt=0, description="from a trainer's start to its first sign of life"
    )
    trainer_restarts: int = Field(
        default=TRAINER_RESTARTS, ge=0, description="starts of a killed trainer in place, within ten minutes"
    )


class LocalProvider:
    """Nodes of this machine, kept below `<home>/nodes`.

    Args:
        trainer_command: what the agent runs instead of Anabasis' trainer.
    """

    name = "local"

    def __init__(
        self, options: LocalOptions | None = None, *, home: Path, trainer_command: Sequence[str] | None = None
    ) -> None:
        self.options = options or LocalOptions()
        self.home = home
        self._trainer_command = list(trainer_command or [sys.executable, "-m", TRAINER_MODULE])

    async def offers(self) -> list[Offer]:
        limit = self.options.max_nodes
        with _os_errors("offers"):
            used = await asyncio.to_thread(self._count_present)
        return [
            Offer(
                provider=self.name,
                region=socket.gethostname(),
                machine_type=f"{os.cpu_count()} CPUs, shared",
                price_per_hour=self.options.price_per_hour,
                available=None if limit is None else max(0, limit - used),
            )
        ]

    async def request(self, request: NodeRequest, *, temporal: TemporalAddress) -> NodeHandle:
        with _os_errors(f"node {request.node.node_id} cannot be started"):
            return await asyncio.to_thread(self._request, request, temporal)

    async def describe(self, node: NodeIdentity) -> NodeDescription:
        return await asyncio.to_thread(self._describe, NodeFolder(self.home, node))

    async def list(self, campaign: str) -> list[NodeIdentity]:
        with _os_errors(f"nodes of {campaign} cannot be listed"):
            return await asyncio.to_thread(self._list, campaign)

    async def release(self, node: NodeIdentity, *, grace_seconds: float) -> NodeDescription:
        folder = NodeFolder(self.home, node)
        with _os_errors(f"node {node.node_id} cannot be released"):
            await asyncio.to_thread(self._bury, folder)
            await _end(folder, grace_seconds=grace_seconds)
            description = await asyncio.to_thread(self._describe, folder)
            if description.state == "absent":
                await asyncio.to_thread(folder.tidy)
                await asyncio.to_thread(node_folder.prune, self.home, campaign=node.campaign)
        return description

    # --- in threads: files and /proc ------------------------------------------------------------------------

    def _request(self, request: NodeRequest, temporal: TemporalAddress) -> NodeHandle:
        _reap()
        folder = NodeFolder(self.home, request.node)
        handle = NodeHandle(provider=self.name, reference=str(folder.path), price_per_hour=self.options.price_per_hour)
        with node_folder.nodes_lock(self.home):
            if folder.tombstone.exists():
                raise Fenced(f"node {request.node.node_id} ({request.node.nonce}) was released before it was started")
            if not folder.registration.exists():
                self._check_capacity()
                folder.register()
            if not folder.agent_pid.exists() and not _processes(folder):
                self._spawn(folder, request, temporal)
        return handle

    def _check_capacity(self) -> None:
        limit = self.options.max_nodes
        if limit is not None and (used := self._count_present()) >= limit:
            raise CapacityError(
                f"{used} nodes run on this machine and {OPTIONS_PATH}.max_nodes is {limit}: wait, or raise it"
            )

    def _count_present(self) -> int:
        return len(_present(node_folder.folders(self.home)))

    def _spawn(self, folder: NodeFolder, request: NodeRequest, temporal: TemporalAddress) -> None:
        folder.work.mkdir(exist_ok=True)
        folder.config.write_text(self._agent_config(folder, request, temporal).model_dump_json(indent=1))
        with folder.agent_log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", AGENT_MODULE, "--config", str(folder.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    NODE_VARIABLE: folder.marker,
                    "ANABASIS_HOME": str(self.home),
                    "PYTHONUNBUFFERED": "1",
                },
                start_new_session=True,  # signals to the control worker's terminal or group are not for its nodes
            )
        _children[child.pid] = child
        mark = ProcessMark.of(child.pid)
        if mark is not None:
            mark.write(folder.spawn_pid)
        _log.info("node_started", node=folder.marker, pid=child.pid)

    def _agent_config(self, folder: NodeFolder, request: NodeRequest, temporal: TemporalAddress) -> AgentConfig:
        options = self.options
        limits = TrainerLimits(
            nice=options.nice,
            cpus=_share_of_cpus(request.node.slot, options.cpu_limit),
            memory_bytes=options.memory_limit_bytes,
        )
        return AgentConfig(
            node=request.node,
            folder=folder.path,
            store_url=request.store_url,
            temporal_target=temporal.target,
            temporal_namespace=temporal.namespace,
            heartbeat_seconds=request.heartbeat_seconds,
            stall_seconds=request.stall_seconds,
            shutdown_grace_seconds=request.shutdown_grace_seconds,
            orphan_seconds=options.orphan_seconds,
            startup_grace_seconds=options.startup_grace_seconds,
            trainer_restarts=options.trainer_restarts,
            trainer_command=self._trainer_command,
            limits=limits,
        )

    def _describe(self, folder: NodeFolder) -> NodeDescription:
        _reap()
        try:
            return _read(folder)
        except (OSError, ValueError) as error:
            return NodeDescription(state="unknown", detail=f"{folder.path} cannot be read: {error}")

    def _list(self, campaign: str) -> list[NodeIdentity]:
        return [folder.node for folder in _present(node_folder.folders(self.home, campaign=campaign))]

    def _bury(self, folder: NodeFolder) -> None:
        with node_folder.nodes_lock(self.home):
            folder.bury()


def _read(folder: NodeFolder) -> NodeDescription:
    registered = folder.registered()
    if registered is None:
        return NodeDescription(state="absent", detail="never started")
    elsewhere = registered.get("hostname") != socket.gethostname()
    if elsewhere and registered.get("boot") != boot_id():
        return NodeDescription(state="unknown", detail=f"it runs or ran on {registered.get('hostname')}, not here")
    if folder.is_locked():
        agent = _find(folder.agent_pid)
        return NodeDescription(state="running", detail="frozen" if agent is not None and is_frozen(agent) else "")
    left = _processes(folder)
    if not left:
        return NodeDescription(state="absent", detail=_last_line(folder))
    if folder.agent_pid.exists() or folder.tombstone.exists():
        return NodeDescription(state="stopping", detail=f"{len(left)} processes are left")
    return NodeDescription(state="starting")


def _processes(folder: NodeFolder) -> list[psutil.Process]:
    """Everything of a node that lives: what carries its marker, and what is written down."""
    found = {process.pid: process for process in marked(folder.marker)}
    for path in (folder.agent_pid, folder.spawn_pid, folder.trainer_pid):
        process = _find(path)
        if process is not None:
            found[process.pid] = process
    return list(found.values())


def _present(folders: list[NodeFolder]) -> list[NodeFolder]:
    """Those of which something lives here, with one look at the process table for all of them."""
    markers = {marker for _, marker in all_marked()}
    return [folder for folder in folders if folder.marker in markers or folder.is_locked()]


def _find(path: Path) -> psutil.Process | None:
    mark = ProcessMark.read(path)
    return mark.find() if mark is not None else None


async def _end(folder: NodeFolder, *, grace_seconds: float) -> None:
    """The agent politely, who takes its trainer along; then everything by force."""
    agent = await asyncio.to_thread(lambda: _find(folder.agent_pid) or _find(folder.spawn_pid))
    if agent is not None and grace_seconds > 0 and not is_frozen(agent):
        send([agent], signal.SIGTERM)
        await _wait_polite(agent, seconds=grace_seconds)
    left = await kill_all(lambda: _processes(folder))
    if left:
        _log.error("processes_do_not_end", node=folder.marker, pids=[process.pid for process in left])
        return
    # A killed process looks dead as soon as its first thread is, and lets go of its files a moment later.
    await asyncio.to_thread(_wait_unlocked, folder)


def _wait_unlocked(folder: NodeFolder) -> None:
    deadline = time.monotonic() + LOCK_FREE_SECONDS
    while folder.is_locked() and time.monotonic() < deadline:
        time.sleep(0.01)


async def _wait_polite(agent: psutil.Process, *, seconds: float) -> None:
    """Until it has ended, or its time is up, or it was frozen meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline and lives(agent) and not is_frozen(agent):
        _reap()
        await wait_gone([agent], seconds=min(0.5, deadline - loop.time()))
    _reap()


def stop_all(home: Path, *, grace_seconds: float = STOP_ALL_GRACE_SECONDS) -> int:
    """End every node of this machine that was started from `home`; returns how many lived. For `anabasis down`.

    They are not released: their campaigns find out that they are absent, and replace them when they go on.
    Call it where no event loop runs (a command, or a thread).
    """

    async def stop() -> int:
        found = _present(node_folder.folders(home))
        await asyncio.gather(*(_end(folder, grace_seconds=grace_seconds) for folder in found))
        return len(found)

    return asyncio.run(stop())


def _reap() -> None:
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


def _share_of_cpus(slot: int, count: int | None) -> list[int]:
    """CPUs for a slot's trainer: neighbouring slots get different ones as long as there are any."""
    if count is None:
        return []
    available: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    if available is None:  # no pinning on this platform
        return []
    cpus = sorted(available(0))
    first = slot * count % len(cpus)
    return sorted({cpus[(first + step) % len(cpus)] for step in range(count)})


def _last_line(folder: NodeFolder) -> str:
    try:
        lines = folder.agent_log.read_bytes()[-4_096:].decode(errors="replace").strip().splitlines()
    except OSError:
        return "ended"
    return f"ended; its log's last line: {lines[-1][:300]}" if lines else "ended without a word"


@contextmanager
def _os_errors(what: str) -> Iterator[None]:
    """A full or read-only disk, or too many processes, is this provider's way of being out of order."""
    try:
        yield
    except OSError as error:
        raise ProviderError(f"{what}: {error}") from error
