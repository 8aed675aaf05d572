"""The real stack (`anabasis up`) in a state directory of its own, with handles on everything that can be killed.

stack = Stack(processes, home)
stack.up()
campaign = await stack.start(spec)
os.kill(stack.child("control"), signal.SIGKILL)
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from anabasis.campaign.records import VersionManifest, keys
from anabasis.client import Anabasis, CampaignHandle
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import audit_offsets, newest_version, read_version
from tests.support.processes import Process, Processes, process_exists
from tests.support.wait import wait_until, wait_until_sync
from workers.child import RestartRule
from workers.connect import connect
from workers.state_dir import StateDir

UP_SECONDS = 180.0
"""Three processes, one of which imports torch, on a machine that may run other tests."""

CAMPAIGN_SECONDS = 400.0
"""For a small campaign, with the faults of a test, on such a machine."""


class Stack:
    """Of one test. `env` is given to all of its processes, nodes included."""

    def __init__(self, processes: Processes, home: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._processes = processes
        self._env = {"ANABASIS_HOME": str(home), **(env or {})}
        self._up: Process | None = None

    def up(self) -> None:
        """Start it (again), and wait until it is ready."""
        self._up = self._processes.python(
            "-m", "anabasis.cli.main", "up", "--port", "0", "--json", name="up", env=self._env
        )
        self._up.wait_for_text('"ready":true', seconds=UP_SECONDS)

    def down(self) -> None:
        """As Ctrl-C does it; no process of it may stay."""
        assert self._up is not None
        processes = self.processes()
        self._up.signal(signal.SIGTERM)
        assert self._up.wait(seconds=UP_SECONDS) == 0, self._up.text()[-4000:]
        wait_until_sync(lambda: not any(process_exists(pid) for pid in processes), seconds=30, what="end of all")

    def child(self, name: str) -> int:
        """Pid of the supervisor's child of this name."""
        record = StateDir(self.home).read()
        assert record is not None
        return next(child.pid for child in record.children if child.name == name)

    def sound(self, name: str) -> bool:
        """Whether a child has lived long enough for the supervisor to take its next end for an accident."""
        record = StateDir(self.home).read()
        assert record is not None
        child = next(child for child in record.children if child.name == name)
        return time.time() - child.started_at > RestartRule().steady_seconds + 0.5

    def processes(self) -> set[int]:
        """Pids of everything that works for this stack now: supervisor, Temporal, workers, agents, trainers."""
        marker = f"ANABASIS_HOME={self.home}".encode()
        found: set[int] = set()
        for pid in psutil.pids():
            with suppress(OSError):
                if pid != os.getpid() and marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.add(pid)
        return found

    def kill_everything(self) -> None:
        """As a power cut: SIGKILL to all, until none is left."""

        def none_left() -> bool:
            living = {pid for pid in self.processes() if process_exists(pid)}
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not living

        wait_until_sync(none_left, seconds=30, what="death of everything")

    async def restarted(self, name: str, *, old: int) -> None:
        """Until the supervisor has started a child again."""
        await wait_until(lambda: self.child(name) != old, seconds=60, what=f"{name} started again")

    async def kill_child(self, name: str) -> None:
        """SIGKILL, and wait for its successor."""
        old = self.child(name)
        os.kill(old, signal.SIGKILL)
        await self.restarted(name, old=old)

    async def start(self, spec: dict[str, Any]) -> Campaign:
        """Start a campaign and wait until it is prepared."""
        record = StateDir(self.home).read()
        assert record is not None
        handle = await Anabasis(await connect(address=record.address)).start(spec)

        async def prepared() -> bool:
            return bool((await handle.status()).store_url)

        await wait_until(prepared, seconds=120, what="the campaign's preparation")
        return Campaign(self, handle, (await handle.status()).store_url)

    async def find(self, name: str, *, store_url: str) -> Campaign:
        """A campaign of an earlier life of the stack."""
        record = StateDir(self.home).read()
        assert record is not None
        return Campaign(self, Anabasis(await connect(address=record.address)).campaign(name), store_url)


class Campaign:
    """A running campaign, from outside: its workflow, its store, its nodes' processes."""

    def __init__(self, stack: Stack, handle: CampaignHandle, store_url: str) -> None:
        self.handle, self.store_url = handle, store_url
        self._stack = stack
        self._nodes = stack.home / "nodes" / handle.name

    @property
    def store(self) -> ObjectStore:
        return open_store(self.store_url).child(keys.campaign_root(self.handle.name))

    @property
    def version(self) -> int:
        return newest_version(self.store) or 0

    async def reach(self, version: int) -> None:
        """Until this version is committed."""
        await wait_until(lambda: self.version >= version, seconds=CAMPAIGN_SECONDS, what=f"version {version}")

    def folder(self, slot: int) -> Path:
        """Of the slot's newest node, once it trains."""

        def newest() -> Path | None:
            living = [f for f in self._nodes.glob(f"{slot}-*") if not (f / "released").exists()]
            return max(
                (f for f in living if (f / "trainer.pid").exists()), key=lambda f: f.stat().st_mtime, default=None
            )

        wait_until_sync(lambda: newest() is not None, seconds=120, what=f"a node in slot {slot}")
        found = newest()
        assert found is not None
        return found

    def pid(self, slot: int, process: str) -> int:
        """Of the slot's newest node's `agent` or `trainer`."""
        return int(json.loads((self.folder(slot) / f"{process}.pid").read_text())["pid"])

    def attempts(self, slot: int) -> int:
        """How many machines the slot has had."""
        return len(list(self._nodes.glob(f"{slot}-*")))

    async def finish(self, *, rounds: int) -> VersionManifest:
        """Wait for completion; what must be true of every campaign, whatever was done to it. Its last version."""
        await self.handle.result(timeout_seconds=CAMPAIGN_SECONDS)
        status = await self.handle.status()
        assert status.merged_rounds == rounds
        assert audit_offsets(self.store) == []  # every sample offset committed exactly once
        assert math.isclose(sum(status.ledger.values()), status.paid_node_seconds, rel_tol=1e-6)
        last = read_version(self.store, self.version)
        assert last is not None
        assert last.merged_rounds == rounds
        return last


def small_spec(name: str, *, rounds: int, slots: int = 2, **sections: Any) -> dict[str, Any]:
    """A campaign that takes about a second per round."""
    spec: dict[str, Any] = {
        "name": name,
        "recipe": "tiny",
        "target": {"rounds": rounds},
        "data": {"tokenizer": "bytes", "max_bytes": 300_000, "sequence_length": 64, "partitions": 8},
        "fleet": {"slots": slots},
        "training": {"inner_steps": 20},
        "checkpoint": {"every_rounds": 5},
        "health": {"heartbeat_seconds": 8},
        "control": {"progress_seconds": 1},
    }
    return overlaid(spec, sections)


def overlaid(spec: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """The spec with these fields on top, section by section."""
    merged = dict(spec)
    for section, fields in sections.items():
        below: Any = merged.get(section, {})
        merged[section] = {**below, **fields} if isinstance(fields, dict) else fields
    return merged
