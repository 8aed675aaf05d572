"""The folder of one node of this machine: `<home>/nodes/<campaign>/<slot>-<attempt>-<nonce>/`.

::

    node.json      the registration: written, once, before anything is started
    agent.json     AgentConfig, what the agent is told
    agent.lock     flock'ed by the agent while it lives; the kernel releases it, so it cannot be stale
    agent.pid      who holds the lock (written by the agent itself); once it is there, no agent is started again
    spawn.pid      the process that was started last, which may not have come so far
    trainer.pid    the trainer that runs or ran last
    released       the tombstone: nothing is ever started here again
    agent.log, trainer.log
    work/          the trainer's; removed on release
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from activities.providers.processes import boot_id
from anabasis.campaign.messages import NodeIdentity
from anabasis.errors import ProviderError

KEPT_FOLDERS = 100
"""Released nodes per campaign whose folders (logs, mostly) are kept, the newest."""

KEPT_LOG_BYTES = 1_000_000
"""The end of each log that is kept after release: a hundred of them are bearable, and the end says why."""


NODES_LOCK_SECONDS = 10.0
"""Starting a process takes some milliseconds under this lock."""

_LOCK_POLL_SECONDS = 0.01


class NodeFolder:
    """Paths and records of one node. Creates nothing unless asked to."""

    def __init__(self, home: Path, node: NodeIdentity) -> None:
        self.node = node
        self.path = nodes_dir(home) / node.campaign / f"{node.slot}-{node.attempt}-{node.nonce}"
        self.registration = self.path / "node.json"
        self.config = self.path / "agent.json"
        self.lock = self.path / "agent.lock"
        self.agent_pid = self.path / "agent.pid"
        self.spawn_pid = self.path / "spawn.pid"
        self.trainer_pid = self.path / "trainer.pid"
        self.tombstone = self.path / "released"
        self.agent_log = self.path / "agent.log"
        self.trainer_log = self.path / "trainer.log"
        self.work = self.path / "work"

    @property
    def marker(self) -> str:
        """What the node's processes carry in their environment. The nonce makes it unique for ever."""
        return f"{self.node.campaign}/{self.path.name}"

    def register(self) -> bool:
        """Write the registration; returns whether this call was the first to."""
        self.path.mkdir(parents=True, exist_ok=True)
        record = {
            **self.node.model_dump(),
            "registered_at": time.time(),
            "hostname": socket.gethostname(),
            "boot": boot_id(),
        }
        partial = self.path / f".node.json.{os.getpid()}"
        with partial.open("w") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, self.registration)  # creates it, whole, or fails because it is there
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
        return True

    def registered(self) -> dict[str, Any] | None:
        """The registration; None when there is none. Raises OSError or ValueError when it cannot be read."""
        try:
            return json.loads(self.registration.read_text())
        except FileNotFoundError:
            return None

    def bury(self) -> None:
        """Set the tombstone, also for a node that was never asked for: the request may be on its way."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.tombstone.open("a"):
            pass

    def is_locked(self) -> bool:
        """Whether an agent lives here (frozen or not)."""
        try:
            with self.lock.open("r") as file:
                # Shared: those who only ask do not disturb each other, and an agent that starts tries for a while.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def tidy(self) -> None:
        """After release: the work is in the store or worthless; the ends of the logs are kept."""
        shutil.rmtree(self.work, ignore_errors=True)
        for log in (self.agent_log, self.trainer_log):
            with suppress(OSError):
                log.with_name(log.name + ".1").unlink(missing_ok=True)
                keep_end(log, size_bytes=KEPT_LOG_BYTES)


def nodes_dir(home: Path) -> Path:
    return home / "nodes"


@contextmanager
def nodes_lock(home: Path) -> Iterator[None]:
    """Held while a node is started or buried here: those two never overlap. Waits for its turn (milliseconds).

    Raises:
        ProviderError: it does not get its turn: whoever holds the lock is frozen.
    """
    folder = nodes_dir(home)
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + NODES_LOCK_SECONDS
    with (folder / "lock").open("a") as file:
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"{folder / 'lock'} is held for more than {NODES_LOCK_SECONDS:g} s: is its holder frozen?"
                )
            time.sleep(_LOCK_POLL_SECONDS)
        yield


def try_lock(file: IO[Any]) -> bool:
    """Take the exclusive lock of an open file, if nobody has it. Closing the file, however it happens, frees it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def folders(home: Path, *, campaign: str | None = None) -> list[NodeFolder]:
    """Folders of all nodes ever asked for (as far as they are kept), of one campaign or of all."""
    found: list[NodeFolder] = []
    for path in sorted(nodes_dir(home).glob(f"{campaign or '*'}/*/node.json")):
        with suppress(OSError, ValueError):  # removed this moment, or not ours
            found.append(NodeFolder(home, NodeIdentity.model_validate_json(path.read_bytes())))
    return found


def prune(home: Path, *, campaign: str, keep: int = KEPT_FOLDERS) -> int:
    """Remove the oldest folders of released nodes beyond `keep`; returns how many."""
    buried: list[tuple[float, Path]] = []
    for tombstone in (nodes_dir(home) / campaign).glob("*/released"):
        with suppress(OSError):
            buried.append((tombstone.stat().st_mtime, tombstone.parent))
    old = [path for _, path in sorted(buried)[: max(0, len(buried) - keep)]]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)


def keep_end(path: Path, *, size_bytes: int) -> None:
    """Cut a file down to its end. Raises OSError."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= size_bytes:
            return
        file.seek(size - size_bytes)
        end = file.read()
        file.seek(0)
        file.write(end)
        file.truncate()
