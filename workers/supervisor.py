"""Starts the processes of a stack, waits until each of them answers, and keeps them running."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from anabasis.errors import StackError, TemporalUnavailable
from workers import temporal_server
from workers.child import Child, ChildSpec, RestartRule
from workers.connect import connect
from workers.health import QueuePart, are_polled
from workers.log_files import last_message, rotate_if_large, sources
from workers.state_dir import StackRecord, StateDir

TEMPORAL = "temporal"
"""Name of the dev server among the children."""

TEMPORAL_START_SECONDS = 60.0
"""A dev server answers within half a second; with a large database on a slow disk it takes several."""
WORKERS_START_SECONDS = 120.0
"""A worker polls after one to three seconds (torch is slow to import); a cold disk can make it a minute."""
WORKER_STOP_SECONDS = 20.0
"""For activities to end gracefully and the SDK to say goodbye."""
TEMPORAL_STOP_SECONDS = 10.0
"""For the server to close its database; it takes under a second."""

_HEALTH_POLL_SECONDS = 0.1
_ROTATE_EVERY_SECONDS = 30.0

_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process: `python -m <module>`, healthy when all its parts are polled."""

    name: str
    module: str
    parts: tuple[QueuePart, ...]


class Supervisor:
    """The children of one stack, in the order in which they were started.

    Args:
        record: what other commands read; kept up to date in the state directory.
        own_temporal: start a dev server at the record's address (otherwise one is there).
    """

    def __init__(self, record: StackRecord, state: StateDir, *, own_temporal: bool) -> None:
        self.record = record
        self._state = state
        self._own_temporal = own_temporal
        self._children: list[Child] = []

    async def run(
        self, workers: tuple[WorkerSpec, ...], stop: asyncio.Event, *, on_ready: Callable[[StackRecord], None]
    ) -> None:
        """Start all, call `on_ready`, and return when `stop` is set (also while starting).

        Raises:
            StackError: a child ends or does not answer while starting, or keeps crashing later.
        """
        if await _unless(stop, self._start(workers)):
            on_ready(self.record)
            await self._supervise(stop)

    async def stop_workers(self) -> None:
        """All workers at once, each with its own deadline."""
        await asyncio.gather(*(child.stop() for child in self._children if child.spec.name != TEMPORAL))

    async def stop_temporal(self) -> None:
        """The dev server, if it is ours."""
        await asyncio.gather(*(child.stop() for child in self._children if child.spec.name == TEMPORAL))

    async def _start(self, workers: tuple[WorkerSpec, ...]) -> bool:
        client = await (self._start_temporal() if self._own_temporal else connect())
        await temporal_server.prepare_namespace(client)
        started = [await self._start_worker(worker) for worker in workers]
        async with _deadline(WORKERS_START_SECONDS, "the workers do not poll their queues", see=self._state.logs):
            for worker, child in zip(workers, started, strict=True):
                while not await are_polled(client, worker.parts, since=child.started_at):
                    self._fail_if_one_ended()
                    await asyncio.sleep(_HEALTH_POLL_SECONDS)
        self._write(namespace=client.namespace, ready=True)
        return True

    async def _start_temporal(self) -> Client:
        port, ui_port = (int(url.rpartition(":")[2]) for url in (self.record.address, self.record.ui_url))
        line = temporal_server.command_line(port=port, ui_port=ui_port, database=self._state.database)
        child = await self._start_child(TEMPORAL, line, stop_seconds=TEMPORAL_STOP_SECONDS)
        async with _deadline(TEMPORAL_START_SECONDS, "Temporal does not answer", see=child.spec.log):
            while True:
                self._fail_if_one_ended()
                with suppress(TemporalUnavailable, RPCError):
                    client = await connect(address=self.record.address)
                    await client.count_workflows()  # the port opens before the services behind it are up
                    return client
                await asyncio.sleep(_HEALTH_POLL_SECONDS)

    async def _start_worker(self, worker: WorkerSpec) -> Child:
        command = [sys.executable, "-m", worker.module]
        return await self._start_child(worker.name, command, stop_seconds=WORKER_STOP_SECONDS)

    async def _start_child(self, name: str, command: list[str], *, stop_seconds: float) -> Child:
        log = self._state.logs / f"{name}.log"
        env = _environment(self.record, own_temporal=self._own_temporal)
        child = Child(ChildSpec(name=name, command=command, env=env, log=log, stop_seconds=stop_seconds))
        self._children.append(child)
        await child.start()
        self._write()
        return child

    def _fail_if_one_ended(self) -> None:
        for child in self._children:
            if child.exit_code is not None:
                raise StackError(
                    f"{child.spec.name} ended while starting (exit code {child.exit_code}: "
                    f"{last_message(child.spec.log)}): see {child.spec.log}"
                )

    async def _supervise(self, stop: asyncio.Event) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._keep(child)) for child in self._children]
        tasks += [asyncio.create_task(stop.wait()), asyncio.create_task(self._rotate_logs())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a child that was given up raises here
        finally:
            await _cancel(tasks)

    async def _keep(self, child: Child) -> None:
        rule = RestartRule()
        while True:
            code = await child.wait()
            lived = time.time() - child.started_at
            pause = rule.pause_after_crash(now=asyncio.get_running_loop().time(), lived=lived)
            reason = last_message(child.spec.log)
            if pause is None:
                raise StackError(
                    f"{child.spec.name} keeps crashing (exit code {code}: {reason}), so the stack stops: "
                    f"see {child.spec.log}"
                )
            _log.warning("child_crashed", child=child.spec.name, code=code, reason=reason, again_in_seconds=pause)
            await asyncio.sleep(pause)
            await child.start()
            self._write()

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(_ROTATE_EVERY_SECONDS)
            for path in sources(self._state.home).values():
                with suppress(OSError):  # a full disk shows itself elsewhere
                    await asyncio.to_thread(rotate_if_large, path)

    def _write(self, **changes: Any) -> None:
        children = [child.record for child in self._children if child.record is not None]
        self.record = self.record.model_copy(update={"children": children, **changes})
        self._state.write(self.record)


def _environment(record: StackRecord, *, own_temporal: bool) -> dict[str, str]:
    env = dict(os.environ)
    if own_temporal:
        # Whatever the user's profile is for (a cluster with TLS, say), our server is not there.
        env = {key: value for key, value in env.items() if not key.startswith("TEMPORAL_")}
        env |= {"TEMPORAL_CONFIG_FILE": os.devnull, "TEMPORAL_ADDRESS": record.address}
    return env | {"ANABASIS_HOME": record.home, "ANABASIS_STORE": record.store_url, "PYTHONUNBUFFERED": "1"}


@asynccontextmanager
async def _deadline(seconds: float, problem: str, *, see: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StackError(f"{problem} after {seconds:g} s: see {see}") from None


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when it is told to stop first (the work is cancelled then)."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await _cancel([working, stopping])


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
