"""The embedded stack: Temporal's dev server and our workers, supervised by one process.

    lock → end what an earlier life left over → Temporal → namespace → workers → all answer → supervise
    … stop: node agents of this machine → workers → Temporal → forget

The supervisor starts a crashed child again with growing pauses, and gives up with one line when it keeps crashing.
Children die with the supervisor, even with one that was killed; node agents do not, since a campaign outlives its
stack: they go on training and find Temporal again at the same address.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from anabasis.errors import AnabasisError, StackError
from anabasis.storage import default_store_url
from workers import ports, teardown
from workers.connect import target
from workers.health import AGGREGATOR_PARTS, CONTROL_PARTS
from workers.state_dir import ProcessRecord, StackRecord, StateDir
from workers.supervisor import TEMPORAL_STOP_SECONDS, WORKER_STOP_SECONDS, Supervisor, WorkerSpec
from workers.temporal_server import HOST

DEFAULT_PORT = 7233
UI_PORT_OFFSET = 1_000
"""The Web UI's port above Temporal's, as in Temporal's own tools: 7233 and 8233."""

STOP_SECONDS = 2 * teardown.NODES_STOP_SECONDS + WORKER_STOP_SECONDS + TEMPORAL_STOP_SECONDS + 10.0
"""Everything that is stopped one after the other, and room for the supervisor itself: then the watchdog ends it."""

LOCK_SECONDS = 1.0
"""A command that asks whether a stack runs holds the lock for a moment: keep trying for so long."""

_LOCK_POLL_SECONDS = 0.05

_log = structlog.get_logger(__name__)

WORKERS = (
    WorkerSpec("control", "workers.control", CONTROL_PARTS),
    WorkerSpec("aggregator", "workers.aggregator", AGGREGATOR_PARTS),
)


@dataclass(frozen=True, slots=True)
class StackOptions:
    """How to run a stack.

    Attributes:
        port: of Temporal; 0 = any free one.
        ui_port: of the Web UI; None = `port` + 1000 (any free one for port 0).
        external: no server of our own: workers only, for the Temporal that the environment or profile names.
        detached: recorded, for other commands to show.
    """

    port: int = DEFAULT_PORT
    ui_port: int | None = None
    external: bool = False
    detached: bool = False
    workers: tuple[WorkerSpec, ...] = field(default_factory=lambda: WORKERS)

    @property
    def wanted_ui_port(self) -> int:
        """0 = any free one."""
        if self.ui_port is not None:
            return self.ui_port
        beside = self.port + UI_PORT_OFFSET
        return beside if self.port and beside < ports.PORTS else 0


async def run_stack(
    options: StackOptions, state: StateDir, stop: asyncio.Event, *, on_ready: Callable[[StackRecord], None]
) -> None:
    """Start everything, call `on_ready`, supervise until `stop` is set, stop everything.

    Call it on the main thread: children die with the thread that started them.

    Raises:
        StackError: running already, a port is taken, a program is missing, or a child keeps crashing.
        TemporalUnavailable: `external`, and nothing answers there.
    """
    state.create()
    async with _only_one(state):
        await asyncio.to_thread(teardown.end_leftovers, state)
        supervisor = Supervisor(_plan(options, state), state, own_temporal=not options.external)
        try:
            await supervisor.run(options.workers, stop, on_ready=on_ready)
        finally:
            # Node agents first, so that they can still report; then workers; Temporal, which they report to, last.
            await _stop_nodes(state)
            await supervisor.stop_workers()
            # Once more: until a moment ago, campaigns may have replaced the nodes that they saw leave.
            await _stop_nodes(state)
            await supervisor.stop_temporal()
            state.forget()


def _plan(options: StackOptions, state: StateDir) -> StackRecord:
    record = StackRecord(
        address=target() if options.external else "",
        store_url=default_store_url(),
        home=str(state.home),
        supervisor=ProcessRecord.of("supervisor", os.getpid()),
        detached=options.detached,
    )
    if options.external:
        return record
    port = ports.choose(options.port, option="--port", purpose="Temporal")
    ui_port = ports.choose(options.wanted_ui_port, option="--ui-port", purpose="Temporal's Web UI")
    return record.model_copy(update={"address": f"{HOST}:{port}", "ui_url": f"http://{HOST}:{ui_port}"})


async def _stop_nodes(state: StateDir) -> None:
    try:
        await asyncio.to_thread(teardown.stop_nodes, state)
    except AnabasisError as error:  # whatever is wrong with the nodes, the rest must still be stopped
        _log.error("nodes_not_stopped", error=error.kind, reason=str(error))


@asynccontextmanager
async def _only_one(state: StateDir) -> AsyncIterator[None]:
    """Hold the state directory's lock, or say who does."""
    deadline = asyncio.get_running_loop().time() + LOCK_SECONDS
    while True:
        with state.lock() as mine:
            if mine:
                yield
                return
        if asyncio.get_running_loop().time() > deadline:
            record = state.read()
            who = "" if record is None else f" (process {record.supervisor.pid}, Temporal at {record.address})"
            raise StackError(
                f"a stack runs in {state.home} already{who}: stop it with `anabasis down`, "
                "or use another directory with --home"
            )
        await asyncio.sleep(_LOCK_POLL_SECONDS)
