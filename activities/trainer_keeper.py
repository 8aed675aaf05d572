"""Keeps the one trainer of a node: watches it, starts it again when it was killed, ends it when it is frozen.

The trainer belongs to the agent and not to a lease: leases come and go (Temporal restarts, attempts time out) while
it trains on. What ends it for good is a `Verdict`, which stays: every later lease is told the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import structlog

from activities.agent_config import AgentConfig
from activities.providers.processes import kill_all, marked
from activities.trainer_process import Ending, Progress, TrainerProcess, end_of_log

LOOK_SECONDS = 0.2
"""Between looks at the progress file: as often as a trainer writes it."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the trainer does not run any more, and will not again.

    Attributes:
        kind: `finished`, `drained` (the agent was told to stop), or `failed`, with the type in `failure`.
    """

    kind: Literal["finished", "drained", "failed"]
    failure: str = ""
    text: str = ""


class TrainerKeeper:
    """Run `watch` as a task, on the thread whose life the trainer shares; everything else is called beside it.

    Args:
        command: the trainer's; `--config FILE` is appended.
        marker: that all processes of this node carry.

    Attributes:
        starts: of trainers, in this agent's life.
        signs_of_life: counts looks at which there was news.
        stall_seconds: no news for so long = frozen.
    """

    def __init__(self, config: AgentConfig, *, command: Sequence[str], marker: str) -> None:
        self.config = config
        self.verdict: Verdict | None = None
        self.starts = 0
        self.signs_of_life = 0
        self.last_sign_at = time.time()
        self.stall_seconds = config.stall_seconds
        self._command = list(command)
        self._marker = marker
        self._log_file = config.folder / "trainer.log"
        self._trainer: TrainerProcess | None = None
        self._last = Progress()
        self._steps_before = 0
        self._silent_seconds = 0.0
        self._spoken = False
        self._deaths: list[float] = []
        self._stopping = False
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def pid(self) -> int:
        """Of the trainer that runs; 0 when none does."""
        return self._trainer.pid if self._trainer else 0

    @property
    def progress(self) -> Progress:
        """What was heard last, with the steps of all starts."""
        last = self._trainer.progress if self._trainer else self._last
        return Progress(last.ticks, self._steps_before + last.steps, last.version, last.phase, last.at)

    @property
    def starting(self) -> bool:
        """Whether it was started, has not said anything yet, and may still take its time."""
        return self._trainer is not None and not self._spoken

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end and has not yet; bounded by the grace that it has."""
        return self._trainer is not None and self._stopping

    async def ensure_running(self, *, store_url: str) -> None:
        """Start the trainer unless it runs, or is not to run any more."""
        async with self._changing:
            if self._trainer is None and self.verdict is None:
                self._stopping = False
                await self._start(store_url=store_url)
        self._wake.set()

    async def stop(self) -> None:
        """Ask it to end after its step, and end it when it does not; a later `ensure_running` starts a new one."""
        self._stopping = True
        async with self._changing:
            if self._trainer is not None:
                await self._trainer.stop(grace_seconds=self.config.shutdown_grace_seconds)
                await self._forget()

    async def drain(self) -> None:
        """`stop`, for good: the agent is about to end."""
        await self.stop()
        self.verdict = self.verdict or Verdict("drained", text="the agent was told to stop")

    async def watch(self) -> None:
        """Until cancelled. An exception from here is a defect: the agent must end."""
        before = time.monotonic()
        while True:
            trainer = self._trainer
            if trainer is None:
                self._wake.clear()
                await self._wake.wait()
                before = time.monotonic()
                continue
            await asyncio.wait([trainer.exited], timeout=min(LOOK_SECONDS, self.stall_seconds / 5))
            now = time.monotonic()
            self._listen(trainer, elapsed=now - before)
            before = now
            if trainer.exited.done():
                await self._on_end(trainer)
            elif self._is_frozen():
                await self._on_frozen(trainer)

    def _listen(self, trainer: TrainerProcess, *, elapsed: float) -> None:
        if trainer.read():
            # Importing torch and loading a model can be silent for long on a busy machine: it has its own grace.
            self._spoken = self._spoken or trainer.progress.phase != "starting"
            self._silent_seconds = 0.0
            self.signs_of_life += 1
            self.last_sign_at = trainer.progress.at or time.time()
        else:
            # Time in which this process did not run either (frozen, suspended) says nothing of the trainer.
            self._silent_seconds += min(elapsed, 5 * LOOK_SECONDS)

    def _is_frozen(self) -> bool:
        allowed = self.stall_seconds if self._spoken else max(self.config.startup_grace_seconds, self.stall_seconds)
        return self._silent_seconds > allowed

    async def _on_frozen(self, trainer: TrainerProcess) -> None:
        async with self._changing:
            if self._stopping or self._trainer is not trainer:
                return
            text = (
                f"no sign of life for {self._silent_seconds:.1f} s in phase {trainer.progress.phase} at step "
                f"{self.progress.steps} (process {trainer.pid} is {_state_of(trainer.pid)})"
            )
            self.verdict = Verdict("failed", "TrainerFrozen", text)
            _log.error("trainer_frozen", pid=trainer.pid, reason=text)
            trainer.kill()  # it must not wake up and go on; whether it ends at once is not worth waiting for
            self._remember(trainer)

    async def _on_end(self, trainer: TrainerProcess) -> None:
        async with self._changing:
            if self._stopping or self._trainer is not trainer:
                return
            ending = trainer.ending()
            await self._forget()
            if ending.kind == "finished":
                self.verdict = Verdict("finished")
            elif ending.kind == "failed":
                self.verdict = Verdict("failed", ending.failure, ending.text)
            else:
                await self._start_again(ending)
            _log.info(
                "trainer_ended", pid=trainer.pid, kind=ending.kind, failure=ending.failure, reason=ending.text[:300]
            )

    async def _start_again(self, ending: Ending) -> None:
        now = time.monotonic()
        config = self.config
        self._deaths = [at for at in self._deaths if now - at < config.trainer_restart_window_seconds]
        self._deaths.append(now)
        if len(self._deaths) > config.trainer_restarts:
            times = (
                f" ({len(self._deaths)} times in {config.trainer_restart_window_seconds:g} s)"
                if len(self._deaths) > 1
                else ""
            )
            text = f"the trainer {ending.text}{times}\n{end_of_log(self._log_file, characters=1_500)}".strip()
            self.verdict = Verdict("failed", "TrainerCrashed", text)
            return
        _log.warning("trainer_restarted", reason=ending.text, deaths=len(self._deaths))
        await self._start()

    async def _start(self, *, store_url: str | None = None) -> None:
        work = self.config.folder / "work"
        try:
            left = await kill_all(self._strays)  # of an earlier one: two would fight over one seat
            if left:
                text = f"processes of an earlier trainer do not end: {[process.pid for process in left]}"
                self.verdict = Verdict("failed", "TrainerCrashed", text)
                return
            work.mkdir(parents=True, exist_ok=True)
            if store_url is not None:
                self._write_trainer_config(work / "trainer.json", store_url=store_url)
            self._trainer = await TrainerProcess.start(
                self._command,
                work=work,
                log=self._log_file,
                mark=self.config.folder / "trainer.pid",
                limits=self.config.limits,
            )
        except OSError as error:
            self.verdict = Verdict("failed", "TrainerCrashed", f"the trainer cannot be started: {error}")
            return
        self.starts += 1
        self._spoken = False
        self._silent_seconds = 0.0
        _log.info("trainer_started", pid=self._trainer.pid, starts=self.starts)

    def _write_trainer_config(self, path: Path, *, store_url: str) -> None:
        node = self.config.node.model_dump()
        more = {"store_url": store_url, "work_dir": str(path.parent), "parent_pid": os.getpid()}
        path.write_text(json.dumps({**node, **more}))

    async def _forget(self) -> None:
        """After the trainer's end: nothing that it started may outlive it."""
        if self._trainer is not None:
            self._remember(self._trainer)
        await kill_all(self._strays)

    def _remember(self, trainer: TrainerProcess) -> None:
        self._last = Progress(
            trainer.progress.ticks, 0, trainer.progress.version, trainer.progress.phase, trainer.progress.at
        )
        self._steps_before += trainer.progress.steps
        self._trainer = None

    def _strays(self) -> list[psutil.Process]:
        return [process for process in marked(self._marker) if process.pid != os.getpid()]


def _state_of(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.Error:
        return "gone"
