"""Processes that belong to a node of this machine: recognised for ever, found wherever they hide, ended for certain.

Every process of a node carries the node's name in its environment, which children inherit: so all of them are found
without any record, also after a crash between starting one and writing down that it was started, and also when
they have moved to sessions of their own (torchrun's workers do).
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

NODE_VARIABLE = "ANABASIS_NODE"
"""Environment variable with a node's marker."""

_SAME_START_SECONDS = 2.0
"""The boot time that process start times are computed from moves by about a second when the clock is set."""

_POLL_SECONDS = 0.05

KILL_SECONDS = 10.0
"""After SIGKILL: a process ends within milliseconds, unless it waits for a device, and then nothing helps."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process: pids are reused, pid and start time together are not. `boot` tells the machine's lives apart."""

    pid: int
    started_at: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark | None:
        """Mark of a live process; None when it is gone."""
        try:
            return cls(pid=pid, started_at=psutil.Process(pid).create_time(), boot=boot_id())
        except psutil.Error:
            return None

    @classmethod
    def read(cls, path: Path) -> ProcessMark | None:
        """A mark that `write` wrote; None when there is none (or half of one)."""
        try:
            found = json.loads(path.read_text())
            return cls(pid=int(found["pid"]), started_at=float(found["started_at"]), boot=str(found["boot"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Replace the file atomically."""
        partial = path.with_name(f".{path.name}.{self.pid}")
        partial.write_text(json.dumps({"pid": self.pid, "started_at": self.started_at, "boot": self.boot}))
        partial.replace(path)

    def find(self) -> psutil.Process | None:
        """The process, if it lives: never another one that got its pid, and no zombie."""
        if self.boot != boot_id():
            return None
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        return None


def boot_id() -> str:
    """Names this life of the machine: no process survives into the next. Empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def marked(marker: str) -> list[psutil.Process]:
    """Live processes, frozen ones too, that carry this marker (of this user's: others cannot be seen, nor be ours)."""
    return [process for process, found in all_marked() if found == marker]


def all_marked() -> Iterable[tuple[psutil.Process, str]]:
    """Every live process that carries some node's marker, with the marker."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            marker = process.environ().get(NODE_VARIABLE)
            if marker and process.status() != psutil.STATUS_ZOMBIE:
                yield process, marker


def is_frozen(process: psutil.Process) -> bool:
    """Whether it is stopped (SIGSTOP, a debugger): it cannot answer a polite request."""
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal those that still live."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


async def wait_gone(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Wait until they have ended; returns those that have not after `seconds`."""
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if lives(process)]:
        if time.monotonic() >= deadline:
            return left
        await asyncio.sleep(_POLL_SECONDS)
    return []


def lives(process: psutil.Process) -> bool:
    """Whether it runs, frozen or not; a zombie, which nobody may ever collect, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


async def kill_all(find: Callable[[], list[psutil.Process]], *, seconds: float = KILL_SECONDS) -> list[psutil.Process]:
    """SIGKILL whatever `find` finds, again and again (they may fork meanwhile); returns what would not die."""
    deadline = time.monotonic() + seconds
    while left := await asyncio.to_thread(find):
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        await wait_gone(left, seconds=min(1.0, max(0.0, deadline - time.monotonic())))
    return []
