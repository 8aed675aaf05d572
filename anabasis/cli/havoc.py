"""What the demo breaks: real processes of this machine and real bytes on its disk, at chosen versions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from anabasis.campaign.records import keys
from anabasis.campaign.status import CampaignStatus, Incident
from anabasis.storage import open_store, versions
from workers.state_dir import StateDir

LOOK_SECONDS = 0.02
"""A contribution lies in the mailbox only until its round closes."""

CORRUPTION_SECONDS = 30.0
RESTART_SECONDS = 60.0
REACH_SECONDS = 300.0
"""For the campaign to come to a version; it trains meanwhile, and the demo has its own deadline."""


@dataclass(slots=True)
class Fault:
    """One thing that was broken. Times are seconds since the epoch, by this machine's clock."""

    what: str
    incident: str | None
    done_at: float
    slot: int | None = None
    noticed_at: float | None = None
    mended_at: float | None = None
    decision: str = ""

    def take(self, incidents: list[Incident]) -> None:
        """Fill in what the campaign says of it."""
        for found in incidents:
            same = found.kind == self.incident and (self.slot is None or found.slot == self.slot)
            if same and found.noticed_at >= self.done_at - 0.5:
                self.noticed_at, self.mended_at, self.decision = found.noticed_at, found.mended_at, found.decision
                return


class Havoc:
    """Breaks a running campaign once it has reached certain versions.

    Args:
        campaign, home, store_url: where it runs.
        status: asks the campaign.
        say: tells the user.
    """

    def __init__(
        self,
        campaign: str,
        *,
        home: Path,
        store_url: str,
        status: Callable[[], Awaitable[CampaignStatus]],
        say: Callable[[str], None],
    ) -> None:
        self._nodes = home / "nodes" / campaign
        self._state = StateDir(home)
        self._store = open_store(store_url).child(keys.campaign_root(campaign))
        self._root = Path(store_url.removeprefix("file://")) / keys.campaign_root(campaign)
        self._status = status
        self._say = say
        self.faults: list[Fault] = []

    async def run(self) -> None:
        """Do it all, one after the other, each once the campaign has come so far."""
        await self._reach(2)
        await self._signal("agent.pid", slot=0, number=signal.SIGKILL, what="node agent killed", incident="lost")
        await self._reach(4)
        await self._signal("trainer.pid", slot=1, number=signal.SIGSTOP, what="trainer frozen", incident="frozen")
        await self._reach(6)
        await self._kill_control()
        await self._reach(8)
        await self._corrupt()

    async def _reach(self, version: int) -> None:
        deadline = time.time() + REACH_SECONDS
        while time.time() < deadline:
            if (await asyncio.to_thread(versions.newest_version, self._store) or 0) >= version:
                return
            await asyncio.sleep(0.2)

    async def _signal(self, file: str, *, slot: int, number: signal.Signals, what: str, incident: str) -> None:
        """Send a signal to a process of the slot's newest node, once it has one that trains."""
        deadline = time.time() + RESTART_SECONDS
        while time.time() < deadline:
            folders = [f for f in self._nodes.glob(f"{slot}-*") if not (f / "released").exists()]
            newest = max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
            pid = _pid(newest / file) if newest and _pid(newest / "trainer.pid") else None
            if newest is not None and pid is not None and psutil.pid_exists(pid):
                os.kill(pid, number)
                node = newest.name[: newest.name.rindex("-")]
                self._note(Fault(f"{what} ({number.name}), node {node}", incident, time.time(), slot))
                return
            await asyncio.sleep(0.1)

    async def _kill_control(self) -> None:
        record = self._state.read()
        old = next((child for child in record.children if child.name == "control"), None) if record else None
        if old is None:
            return
        os.kill(old.pid, signal.SIGKILL)
        fault = Fault("control worker killed (SIGKILL)", None, time.time(), decision="started again; nothing was lost")
        self._note(fault)
        deadline = time.time() + RESTART_SECONDS
        while time.time() < deadline:
            await asyncio.sleep(0.1)
            record = self._state.read()
            new = next((child for child in record.children if child.name == "control"), None) if record else None
            if new is not None and new.pid != old.pid:
                fault.noticed_at = fault.noticed_at or time.time()
                with suppress(Exception):  # until the new worker answers, asking fails in many ways
                    await self._status()
                    fault.mended_at = time.time()
                    return

    async def _corrupt(self) -> None:
        """Until it is noticed: bytes that the aggregator has read already can be spoiled without any effect."""
        deadline = time.time() + CORRUPTION_SECONDS
        tried: set[Path] = set()
        while time.time() < deadline:
            version = await asyncio.to_thread(versions.newest_version, self._store) or 0
            mail = [f for f in (self._root / keys.mail_prefix(version)).glob("*.safetensors") if f not in tried]
            if mail:
                victim = max(mail, key=lambda file: file.stat().st_mtime)
                tried.add(victim)
                with suppress(OSError):
                    _flip(victim)
                    at = time.time()
                    if await self._heard_of_corruption(victim):
                        what = f"contribution of node {victim.stem} in round {version} corrupted on disk"
                        self._note(Fault(what, "corrupt_contribution", at, int(victim.name.split("-")[0])))
                        return
            await asyncio.sleep(LOOK_SECONDS)

    async def _heard_of_corruption(self, victim: Path) -> bool:
        """The aggregator deletes what it finds corrupt, so that the node sends it again: another file, same name."""
        spoiled = victim.stat().st_ino
        for _ in range(100):
            try:
                if victim.stat().st_ino != spoiled:
                    return True
            except FileNotFoundError:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)
        self._say(f"broke: {fault.what}")


def _pid(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _flip(path: Path) -> None:
    """Change bytes near the end, in the file itself: what a bad disk does."""
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        tail = file.read(32)
        file.seek(-64, os.SEEK_END)
        file.write(bytes(byte ^ 0xFF for byte in tail))
