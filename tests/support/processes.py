"""Real processes for tests: started with a log file, waited for, and always ended by their own pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.wait import wait_until_sync

REPOSITORY = Path(__file__).resolve().parents[2]

STOP_SECONDS = 15.0
"""From SIGTERM to SIGKILL when a test ends; everything of ours stops within a second unless the machine is loaded."""


class Process:
    """One started program; `log` holds its stdout and stderr together unless told otherwise."""

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self.log = log
        self.command = list(command)
        with log.open("ab") as output:
            # A session of its own, so that a test can signal the whole group and never hits pytest.
            self._popen = subprocess.Popen(
                self.command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=dict(env), cwd=cwd,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def text(self) -> str:
        """Everything it has written."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def signal_group(self, number: int) -> None:
        """To it and to all of its children that stayed in its process group."""
        if self.alive:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._popen.kill()
        self._popen.wait(STOP_SECONDS)

    def wait(self, *, seconds: float = 30.0) -> int:
        """Exit code (negative: the signal that ended it); AssertionError with its output when it goes on."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} still runs after {seconds:g} s:\n{self.text()[-4000:]}") from None

    def wait_for_text(self, needle: str, *, seconds: float = 30.0) -> str:
        """Wait until the output contains the text; fails at once when the process ends without it."""

        def seen() -> bool:
            if needle in self.text():
                return True
            assert self.alive, f"{self.command} ended with {self._popen.returncode}:\n{self.text()[-4000:]}"
            return False

        wait_until_sync(seen, seconds=seconds, what=f"{needle!r} in the output of {self.command}")
        return self.text()

    def stop(self) -> None:
        """SIGTERM, after `STOP_SECONDS` SIGKILL."""
        if self.alive:
            self._popen.send_signal(signal.SIGCONT)  # a frozen one cannot end
            self._popen.terminate()
        try:
            self._popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


class Processes:
    """Starts programs and ends all of them when the test is over. Get it as the `processes` fixture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Process] = []

    def start(
        self,
        command: Sequence[str],
        *,
        name: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
    ) -> Process:
        """Start a program with this environment on top of the test's own; its log is `<name>.log` in the folder."""
        log = self.folder / f"{name or Path(command[0]).name}-{len(self.started)}.log"
        process = Process(command, log=log, env={**os.environ, **(env or {})}, cwd=cwd)
        self.started.append(process)
        return process

    def python(
        self, *arguments: str, name: str = "", env: Mapping[str, str] | None = None, cwd: Path = REPOSITORY
    ) -> Process:
        """`python <arguments>` with this test's interpreter, unbuffered."""
        return self.start(
            [sys.executable, *arguments], name=name or arguments[-1].replace("/", "_"), cwd=cwd,
            env={"PYTHONUNBUFFERED": "1", **(env or {})},
        )  # fmt: skip

    def stop_all(self) -> None:
        for process in reversed(self.started):
            process.stop()


def process_exists(pid: int) -> bool:
    """Whether a process with this pid runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
