"""The state directory of the embedded stack (`ANABASIS_HOME`, default `./.anabasis`) and what is in it.

::

    lock          flock'ed by the supervisor while it lives; the kernel releases it, so it cannot be stale
    stack.json    StackRecord: where things are and which processes belong to them
    temporal.db   the dev server's SQLite file
    store/        the default object store
    logs/         one file per process, rotated once
    nodes/        work directories of the local provider's nodes
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabasis.errors import StackError

HOME_VARIABLE = "ANABASIS_HOME"
DEFAULT_HOME = ".anabasis"

_SAME_START_SECONDS = 2.0
"""The boot time that process start times are computed from moves by about a second when the clock is set."""


def home_dir() -> Path:
    """Absolute path of the state directory (not created)."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


class ProcessRecord(BaseModel):
    """A process, recognisable for ever: pids are reused, pid and start time together are not."""

    model_config = ConfigDict(frozen=True)

    name: str
    pid: int
    started_at: float

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessRecord:
        """Record a live process. Raises `psutil.NoSuchProcess` when it is gone."""
        return cls(name=name, pid=pid, started_at=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """The process if it still runs, never another one that got its pid."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


class StackRecord(BaseModel):
    """What the supervisor tells other commands.

    Attributes:
        address: Temporal's gRPC address, host:port.
        ui_url: Temporal's Web UI; empty when the stack runs against someone else's Temporal.
        ready: every part answered at least once.
        detached: started with `--detach`.
    """

    address: str
    namespace: str = "default"
    ui_url: str = ""
    store_url: str
    home: str
    supervisor: ProcessRecord
    children: list[ProcessRecord] = Field(default_factory=list)
    ready: bool = False
    detached: bool = False


class StateDir:
    """Paths and records below one state directory."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home_dir() if home is None else home.absolute()
        self.database = self.home / "temporal.db"
        self.logs = self.home / "logs"
        self._record = self.home / "stack.json"
        self._lock = self.home / "lock"

    def create(self) -> None:
        """Make the directory, for its owner only: logs and the store may hold private data.

        Raises:
            StackError: that is not possible there.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            self._lock.touch()
        except OSError as error:
            raise StackError(
                f"the state directory {self.home} cannot be used ({error.strerror}): choose another with --home"
            ) from error

    def read(self) -> StackRecord | None:
        """The record of the running or last stack; None when there is none or it is unreadable."""
        try:
            return StackRecord.model_validate_json(self._record.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, record: StackRecord) -> None:
        """Replace the record atomically."""
        partial = self._record.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(record.model_dump_json(indent=2))
        partial.replace(self._record)

    def forget(self) -> None:
        """Remove the record: the stack is down."""
        self._record.unlink(missing_ok=True)

    def is_locked(self) -> bool:
        """Whether a supervisor lives."""
        if not self._lock.exists():
            return False
        with self.lock() as mine:
            return not mine

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the single-instance lock for the block; yields False when another process holds it."""
        with self._lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
