"""One supervised process of the embedded stack, and the rule by which it is started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workers.state_dir import ProcessRecord
from workers.tether import tethered


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run.

    Attributes:
        stop_seconds: from SIGTERM to SIGKILL.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    stop_seconds: float


class Child:
    """A process that dies with this one, writes to its log file, and has a process group of its own.

    The group keeps Ctrl-C in a terminal from reaching it directly: the supervisor stops its children in order.
    """

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.started_at = 0.0
        self.record: ProcessRecord | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it (again)."""
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = time.time()
        with self.spec.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tethered(self.spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.spec.env),
                start_new_session=True,
            )
        with suppress(Exception):  # gone already: whoever waits for it will see that
            self.record = ProcessRecord.of(self.spec.name, self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return None if self._process is None else self._process.returncode

    async def wait(self) -> int:
        """Until it ends."""
        if self._process is None:
            raise RuntimeError(f"{self.spec.name} is not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when it has not ended after `stop_seconds`; returns when it is gone."""
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.stop_seconds)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@dataclass(slots=True)
class RestartRule:
    """How soon a crashed child is started again, and when no more.

    Attributes:
        first_seconds: pause after the first crash; doubles with every further one within the window.
        most_seconds: longest pause.
        crashes_allowed: that many within the window are mended by starting again; one more ends the stack.
        window_seconds: crashes longer ago than this are forgotten.
        steady_seconds: a child that lived so long was sound: its end is an accident, not part of a crash loop.
    """

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    crashes_allowed: int = 5
    window_seconds: float = 600.0
    steady_seconds: float = 5.0
    _crashes: list[float] = field(default_factory=list[float])

    def pause_after_crash(self, *, now: float, lived: float = 0.0) -> float | None:
        """Seconds to wait before starting again; None = give up. `now` is monotonic, in seconds."""
        if lived >= self.steady_seconds:
            self._crashes.clear()
            return self.first_seconds
        self._crashes = [at for at in self._crashes if now - at < self.window_seconds]
        self._crashes.append(now)
        if len(self._crashes) > self.crashes_allowed:
            return None
        return min(self.first_seconds * 2 ** (len(self._crashes) - 1), self.most_seconds)
