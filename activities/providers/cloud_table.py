"""The simulated cloud's own memory: one SQLite file per campaign, which survives everybody.

A provider object writes what is wanted, the simulator what has become of it. Neither needs the other to be alive:
as with a cloud, asking and looking work at any time, and a simulator that is started again goes on with what is
written.

    starting → running → absent          by the simulator
    starting, running → stopping → absent   released: the first step by the provider
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabasis.campaign.messages import NodeIdentity, NodeRequest

BUSY_SECONDS = 10.0
"""To wait for another writer; a write takes well below a millisecond."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    options TEXT NOT NULL,
    requested_at REAL NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL DEFAULT '',
    order_ TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS nodes_by_state ON nodes (state);
CREATE TABLE IF NOT EXISTS refusals (key TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS log (at REAL NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

LIVE = ("starting", "running", "stopping")


@dataclass(frozen=True, slots=True)
class CloudNode:
    """One row.

    Attributes:
        order: what was done to it from outside, for the simulator to carry out: `lose`, `freeze` or `preempt`.
    """

    key: str
    request_json: str
    options_json: str
    requested_at: float
    state: str
    detail: str
    order: str

    @property
    def request(self) -> NodeRequest:
        return NodeRequest.model_validate_json(self.request_json)

    @property
    def options(self) -> dict[str, Any]:
        return json.loads(self.options_json)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a node's state; `at` is in seconds since the epoch."""

    key: str
    state: str
    detail: str
    at: float


class CloudTable:
    """Access to the file; every method is one short transaction. Raises sqlite3.Error."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cloud.db"

    def create(self) -> None:
        """Make the file, unless it is there and whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One at a time: SQLite answers "locked" at once, however patient its caller is, to two that turn WAL on.
        with self.path.with_suffix(".lock").open("a") as guard, self._open(mode="rwc") as db:
            fcntl.flock(guard, fcntl.LOCK_EX)  # held for the milliseconds below; the kernel frees a dead holder's
            # Readers and the writer do not block each other; a power cut may cost the last requests, like a cloud's.
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)

    def register(self, request: NodeRequest, *, options: dict[str, Any], state: str = "starting") -> str:
        """Write a node down, unless it is known; returns its state."""
        key = key_of(request.node)
        with self._open() as db:
            db.execute(
                "INSERT OR IGNORE INTO nodes (key, request, options, requested_at, state) VALUES (?, ?, ?, ?, ?)",
                (key, request.model_dump_json(), json.dumps(options), time.time(), state),
            )
            return str(db.execute("SELECT state FROM nodes WHERE key = ?", (key,)).fetchone()[0])

    def bury(self, node: NodeIdentity) -> None:
        """A node that was released before it was asked for is never made."""
        request = NodeRequest(node=node, provider="simulated", store_url="", heartbeat_seconds=1, stall_seconds=1)
        self.register(request, options={}, state="absent")
        with self._open() as db:
            db.execute("UPDATE nodes SET detail = 'released' WHERE key = ? AND detail = ''", (key_of(node),))

    def get(self, node: NodeIdentity) -> tuple[str, str] | None:
        """(state, detail) of a node; None when nobody asked for it."""
        with self._open() as db:
            row = db.execute("SELECT state, detail FROM nodes WHERE key = ?", (key_of(node),)).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def live(self) -> list[CloudNode]:
        """Nodes that are not absent."""
        with self._open() as db:
            rows = db.execute(
                "SELECT key, request, options, requested_at, state, detail, order_ FROM nodes "
                "WHERE state IN (?, ?, ?) ORDER BY requested_at",
                LIVE,
            ).fetchall()
        return [CloudNode(*row) for row in rows]

    def count_live(self) -> int:
        with self._open() as db:
            return int(db.execute("SELECT COUNT(*) FROM nodes WHERE state IN (?, ?, ?)", LIVE).fetchone()[0])

    def move(self, key: str, state: str, *, detail: str = "", only_from: Sequence[str] = LIVE) -> bool:
        """Change a node's state if it is in one of these; whether it was."""
        return self.move_all([Move(key, state, detail, time.time())], only_from=only_from) == 1

    def move_all(self, moves: Sequence[Move], *, only_from: Sequence[str] = LIVE) -> int:
        """Several changes at once, and a line in the cloud's log for each; returns how many were possible."""
        marks = ", ".join("?" * len(only_from))
        done = 0
        with self._open() as db:
            for move in moves:
                cursor = db.execute(
                    f"UPDATE nodes SET state = ?, detail = ? WHERE key = ? AND state IN ({marks})",  # noqa: S608
                    (move.state, move.detail, move.key, *only_from),
                )
                if cursor.rowcount > 0:
                    db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (move.at, move.key, move.state, move.detail))
                    done += 1
        return done

    def log(self) -> list[Move]:
        """What became of every node, in order: the truth against which detection can be measured."""
        with self._open() as db:
            rows = db.execute("SELECT key, state, detail, at FROM log ORDER BY at").fetchall()
        return [Move(*row) for row in rows]

    def requested_at(self) -> dict[str, float]:
        """Key → when it was first asked for, of every node ever."""
        with self._open() as db:
            return dict(db.execute("SELECT key, requested_at FROM nodes").fetchall())

    def order(self, node: NodeIdentity, what: str) -> None:
        """Have the simulator do something to a node: `lose`, `freeze`, `preempt`."""
        with self._open() as db:
            db.execute("UPDATE nodes SET order_ = ? WHERE key = ?", (what, key_of(node)))

    def refuse_again(self, node: NodeIdentity) -> int:
        """Count one more refusal of a node; returns how many there were before."""
        with self._open() as db:
            db.execute(
                "INSERT INTO refusals VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1",
                (key_of(node),),
            )
            return int(db.execute("SELECT count FROM refusals WHERE key = ?", (key_of(node),)).fetchone()[0]) - 1

    def write_meta(self, values: dict[str, str]) -> None:
        """What the simulator needs to know as a whole."""
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))

    def meta(self) -> dict[str, str]:
        with self._open() as db:
            return dict(db.execute("SELECT name, value FROM meta").fetchall())

    @contextmanager
    def _open(self, *, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", timeout=BUSY_SECONDS, uri=True)
        try:
            with db:
                yield db
        finally:
            db.close()


class Changes:
    """Whether another connection has written since the last question; asking costs microseconds."""

    def __init__(self, table: CloudTable) -> None:
        self._db = sqlite3.connect(table.path, timeout=BUSY_SECONDS, check_same_thread=False)
        self._seen = -1

    def any(self) -> bool:
        """True also on the first question."""
        version = int(self._db.execute("PRAGMA data_version").fetchone()[0])
        changed = version != self._seen
        self._seen = version
        return changed

    def close(self) -> None:
        self._db.close()


def key_of(node: NodeIdentity) -> str:
    return f"{node.slot}-{node.attempt}-{node.nonce}"
