"""Plays the machines of one simulated campaign: `python -m workers.simulator --folder <home>/simulated/<campaign>`.

Which machines there are is written in the folder's `cloud.db` by the provider; the simulator follows that, and writes
what becomes of them. When it is killed, its machines fall silent together, and go on when it is started again. It ends
by itself when there is nothing to play, or nobody to play for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import structlog
from structlog.contextvars import bind_contextvars
from temporalio.client import Client

from activities.agent_config import ORPHAN_SECONDS
from activities.providers.cloud_table import Changes, CloudNode, CloudTable, Move
from activities.providers.node_folder import try_lock
from activities.providers.simulated import SimulatedOptions, ensure_simulator
from anabasis import logs
from workers.connect import connect, exit_cleanly
from workers.log_files import rotate_if_large
from workers.process import run_worker
from workers.simulation.model import fate_of
from workers.simulation.node import SimulatedNode
from workers.simulation.world import World

LOOK_SECONDS = 0.05
"""Between questions whether somebody wants something; a question costs microseconds."""

IDLE_SECONDS = 60.0
"""Without any machine for so long, it ends."""

LOCK_SECONDS = 1.0
"""Someone who only asks whether a simulator lives holds its lock for an instant: keep trying for so long."""

HOUSEKEEPING_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class Simulator:
    """All machines of one campaign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = CloudTable(folder)
        self._nodes: dict[str, SimulatedNode] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._given: dict[str, str] = {}
        self._moves: asyncio.Queue[Move] = asyncio.Queue()
        self._world: World | None = None
        self._contact_at = time.monotonic()
        self._busy_at = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, stop: asyncio.Event) -> None:
        """Play until told to stop, or until nobody needs it any more."""
        client = await connect(identity=f"simulator {self.folder.name}", patience_seconds=ORPHAN_SECONDS)
        changes = Changes(self.table)
        stopping = self._start(stop.wait())
        writing, keeping = self._start(self._write_moves()), self._start(self._keep_house())
        _log.info("simulating", folder=str(self.folder))
        try:
            while not stopping.done() and not self._is_idle():
                if changes.any():
                    await self._follow(client)
                await asyncio.wait([stopping, writing, keeping], timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED")
                for task in (writing, keeping):
                    if task.done():
                        task.result()  # a defect: it must not go on half
        finally:
            changes.close()
            for task in [*self._lives.values(), *self._tasks]:
                task.cancel()
            await asyncio.gather(*self._lives.values(), *self._tasks, return_exceptions=True)
            await asyncio.to_thread(self._write_now, [])

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _follow(self, client: Client) -> None:
        """Do what the table wants."""
        rows = await asyncio.to_thread(self.table.live)
        known = {row.key for row in rows}
        for key in self._nodes.keys() - known - self._lives.keys():
            del self._nodes[key]
            self._given.pop(key, None)
        for row in rows:
            if row.key not in self._nodes:
                self._create(row, client)
            wanted = "release" if row.state == "stopping" else row.order
            if wanted and self._given.get(row.key) != wanted:
                self._given[row.key] = wanted
                self._nodes[row.key].order(wanted)
        if rows:
            self._busy_at = time.monotonic()

    def _create(self, row: CloudNode, client: Client) -> None:
        options = SimulatedOptions.model_validate(row.options)
        request = row.request
        if self._world is None:
            self._world = World(campaign=request.node.campaign, store_url=request.store_url, seed=options.seed)
            self._start(self._world.follow())
        node = SimulatedNode(
            row,
            client=client,
            world=self._world,
            fate=fate_of(options, slot=request.node.slot, attempt=request.node.attempt),
            notice_seconds=options.preemption_notice_seconds,
            report=partial(self._report, row.key),
            on_contact=self._note_contact,
        )
        self._nodes[row.key] = node
        life = asyncio.create_task(node.live(), name=row.key)
        self._lives[row.key] = life
        life.add_done_callback(self._ended)

    def _ended(self, life: asyncio.Task[None]) -> None:
        key = life.get_name()
        self._lives.pop(key, None)
        self._busy_at = time.monotonic()
        if not life.cancelled() and (error := life.exception()) is not None:
            _log.error("node_crashed", node=key, exc_info=error)
            self._report(key, "absent", f"the simulator's defect: {error!r}")
        # It stays known until the table says that it is gone, so that it is not made again.

    def _report(self, key: str, state: str, detail: str) -> None:
        self._moves.put_nowait(Move(key, state, detail, time.time()))

    def _note_contact(self) -> None:
        self._contact_at = time.monotonic()

    async def _write_moves(self) -> None:
        while True:
            first = await self._moves.get()
            await asyncio.to_thread(self._write_now, [first])

    def _write_now(self, moves: list[Move]) -> None:
        while not self._moves.empty():
            moves.append(self._moves.get_nowait())
        alive = [move for move in moves if move.state != "absent"]
        gone = [move for move in moves if move.state == "absent"]
        self.table.move_all(alive, only_from=("starting", "running"))
        self.table.move_all(gone)

    async def _keep_house(self) -> None:
        log = self.folder / "simulator.log"
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            with suppress(OSError):
                await asyncio.to_thread(rotate_if_large, log)
            _log.debug("playing", nodes=len(self._lives))

    def _is_idle(self) -> bool:
        now = time.monotonic()
        if self._lives:
            return now - self._contact_at > ORPHAN_SECONDS
        return now - self._busy_at > IDLE_SECONDS


def main(arguments: list[str]) -> None:
    """Play until there is nothing to do. Never returns."""
    logs.configure(json=True)
    parser = argparse.ArgumentParser(prog="python -m workers.simulator", description="Simulated nodes of Anabasis.")
    parser.add_argument("--folder", type=Path, required=True, help="<home>/simulated/<campaign>")
    folder: Path = parser.parse_args(arguments).folder
    bind_contextvars(campaign=folder.name)
    meta = CloudTable(folder).meta()
    os.environ["TEMPORAL_ADDRESS"] = meta["temporal_target"]
    os.environ["TEMPORAL_NAMESPACE"] = meta["temporal_namespace"]
    with _only_simulator(folder) as lock:
        run_worker(partial(_play, folder, lock), json_logs=True)


async def _play(folder: Path, lock: IO[Any], stop: asyncio.Event) -> None:
    try:
        await Simulator(folder).serve(stop)
    finally:
        (folder / "simulator.pid").unlink(missing_ok=True)
        lock.close()
    # Somebody may have asked for a node while this process was about to leave, and have found it alive.
    if not stop.is_set() and CloudTable(folder).count_live():
        ensure_simulator(folder)


@contextmanager
def _only_simulator(folder: Path) -> Iterator[IO[Any]]:
    with (folder / "simulator.lock").open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(file):
            if time.monotonic() > deadline:
                _log.info("another_simulator_lives_here")
                exit_cleanly(0)
            time.sleep(0.02)
        yield file


if __name__ == "__main__":
    main(sys.argv[1:])
