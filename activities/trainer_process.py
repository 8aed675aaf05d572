"""One start of a trainer: the process, its limits, what it says through its files, and what its end means."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from activities.agent_config import TrainerLimits
from activities.providers.processes import ProcessMark

EXIT_FINISHED = 0
EXIT_FAILED = 3
"""It wrote `failure.json`: the recipe raised, or it cannot go on for a reason it knows."""
EXIT_FENCED = 4
"""Someone newer holds its slot."""

MAX_FAILURE_CHARACTERS = 3_000
"""Of a message with its traceback: it travels in an activity's failure, which the server cuts at 4 KiB."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """What `progress.json` says.

    Attributes:
        ticks: changes whenever anything was done. steps: since the process started. at: seconds since the epoch.
    """

    ticks: int = 0
    steps: int = 0
    version: int = -1
    phase: str = "starting"
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What the end of a trainer means.

    Attributes:
        kind: `finished`; `failed` (it said why: `failure` is the type); `died` (killed, or without a verdict).
    """

    kind: Literal["finished", "failed", "died"]
    failure: str = ""
    text: str = ""


class TrainerProcess:
    """A running trainer. Start it with `start`, on the thread whose life it shares."""

    def __init__(self, process: asyncio.subprocess.Process, *, work: Path) -> None:
        self._process = process
        self._file = work / "progress.json"
        self._failure = work / "failure.json"
        self._seen: tuple[int, int] | None = None
        self.progress = Progress()
        self.exited: asyncio.Task[int] = asyncio.create_task(process.wait())

    @classmethod
    async def start(
        cls, command: Sequence[str], *, work: Path, log: Path, mark: Path, limits: TrainerLimits
    ) -> TrainerProcess:
        """Start it with the config that lies in `work`, and nothing there that an earlier one said.

        Raises:
            OSError: it cannot be started.
        """
        for name in ("progress.json", "failure.json"):
            (work / name).unlink(missing_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--config",
                str(work / "trainer.json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # signals to the agent's group are for the agent, which then tells its trainer
            )
        _limit(process.pid, limits)
        found = ProcessMark.of(process.pid)
        if found is not None:
            found.write(mark)
        return cls(process, work=work)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> bool:
        """Look at the progress file; whether there is news."""
        try:
            status = self._file.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return False
            record = json.loads(self._file.read_text())
            progress = Progress(
                ticks=int(record["ticks"]),
                steps=int(record.get("steps", 0)),
                version=int(record.get("version", -1)),
                phase=str(record.get("phase", "")),
                at=float(record.get("at", 0.0)),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False  # not there yet, or being replaced by something that is no trainer of ours
        self._seen = seen
        moved = progress.ticks != self.progress.ticks
        self.progress = progress
        return moved

    def ending(self) -> Ending:
        """What its end means; call it when `exited` is done."""
        self.read()
        return judge(self.exited.result(), phase=self.progress.phase, failure=_read_json(self._failure))

    async def stop(self, *, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL when it has not ended after `grace_seconds`; returns when it is gone."""
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self.exited], timeout=grace_seconds)
        if not done:
            self.kill()
            await asyncio.wait([self.exited], timeout=grace_seconds)

    def kill(self) -> None:
        """SIGKILL, frozen or not, without waiting for the end."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


def judge(code: int, *, phase: str, failure: dict[str, Any] | None) -> Ending:
    """Read an exit code (negative: the signal) together with what the trainer left behind."""
    if code == EXIT_FINISHED and phase == "finished":
        return Ending("finished")
    if code == EXIT_FENCED:
        return Ending("failed", "Fenced", str((failure or {}).get("message", "someone newer holds the slot")))
    if code == EXIT_FAILED and failure is not None:
        return Ending("failed", str(failure.get("type") or "TrainerCrashed"), _failure_text(failure))
    if code < 0:
        return Ending("died", text=f"was killed by {_signal_name(-code)} in phase {phase}")
    said = f": {_failure_text(failure)}" if failure is not None else ""  # a defect of ours: worth another try
    return Ending("died", text=f"ended with code {code} in phase {phase}{said}")


def end_of_log(log: Path, *, lines: int = 15, characters: int = 2_000) -> str:
    """The last lines that a trainer wrote: what there is to go by when it died without a word."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])[-characters:]


def _failure_text(failure: dict[str, Any]) -> str:
    message, trace = str(failure.get("message", "")).strip(), str(failure.get("traceback", "")).strip()
    text = message if not trace or trace in message else f"{message}\n{trace}"
    if len(text) <= MAX_FAILURE_CHARACTERS:
        return text
    half = MAX_FAILURE_CHARACTERS // 2  # the beginning says what, the end of a traceback says where
    return f"{text[:half]}\n…\n{text[-half:]}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _limit(pid: int, limits: TrainerLimits) -> None:
    """Set by the agent from outside, before the program has done anything: its later threads inherit them."""
    try:
        if limits.nice:
            os.setpriority(os.PRIO_PROCESS, pid, limits.nice)
        if limits.cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(pid, limits.cpus)
        if limits.memory_bytes is not None and hasattr(resource, "prlimit"):
            resource.prlimit(pid, resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    except OSError as error:  # gone already, which `exited` tells; or not permitted, which must not end the training
        _log.warning("limits_not_set", pid=pid, reason=str(error))
